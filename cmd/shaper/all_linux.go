package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
)

// allFlag is the flag --all of commands that otherwise work on one interface.
type allFlag struct {
	all         bool
	includeLeft bool // --all includes interfaces on which something is only left behind
}

func (e *allFlag) addAll(cmd *cobra.Command, f *liveFlags, what string) {
	f.orAll = " or give --all"
	cmd.Flags().BoolVar(&e.all, "all", false, what)
}

// check rejects an interface beside --all.
func (e *allFlag) check(args []string) error {
	if e.all && len(args) > 0 {
		return cli.Usagef("give %s or --all, not both", args[0])
	}
	return nil
}

// names returns the shaped interfaces in the directions of f.
func (e *allFlag) names(f *liveFlags) ([]string, error) {
	v, err := live.Look()
	if err != nil {
		return nil, err
	}
	v.Narrow("", f.List)
	defer live.CloseAll(v.List)
	names := live.Names(v.List)
	if e.includeLeft {
		names = v.Names()
	}
	if len(names) == 0 {
		return nil, f.noneError("")
	}
	return names, nil
}

// each runs a command for its argument, or with --all for each shaped interface. An error on
// one interface does not stop the others.
func (e *allFlag) each(f *liveFlags, do func(cmd *cobra.Command, name string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := e.check(args); err != nil {
			return err
		}
		if !e.all {
			return do(cmd, cli.InterfaceArg(args))
		}
		names, err := e.names(f)
		for _, name := range names {
			err = errors.Join(err, do(cmd, name))
		}
		return err
	}
}
