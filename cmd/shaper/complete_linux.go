package main

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
)

// liveArguments has the completions of arguments of live commands, by command path.
var liveArguments = map[string]cobra.CompletionFunc{
	"shaper run":             firstArgument(completeInterfaces),
	"shaper reload":          firstArgument(completeShaped),
	"shaper confirm":         firstArgument(completeShaped),
	"shaper detach":          firstArgument(completeShaped),
	"shaper status":          firstArgument(completeShaped),
	"shaper stats":           firstArgument(completeShaped),
	"shaper customer add":    firstArgument(completeShaped),
	"shaper customer remove": firstArgument(completeShaped),
	"shaper customer show":   firstArgument(completeShaped),
	"shaper customer list":   firstArgument(completeShaped),
	"shaper customer export": firstArgument(completeShaped),
	"shaper budget show":     firstArgument(completeBudgets),
	"shaper budget set":      firstArgument(completeBudgets),
	"shaper budget unset":    firstArgument(completeBudgets),
	"shaper budget drop":     firstArgument(completeBudgets),
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

// completeBudgets completes with the budgets on servers in the policy of --policy.
func completeBudgets(cmd *cobra.Command, _ []string, _ string) (names []string, _ cobra.ShellCompDirective) {
	const directive = cobra.ShellCompDirectiveNoFileComp
	flag := cmd.Flag("policy")
	if flag == nil || flag.Value.String() == "" {
		return nil, directive
	}
	policy, err := (&cli.PolicyFlags{File: flag.Value.String()}).Load()
	if err != nil {
		return nil, directive
	}
	for _, s := range budgets.OnServers(policy.Plan) {
		names = append(names, s.BudgetName)
	}
	slices.Sort(names)
	return slices.Compact(names), directive
}
