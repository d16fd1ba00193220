package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
)

// exitStatus describes the exit codes of commands, by command path. Commands that are not
// listed have the exit codes of shaper.
var exitStatus = map[string]string{
	"shaper": `  0  success
  1  failure
  2  wrong usage, or an error in a policy`,
	"shaper run": `  0  detached by a signal, --for or shaper detach
  1  failure, or the policy was not confirmed in time and rolled back
  2  wrong usage, or an error in the policy`,
	"shaper tap": `  0  ended by a signal, --for or shaper detach
  1  failure
  2  wrong usage, or an error in the policy`,
	"shaper status": allOfNone,
	"shaper detach": allOfNone,
	"shaper set":    allOfNone,
	"shaper confirm": `  0  success
  1  failure, or there is nothing to confirm, as after a rollback
  2  wrong usage`,
	"shaper reload": `  0  success, also with --all if nothing is shaped; with --confirm: the policy was confirmed
  1  failure, or the policy was not confirmed in time and rolled back
  2  wrong usage, or an error in the policy`,
	"shaper replay": `  0  success, with or without warnings
  1  failure; if the capture is broken, the packets before the error were replayed
  2  wrong usage, or an error in the policy`,
	"shaper compare": `  0  success, with or without warnings
  1  failure; if the capture is broken, the packets before the error were compared
  2  wrong usage`,
	"shaper diff": `  0  success, whether the policies differ or not
  1  failure; if the capture is broken, the packets before the error were compared
  2  wrong usage, or an error in a policy`,
	"shaper check": `  0  the policy compiles, with or without warnings
  1  failure, or with --strict a warning
  2  wrong usage, or an error in the policy`,
	"shaper import": `  0  success
  1  failure, or a statement cannot be expressed in a policy
  2  wrong usage`,
	"shaper export": `  0  success
  1  failure, or the dialect cannot express a part of the policy
  2  wrong usage, or an error in the policy`,
	"shaper simulate": `  0  success
  1  failure, or the excess is above the bound
  2  wrong usage, or an error in the scenario`,
}

// allOfNone describes the exit codes of commands for all interfaces, which may be none.
const allOfNone = `  0  success, also if all interfaces are meant and none is shaped
  1  failure, or the interface is not shaped
  2  wrong usage`

// exitStatusOf returns the description of a command's exit codes.
func exitStatusOf(cmd *cobra.Command) string {
	if text, ok := exitStatus[cmd.CommandPath()]; ok {
		return text
	}
	return exitStatus["shaper"]
}

// finishCommands adds placeholders of flags, completions, and the exit status in the help to
// all commands.
func finishCommands(root *cobra.Command) {
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		help(cmd, args)
		if text, ok := exitStatus[cmd.CommandPath()]; ok {
			fmt.Fprintf(cmd.OutOrStdout(), "\nExit status:\n%s\n", text)
		}
	})
	walkCommands(root, func(cmd *cobra.Command) {
		cmd.SuggestionsMinimumDistance = 2
		cmd.InitDefaultHelpFlag()
		cmd.Flags().Lookup("help").Usage = "print this help"
		for _, flags := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
			flags.VisitAll(namePlaceholder)
		}
		completeValues(cmd)
	})
	wrapHelp(root)
}

// walkCommands calls do for a command and all of its subcommands.
func walkCommands(cmd *cobra.Command, do func(*cobra.Command)) {
	do(cmd)
	for _, sub := range cmd.Commands() {
		walkCommands(sub, do)
	}
}

// placeholder is the value of a flag, with a name for values in the help, such as FILE.
type placeholder struct {
	pflag.Value
	name string
}

func (p placeholder) Type() string { return p.name }

// repeatable is the placeholder of a flag that can be given several times.
type repeatable struct {
	placeholder
	pflag.SliceValue
}

// namePlaceholder removes the back quotes around a placeholder from a flag's usage, because
// completions print usages unchanged.
func namePlaceholder(flag *pflag.Flag) {
	name, usage := pflag.UnquoteUsage(flag)
	if usage == flag.Usage {
		return
	}
	named := placeholder{flag.Value, name}
	flag.Usage, flag.Value = usage, named
	if slice, ok := named.Value.(pflag.SliceValue); ok {
		flag.Value = repeatable{named, slice}
		if flag.DefValue == "[]" {
			flag.DefValue = ""
		}
	}
}

// unknownCommand returns an error if the command does not exist, with suggestions. cobra
// would report the first flag after the name instead.
func unknownCommand(root *cobra.Command, args []string) error {
	cmd, rest, err := root.Find(args)
	if err != nil || !cmd.HasSubCommands() || len(rest) == 0 || strings.HasPrefix(rest[0], "-") ||
		strings.HasPrefix(rest[0], "__") {
		return nil
	}
	return cli.NoArgs(cmd, rest)
}
