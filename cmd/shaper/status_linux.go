package main

import (
	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/remote"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/stats"
)

// remoteHelp says in the help of commands what --control does.
const remoteHelp = `With --control, the process that serves this socket is asked instead: shaper serve, run
or tap. That needs no root, only the permission to use the socket. IFACE may be a
pattern then, such as "veth*".`

func newStatus(s cli.Streams) *cobra.Command {
	f := live.Flags{Several: true}
	var from remote.Flag
	all := live.AllFlag{}
	asJSON := false
	cmd := &cobra.Command{
		Use:     statusCommand.use,
		GroupID: statusCommand.group,
		Short:   statusCommand.short,
		Long: `Show the shapers in this network namespace: hook, policy, budgets, and whether
all packets go through them. Also show state that a killed shaper left behind,
and shapers that wait for their interface.

` + remoteHelp,
		Example: "  shaper status\n  shaper status --control /run/shaper.sock \"veth*\"",
		Args:    cli.AtMostOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := all.Check(args); err != nil {
				return err
			}
			if c, err := from.Client(); err != nil {
				return err
			} else if c != nil {
				t := remote.Target{Flags: &f, Name: cli.InterfaceArg(args)}
				return c.Status(cmd.Context(), s, &t, asJSON)
			}
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
	all.Add(cmd, &f, "show all shaped interfaces (the default without IFACE)")
	from.Add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, one line per shaper")
	return cmd
}
