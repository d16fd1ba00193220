package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
)

// everything is the flag --all of commands that else want one interface.
type everything struct {
	all  bool
	left bool // --all includes interfaces where only something is left behind
}

func (e *everything) addAll(cmd *cobra.Command, f *liveFlags, what string) {
	f.orAll = " or give --all"
	cmd.Flags().BoolVar(&e.all, "all", false, what)
}

// names checks the arguments, and returns the interfaces to be worked on one
// after the other: those given, or with --all those of shaper.
func (e *everything) names(f *liveFlags, args []string) ([][]string, error) {
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
	if e.left {
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

// each does the work of a command for its argument, or with --all for each
// interface that is shaped. One that fails does not keep the others from it.
func (e *everything) each(f *liveFlags, do func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		names, err := e.names(f, args)
		if err != nil {
			return err
		}
		var errs []error
		for _, args := range names {
			errs = append(errs, do(cmd, args))
		}
		return errors.Join(errs...)
	}
}
