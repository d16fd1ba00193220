package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
)

func newSet(s cli.Streams) *cobra.Command {
	var f live.Flags
	var span time.Duration
	var file string
	asJSON := false
	cmd := &cobra.Command{
		Use:     setCommand.use,
		GroupID: setCommand.group,
		Short:   setCommand.short,
		Long: `Change one customer, the rate of a link or the rate of a queue while the shaper
runs. Nothing is reloaded: tokens, backlogs and counters are kept, and other
customers are not affected. A change stays in force when the policy is reloaded.
It ends when you reset it, or when the shaper ends; with --state, it is in force
again after a restart. Without a change, list the changes in force.

A CHANGE of a customer is plan=NAME, a parameter such as rate=50mbit, off (drop
all of its packets), on, or reset (back to the policy). A CHANGE of a link or a
queue is rate=RATE or reset. A queue on a link has a rate only if the policy gives
it one; otherwise change the link. Instead of rate=RATE, down=RATE and up=RATE
change the rate to the customers and the rate from them.`,
		Example: `  shaper set eth0 customer 4711 plan=biz-200
  shaper set eth0 customer 4711 rate=50mbit --for 1h
  shaper set eth0 customer 4711 off
  shaper set eth0 link uplink rate=35mbit
  shaper set eth0 link ap-7 down=200mbit up=50mbit
  shaper set eth0 --file changes.txt
  shaper set eth0`,
		Args: cli.WantArgs(1, math.MaxInt, "an interface"),
		RunE: func(_ *cobra.Command, args []string) error {
			list, err := changesOf(args[1:], file, span)
			if err != nil {
				return err
			}
			return set(s, &f, args[0], list, asJSON)
		},
	}
	f.Add(cmd)
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

// parseChange parses a change, such as customer 4711 plan=biz-200 for=1h.
func parseChange(words []string, now time.Time, span time.Duration) (c changes.Change, err error) {
	if len(words) < 3 {
		return c, errors.New("want customer, link or queue, a name, and a change such as rate=50mbit")
	}
	c.Kind, c.Name = changes.TargetKind(words[0]), words[1]
	seen := map[string]bool{}
	for _, word := range policyfile.JoinUnits(words[2:]) {
		name, value, assigns := strings.Cut(word, "=")
		key := name
		if word == "off" || word == "on" {
			key = "on or off"
		}
		if seen[key] {
			return c, fmt.Errorf("%.80q: %s is given twice", word, key)
		}
		seen[key] = true
		switch {
		case word == "off" || word == "on":
			off := word == "off"
			c.Off = &off
		case word == "reset":
			c.Reset = true
		case !assigns || value == "":
			return c, fmt.Errorf("%.80q: want plan=NAME, a parameter such as rate=50mbit, off, on or reset",
				word)
		case name == "plan":
			c.Plan = value
		case name == "for":
			if span, err = policyfile.ParseDuration(value); err != nil {
				return c, err
			}
			if span <= 0 {
				return c, fmt.Errorf("for=%s: it must be above zero", value)
			}
		default:
			if c.Parameters == nil {
				c.Parameters = map[string]string{}
			}
			c.Parameters[name] = value
		}
	}
	if span > 0 {
		c.Until = now.Add(span).Round(0)
	}
	return c, c.Check()
}

const (
	maxChangesSize = 64 << 20 // size of a file of changes, bytes
	maxLineErrors  = 20       // errors in a file of changes that are reported
)

// readChanges reads a file of changes, one a line. Empty lines and lines that begin with # are
// skipped, and so is a byte order mark.
func readChanges(path string, now time.Time, span time.Duration) (out []changes.Change, err error) {
	in := os.Stdin
	if path != "-" {
		if in, err = os.Open(path); err != nil {
			return nil, &cli.UsageError{Err: cli.PlainPathError("file of changes", err)}
		}
		defer in.Close()
	}
	text, err := io.ReadAll(io.LimitReader(in, maxChangesSize+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxChangesSize {
		return nil, cli.Usagef("--file %s: larger than %d MiB, the maximum", say.Printable(path),
			maxChangesSize>>20)
	}
	out = []changes.Change{} // not nil, which lists the changes in force
	var errs []error
	n := 0
	for line := range strings.Lines(strings.TrimPrefix(string(text), "\ufeff")) {
		n++
		words, err := splitWords(line)
		if err == nil && (len(words) == 0 || strings.HasPrefix(words[0], "#")) {
			continue
		}
		var c changes.Change
		if err == nil {
			c, err = parseChange(words, now, span)
		}
		if err == nil && len(out) == changes.MaxList {
			return nil, cli.Usagef("--file %s: more than %d changes: split it", say.Printable(path),
				changes.MaxList)
		}
		if err != nil {
			if errs = append(errs,
				fmt.Errorf("%s:%d: %w", say.Printable(path), n, err)); len(errs) == maxLineErrors {
				break
			}
		}
		out = append(out, c)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, &cli.UsageError{Err: err}
	}
	return out, nil
}

// splitWords splits a line at blanks. A word may be quoted, such as "a b".
func splitWords(line string) (words []string, err error) {
	for line = strings.TrimSpace(line); line != ""; line = strings.TrimSpace(line) {
		if line[0] == '"' {
			quoted, err := strconv.QuotedPrefix(line)
			if err != nil {
				return nil, errors.New("a quote is missing")
			}
			word, _ := strconv.Unquote(quoted)
			words, line = append(words, word), line[len(quoted):]
			continue
		}
		end := strings.IndexAny(line, " \t")
		if end < 0 {
			end = len(line)
		}
		words, line = append(words, line[:end]), line[end:]
	}
	return words, nil
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
	p := say.NewPrinter(s.Out)
	switch {
	case asJSON:
		for _, row := range control.ListChanges(list) {
			p.Err = errors.Join(p.Err, say.WriteJSON(s.Out, row))
		}
	case len(list) == 1:
		c := list[0]
		c.Since, c.Author = time.Time{}, changes.Author{}
		p.Printf("%s: %s\n", name, live.ChangeInWords(&c))
	default:
		p.Printf("%s: %s made\n", name, say.Count(len(list), "change"))
	}
	return cli.AfterChange(p.Err)
}

// listChanges prints the changes in shapers of one interface.
func listChanges(s cli.Streams, shapers []live.Handle, asJSON bool) error {
	p := say.NewPrinter(s.Out)
	seen := map[string]bool{} // shapers of one command have the same changes
	now := time.Now()
	print := func(line string, row control.Change) error {
		if seen[line] {
			return nil
		}
		seen[line] = true
		if asJSON {
			return say.WriteJSON(s.Out, row)
		}
		p.Printf("%s\n", line)
		return p.Err
	}
	for _, sh := range shapers {
		all, err := sh.Changes()
		if err != nil {
			return fmt.Errorf("%s: %w", live.Name(sh.Info()), err)
		}
		if all.Problem != "" {
			fmt.Fprintf(s.Err, "shaper: warning: %s: %s\n", live.Name(sh.Info()), say.Printable(all.Problem))
		}
		for c, state := range all.States(now) {
			row := control.ChangeOf(&c)
			row.State = state
			line := sh.Info().Interface + ": " + live.ChangeInWords(&c)
			if state != "" {
				line += ": " + state
			}
			if err := print(line, row); err != nil {
				return err
			}
		}
	}
	if len(seen) == 0 && !asJSON {
		p.Printf("%s: no changes by shaper set\n", shapers[0].Info().Interface)
	}
	return p.Err
}
