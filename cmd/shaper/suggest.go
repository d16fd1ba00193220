package main

import (
	"errors"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/spelling"
)

// flagError is the error for wrong flags, with the flag that was meant or the way to the list of all.
func flagError(cmd *cobra.Command, err error) error {
	missing, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok || missing.GetSpecifiedShortnames() != "" {
		return cli.Usagef("%w: see %s --help", err, cmd.CommandPath())
	}
	var names []string
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden {
			names = append(names, flag.Name)
		}
	})
	if near := spelling.Closest(missing.GetSpecifiedName(), names); near != "" {
		return cli.Usagef("%w: did you mean --%s?", err, near)
	}
	return cli.Usagef("%w: see %s --help", err, cmd.CommandPath())
}
