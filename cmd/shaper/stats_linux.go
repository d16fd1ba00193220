package main

import (
	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/stats"
)

func newStats(s cli.Streams) *cobra.Command {
	f := live.Flags{Several: true}
	var all live.AllFlag
	var customers stats.CustomerFlags
	asJSON, watch, links := false, false, false
	cmd := &cobra.Command{
		Use:     statsCommand.use,
		GroupID: statsCommand.group,
		Short:   statsCommand.short,
		Long: `Show the counters of a running shaper by class and color, the current rates, and
the tokens of the meters. Bytes are counted by the policy's length rule. With
--links, show the tree of links instead: for each link the packets sent, the
rates, the backlog below it, and how long its rate held packets back. Without
IFACE, show all shaped interfaces.`,
		Example: `  shaper stats eth0
  shaper stats eth0 --watch
  shaper stats eth0 --customers --top 20 --by dropped
  shaper stats eth0 --links`,
		Args: cli.AtMostOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := all.Check(args); err != nil {
				return err
			}
			switch on, err := customers.Given(cmd); {
			case err != nil:
				return err
			case on && (watch || links):
				return cli.Usagef("--customers cannot be combined with --watch or --links")
			case links && watch:
				return cli.Usagef("--links cannot be combined with --watch")
			case links:
				return stats.ShowLinks(cmd.Context(), s, &f, cli.InterfaceArg(args), asJSON)
			case on:
				return stats.ShowCustomers(cmd.Context(), s, &f, cli.InterfaceArg(args), customers, asJSON)
			}
			return stats.Show(cmd.Context(), s, &f, cli.InterfaceArg(args), asJSON, watch)
		},
	}
	f.Add(cmd)
	all.Add(cmd, &f, "show all shaped interfaces (the default without IFACE)")
	customers.Add(cmd)
	stats.AddLinks(cmd, &links)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, one line per shaper")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "refresh every second")
	return cmd
}
