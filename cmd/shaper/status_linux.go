package main

import (
	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/stats"
)

func newStatus(s cli.Streams) *cobra.Command {
	f := live.Flags{Several: true}
	asJSON := false
	cmd := &cobra.Command{
		Use:     statusCommand.use,
		GroupID: statusCommand.group,
		Short:   statusCommand.short,
		Long: `Show the shapers in this network namespace: hook, policy, budgets, and whether
all packets go through them. Also show state that a killed shaper left behind,
and shapers that wait for their interface.`,
		Example: "  shaper status",
		Args:    cli.AtMostOne,
		RunE: func(_ *cobra.Command, args []string) error {
			v, err := live.Look(cli.InterfaceArg(args))
			if err != nil {
				return err
			}
			defer func() { live.CloseAll(v.List) }()
			v.Narrow(cli.InterfaceArg(args), f.List)
			if len(v.Names()) == 0 && len(args) > 0 {
				return f.NoneError(args[0])
			}
			return stats.PrintSurvey(v, s, asJSON)
		},
	}
	f.Add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, one line per shaper")
	return cmd
}
