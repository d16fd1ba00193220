//go:build !linux

package main

import (
	"fmt"
	"reflect"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
)

// linuxOnly returns a command that accepts all arguments, and fails.
func linuxOnly(head liveCommand) *cobra.Command {
	return &cobra.Command{
		Use:                head.use,
		GroupID:            head.group,
		Short:              head.short,
		Long:               head.short + ".\n\nThis command needs Linux.",
		Hidden:             head.group == "",
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, arg := range args {
				if arg == "--help" || arg == "-h" {
					return cmd.Help()
				}
			}
			return needsLinux(cmd.CommandPath())
		},
	}
}

func needsLinux(what string) error {
	return fmt.Errorf("%s needs Linux, and this is %s: run it on the host whose traffic is to be shaped",
		what, runtime.GOOS)
}

func newRun(cli.Streams) *cobra.Command     { return linuxOnly(runCommand) }
func newTap(cli.Streams) *cobra.Command     { return linuxOnly(tapCommand) }
func newReload(cli.Streams) *cobra.Command  { return linuxOnly(reloadCommand) }
func newSet(cli.Streams) *cobra.Command     { return linuxOnly(setCommand) }
func newConfirm(cli.Streams) *cobra.Command { return linuxOnly(confirmCommand) }
func newDetach(cli.Streams) *cobra.Command  { return linuxOnly(detachCommand) }
func newStatus(cli.Streams) *cobra.Command  { return linuxOnly(statusCommand) }
func newStats(cli.Streams) *cobra.Command   { return linuxOnly(statsCommand) }
func newBudget(cli.Streams) *cobra.Command  { return linuxOnly(budgetCommand) }
func newGuard(cli.Streams) *cobra.Command   { return linuxOnly(guardCommand) }
func newServe(cli.Streams) *cobra.Command   { return linuxOnly(serveCommand) }

// liveCustomerCommands returns commands of customers that fail.
func liveCustomerCommands(cli.Streams) (out []*cobra.Command) {
	for _, head := range []liveCommand{customerAdd, customerRemove, customerList, customerExport} {
		cmd := linuxOnly(head)
		cmd.Hidden = false
		out = append(out, cmd)
	}
	return out
}

// addLiveShow returns a function that fails.
func addLiveShow(*cobra.Command, cli.Streams) func(name, customer string, asJSON bool) error {
	return func(string, string, bool) error { return needsLinux("shaper customer show IFACE") }
}

// liveArguments and liveFlags are empty: live commands have no completions here.
var liveArguments, liveFlags map[string]cobra.CompletionFunc

// liveShow and liveOutputs return nothing: live commands have no outputs here.
func liveShow() []reflect.Type               { return nil }
func liveOutputs() map[string][]reflect.Type { return nil }

// chargedTwice is nil, because no shaper runs here.
var chargedTwice func(budget string) string

// newKernelEngine fails.
func (*replayFlags) newKernelEngine(*policyfile.Compiled) (engine, error) {
	return nil, needsLinux("--engine bpf")
}
