package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/process"
)

// tapFlags are the flags of shaper tap.
type tapFlags struct {
	process.TapOptions
	memory string
}

func newTap(s cli.Streams) *cobra.Command {
	var f tapFlags
	cmd := &cobra.Command{
		Use:     tapCommand.use,
		GroupID: tapCommand.group,
		Short:   tapCommand.short,
		Long: `Create a TAP device and move frames between it and an interface, or a second TAP
device, through a policy. Egress is traffic that leaves through the uplink,
ingress is traffic that arrives there. shaper stays in the foreground; shaper
stats, status, reload and detach find it by the device's name. Without a
controlling terminal, SIGHUP makes it read the policy file again; otherwise it
ends as with Ctrl-C. When it ends, queued packets get the time of --drain to
leave. It needs CAP_NET_ADMIN and, for an uplink, CAP_NET_RAW.`,
		Example: `  shaper tap tap0 --uplink eth0 --policy docs/uplink.yaml
  shaper tap tap0 --peer tap1 --meter "token-bucket rate=50mbit burst=1MiB"`,
		Args: cli.OneArg("TAP device"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return err
			}
			return f.Run(cmd.Context(), s, args[0])
		},
	}
	f.Add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.Uplink, "uplink", "", "move frames to and from interface `IFACE`")
	flags.BoolVar(&f.Await, "wait", false, "wait for the uplink to appear")
	flags.StringVar(&f.Peer, "peer", "", "move frames to and from a second TAP device, `NAME`")
	flags.IntVar(&f.Queues, "queues", 1, "use `N` queues, each with its own thread per direction")
	flags.IntVar(&f.MTU, "mtu", 0, "set the TAP device's MTU to `BYTES`")
	flags.StringVar(&f.memory, "memory", "256MiB",
		"use at most `SIZE` of memory for queued packets, per direction")
	flags.Var(cli.NewTimeFlag(&f.Drain, time.Second), "drain",
		"let queued packets drain for `TIME` at the end")
	flags.Var(cli.NewTimeFlag(&f.Span, 0), "for", "end after `TIME`")
	return cmd
}

// check checks the flags and completes the options.
func (f *tapFlags) check() (err error) {
	switch {
	case f.Uplink == "" && f.Peer == "":
		return cli.Usagef("give --uplink IFACE or --peer NAME")
	case f.Uplink != "" && f.Peer != "":
		return cli.Usagef("give --uplink IFACE or --peer NAME, not both")
	case f.Queues < 1 || f.Queues > 256:
		return cli.Usagef("--queues %d: want 1 to 256", f.Queues)
	case f.MTU != 0 && (f.MTU < 68 || f.MTU > 65521):
		return cli.Usagef("--mtu %d: want 68 to 65521 bytes", f.MTU)
	}
	f.Memory, err = policyfile.ParseSize(f.memory)
	if err != nil || f.Memory == 0 {
		return cli.Usagef("--memory %q: want a size, such as 256MiB", f.memory)
	}
	return nil
}
