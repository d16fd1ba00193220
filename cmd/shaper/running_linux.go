package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

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
)

// running is a shaper run. One goroutine owns it and never blocks on others: neither a client
// of the metrics nor a stopped terminal can delay the detaching.
type running struct {
	flags         *runFlags
	name          string               // name of the interface
	policy        *policyfile.Compiled // last policy
	list          []*kernel.Shaper
	guard         *live.Guard
	until         time.Time // time of the rollback by --confirm
	end           time.Time // time of the end by --for
	out, err      *output.Outbox
	colored       bool
	notify        notifier
	started       bool               // the policy was attached in all directions
	checkProblem  problem            // of checking the interface
	board         *metrics.Board     // nil without --metrics
	policies      [2]loadedPolicy    // by direction
	rules         [2]loadedRules     // by direction
	checked       [2]time.Time       // About.Loaded at the last check, by direction
	armed         [2]bool            // the policy was to be confirmed at the last check, by direction
	confirmed     [2]bool            // another process has confirmed the policy, by direction
	both          []kernel.Direction // directions at the start
	changer       *live.Changer      // nil until the interface exists
	changeProblem problem            // of advanceChanges
	kept          stats.KeptPrinter
	heard         live.Heard  // what other processes announced
	calls         chan func() // calls of other goroutines while the interface exists
	reads         chan func() // calls of other goroutines at any time
	hangups       *hangups
	watchdog      watchdog
	reading       time.Time // time of the next reading
	shares        *budgets.Agents
	control       io.Closer          // control socket for other processes; nil: none
	served        bool               // control was opened, or cannot be
	wake          chan chan struct{} // requests to check the shapers; the received channel is closed afterwards
	host          string             // interface in the names of hosts of budgets; a rename does not change it
}

func newRunning(f *runFlags, s cli.Streams, n notifier, name string, policy *policyfile.Compiled) *running {
	r := &running{flags: f, name: name, host: name, policy: policy, notify: n, watchdog: watchdog{repair: f.repair}, out: output.NewOutbox(s.Out), err: output.NewOutbox(s.Err), colored: say.Colored(s.Out)}
	r.shares, r.wake, r.calls, r.reads = budgets.New(kernel.Now, r.warn), make(chan chan struct{}), make(chan func()), make(chan func())
	r.both = slices.Clone(f.Directions.List)
	return r
}

// print returns a printer on stdout.
func (r *running) print() *printer { return newPrinter(r.out) }

// warn prints a line on stderr.
func (r *running) warn(format string, args ...any) {
	fmt.Fprintf(r.err, "shaper: "+format+"\n", args...)
}

// start attaches the policy for the first time. With --wait, it waits for the interface. It
// returns false if shaper run must end before it is attached.
func (r *running) start(ctx context.Context) (bool, error) {
	err := r.attach()
	if err == nil || !errors.As(err, new(*kernel.NoInterfaceError)) {
		return err == nil, err
	}
	if err := announceWait(r.err, r.name, r.flags.await); err != nil {
		return false, err
	}
	return r.attachWhenPresent(ctx, nil)
}

// attach attaches the policy in each direction, and then prints it.
func (r *running) attach() error {
	if err := r.openChanges(); err != nil {
		return err
	}
	r.policy = r.amend(r.policy)
	if err := r.followLeases(); err != nil { // before packets need a share
		return err
	}
	if r.flags.confirm > 0 {
		if err := r.startGuard(); err != nil {
			return err
		}
		r.until = time.Now().Add(r.flags.confirm)
	}
	changes := map[*kernel.Shaper][]dataplane.Change{}
	for _, direction := range r.flags.Directions.List {
		sh, changed, err := kernel.Attach(kernel.Config{
			Interface: r.name, Direction: direction, Hook: kernel.Hook(r.flags.hook), Pacer: kernel.Pacer(r.flags.pacer),
			Dry: r.flags.dry, Pin: r.flags.pin, GSOLimit: r.flags.gsoLimit, Label: live.Label(r.policy, r.name), Restore: r.restore(direction), Until: r.until, Guard: r.startGuard,
		}, r.policy.Plan)
		var active *dataplane.ActiveError
		if err != nil && !errors.As(err, &active) {
			return cli.ExplainIn(r.policy, err)
		}
		r.list = append(r.list, sh)
		if !sh.TookOver {
			r.changer.Restarted(direction)
		}
		changes[sh] = changed
		r.loaded(sh, r.policy)
		for _, what := range sh.Removed {
			r.warn("cleaned up: %s", what)
		}
		cli.PrintNotes(r.err, live.Name(&sh.About), sh.Notes)
		if active != nil {
			r.warn("%s: %v", live.Name(&sh.About), active)
		}
		r.keepCustomers(sh)
	}
	if r.flags.confirm > 0 { // start the rollback timer now
		until := time.Now().Add(r.flags.confirm)
		if err := kernel.Postpone(until, r.list...); err != nil {
			return err // detach rolls back the shapers with the earlier time
		}
		r.until, r.confirmed = until, [2]bool{}
	}
	if r.flags.span > 0 && r.end.IsZero() {
		r.end = time.Now().Add(r.flags.span)
	}
	for _, sh := range r.list {
		if !r.end.IsZero() {
			if err := sh.Expire(r.end); err != nil { // holds even if this process dies
				return err
			}
		}
	}
	if err := errors.Join(r.instructGuard(), r.followLeases()); err != nil {
		return err
	}
	if err := r.changer.Keep(); err != nil { // attaching to an interface that was gone removes the file
		r.warn("changes are %v", err)
	}
	r.started = true
	for _, sh := range r.list {
		r.printAttached(sh, changes[sh])
	}
	r.notify.ready(r.status())
	return nil
}

// followLeases makes the meters of budgets on servers follow their leases, in the directions
// that are attached.
func (r *running) followLeases() error {
	var list []budgets.Host
	var shapers []budgets.Leaser
	for _, direction := range r.flags.Directions.List {
		plan, shaper := r.policy.Plan, budgets.Leaser(nil)
		for _, sh := range r.list {
			if sh.Direction == direction {
				var err error
				if plan, err = r.planOf(sh); err != nil {
					return err
				}
				shaper = sh
			}
		}
		list, shapers = append(list, budgets.Host{Plan: plan, Name: budgets.HostName(r.host, direction.String())}), append(shapers, shaper)
	}
	for i := range list {
		list[i].MTU = live.MTU(r.name)
	}
	defer r.serveControl()
	return r.shares.Follow(context.Background(), list, shapers)
}

// prepareBudgets gets shares for the new budgets of a policy, before it is in force.
func (r *running) prepareBudgets(ctx context.Context, policy *policyfile.Compiled) error {
	var list []budgets.Host
	for _, sh := range r.list {
		list = append(list, budgets.Host{Plan: policy.Plan, Name: budgets.HostName(r.host, sh.Direction.String())})
	}
	return r.shares.Prepare(ctx, list...)
}

// status returns the line that the service manager shows.
func (r *running) status() string { return "shaping " + r.name + " " + r.flags.Directions.String() }

// errRolledBack means that the policy was not confirmed.
var errRolledBack = errors.New("not confirmed in time: rolled back")

// settled reports whether no policy waits for confirmation.
func (r *running) settled() bool {
	return r.until.IsZero() || !slices.ContainsFunc(r.list, func(sh *kernel.Shaper) bool { return !r.confirmed[sh.Direction] })
}

// watch waits for the end. Until then it checks the shapers, reloads on SIGHUP and publishes
// metrics. A lost terminal is the end, too, but it may be lost because of the policy: then the rollback comes first.
func (r *running) watch(ctx context.Context, hup *hangups) error {
	var end, rollback <-chan time.Time
	if !r.end.IsZero() {
		end = time.After(time.Until(r.end))
	}
	if !r.until.IsZero() {
		rollback = time.After(time.Until(r.until))
	}
	poll, stop := r.watchdog.poll(live.PollInterval)
	defer stop()
	asked, lost := false, false
	for !lost || !r.settled() {
		var checked chan struct{}
		select {
		case <-ctx.Done():
			return nil
		case <-end:
			r.flags.pin = false
			return nil
		case <-rollback:
			back, err := r.rollBack()
			r.until = time.Time{} // the others are confirmed, or another process has armed their rollback
			if err != nil || len(r.list) == 0 {
				return errors.Join(rolledBack(back), err)
			}
			if len(back) > 0 {
				r.warn("%v, except the direction that was confirmed", errRolledBack)
			}
		case <-hup.lost:
			lost = true
		case <-hup.reload:
			if err := r.notify.reload(r.status(), func() error { return r.rereadPolicy(ctx) }); err != nil {
				r.warn("%v: the policy is unchanged", err)
			}
		case <-r.board.Asked():
			asked = true
		case <-poll:
		case checked = <-r.wake:
		case call := <-r.calls:
			call()
			continue
		case read := <-r.reads:
			read()
			continue
		}
		if r.deadlineWithin(live.PollInterval) {
			continue // a check must not delay it
		}
		switch r.check() {
		case detached:
			return nil
		case interfaceGone:
			if back, err := r.waitForInterface(ctx, end); err != nil || !back {
				return err
			}
			if !r.until.IsZero() {
				rollback = time.After(time.Until(r.until))
			}
		}
		r.advanceChanges()
		if checked != nil {
			close(checked)
		}
		r.keepReadings()
		if asked {
			asked = false
			r.board.Publish(r.observe())
		}
	}
	return nil
}

// observe reads all shapers for the metrics.
func (r *running) observe() (out []metrics.Observation, err error) {
	if len(r.list) == 0 {
		for _, direction := range r.flags.Directions.List {
			out = append(out, metrics.Absent(r.name, direction, "the interface is gone"))
		}
	}
	for _, sh := range r.list {
		o, err := metrics.Observe(live.InKernel(sh), r.watchdog.problem(sh))
		if err != nil {
			return nil, err
		}
		o.Shares = r.shares.Statuses(r.host, sh.Direction.String())
		policy, err := r.policyOf(&sh.About)
		if err != nil {
			return nil, err
		}
		now, _, _ := r.changesLook(live.InKernel(sh))
		o.Changes = now.Count(policy, time.Now())
		if r.board.Customers() {
			var policy func() *policyfile.Compiled // not known if another process has loaded it
			if p := &r.policies[sh.Direction]; p.loaded.Equal(sh.Loaded) {
				policy = r.changer.AmendLater(p.policy)
			}
			if err := o.AddCustomers(sh, policy); err != nil {
				return nil, err
			}
		}
		out = append(out, o)
	}
	return out, nil
}

// keepReadings keeps a reading of each shaper once a second, so that shaper stats has rates
// without waiting. With many classes and CPUs it is less often: it takes half a percent of a
// CPU at most.
func (r *running) keepReadings() {
	begin := time.Now()
	if begin.Before(r.reading) {
		return
	}
	for _, sh := range r.list {
		if now, err := sh.Read(); err == nil {
			sh.Keep(now)
		}
	}
	r.reading = begin.Add(max(time.Second, 200*time.Since(begin)))
}

// rereadPolicy reads the policy file again and reloads all shapers.
func (r *running) rereadPolicy(ctx context.Context) error {
	policy, err := r.flags.Load()
	if err != nil {
		return err
	}
	r.flags.Warn(r.err, policy, "")
	policy = r.amend(policy)
	if err := cli.CheckPolicy(policy, r.list); err != nil {
		return err
	}
	if err := r.prepareBudgets(ctx, policy); err != nil {
		return errors.Join(err, r.followLeases())
	}
	for _, sh := range r.list {
		changes, err := sh.Reload(policy.Plan, live.Label(policy, sh.Interface), time.Time{})
		var active *dataplane.ActiveError
		if err != nil && !errors.As(err, &active) {
			return errors.Join(cli.ExplainIn(policy, err), r.followLeases())
		}
		r.loaded(sh, policy)
		r.print().reloadedLine(&sh.About, policy, changes)
		cli.PrintNotes(r.err, live.Name(&sh.About), sh.Notes)
		if active != nil {
			r.warn("%s: %v", live.Name(&sh.About), active)
		}
	}
	r.policy = policy
	for _, sh := range r.list {
		r.keepCustomers(sh)
	}
	r.kept.Print(r.err, r.changer, policy, r.name)
	return errors.Join(r.followLeases(), r.instructGuard())
}

// keepCustomers copies the file of customers of the policy in force.
func (r *running) keepCustomers(sh *kernel.Shaper) {
	if err := live.InKernel(sh).KeepCustomers(r.policy); err != nil {
		r.warn("%s: a rollback to this policy will need %s as it is now: %v", live.Name(&sh.About), say.Printable(r.policy.Source.Customers.Path), err)
	}
}

// serveControl opens the control socket. With it, shaper status shows budgets on servers and
// shaper reload prepares new ones. The shaper works without it, too.
func (r *running) serveControl() {
	if r.served {
		return
	}
	r.served = true
	control, err := (&live.Run{Shares: r.shares, Name: r.host, Wake: r.wake, Calls: r.calls, Changer: r.changer, Problem: func() string { return string(r.changeProblem) }, Heard: &r.heard}).Serve(os.Getpid())
	switch {
	case err == nil:
		r.control = control
	case budgets.OnServer(r.policy.Plan):
		r.warn("shaper status cannot show the budgets on servers: %v", err)
	}
}
