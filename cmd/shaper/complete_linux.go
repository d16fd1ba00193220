package main

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/meter/shared"
)

// liveArguments has the completions of arguments of live commands, by command path.
var liveArguments = map[string]cobra.CompletionFunc{
	"shaper run":             firstArgument(completeInterfaces),
	"shaper reload":          firstArgument(completeShaped),
	"shaper confirm":         firstArgument(completeShaped),
	"shaper detach":          firstArgument(completeShaped),
	"shaper status":          firstArgument(completeShaped),
	"shaper stats":           byPosition(completeShaped, completeCustomers, nothing),
	"shaper set":             completeSet,
	"shaper serve":           firstArgument(directories),
	"shaper customer add":    byPosition(completeShaped, completeCustomers, completeColumns),
	"shaper customer remove": byPosition(completeShaped, completeCustomers),
	"shaper customer show":   completeShow,
	"shaper customer list":   firstArgument(completeShaped),
	"shaper customer export": firstArgument(completeShaped),
	"shaper budget show":     firstArgument(completeBudgets),
	"shaper budget set":      byPosition(completeBudgets, completeSizes),
	"shaper budget unset":    firstArgument(completeBudgets),
	"shaper budget drop":     byPosition(completeBudgets, completeHosts, nothing),
}

// completeShaped completes with the interfaces that have something of shaper. If the user
// lacks the permission to see them, it completes with all interfaces.
func completeShaped(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	v, err := live.Look("")
	if err != nil {
		return completeInterfaces(cmd, args, typed)
	}
	defer live.CloseAll(v.List)
	return v.Names(), cobra.ShellCompDirectiveNoFileComp
}

// liveFlags has the completions of values of flags of live commands, by flag.
var liveFlags = map[string]cobra.CompletionFunc{
	"plan": completePlans,
	"by":   fixedWords("bytes", "dropped", "rate"),
}

// completeSizes completes with the parameters of a budget's size.
func completeSizes(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return unused([]string{"rate=", "burst=", "cir=", "cbs=", "pir=", "pbs=", "eir=", "ebs="}, args[1:])
}

// completeBudgets completes with the budgets on servers in the policy of --policy, or with those on the
// server of --store.
func completeBudgets(cmd *cobra.Command, _ []string, _ string) (names []string, _ cobra.ShellCompDirective) {
	file := cmd.Flag("policy").Value.String()
	if file == "" {
		return onServer(cmd, func(ctx context.Context, c shared.Client) ([]string, error) {
			return shared.ListBudgets(ctx, c)
		})
	}
	policy, err := (&cli.PolicyFlags{File: file}).Load()
	if err != nil {
		return nil, noFiles
	}
	for _, s := range budgets.OnServers(policy.Plan) {
		names = append(names, s.BudgetName)
	}
	slices.Sort(names)
	return slices.Compact(names), noFiles
}
