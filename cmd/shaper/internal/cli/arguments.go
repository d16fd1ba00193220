package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
)

// WantArgs accepts least to most arguments. names describes them in errors.
func WantArgs(least, most int, names string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return Usagef("want %s, got %s: see %s --help", names, say.Count(len(args), "argument"),
				cmd.CommandPath())
		}
		return nil
	}
}

// OneArg accepts one argument, called name in errors.
func OneArg(name string) cobra.PositionalArgs { return WantArgs(1, 1, "one "+name) }

// AtMostOne accepts an interface, or no argument.
var AtMostOne = WantArgs(0, 1, "at most one interface")

// NoArgs rejects arguments.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if !cmd.HasSubCommands() {
		return Usagef("unexpected argument %q: see %s --help", args[0], cmd.CommandPath())
	}
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		return Usagef("unknown command %q: did you mean %s?", args[0], strings.Join(near, ", "))
	}
	return Usagef("unknown command %q: see %s --help", args[0], cmd.CommandPath())
}

// InterfaceArg returns the interface in the arguments, or "".
func InterfaceArg(args []string) string {
	if len(args) > 0 {
		return args[0]
	}
	return ""
}
