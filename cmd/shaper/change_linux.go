package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/detach"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/reload"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/remote"
)

func newReload(s cli.Streams) *cobra.Command {
	var f live.Flags
	var all live.AllFlag
	var from remote.Flag
	var policy cli.PolicyFlags
	var confirm time.Duration
	asJSON := false
	cmd := &cobra.Command{
		Use:     reloadCommand.use,
		GroupID: reloadCommand.group,
		Short:   reloadCommand.short,
		Long: `Replace the policy of a running shaper in one step: each packet is handled by
the old policy or by the new one. A class that keeps its name keeps its
counters, and its meters keep their tokens, capped at the new bursts. A policy
that does not compile changes nothing. Without --policy, --rate or --meter, read
the policy file again that the shaper was started with.

` + remoteHelp + `
The process reads the files again that it was started with, so --policy, --rate and
--meter cannot be given. It rolls back itself after --confirm, so the command does not
wait. With --all, shaper serve reads shaper.yaml again as well.`,
		Example: `  shaper reload eth0 --policy docs/uplink.yaml
  shaper reload eth0 --policy docs/uplink.yaml --confirm 60s
  shaper reload --all --control /run/shaper.sock`,
		Args: cli.AtMostOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := from.Client()
			switch {
			case err != nil:
				return err
			case c != nil:
				t := &remote.Target{Flags: &f, Name: cli.InterfaceArg(args)}
				return reloadBy(cmd, s, c, t, &all, &policy, confirm, asJSON)
			case all.All && confirm > 0:
				return cli.Usagef("--confirm needs one interface: name it instead of --all")
			}
			return all.Each(&f, func(cmd *cobra.Command, name string) error {
				own := policy // each interface may have its own file
				return reload.Reload(cmd.Context(), s, &f, name, &own, confirm, asJSON)
			})(cmd, args)
		},
	}
	f.Add(cmd)
	all.Add(cmd, &f, "reload all shaped interfaces")
	from.Add(cmd)
	policy.Add(cmd)
	cmd.Flags().Var(cli.NewTimeFlag(&confirm, 0), "confirm",
		"wait, and roll back to the previous policy unless you run shaper confirm within `TIME`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the change of each class as JSON")
	return cmd
}

// reloadBy asks the process of the shapers to reload.
func reloadBy(
	cmd *cobra.Command, s cli.Streams, c *remote.Client, t *remote.Target, all *live.AllFlag,
	policy *cli.PolicyFlags, confirm time.Duration, asJSON bool,
) error {
	if err := all.Check(cmd.Flags().Args()); err != nil {
		return err
	}
	if policy.Given() {
		return cli.Usagef("the process reads the policy files that it was started with: leave out --policy, --rate and --meter with a control socket")
	}
	if err := c.Refuse(cmd, "the policy of an interface is that of both directions", "direction"); err != nil {
		return err
	}
	return c.Reload(cmd.Context(), s, t, all.All, confirm, asJSON)
}

// askOrAct returns a command that asks the process with the control socket, if there is one, or acts at the
// interface itself, or at all of them. both says why the socket does not work with --direction; "": it does.
func askOrAct(
	f *live.Flags, from *remote.Flag, all *live.AllFlag,
	ask func(context.Context, *remote.Client, *remote.Target) error, act func(name string) error, both string,
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := all.Check(args); err != nil {
			return err
		}
		c, err := from.Client()
		switch {
		case err != nil:
			return err
		case c == nil:
			return all.Each(f, func(_ *cobra.Command, name string) error { return act(name) })(cmd, args)
		case both != "":
			if err := c.Refuse(cmd, both, "direction"); err != nil {
				return err
			}
		}
		return ask(cmd.Context(), c, &remote.Target{Flags: f, Name: cli.InterfaceArg(args)})
	}
}

func newConfirm(s cli.Streams) *cobra.Command {
	f := live.Flags{NoneHint: "nothing to confirm, or it was too late and the policy was rolled back"}
	var from remote.Flag
	all := live.AllFlag{NeedOne: true}
	asJSON := false
	cmd := &cobra.Command{
		Use:     confirmCommand.use,
		GroupID: confirmCommand.group,
		Short:   confirmCommand.short,
		Long: `Make a policy that was applied with --confirm permanent. Run it from a new
session: that proves that you can still log in. It fails if the policy was
rolled back already.

` + remoteHelp,
		Example: "  shaper confirm eth0\n  shaper confirm --control /run/shaper.sock \"veth*\"",
		Args:    cli.AtMostOne,
		RunE: askOrAct(&f, &from, &all,
			func(ctx context.Context, c *remote.Client, t *remote.Target) error {
				return c.Confirm(ctx, s, t, all.All, asJSON)
			},
			func(name string) error { return reload.Confirm(s, &f, name, asJSON) },
			"it confirms the policies of both directions"),
	}
	f.Add(cmd)
	all.Add(cmd, &f, "confirm the policies of all shaped interfaces")
	from.Add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, one line per confirmed direction")
	return cmd
}

func newDetach(s cli.Streams) *cobra.Command {
	var f live.Flags
	var from remote.Flag
	asJSON := false
	all := live.AllFlag{IncludeLeft: true}
	cmd := &cobra.Command{
		Use:     detachCommand.use,
		GroupID: detachCommand.group,
		Short:   detachCommand.short,
		Long: `Detach the shaper from an interface and restore the previous qdiscs and limits.
It does the same for state that a killed shaper left behind, and ends a shaper
that waits for its interface. You can omit IFACE if only one is shaped.

` + remoteHelp + `
shaper serve shapes the interface again after the next reload.`,
		Example: "  shaper detach eth0\n  shaper detach --control /run/shaper.sock \"veth*\"",
		Args:    cli.AtMostOne,
		RunE: askOrAct(&f, &from, &all,
			func(ctx context.Context, c *remote.Client, t *remote.Target) error {
				return c.Detach(ctx, s, t, all.All, asJSON)
			},
			func(name string) error { return detach.Detach(s, &f, name, asJSON) }, ""),
	}
	f.Add(cmd)
	from.Add(cmd)
	all.Add(cmd, &f, "detach all shaped interfaces, and clean up those with something left behind")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, one line per interface")
	return cmd
}
