package live

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
)

// AllFlag is the flag --all of commands for one interface by default.
type AllFlag struct {
	All         bool
	IncludeLeft bool // --all includes interfaces with nothing but leftovers of killed processes
	NeedOne     bool // --all fails if no interface is shaped
}

// Add adds --all to a command with f. what describes it.
func (e *AllFlag) Add(cmd *cobra.Command, f *Flags, what string) {
	f.orAll = " or give --all"
	cmd.Flags().BoolVar(&e.All, "all", false, what)
}

// Check rejects an interface beside --all.
func (e *AllFlag) Check(args []string) error {
	if e.All && len(args) > 0 {
		return cli.Usagef("give %s or --all, not both", args[0])
	}
	return nil
}

// None makes the error that no interface is shaped a success, if --all was given and the command does not
// need one.
func (e *AllFlag) None(err error) error {
	if !e.All || e.NeedOne {
		return err
	}
	return cli.AllOfNone(err)
}

// names returns the shaped interfaces in the directions of f.
func (e *AllFlag) names(f *Flags) ([]string, error) {
	v, err := Look("")
	if err != nil {
		return nil, err
	}
	v.Narrow("", f.List)
	defer CloseAll(v.List)
	names := Names(v.List)
	if e.IncludeLeft {
		names = v.Names()
	}
	if len(names) == 0 {
		return nil, e.None(f.NoneError(""))
	}
	return names, nil
}

// Each runs a command for its argument, or with --all for each shaped interface. An error on
// one interface does not stop the others.
func (e *AllFlag) Each(
	f *Flags, do func(cmd *cobra.Command, name string) error,
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := e.Check(args); err != nil {
			return err
		}
		if !e.All {
			return do(cmd, cli.InterfaceArg(args))
		}
		names, err := e.names(f)
		for _, name := range names {
			err = errors.Join(err, do(cmd, name))
		}
		return err
	}
}
