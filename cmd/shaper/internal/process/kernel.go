package process

import (
	"cmp"
	"context"
	"errors"
	"runtime/debug"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// RunOptions are the options of shaper run.
type RunOptions struct {
	Options
	Hook       kernel.Hook
	Pacer      kernel.Pacer // "": automatic
	GSOLimit   uint32       // as in kernel.Config
	Pin, Dry   bool
	Background bool
	Repair     bool
	Confirm    time.Duration // 0: no rollback
}

// ErrNoRules is the error of a policy with rules for a shaper without a process.
var ErrNoRules = cli.Usagef("quotas and schedules need a process that follows them: run without --background")

// Run runs a policy at an interface, in the kernel.
func (o *RunOptions) Run(ctx context.Context, s cli.Streams, name string) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	dropPrivileges(s, runCapabilities, &o.Options)
	if err := o.State.open(); err != nil {
		return err
	}
	notify := newNotifier()
	policy, err := o.Policy.Load()
	if err != nil {
		return err
	}
	if err := o.checkProcess(policy); err != nil {
		return err
	}
	p := newProcess(s)
	defer p.close()
	p.guards.Name = name
	k := newKernelPlane(p, notify, o, name, policy)
	o.Policy.Warn(k.err, policy, name)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	defer func() {
		printed := k.flush()
		if o.Background {
			printed = cli.AfterChange(printed)
		}
		err = errors.Join(err, printed)
	}()
	// The API is served before anything is attached, and until everything is detached.
	return k.withAPI(func() error { return k.shapeAlone(ctx) })
}

// checkProcess returns an error if --background would leave the policy without a process that it
// needs, or the user without access to the shaper, or if --dry-run would take shares of a budget.
func (o *RunOptions) checkProcess(policy *policyfile.Compiled) error {
	onServer := budgets.OnServer(policy.Plan)
	switch {
	case onServer && o.Background:
		return cli.Usagef("a budget on a server needs a process that renews its share: " +
			"run without --background")
	case policy.HasRules() && o.Background:
		return ErrNoRules
	case onServer && o.Dry:
		return cli.Usagef("--dry-run would take a share of a budget from hosts that need it: " +
			"test the policy on a capture with shaper replay")
	case o.Background:
		return checkBackground()
	}
	return nil
}

// kernelPlane shapes the packets of an interface in the kernel. Its owner is the goroutine of Run.
type kernelPlane struct {
	*service
	options  *RunOptions
	alone    bool                 // no other services are in this process: it waits for a missing interface
	over     condition            // why the service ended; attached: it was asked to
	by       string               // who detached the last direction; "": another program
	policy   *policyfile.Compiled // last policy
	pin      bool                 // the policy stays when this process ends
	confirm  time.Duration        // time to confirm the policy; 0: no rollback, or confirmed
	list     []*kernel.Shaper
	seen     [2]seen // by direction
	started  bool    // the policy was attached in all directions
	deadline deadlines
	guard    *live.Guard
	turn     chan struct{} // one of several services takes a turn to attach; nil: no need to
	watchdog *watchdog
	reading  time.Time // time of the next reading
	problem  problem   // of checking the interface
	answers  answers
}

// answers says how calls of other commands are answered.
type answers struct {
	run   *live.Run // nil: not at all
	index int       // of the interface; 0: not tried yet
}

func newKernelPlane(
	p *process, n notifier, o *RunOptions, name string, policy *policyfile.Compiled,
) *kernelPlane {
	k := &kernelPlane{
		service: newService(p, n, &o.Options, name, kernel.Now), options: o, policy: policy, alone: true,
		pin: o.Pin || o.Background, confirm: o.Confirm,
	}
	k.watchdog = newWatchdog(p, o.Repair)
	k.plane = k
	k.stateName = k.host + "-" + o.Directions.String()
	return k
}

// shapeAlone is shape for the only service of a process. SIGHUP does not kill the process meanwhile.
func (k *kernelPlane) shapeAlone(ctx context.Context) error {
	k.hangups = watchHangups(k.notify)
	defer k.hangups.stop()
	return k.shape(ctx, delayCollection(k.policy))
}

// shape attaches the policy, and detaches it at the end. It calls collect when the policy is attached.
func (k *kernelPlane) shape(ctx context.Context, collect func()) (err error) {
	defer func() { err = errors.Join(err, k.detach()) }()
	if attached, err := k.start(ctx); err != nil || !attached {
		if err == nil && k.options.Background {
			err = context.Cause(ctx) // nothing was attached
		}
		return err
	}
	if k.options.Background {
		return k.exitBackground()
	}
	collect()
	return k.withMetrics(func() error {
		k.end, k.rollback = after(k.deadline.end), after(k.deadline.rollback)
		return k.serve(ctx)
	})
}

// after returns a channel that receives at time t; nil for the zero time.
func after(t time.Time) <-chan time.Time {
	if t.IsZero() {
		return nil
	}
	return time.After(time.Until(t))
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

// start attaches the policy for the first time. With --wait, it waits for the interface. It
// returns false if shaper run must end before it is attached.
func (k *kernelPlane) start(ctx context.Context) (bool, error) {
	if k.turn != nil {
		k.turn <- struct{}{}
		defer func() { <-k.turn }()
	}
	if ctx.Err() != nil {
		return false, nil
	}
	err := k.attach()
	if err == nil || !k.alone || !errors.As(err, new(*kernel.NoInterfaceError)) {
		return err == nil, err
	}
	if err := announceWait(k.err, k.name, k.options.Await); err != nil {
		return false, err
	}
	return k.attachWhenPresent(ctx)
}

// attach attaches the policy in each direction, and then prints it.
func (k *kernelPlane) attach() error {
	if err := k.openChanges(); err != nil {
		return err
	}
	k.changer.Lock()
	defer k.changer.Unlock()
	k.policy = k.amend(k.policy)
	ctx := context.Background()
	if err := k.follow(ctx); err != nil { // before packets need a share
		return err
	}
	if k.confirm > 0 {
		if err := k.startGuard(); err != nil {
			return err
		}
		k.deadline.rollback = time.Now().Add(k.confirm)
	}
	changes := map[*kernel.Shaper][]compiled.ClassChange{}
	for _, direction := range k.wanted {
		sh, changed, err := k.attachDirection(direction)
		if err != nil {
			return err
		}
		changes[sh] = changed
	}
	if err := k.setDeadlines(); err != nil {
		return err
	}
	if err := errors.Join(k.instructGuard(), k.follow(ctx)); err != nil {
		return err
	}
	if err := k.changer.KeepFiles(); err != nil { // attaching after the interface was gone removes the file
		k.warn("changes are %v", err)
	}
	k.started = true
	if !k.alone {
		k.warn("%s: shaped, policy %s", k.name, k.policy.Name)
		return nil
	}
	for _, sh := range k.list {
		k.printAttached(sh, changes[sh])
	}
	k.notify.ready(k.status())
	return nil
}

// attachDirection attaches the policy in one direction.
func (k *kernelPlane) attachDirection(d dataplane.Direction) (*kernel.Shaper, []compiled.ClassChange, error) {
	o := k.options
	sh, changed, err := kernel.Attach(kernel.Config{
		Interface: k.name, Direction: d, Hook: o.Hook, Pacer: o.Pacer,
		Dry: o.Dry, Pin: k.pin, GSOLimit: o.GSOLimit, Label: live.Label(k.policy, k.name),
		Restore: k.restore(d), Until: k.deadline.rollback, Guard: k.startGuard, KeepOrphans: !k.alone,
		Programs: k.programs,
	}, k.policy.Plan)
	var active *dataplane.ActiveError
	if err != nil && !errors.As(err, &active) {
		return nil, nil, cli.ExplainIn(k.policy, err)
	}
	k.list = append(k.list, sh)
	if !sh.TookOver {
		k.changer.Restarted(d)
	}
	k.loaded(sh, k.policy)
	for _, what := range sh.Removed {
		k.warn("cleaned up: %s", what)
	}
	cli.PrintNotes(k.err, live.Name(&sh.About), sh.Notes)
	if active != nil {
		k.warn("%s: %v", live.Name(&sh.About), active)
	}
	k.keepCustomers(sh)
	return sh, changed, nil
}

// setDeadlines starts the rollback timer, and the time of --for at the first call.
func (k *kernelPlane) setDeadlines() error {
	if k.confirm > 0 {
		until := time.Now().Add(k.confirm)
		if err := kernel.Postpone(until, k.list...); err != nil {
			return err // detach rolls back the shapers with the earlier time
		}
		k.deadline.rollback = until
		for d := range k.seen {
			k.seen[d].confirmed = false
		}
	}
	if k.options.Span > 0 && k.deadline.end.IsZero() {
		k.deadline.end = time.Now().Add(k.options.Span)
	}
	for _, sh := range k.list {
		if !k.deadline.end.IsZero() {
			if err := sh.Expire(k.deadline.end); err != nil { // holds even if this process dies
				return err
			}
		}
	}
	return nil
}

func (k *kernelPlane) status() string {
	return "shaping " + k.name + " " + (&cli.Directions{List: k.wanted}).String()
}

func (k *kernelPlane) policyName() string { return k.policy.Name }

// follow makes the meters of budgets on servers follow their leases, in the attached directions.
func (k *kernelPlane) follow(ctx context.Context) error {
	var hosts []budgets.Host
	var leasers []budgets.Leaser
	for _, direction := range k.wanted {
		plan, leaser := k.policy.Plan, budgets.Leaser(nil)
		for _, sh := range k.list {
			if sh.Direction == direction {
				var err error
				if plan, err = k.leasedPlan(sh); err != nil {
					return err
				}
				leaser = sh
			}
		}
		hosts = append(hosts, budgets.Host{Plan: plan, Name: k.budgetHost(direction), MTU: live.MTU(k.name)})
		leasers = append(leasers, leaser)
	}
	defer k.serveCalls()
	return k.shares.Follow(context.WithoutCancel(ctx), hosts, leasers)
}

// leasedPlan returns the plan of a shaper with budgets on servers, and an empty plan of other
// shapers.
func (k *kernelPlane) leasedPlan(sh *kernel.Shaper) (*compiled.Plan, error) {
	if len(sh.OnServers()) == 0 {
		return &compiled.Plan{}, nil
	}
	policy, err := k.policyOf(&sh.About)
	if err != nil {
		return nil, err
	}
	return policy.Plan, nil
}

// serveCalls serves the calls of other commands. With it, shaper status shows budgets on servers and
// shaper reload prepares new ones. The shaper works without it, too.
func (k *kernelPlane) serveCalls() {
	a := &k.answers
	if len(k.list) == 0 || a.index == k.list[0].Index {
		return
	}
	a.index = k.list[0].Index
	r := cmp.Or(a.run, k.caller())
	switch err := k.calls.Add(a.index, r); {
	case err == nil:
		a.run = r
	case budgets.OnServer(k.policy.Plan):
		k.warn("shaper status cannot show the budgets on servers: %v", err)
	}
}

// caller returns the part of the process for calls of other goroutines.
func (k *kernelPlane) caller() *live.Run {
	return &live.Run{
		Shares: k.shares, Name: k.host, Wake: k.turns.looks, Calls: k.turns.calls,
		Changer: k.changer, Heard: &k.heard,
	}
}

// reloaded notes the policy of all directions, and copies its file of customers.
func (k *kernelPlane) reloaded(policy *policyfile.Compiled) {
	k.policy = policy
	for _, sh := range k.list {
		k.keepCustomers(sh)
	}
}

// settle adapts the shares of budgets and the guard to the policies just attached.
func (k *kernelPlane) settle(ctx context.Context) error {
	return errors.Join(k.follow(ctx), k.instructGuard())
}

// keepCustomers copies the file of customers of the policy in force.
func (k *kernelPlane) keepCustomers(sh *kernel.Shaper) {
	if err := live.InKernel(sh).KeepCustomers(k.policy); err != nil {
		file := say.Printable(k.policy.Source.Customers.Path)
		k.warn("%s: a rollback to this policy will need %s as it is now: %v", live.Name(&sh.About), file, err)
	}
}

// keepReadings keeps a reading of each shaper once a second, for shaper stats to show rates without
// waiting. With many classes, CPUs and services it reads less often: all services together use at most half
// a percent of a CPU.
func (k *kernelPlane) keepReadings() {
	begin := time.Now()
	if begin.Before(k.reading) {
		return
	}
	for _, sh := range k.list {
		if now, err := sh.Read(); err == nil {
			sh.Keep(now)
		}
	}
	share := 200 * time.Duration(max(1, k.services.Load())) // of the time
	k.reading = begin.Add(max(time.Second, share*time.Since(begin)))
}
