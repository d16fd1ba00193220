package main

import (
	"errors"

	"github.com/spf13/cobra"

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

// argumentLists checks the arguments and returns one list of arguments for each run of the
// command: the given arguments, or with --all each shaped interface.
func (e *allFlag) argumentLists(f *liveFlags, args []string) ([][]string, error) {
	if !e.all {
		return [][]string{args}, nil
	}
	if len(args) > 0 {
		return nil, usagef("give %s or --all, not both", args[0])
	}
	v, err := live.Look()
	if err != nil {
		return nil, err
	}
	v.Narrow("", f.list)
	defer live.CloseAll(v.List)
	names := live.Names(v.List)
	if e.includeLeft {
		names = v.Names()
	}
	if len(names) == 0 {
		return nil, f.noneError("")
	}
	var out [][]string
	for _, name := range names {
		out = append(out, []string{name})
	}
	return out, nil
}

// each runs a command for its argument, or with --all for each shaped interface. An error on
// one interface does not stop the others.
func (e *allFlag) each(f *liveFlags, do func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		lists, err := e.argumentLists(f, args)
		if err != nil {
			return err
		}
		var errs []error
		for _, args := range lists {
			errs = append(errs, do(cmd, args))
		}
		return errors.Join(errs...)
	}
}
