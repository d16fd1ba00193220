package main

import (
	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/process"
)

// runFlags are the flags of shaper run.
type runFlags struct {
	process.RunOptions
	hook, pacer, gso string
}

func newRun(s cli.Streams) *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:     runCommand.use,
		GroupID: runCommand.group,
		Short:   runCommand.short,
		Long: `Attach a policy to an interface and shape the packets that leave through it, or
those that arrive. shaper stays in the foreground and detaches when it ends;
with --pin the policy stays in force. Either way shaper stats, reload, confirm
and detach can reach it from another terminal. Without a controlling terminal,
SIGHUP makes it read the policy file again; otherwise it ends as with Ctrl-C. It
needs root, or CAP_NET_ADMIN, CAP_BPF and CAP_PERFMON.`,
		Example: `  shaper run eth0 --rate 50mbit
  shaper run eth0 --policy docs/uplink.yaml
  shaper run eth0 --direction ingress --dry-run --meter "token-bucket rate=50mbit burst=1MiB"
  shaper run eth0 --policy docs/uplink.yaml --pin --confirm 60s`,
		Args: cli.OneArg("interface"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return err
			}
			return f.Run(cmd.Context(), s, args[0])
		},
	}
	f.Add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.hook, "hook", "auto",
		"attach at `HOOK`: tcx, tc or xdp (ingress only); auto is tcx, or tc before kernel 6.6")
	flags.StringVar(&f.pacer, "pacer", "auto",
		"queue packets in `QDISC`: fq (departure times) or htb; auto is fq if the kernel has it and no link or fair queue needs htb")
	flags.BoolVar(&f.Pin, "pin", false, "keep the policy in force when shaper ends")
	flags.BoolVar(&f.Background, "background", false, "attach, pin (as --pin) and exit")
	flags.BoolVar(&f.Await, "wait", false, "wait for the interface to appear")
	flags.BoolVar(&f.Dry, "dry-run", false,
		"count the packets that would be dropped or marked, and change none")
	flags.BoolVar(&f.Repair, "repair", false, "restore the shaper if another program displaces it")
	flags.Var(cli.NewTimeFlag(&f.Span, 0), "for", "detach after `TIME`")
	flags.Var(cli.NewTimeFlag(&f.Confirm, 0), "confirm",
		"roll back to the previous state unless you run shaper confirm within `TIME`")
	flags.StringVar(&f.gso, "gso-limit", "auto",
		"cap the device's GSO size at `BYTES` and restore it at the end; off: no cap; auto: 1 ms at the slowest rate if packets queue at egress")
	return cmd
}

// check checks the flags and completes the options.
func (f *runFlags) check() error {
	if err := f.SetKernel(f.hook, f.pacer, f.gso); err != nil {
		return cli.Usagef("--%w", err)
	}
	switch {
	case f.Background &&
		(f.Span > 0 || f.Metrics.Given() || f.Control.Given() || f.State.Given() || f.Repair):
		return cli.Usagef("--background leaves no process for --for, --metrics, --metrics-customers, --control, --state or --repair")
	case f.hook == "xdp" && policyfile.HasTwoRates(f.Policy.One.Rate):
		return cli.Usagef("--hook xdp cannot queue packets, as --rate does: leave it out")
	case f.hook == "xdp" && f.Directions.String() != "ingress":
		return cli.Usagef("--hook xdp sees only arriving packets: add --direction ingress")
	}
	return nil
}
