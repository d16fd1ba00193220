package main

import (
	"context"
	"errors"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/metrics"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// runFlags are the flags of shaper run.
type runFlags struct {
	cli.PolicyFlags
	cli.Directions
	hook, pacer string
	pin, dry    bool
	background  bool
	await       bool // wait for the interface to appear
	repair      bool
	span        time.Duration
	confirm     time.Duration
	metrics     metricsFlags
	control     controlFlags
	state       stateFlag
	gso         string
	gsoLimit    uint32 // parsed gso
}

func newRun(s cli.Streams) *cobra.Command {
	f := runFlags{Directions: cli.Directions{List: []kernel.Direction{kernel.Egress}}}
	cmd := &cobra.Command{
		Use:     "run IFACE",
		GroupID: "shape",
		Short:   "Shape live traffic on an interface, in the kernel",
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
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), s, args[0]) },
	}
	f.PolicyFlags.Add(cmd)
	flags := cmd.Flags()
	flags.Var(&f.Directions, "direction", "shape this `DIRECTION`: egress, ingress or both; each has its own meters")
	f.AddBoth(cmd)
	flags.StringVar(&f.hook, "hook", "auto", "attach at `HOOK`: tcx, tc or xdp (ingress only); auto is tcx, or tc before kernel 6.6")
	flags.StringVar(&f.pacer, "pacer", "auto", "queue packets in `QDISC`: fq (departure times) or htb; auto is fq if the kernel has it and no link or fair queue needs htb")
	flags.BoolVar(&f.pin, "pin", false, "keep the policy in force when shaper ends")
	flags.BoolVar(&f.background, "background", false, "attach, pin (as --pin) and exit")
	flags.BoolVar(&f.await, "wait", false, "wait for the interface to appear")
	flags.BoolVar(&f.dry, "dry-run", false, "count the packets that would be dropped or marked, and change none")
	flags.BoolVar(&f.repair, "repair", false, "restore the shaper if another program displaces it")
	flags.Var(cli.NewTimeFlag(&f.span, 0), "for", "detach after `TIME`")
	flags.Var(cli.NewTimeFlag(&f.confirm, 0), "confirm", "roll back to the previous state unless you run shaper confirm within `TIME`")
	f.metrics.add(cmd)
	f.control.add(flags)
	f.state.add(flags, "run")
	flags.StringVar(&f.gso, "gso-limit", "auto", "cap the device's GSO size at `BYTES` and restore it at the end; off: no cap; auto: 1 ms at the slowest rate if packets queue at egress")
	return cmd
}

func (f *runFlags) run(ctx context.Context, s cli.Streams, name string) (err error) {
	switch f.hook {
	case "auto", "tcx", "tc", "xdp":
	default:
		return cli.Usagef("--hook %q: want auto, tcx, tc or xdp", f.hook)
	}
	switch f.pacer {
	case "auto":
		f.pacer = ""
	case "fq", "htb":
	default:
		return cli.Usagef("--pacer %q: want auto, fq or htb", f.pacer)
	}
	switch {
	case f.background && (f.span > 0 || f.metrics != metricsFlags{} || f.control.on() || f.state.dir != "" || f.repair):
		return cli.Usagef("--background leaves no process for --for, --metrics, --metrics-customers, --control, --state or --repair")
	case f.hook == "xdp" && f.Directions.String() != "ingress":
		return cli.Usagef("--hook xdp sees only arriving packets: add --direction ingress")
	}
	if f.gsoLimit, err = parseGSOLimit(f.gso); err != nil {
		return err
	}
	address, err := f.metrics.parse()
	if err != nil {
		return err
	}
	if err := f.control.check(); err != nil {
		return err
	}
	dropPrivileges(s, runCapabilities, &f.PolicyFlags, f.metrics.address, &f.control, &f.state)
	if err := f.state.open(); err != nil {
		return err
	}
	notify := newNotifier()
	policy, err := f.Load()
	if err != nil {
		return err
	}
	if budgets.OnServer(policy.Plan) && f.background {
		return cli.Usagef("a budget on a server needs a process that renews its share: run without --background")
	}
	if policy.HasRules() && f.background {
		return errNoRules
	}
	if budgets.OnServer(policy.Plan) && f.dry {
		return cli.Usagef("--dry-run would take a share of a budget from hosts that need it: test the policy on a capture with shaper replay")
	}
	if f.background {
		if err := checkBackground(); err != nil {
			return err
		}
	}
	f.pin = f.pin || f.background
	r := newRunning(f, s, notify, name, policy)
	f.Warn(r.err, policy, name)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	defer func() {
		printed := errors.Join(r.out.Flush(), r.err.Flush())
		if f.background {
			printed = cli.AfterChange(printed)
		}
		err = errors.Join(err, printed)
	}()
	if f.control.on() { // before anything is attached, and until nothing is
		server, err := f.control.serve(runControl{r})
		if err != nil {
			return err
		}
		defer server.Close()
	}
	hup := watchHangups(notify)
	defer hup.stop()
	r.hangups = hup
	defer func() { err = errors.Join(err, r.detach()) }()
	collect := delayCollection(policy)
	if attached, err := r.start(ctx); err != nil || !attached {
		if err == nil && f.background {
			err = context.Cause(ctx) // nothing was attached
		}
		return err
	}
	if f.background {
		return r.exitBackground()
	}
	collect()
	if f.metrics.address != "" {
		r.board = metrics.NewBoard(f.metrics.customers)
		defer metrics.Serve(r.err, address, r.board).Close()
	}
	return r.watch(ctx, hup)
}

// delayCollection makes garbage collections rarer until collect is called, if the policy is small.
// Reading the object of the program makes 8 MB of garbage; its collection takes 5 of 63 ms of CPU
// time to attach a class.
func delayCollection(policy *policyfile.Compiled) (collect func()) {
	if len(policy.Plan.Classes) > 256 || policy.Plan.Customers != nil {
		return func() {}
	}
	before := debug.SetGCPercent(400)
	return func() { debug.SetGCPercent(before) }
}

// parseGSOLimit reads a value of --gso-limit for kernel.Config.
func parseGSOLimit(text string) (uint32, error) {
	switch text {
	case "auto":
		return 0, nil
	case "off":
		return kernel.NoGSOLimit, nil
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n < 1500 || n > 524280 {
		return 0, cli.Usagef("--gso-limit %q: want auto, off, or 1500 to 524280 bytes", text)
	}
	return uint32(n), nil
}
