//go:build !linux

package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
)

// linuxOnly returns a command that exists on Linux only. Here it accepts all arguments, and fails.
func linuxOnly(use, group, short string) *cobra.Command {
	return &cobra.Command{
		Use:                use,
		GroupID:            group,
		Short:              short,
		Long:               short + ".\n\nThis command needs Linux.",
		Hidden:             group == "",
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

func newRun(cli.Streams) *cobra.Command {
	return linuxOnly("run IFACE", "shape", "Shape live traffic on an interface, in the kernel")
}

func newTap(cli.Streams) *cobra.Command {
	return linuxOnly("tap NAME --uplink IFACE", "shape",
		"Shape between a TAP device and an interface, in user space")
}

func newReload(cli.Streams) *cobra.Command {
	return linuxOnly("reload [IFACE]", "shape", "Replace the policy of a running shaper")
}

func newSet(cli.Streams) *cobra.Command {
	return linuxOnly("set IFACE [customer|link|queue NAME CHANGE...]", "shape",
		"Change a customer, link or queue while it is shaped")
}

func newConfirm(cli.Streams) *cobra.Command {
	return linuxOnly("confirm [IFACE]", "shape", "Make a policy applied with --confirm permanent")
}

func newDetach(cli.Streams) *cobra.Command {
	return linuxOnly("detach [IFACE]", "shape", "Detach a running shaper, or clean up after one that died")
}

func newStatus(cli.Streams) *cobra.Command {
	return linuxOnly("status [IFACE]", "look", "Show what is attached, and where")
}

func newStats(cli.Streams) *cobra.Command {
	return linuxOnly("stats [IFACE]", "look", "Show counters, rates and tokens of a running shaper")
}

func newBudget(cli.Streams) *cobra.Command {
	return linuxOnly("budget", "look", "Show and change budgets that hosts share on a server")
}

func newGuard(cli.Streams) *cobra.Command {
	return linuxOnly("guard IFACE", "", "Clean up after a shaper run that is killed")
}

// liveArguments is empty: live commands have no completions here.
var liveArguments map[string]cobra.CompletionFunc

// newKernelEngine fails.
func (*replayFlags) newKernelEngine(*policyfile.Compiled) (engine, error) {
	return nil, needsLinux("--engine bpf")
}
