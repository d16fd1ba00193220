package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/metrics"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/output"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/stats"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/tap"
)

// tapFlags are the flags of shaper tap.
type tapFlags struct {
	cli.PolicyFlags
	cli.Directions
	uplink, peer string
	queues, mtu  int
	memory       string
	span, drain  time.Duration
	metrics      metricsFlags
	control      controlFlags
	state        stateFlag
	await        bool // wait for the uplink to appear
}

func newTap(s cli.Streams) *cobra.Command {
	f := tapFlags{Directions: cli.Directions{List: []kernel.Direction{kernel.Egress}}}
	cmd := &cobra.Command{
		Use:     "tap NAME --uplink IFACE",
		GroupID: "shape",
		Short:   "Shape between a TAP device and an interface, in user space",
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
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), s, args[0]) },
	}
	f.PolicyFlags.Add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.uplink, "uplink", "", "move frames to and from interface `IFACE`")
	flags.BoolVar(&f.await, "wait", false, "wait for the uplink to appear")
	flags.StringVar(&f.peer, "peer", "", "move frames to and from a second TAP device, `NAME`")
	flags.Var(&f.Directions, "direction", "shape this `DIRECTION`: egress, ingress or both; each has its own meters")
	f.AddBoth(cmd)
	flags.IntVar(&f.queues, "queues", 1, "use `N` queues, each with its own thread per direction")
	flags.IntVar(&f.mtu, "mtu", 0, "set the TAP device's MTU to `BYTES`")
	f.state.add(flags, "tap")
	flags.StringVar(&f.memory, "memory", "256MiB", "use at most `SIZE` of memory for queued packets, per direction")
	flags.Var(cli.NewTimeFlag(&f.drain, time.Second), "drain", "let queued packets drain for `TIME` at the end")
	flags.Var(cli.NewTimeFlag(&f.span, 0), "for", "end after `TIME`")
	f.metrics.add(cmd)
	f.control.add(flags)
	return cmd
}

// runningTap is a shaper tap.
type runningTap struct {
	plane   tap.Plane
	name    string
	list    []*live.LocalTap
	flags   *tapFlags
	s       cli.Streams
	colored bool // the output shows colors
	notify  notifier
	board   *metrics.Board // nil without --metrics
	shares  *budgets.Agents
	changes *live.TapChanges
	calls   chan func() // calls of other goroutines

	changeProblem problem // of advanceChanges
	heard         live.Heard
	kept          stats.KeptPrinter

	members []*kernel.Member // members of budgets of the host, by direction
}

func (f *tapFlags) run(ctx context.Context, s cli.Streams, name string) (err error) {
	switch {
	case f.uplink == "" && f.peer == "":
		return cli.Usagef("give --uplink IFACE or --peer NAME")
	case f.uplink != "" && f.peer != "":
		return cli.Usagef("give --uplink IFACE or --peer NAME, not both")
	case f.queues < 1 || f.queues > 256:
		return cli.Usagef("--queues %d: want 1 to 256", f.queues)
	case f.mtu != 0 && (f.mtu < 68 || f.mtu > 65521):
		return cli.Usagef("--mtu %d: want 68 to 65521 bytes", f.mtu)
	}
	memory, err := policyfile.ParseSize(f.memory)
	if err != nil || memory == 0 {
		return cli.Usagef("--memory %q: want a size, such as 256MiB", f.memory)
	}
	address, err := f.metrics.parse()
	if err != nil {
		return err
	}
	if err := f.control.check(); err != nil {
		return err
	}
	policy, err := f.Load()
	if err != nil {
		return err
	}
	capabilities := uint64(tapCapabilities)
	if len(stats.OnHost(policy.Plan.Outline())) > 0 {
		capabilities |= runCapabilities
	}
	dropPrivileges(s, capabilities, &f.PolicyFlags, f.metrics.address, &f.control, &f.state)
	if err := f.state.open(); err != nil {
		return err
	}
	// A reader that stops, such as a terminal, must not stop the shaper.
	out, errs := output.NewOutbox(s.Out), output.NewOutbox(s.Err)
	defer func() { err = errors.Join(err, out.Flush(), errs.Flush()) }()
	c := &runningTap{name: name, flags: f, colored: say.Colored(s.Out), notify: newNotifier(), calls: make(chan func())}
	s.Out, s.Err = out, errs
	c.s = s
	c.heard.Warn = c.warn
	if f.metrics.address != "" {
		c.board = metrics.NewBoard(f.metrics.customers)
	}
	defer func() { err = errors.Join(err, c.leaveBudgets()) }()
	if err := c.addDirections(policy, memory); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	hup := watchHangups(c.notify)
	defer hup.stop()
	defer c.notify.stopping()
	if f.uplink != "" {
		if err := awaitNew(ctx, s, c.notify, f.uplink, f.await, hup.lost); err != nil {
			return fmt.Errorf("open uplink: %w", err)
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	if err := c.open(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.plane.Inside.Close(), c.plane.Outside.Close()) }()
	if err := c.followLeases(ctx); err != nil {
		return err
	}
	defer c.shares.End(true)
	control, err := live.ServeTap(name, c.list, c.shares, c.changes, &c.heard, stop, func() error { return c.followLeases(ctx) })
	if err != nil {
		return err
	}
	defer control.Close()
	if f.control.on() {
		server, err := f.control.serve(tapControl{c})
		if err != nil {
			return err
		}
		defer server.Close()
	}
	for _, sh := range c.list {
		fmt.Fprintf(s.Out, "%s: moving frames to and from %s, policy %s (%s)\n", live.Name(sh.Info()), f.uplink+f.peer, policy.Name,
			say.Count(len(policy.Policy.Classes), "class"))
	}
	c.notify.ready(c.status())
	if c.board != nil {
		defer metrics.Serve(s.Err, address, c.board).Close()
	}
	if f.span > 0 {
		var end context.CancelFunc
		ctx, end = context.WithTimeout(ctx, f.span)
		defer end()
	}
	go c.serve(ctx, stop, hup)
	err = c.moveFrames(ctx)
	c.changes.Lock()
	defer c.changes.Unlock()
	return errors.Join(err, c.changes.CountNow(), c.saveState(), c.printEnd())
}

// leaveBudgets leaves the budgets of the host.
func (c *runningTap) leaveBudgets() error {
	var errs []error
	for _, m := range c.members {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// tapMarks names the plane whose packets have no skb mark.
const tapMarks = "shaper tap"

// addDirections creates a shaper for each direction, and joins the budgets of the host.
func (c *runningTap) addDirections(policy *policyfile.Compiled, memory int64) error {
	defer cli.Interrupted.AllowExit()()
	f := c.flags
	f.NoMarks = tapMarks
	f.Warn(c.s.Err, policy, cmp.Or(f.uplink, f.peer))
	c.openChanges()
	policy = c.amend(policy)
	for i, direction := range f.Directions.List {
		shaper := tap.NewShaper(policy.Plan.For(direction), memory)
		member := kernel.NewMember(c.name, direction, tap.Now)
		c.members = append(c.members, member)
		if err := shaper.Join(member); err != nil {
			return cli.ExplainIn(policy, err)
		}
		c.list = append(c.list, live.NewLocalTap(c.name, f.uplink+f.peer, direction, shaper, policy))
		c.list[i].Notes = func() { cli.PrintNotes(c.s.Err, c.name, member.Notes) }
		if direction == kernel.Egress {
			c.plane.Egress = shaper
		} else {
			c.plane.Ingress = shaper
		}
	}
	c.restoreCustomers()
	c.plane.Drain = f.drain
	return nil
}

// followLeases makes the meters of budgets on servers follow their leases.
func (c *runningTap) followLeases(ctx context.Context) (err error) {
	var list []budgets.Host
	var shapers []budgets.Leaser
	for _, sh := range c.list {
		list = append(list, sh.BudgetHost())
		shapers = append(shapers, sh.Shaper)
	}
	if c.shares == nil {
		c.shares = budgets.New(tap.Now, c.warn)
	}
	return c.shares.Follow(ctx, list, shapers)
}

// status returns the line that the service manager shows.
func (c *runningTap) status() string {
	return "shaping between " + c.name + " and " + c.flags.uplink + c.flags.peer
}

// open opens both devices.
func (c *runningTap) open() error {
	inside, err := tap.Open(tap.Config{Name: c.name, Queues: c.flags.queues, MTU: c.flags.mtu})
	if err != nil {
		return err
	}
	c.plane.Inside = inside
	var outside *tap.Interface
	if c.flags.peer != "" {
		outside, err = tap.Open(tap.Config{Name: c.flags.peer, Queues: c.flags.queues, MTU: c.flags.mtu})
	} else {
		outside, err = tap.OpenUplink(c.flags.uplink, c.flags.queues)
	}
	if err != nil {
		return errors.Join(err, inside.Close())
	}
	c.plane.Outside = outside
	return nil
}

// moveFrames moves frames until ctx ends. If the uplink disappears, it waits for it.
func (c *runningTap) moveFrames(ctx context.Context) error {
	for {
		err := c.plane.Run(ctx)
		var gone *tap.GoneError
		if !errors.As(err, &gone) || gone.Device != c.flags.uplink || c.flags.uplink == c.name {
			return err
		}
		c.warn("%s is gone: waiting for it to come back", gone.Device)
		c.notify.ready("waiting for " + gone.Device)
		_ = c.plane.Outside.Close() // the device is gone
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(live.PollInterval):
			}
			if outside, err := tap.OpenUplink(c.flags.uplink, c.flags.queues); err == nil {
				c.plane.Outside = outside
				break
			}
		}
		c.warn("%s is back", gone.Device)
		c.notify.ready(c.status())
	}
}

// serve reads the policy again on each SIGHUP, publishes metrics, and stops when the terminal is lost.
func (c *runningTap) serve(ctx context.Context, stop func(), hup *hangups) {
	poll := time.NewTicker(live.PollInterval)
	defer poll.Stop()
	for {
		select {
		case <-poll.C:
			c.advanceChanges()
		case <-ctx.Done():
			return
		case call := <-c.calls:
			call()
		case <-c.board.Asked():
			c.board.Publish(c.observe())
		case <-hup.lost:
			stop()
		case <-hup.reload:
			if err := c.notify.reload(c.status(), func() error { return c.rereadPolicy(ctx) }); err != nil {
				c.warn("%v: the policy is unchanged", err)
			}
		}
	}
}

// rereadPolicy reads the policy file again and reloads all directions.
func (c *runningTap) rereadPolicy(ctx context.Context) error {
	policy, err := c.flags.Load()
	if err != nil {
		return err
	}
	c.flags.Warn(c.s.Err, policy, "")
	p := newPrinter(c.s.Out)
	var errs []error
	var list []budgets.Host
	for _, sh := range c.list {
		list = append(list, budgets.Host{Plan: policy.Plan, Name: sh.Host()})
	}
	if err := c.shares.Prepare(ctx, list...); err != nil {
		return errors.Join(err, c.followLeases(ctx))
	}
	c.changes.Lock()
	defer c.changes.Unlock()
	policy = c.amend(policy)
	for _, sh := range c.list {
		changes, err := sh.Reload(policy, policy.Label())
		if err != nil && !errors.As(err, new(*dataplane.ActiveError)) {
			return errors.Join(cli.ExplainIn(policy, err), c.followLeases(ctx))
		}
		p.reloadedLine(sh.Info(), policy, changes)
		errs = append(errs, err)
	}
	c.kept.Print(c.s.Err, c.changes.Changer, policy, c.name)
	return errors.Join(append(errs, c.followLeases(ctx), p.Err)...)
}

// observe reads all directions for the metrics.
func (c *runningTap) observe() (out []metrics.Observation, err error) {
	for _, sh := range c.list {
		o, err := metrics.Observe(sh.Handle(), "")
		if err != nil {
			return nil, err
		}
		o.Shares = c.shares.Statuses(o.About.Interface, o.About.Direction.String())
		policy, err := sh.Policy()
		if err != nil {
			return nil, err
		}
		now := live.Changes{Book: c.changes.Copy(), Problem: c.changes.Problem()}
		o.Changes = now.Count(policy, time.Now())
		if c.board.Customers() {
			o.AddTapCustomers(sh, c.changes)
		}
		out = append(out, o)
	}
	return out, nil
}

// printEnd prints the counters of all directions.
func (c *runningTap) printEnd() error {
	p := newPrinter(c.s.Out)
	for _, sh := range c.list {
		now := sh.Snapshot()
		p.Printf("\n%s\n", say.Counters(&now.About.Outline, now.Now.Stats, c.colored))
		stats.PrintLost(p.Printer, &now.About, now.Now.Lost)
		p.Printf("%s: ended\n", live.Name(&now.About))
	}
	return p.Err
}
