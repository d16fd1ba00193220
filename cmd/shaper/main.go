// Command shaper meters traffic by RFC 2697, RFC 2698 and RFC 4115 and drops, queues or marks
// it by color. This folder has the user interface: commands, flags, tables and reports. The
// data path is in package dataplane.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/output"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
)

// The main goroutine stays on the main thread until main or dropPrivileges unlocks it.
func init() { runtime.LockOSThread() }

func main() {
	if len(os.Args) < 2 || !slices.Contains([]string{"run", "tap", "serve"}, os.Args[1]) {
		runtime.UnlockOSThread() // only dropPrivileges needs that thread
	}
	handlePipe()
	v := build()
	cli.Version.Version, cli.Version.Commit = v.Version, v.Commit
	code := run(os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	if code == cli.ExitPipe {
		diePipe()
	}
	os.Exit(code)
}

// handlePipe makes writing to a closed standard output an error. Otherwise Go would end the
// process at once and leave temporary files.
func handlePipe() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// diePipe ends the process by SIGPIPE, like a process that does not handle it.
func diePipe() {
	signal.Reset(syscall.SIGPIPE)
	os.Stdout.WriteString("\n") // Go raises SIGPIPE
	os.Exit(cli.ExitPipe)
}

// run runs a command and returns the exit code.
func run(args []string, s cli.Streams) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		cancel(cli.ErrInterrupted)
		cli.Interrupted.Signal(s.Err)
		output.Die(<-signals) // a second signal ends the process
	}()
	out := &output.Stdout{Writer: s.Out, Closed: func() { cancel(output.ErrClosed) }}
	if !say.IsTerminal(s.Out) {
		s.Out = out
	}

	root := newRoot(s)
	root.SetArgs(args)
	err := unknownCommand(root, args)
	if err == nil {
		err = root.ExecuteContext(ctx)
	}
	writeErr := out.FirstError()
	switch {
	case cli.IsUnprinted(err):
		fmt.Fprintf(s.Err, "shaper: warning: the change is in force, but could not be printed: %v\n", err)
		return cli.ExitDone
	case output.IsClosed(writeErr) && output.OnlyClosed(err):
		return cli.ExitPipe
	case writeErr != nil && (err == nil || err == writeErr):
		err = fmt.Errorf("standard output: %w", output.WithoutPath(writeErr))
	case err == nil:
		return cli.ExitDone
	case err == cli.ErrNothing:
		return cli.ExitFailed
	}
	printed := map[string]bool{}
	for line := range strings.Lines(cli.Advised(err).Error()) {
		line = strings.TrimSuffix(line, "\n")
		// Without free file descriptors every step of the cleaning up fails, too.
		again := len(printed) > 0 && strings.HasSuffix(line, syscall.EMFILE.Error())
		if !printed[line] && !again {
			fmt.Fprintf(s.Err, "shaper: %s\n", say.Printable(line))
		}
		printed[line] = true
	}
	switch {
	case cli.IsAllOfNone(err):
		return cli.ExitDone
	case cli.IsUsage(err):
		return cli.ExitUsage
	}
	return cli.ExitFailed
}

// Help lists commands in the order of AddCommand.
func init() { cobra.EnableCommandSorting = false }

func newRoot(s cli.Streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "shaper",
		Short: "Meter, mark, queue and drop traffic by RFC 2697 and RFC 2698, exactly",
		Long: `shaper meters packets by the single-rate and two-rate three-color markers of
RFC 2697, RFC 2698 and RFC 4115, and passes, marks, queues or drops them by
color.`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		DisableAutoGenTag: true,
		Args:              cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asked, _ := cmd.Flags().GetBool("version"); asked {
				_, err := fmt.Fprintf(s.Out, "shaper %s\n", version())
				return err
			}
			return cmd.Help()
		},
	}
	root.SetIn(s.In)
	root.SetOut(s.Out) // before InitDefaultCompletionCmd, which copies it
	root.SetErr(s.Err)
	root.AddGroup(
		&cobra.Group{ID: "shape", Title: "Shape:"},
		&cobra.Group{ID: "look", Title: "Inspect:"},
		&cobra.Group{ID: "plan", Title: "Plan:"},
	)
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(
		newRun(s), newServe(s), newTap(s), newReplay(s), newReload(s), newSet(s), newCustomer(s),
		newConfirm(s), newDetach(s),
		newStatus(s), newStats(s), newWhy(s), newCompare(s), newBudget(s), newCheck(s), newAdvise(s),
		newDiff(s), newImport(s), newExport(s), newSimulate(s), newVersion(s), newSchema(s),
		newGuard(s), newMan(),
	)
	for _, t := range topics {
		root.AddCommand(newTopic(t))
	}
	root.Flags().BoolP("version", "v", false, "print the version")
	root.SetHelpCommand(newHelp(root))
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	tidyCompletion(root)
	finishCommands(root)
	return root
}

// newHelp replaces cobra's help command, which does not fail for an unknown command.
func newHelp(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [command | topic [section]]",
		Short: "Help about any command or topic",
		ValidArgsFunction: func(
			_ *cobra.Command, args []string, _ string,
		) (names []string, _ cobra.ShellCompDirective) {
			if cmd, rest, err := root.Find(args); err == nil && len(rest) == 0 {
				for _, sub := range cmd.Commands() {
					if sub.IsAvailableCommand() || sub.IsAdditionalHelpTopicCommand() {
						names = append(names, cobra.CompletionWithDesc(sub.Name(), sub.Short))
					}
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(help *cobra.Command, args []string) error {
			if len(args) > 1 {
				if t, ok := findTopic(args[0]); ok {
					text, err := t.text(strings.Join(args[1:], " "))
					fmt.Fprint(help.OutOrStdout(), text)
					return err
				}
			}
			cmd, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return cli.Usagef("no help for %q: see shaper --help", strings.Join(args, " "))
			}
			cmd.InitDefaultHelpFlag()
			cmd.InitDefaultVersionFlag()
			return cmd.Help()
		},
	}
}

// tidyCompletion makes cobra's completion command reject unknown shells, and gives it texts
// that suit a man page.
func tidyCompletion(root *cobra.Command) {
	completion, _, err := root.Find([]string{"completion"})
	if err != nil {
		return
	}
	completion.Args = cli.NoArgs
	completion.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	completion.Short = "Print the completion script for a shell"
	completion.Long = "Print the script that completes commands, flags and their values in a shell."
	for _, shell := range completion.Commands() {
		file := map[string]string{
			"bash": "/etc/bash_completion.d/shaper",
			"zsh":  "/usr/local/share/zsh/site-functions/_shaper",
			"fish": "/etc/fish/completions/shaper.fish",

			"powershell": "shaper.ps1",
		}[shell.Name()]
		shell.Args = cli.NoArgs
		shell.Short = "Print the completion script for " + shell.Name()
		shell.Long = shell.Short + ". New shells load it from a file."
		switch shell.Name() {
		case "bash":
			shell.Long += " It needs the package bash-completion."
		case "powershell":
			shell.Long = shell.Short + ". A profile loads it by its name after a dot."
		}
		shell.Example = "  shaper completion " + shell.Name() + " >" + file
	}
}
