package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/remote"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/stats"
)

func newSet(s cli.Streams) *cobra.Command {
	var f live.Flags
	var from remote.Flag
	var all live.AllFlag
	var span time.Duration
	var file string
	asJSON := false
	cmd := &cobra.Command{
		Use:     setCommand.use,
		GroupID: setCommand.group,
		Short:   setCommand.short,
		Long: `Change one customer, link or queue while the shaper runs. Nothing is reloaded:
tokens, backlogs and counters are kept, and other customers are not affected. A
change stays in force when the policy is reloaded. It ends when you reset it, or
when the shaper ends; with --state, it is in force again after a restart. Without
a change, list the changes in force.

A CHANGE of a customer is plan=NAME, a parameter such as rate=50mbit or link=ap-9,
off (drop all of its packets), on, or reset (back to the policy). A CHANGE of a
link or a queue is reset, or one or more of rate=RATE, guarantee=RATE, weight=N
and priority=N; the last three need a link above. A queue on a link has a rate
only if the policy gives it one; otherwise change the link. Instead of rate=RATE,
down=RATE and up=RATE are the rate to the customers and that from them.

` + remoteHelp + `
A change is made at all interfaces of the pattern, or at none.`,
		Example: `  shaper set eth0 customer 4711 plan=biz-200
  shaper set eth0 customer 4711 link=ap-9 rate=50mbit --for 1h
  shaper set eth0 customer 4711 off
  shaper set eth0 link uplink rate=35mbit
  shaper set eth0 link ap-7 down=200mbit up=50mbit
  shaper set eth0 --file changes.txt
  shaper set eth0
  shaper set "veth*" queue all rate=80mbit --control /run/shaper.sock`,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, words := "*", args
			if !all.All {
				if err := cli.WantArgs(1, math.MaxInt, "an interface, or --all")(cmd, args); err != nil {
					return err
				}
				name, words = args[0], args[1:]
			}
			list, err := changesOf(words, file, span)
			if err != nil {
				return err
			}
			c, err := from.Client()
			switch {
			case err != nil:
				return err
			case c != nil:
				return setBy(cmd, s, c, &remote.Target{Flags: &f, Name: name}, list, asJSON)
			case all.All:
				return all.Each(&f, func(_ *cobra.Command, name string) error {
					return set(s, &f, name, list, asJSON)
				})(cmd, nil)
			}
			return set(s, &f, name, list, asJSON)
		},
	}
	f.Add(cmd)
	all.Add(cmd, &f, "change all shaped interfaces, one after the other; the process of --control changes all or none")
	from.Add(cmd)
	cmd.Flags().StringVar(&file, "file", "",
		"make all changes in `FILE`, or none; a line is a change, such as customer 4711 rate=50mbit for=1h; -: standard input")
	cmd.Flags().Var(cli.NewTimeFlag(&span, 0), "for", "end the change after `TIME`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the changes as JSON, one a line")
	return cmd
}

// changesOf returns the changes of the arguments, or of a file.
func changesOf(words []string, file string, span time.Duration) ([]changes.Change, error) {
	now := time.Now()
	switch {
	case file != "" && len(words) > 0:
		return nil, cli.Usagef("give a change or --file, not both")
	case file != "":
		return readChanges(file, now, span)
	case len(words) == 0 && span > 0:
		return nil, cli.Usagef("--for needs a change")
	case len(words) == 0:
		return nil, nil
	}
	c, err := parseChange(words, now, span)
	if err != nil {
		return nil, &cli.UsageError{Err: err}
	}
	return []changes.Change{c}, nil
}

// set makes changes in the shapers of an interface, or lists those in force.
func set(s cli.Streams, f *live.Flags, name string, list []changes.Change, asJSON bool) error {
	shapers, err := f.Choose(name)
	if err != nil {
		return err
	}
	defer live.CloseAll(shapers)
	if list == nil {
		return listChanges(s, shapers, asJSON)
	}
	now, author := time.Now().Round(0), live.Author("shaper set")
	for i := range list {
		list[i].Since, list[i].Author = now, author
	}
	if len(list) > 0 {
		err := live.Set(shapers, list)
		var unkept *changes.UnkeptError
		if errors.As(err, &unkept) {
			fmt.Fprintf(s.Err, "shaper: warning: %s: %v\n", name, unkept)
		} else if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return printMade(s, name, control.ListChanges(list), asJSON)
}

// setBy asks the process of the shapers to make changes, or for those in force.
func setBy(
	cmd *cobra.Command, s cli.Streams, c *remote.Client, t *remote.Target, list []changes.Change, asJSON bool,
) error {
	const both = "the directions of an interface have the same changes"
	if err := c.Refuse(cmd, both, "direction"); err != nil {
		return err
	}
	if list == nil {
		all, err := c.Changes(cmd.Context(), t)
		if err != nil {
			return err
		}
		return remote.PrintChanges(s, all, asJSON)
	}
	made, warning, err := c.Set(cmd.Context(), t, list)
	if err != nil {
		return err
	}
	if warning != "" {
		fmt.Fprintf(s.Err, "shaper: warning: %s: %s\n", t.Name, say.Printable(warning))
	}
	return printMade(s, t.Name, made, asJSON)
}

// printMade prints changes that were made at interfaces of a name or a pattern.
func printMade(s cli.Streams, name string, list []control.Change, asJSON bool) error {
	p := say.NewPrinter(s.Out)
	switch {
	case asJSON:
		for _, row := range list {
			p.Err = errors.Join(p.Err, say.WriteJSON(s.Out, row))
		}
	case len(list) == 1:
		c := list[0].Made()
		c.Since, c.Author = time.Time{}, changes.Author{}
		p.Printf("%s: %s\n", name, live.ChangeInWords(&c))
	default:
		p.Printf("%s: %s made\n", name, say.Count(len(list), "change"))
	}
	return cli.AfterChange(p.Err)
}

// listChanges prints the changes in shapers of one interface.
func listChanges(s cli.Streams, shapers []live.Handle, asJSON bool) error {
	out, err := changesIn(shapers)
	if err != nil {
		return err
	}
	return remote.PrintChanges(s, []remote.InterfaceChanges{out}, asJSON)
}

// changesIn returns the changes in shapers of one interface.
func changesIn(shapers []live.Handle) (remote.InterfaceChanges, error) {
	out := remote.InterfaceChanges{Interface: shapers[0].Info().Interface}
	seen := map[string]bool{} // shapers of one command have the same changes
	now := time.Now()
	for _, sh := range shapers {
		all, err := sh.Changes()
		if err != nil {
			return out, fmt.Errorf("%s: %w", live.Name(sh.Info()), err)
		}
		out.Problem = cmp.Or(out.Problem, all.Problem)
		for c, state := range all.States(now) {
			row := control.ChangeOf(&c)
			row.State = state
			if words := stats.ChangeWords(&row); !seen[words] {
				seen[words] = true
				out.List = append(out.List, row)
			}
		}
	}
	return out, nil
}
