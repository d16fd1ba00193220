package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/hostbudget"
	"github.com/a-seed-32e5a53f/shaper/dataplane/tap"
)

// TapOptions are the options of shaper tap.
type TapOptions struct {
	Options
	Uplink, Peer string // the other device: one of them
	Queues, MTU  int
	Memory       int64         // for queued packets, per direction, bytes
	Drain        time.Duration // for queued packets, at the end
}

// other returns the name of the other device.
func (o *TapOptions) other() string { return o.Uplink + o.Peer }

// Run runs a policy between a TAP device and another device.
func (o *TapOptions) Run(ctx context.Context, s cli.Streams, name string) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	policy, err := o.Policy.Load()
	if err != nil {
		return err
	}
	capabilities := uint64(tapCapabilities)
	if len(budgets.OnHost(policy.Plan.Outline())) > 0 {
		capabilities |= runCapabilities
	}
	dropPrivileges(s, capabilities, &o.Options)
	if err := o.State.open(); err != nil {
		return err
	}
	t := newTapPlane(newProcess(s), newNotifier(), o, name)
	defer func() { err = errors.Join(err, t.flush()) }()
	return t.join(ctx, policy)
}

// tapPlane shapes the packets between two devices. The goroutine of Run moves the frames, and another
// one owns the service. Calls of other commands need neither: they take the lock of the changes.
type tapPlane struct {
	*service
	options *TapOptions
	frames  tap.Plane
	stop    func() // ends the process
	list    []*live.LocalTap
	members []*hostbudget.Member // members of budgets of the host, by direction
}

func newTapPlane(p *process, n notifier, o *TapOptions, name string) *tapPlane {
	t := &tapPlane{service: newService(p, n, &o.Options, name, tap.Now), options: o}
	t.plane = t
	t.stateName = name
	t.heard.Warn = t.warn
	return t
}

// Each of the next functions calls another one, and undoes its own work when that one returns.

// join creates the shapers. They stay members of the budgets of the host until the last packet has
// passed.
func (t *tapPlane) join(ctx context.Context, policy *policyfile.Compiled) (err error) {
	defer func() { err = errors.Join(err, t.leaveBudgets()) }()
	if err := t.addDirections(policy); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	t.stop = stop
	t.hangups = watchHangups(t.notify)
	defer t.hangups.stop()
	defer t.notify.stopping()
	if t.options.Uplink != "" {
		if err := t.awaitInterface(ctx, t.options.Uplink, t.options.Await); err != nil {
			return fmt.Errorf("open uplink: %w", err)
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	return t.shape(ctx, stop, policy)
}

// shape opens the devices and gets shares of budgets on servers. It returns the shares before it
// closes the devices.
func (t *tapPlane) shape(ctx context.Context, stop func(), policy *policyfile.Compiled) (err error) {
	if err := t.open(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.frames.Inside.Close(), t.frames.Outside.Close()) }()
	if err := t.follow(ctx); err != nil {
		return err
	}
	defer t.shares.End(true)
	return t.answer(ctx, stop, policy)
}

// answer answers other commands and the API, and serves metrics. stop ends it.
func (t *tapPlane) answer(ctx context.Context, stop func(), policy *policyfile.Compiled) error {
	follow := func() error { return t.follow(ctx) }
	calls, err := live.ServeTap(t.name, t.list, t.shares, t.changer, &t.heard, stop, follow)
	if err != nil {
		return err
	}
	defer calls.Close()
	return t.withAPI(func() error {
		classes := say.Count(len(policy.Policy.Classes), "class")
		for _, sh := range t.list {
			fmt.Fprintf(t.out, "%s: moving frames to and from %s, policy %s (%s)\n",
				live.Name(sh.Info()), t.options.other(), policy.Name, classes)
		}
		t.notify.ready(t.status())
		return t.withMetrics(func() error { return t.move(ctx, stop) })
	})
}

// move moves frames until the end, and then prints the counters.
func (t *tapPlane) move(ctx context.Context, stop func()) error {
	if t.options.Span > 0 {
		t.end = time.After(t.options.Span)
	}
	go func() {
		defer stop()
		_ = t.serve(ctx) // no error without a check
	}()
	return errors.Join(t.moveFrames(ctx), t.keepState(), t.printEnd())
}

// leaveBudgets leaves the budgets of the host.
func (t *tapPlane) leaveBudgets() error {
	var errs []error
	for _, m := range t.members {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// TapMarks names the plane whose packets have no skb mark.
const TapMarks = "shaper tap"

// addDirections creates a shaper for each direction, and joins the budgets of the host.
func (t *tapPlane) addDirections(policy *policyfile.Compiled) error {
	defer cli.Interrupted.AllowExit()()
	o := t.options
	if err := policy.Plan.InUserSpace(); err != nil {
		return cli.ExplainIn(policy, err)
	}
	o.Policy.NoMarks = TapMarks
	o.Policy.Warn(t.err, policy, cmp.Or(o.Uplink, o.Peer))
	t.openChanges()
	t.changer.Lock()
	defer t.changer.Unlock()
	policy = t.amend(policy)
	for i, direction := range o.Directions.List {
		shaper := tap.NewActivePolicy(policy.Plan.For(direction), o.Memory)
		member := hostbudget.NewMember(t.name, direction, tap.Now)
		t.members = append(t.members, member)
		if err := shaper.Join(member); err != nil {
			return cli.ExplainIn(policy, err)
		}
		t.list = append(t.list, live.NewLocalTap(t.name, o.other(), direction, shaper, policy))
		t.list[i].Notes = func() { cli.PrintNotes(t.err, t.name, member.Notes) }
		if direction == kernel.Egress {
			t.frames.Egress = shaper
		} else {
			t.frames.Ingress = shaper
		}
	}
	t.restoreCustomers()
	t.frames.Drain = o.Drain
	return nil
}

// openChanges makes the book of changes. Without --state it ends with the process.
func (t *tapPlane) openChanges() {
	path := ""
	if state := &t.state; state.dir != "" {
		path = state.path(t.stateName, stateChanges)
	}
	file, err := changes.Open(path)
	if err != nil {
		t.warn("%v", err)
	}
	t.useChanges(file)
	for _, direction := range t.options.Directions.List {
		t.changer.Restarted(direction)
	}
}

// restoreCustomers restores the tokens of customers.
func (t *tapPlane) restoreCustomers() {
	for _, sh := range t.list {
		text, err := t.state.read(directionName(t.host, sh.Info().Direction), stateCustomers)
		if err == nil && text != nil {
			err = sh.Shaper.RestoreCustomers(text)
		}
		if err != nil {
			t.warn("%s: %v: customers start anew", live.Name(sh.Info()), err)
		}
	}
}

// follow makes the meters of budgets on servers follow their leases.
func (t *tapPlane) follow(ctx context.Context) error {
	var hosts []budgets.Host
	var leasers []budgets.Leaser
	for _, sh := range t.list {
		hosts, leasers = append(hosts, sh.BudgetHost()), append(leasers, sh.Shaper)
	}
	return t.shares.Follow(ctx, hosts, leasers)
}

func (t *tapPlane) status() string { return "shaping between " + t.name + " and " + t.options.other() }

// open opens both devices.
func (t *tapPlane) open() error {
	o := t.options
	inside, err := tap.Open(tap.Config{Name: t.name, Queues: o.Queues, MTU: o.MTU})
	if err != nil {
		return err
	}
	t.frames.Inside = inside
	var outside *tap.Interface
	if o.Peer != "" {
		outside, err = tap.Open(tap.Config{Name: o.Peer, Queues: o.Queues, MTU: o.MTU})
	} else {
		outside, err = tap.OpenUplink(o.Uplink, o.Queues)
	}
	if err != nil {
		return errors.Join(err, inside.Close())
	}
	t.frames.Outside = outside
	return nil
}

// moveFrames moves frames until ctx ends. If the uplink disappears, it waits for it.
func (t *tapPlane) moveFrames(ctx context.Context) error {
	uplink := t.options.Uplink
	for {
		err := t.frames.Run(ctx)
		var gone *tap.GoneError
		if !errors.As(err, &gone) || gone.Device != uplink || uplink == t.name {
			return err
		}
		t.warn("%s is gone: waiting for it to come back", gone.Device)
		t.notify.ready("waiting for " + gone.Device)
		_ = t.frames.Outside.Close() // the device is gone
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(live.PollInterval):
			}
			if outside, err := tap.OpenUplink(uplink, t.options.Queues); err == nil {
				t.frames.Outside = outside
				break
			}
		}
		t.warn("%s is back", gone.Device)
		t.notify.ready(t.status())
	}
}

// printEnd prints the counters of all directions.
func (t *tapPlane) printEnd() error {
	p := t.print()
	for _, sh := range t.list {
		now := sh.Snapshot()
		p.Table(say.Counters(&now.About.Outline, now.Now.Stats, t.colored))
		live.PrintLost(p, &now.About, now.Now.Lost)
		p.Printf("%s: ended\n", live.Name(&now.About))
	}
	return p.Err
}
