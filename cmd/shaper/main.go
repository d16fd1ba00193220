// Command shaper meters traffic by RFC 2697, RFC 2698 and RFC 4115 and drops, queues or marks
// it by color. This folder has the user interface: commands, flags, tables and reports. The
// data path is in package dataplane.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/output"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
)

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
	exitPipe   = 128 + int(syscall.SIGPIPE) // the reader of the standard output closed it
)

// The main goroutine stays on the main thread until main or dropPrivileges unlocks it.
func init() { runtime.LockOSThread() }

func main() {
	if len(os.Args) < 2 || os.Args[1] != "run" && os.Args[1] != "tap" {
		runtime.UnlockOSThread() // only dropPrivileges needs that thread
	}
	handlePipe()
	code := run(os.Args[1:], streams{os.Stdin, os.Stdout, os.Stderr})
	if code == exitPipe {
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
	os.Exit(exitPipe)
}

// streams are the standard streams of a command.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// usageError is an error in the command line or in a policy.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// errInterrupted is the cause of a context that was canceled by a signal.
var errInterrupted = errors.New("interrupted")

// unprintedError is the error of printing a change that is in force. The exit code is that of the change.
type unprintedError struct{ err error }

func (e *unprintedError) Error() string { return e.err.Error() }

// afterChange returns the error of printing after a change.
func afterChange(err error) error {
	if err == nil {
		return nil
	}
	return &unprintedError{err}
}

// isUnprinted reports whether nothing but printing failed, after a change.
func isUnprinted(err error) bool {
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(list.Unwrap(), func(err error) bool { return !isUnprinted(err) })
	}
	_, ok := err.(*unprintedError)
	return ok
}

// run runs a command and returns the exit code.
func run(args []string, s streams) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		cancel(errInterrupted)
		interrupted.signal(s.err)
		output.Die(<-signals) // a second signal ends the process
	}()
	out := &output.Stdout{Writer: s.out, Closed: func() { cancel(output.ErrClosed) }}
	if !say.IsTerminal(s.out) {
		s.out = out
	}

	root := newRoot(s)
	root.SetArgs(args)
	err := unknownCommand(root, args)
	if err == nil {
		err = root.ExecuteContext(ctx)
	}
	writeErr := out.FirstError()
	switch {
	case isUnprinted(err):
		fmt.Fprintf(s.err, "shaper: warning: the change is in force, but could not be printed: %v\n", err)
		return exitDone
	case output.IsClosed(writeErr) && output.OnlyClosed(err):
		return exitPipe
	case writeErr != nil && (err == nil || err == writeErr):
		err = fmt.Errorf("standard output: %w", output.WithoutPath(writeErr))
	case err == nil:
		return exitDone
	}
	printed := map[string]bool{}
	for line := range strings.Lines(advised(err).Error()) {
		line = strings.TrimSuffix(line, "\n")
		// Without free file descriptors every step of the cleaning up fails, too.
		again := len(printed) > 0 && strings.HasSuffix(line, syscall.EMFILE.Error())
		if !printed[line] && !again {
			fmt.Fprintf(s.err, "shaper: %s\n", say.Printable(line))
		}
		printed[line] = true
	}
	if isUsage(err) {
		return exitUsage
	}
	return exitFailed
}

// Help lists commands in the order of AddCommand.
func init() { cobra.EnableCommandSorting = false }

func newRoot(s streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "shaper",
		Short: "Meter, mark, queue and drop traffic by RFC 2697 and RFC 2698, exactly",
		Long: `shaper meters packets by the single-rate and two-rate three-color markers of
RFC 2697, RFC 2698 and RFC 4115, and passes, marks, queues or drops them by
color.`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		DisableAutoGenTag: true,
		Args:              noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asked, _ := cmd.Flags().GetBool("version"); asked {
				_, err := fmt.Fprintf(s.out, "shaper %s\n", version())
				return err
			}
			return cmd.Help()
		},
	}
	root.SetIn(s.in)
	root.SetOut(s.out) // before InitDefaultCompletionCmd, which copies it
	root.SetErr(s.err)
	root.AddGroup(
		&cobra.Group{ID: "shape", Title: "Shape:"},
		&cobra.Group{ID: "look", Title: "Inspect:"},
		&cobra.Group{ID: "plan", Title: "Plan:"},
	)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w: see %s --help", err, cmd.CommandPath())
	})
	root.AddCommand(
		newRun(s), newTap(s), newReplay(s), newReload(s), newSet(s), newConfirm(s), newDetach(s),
		newStatus(s), newStats(s), newWhy(s), newCompare(s), newBudget(s), newCheck(s), newAdvise(s), newDiff(s), newImport(s), newExport(s), newSimulate(s), newVersion(s), newGuard(s), newMan(),
	)
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
		Use:   "help [command]",
		Short: "Help about any command",
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			if cmd, rest, err := root.Find(args); err == nil && len(rest) == 0 {
				for _, sub := range cmd.Commands() {
					if sub.IsAvailableCommand() {
						names = append(names, cobra.CompletionWithDesc(sub.Name(), sub.Short))
					}
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return usagef("no help for %q: see shaper --help", strings.Join(args, " "))
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
	completion.Args = noArgs
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
		shell.Args = noArgs
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

// wantArgs accepts least to most arguments. names describes them in errors.
func wantArgs(least, most int, names string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return usagef("want %s, got %s: see %s --help", names, say.Count(len(args), "argument"), cmd.CommandPath())
		}
		return nil
	}
}

// oneArg accepts one argument, called name in errors.
func oneArg(name string) cobra.PositionalArgs { return wantArgs(1, 1, "one "+name) }

// atMostOne accepts an interface, or no argument.
var atMostOne = wantArgs(0, 1, "at most one interface")

// isUsage reports whether an error is in the command line or in a policy.
func isUsage(err error) bool {
	return errors.As(err, new(*usageError)) || errors.As(err, new(*output.NameError)) || errors.As(err, new(*policyfile.InvalidError))
}
