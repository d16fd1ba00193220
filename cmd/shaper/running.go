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
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/metrics"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// running is a shaper run. One goroutine owns it and waits for nobody: neither a
// reader of the metrics nor a stopped terminal can delay its end.
type running struct {
	flags    *runFlags
	name     string               // of the interface
	policy   *policyfile.Compiled // the last one given to it
	list     []*kernel.Shaper
	guard    *live.Guard
	until    time.Time // of the rollback that --confirm arms
	over     time.Time // when --for ends it
	out, err *outbox
	colored  bool
	notify   notifier
	started  bool           // the policy was attached in all directions
	trouble  string         // the last error of a look at the interface
	board    *metrics.Board // nil without --metrics
	plans    [2]loadedPlan  // by direction
	vigil    vigil
	shares   *budgets.Agents
	control  io.Closer          // by which others ask, nil for none
	told     bool               // control was served, or cannot be
	wake     chan chan struct{} // another process has reloaded the policy; closed after a look
	host     string             // the interface's name among those of the budgets, which a rename does not change
}

func newRunning(f *runFlags, s streams, n notifier, name string, policy *policyfile.Compiled) *running {
	r := &running{flags: f, name: name, host: name, policy: policy, notify: n, vigil: vigil{repair: f.repair}, out: newOutbox(s.out), err: newOutbox(s.err), colored: say.Colored(s.out)}
	r.shares, r.wake = budgets.New(kernel.Now, r.warn), make(chan chan struct{})
	return r
}

func (r *running) print() *printer { return newPrinter(r.out) }

// warn prints a line on stderr.
func (r *running) warn(format string, args ...any) {
	fmt.Fprintf(r.err, "shaper: "+format+"\n", args...)
}

// start attaches the policy for the first time, with --wait as soon as there is the
// interface. It says whether it did: false is the end.
func (r *running) start(ctx context.Context) (bool, error) {
	err := r.attach()
	if err == nil || !errors.As(err, new(*kernel.NoInterfaceError)) {
		return err == nil, err
	}
	if !r.flags.await {
		return false, fmt.Errorf("%w: use --wait to wait for it", err)
	}
	r.warn("there is no interface %s yet: waiting for it to appear", r.name)
	return r.await(ctx, nil)
}

// attach attaches the policy in each direction, and says so when all are.
func (r *running) attach() error {
	if err := r.share(); err != nil { // before packets need a share
		return err
	}
	if r.flags.confirm > 0 {
		if err := r.protect(); err != nil {
			return err
		}
		r.until = time.Now().Add(r.flags.confirm)
	}
	changes := map[*kernel.Shaper][]dataplane.Change{}
	for _, direction := range r.flags.directions.list {
		sh, changed, err := kernel.Attach(kernel.Config{
			Interface: r.name, Direction: direction, Hook: kernel.Hook(r.flags.hook), Pacer: kernel.Pacer(r.flags.pacer),
			Dry: r.flags.dry, Pin: r.flags.pin, GSOLimit: r.flags.gsoLimit, Label: r.policy.Label(), Until: r.until, Guard: r.protect,
		}, r.policy.Plan)
		var active *kernel.ActiveError
		if err != nil && !errors.As(err, &active) {
			return explainIn(r.policy, err)
		}
		r.list = append(r.list, sh)
		changes[sh] = changed
		r.plans[direction] = loadedPlan{sh.Loaded, r.policy.Plan}
		for _, what := range sh.Removed {
			r.warn("cleaned up: %s", what)
		}
		r.notes(sh)
		if active != nil {
			r.warn("%s: %v", live.Name(&sh.About), active)
		}
	}
	if r.flags.confirm > 0 { // the time begins now
		until := time.Now().Add(r.flags.confirm)
		if err := kernel.Postpone(until, r.list...); err != nil {
			return err // the end rolls back what waits until the time before
		}
		r.until = until
	}
	if r.flags.span > 0 && r.over.IsZero() {
		r.over = time.Now().Add(r.flags.span)
	}
	for _, sh := range r.list {
		if !r.over.IsZero() {
			if err := sh.Expire(r.over); err != nil { // whatever becomes of this process
				return err
			}
		}
	}
	if err := errors.Join(r.instruct(), r.share()); err != nil {
		return err
	}
	r.started = true
	for _, sh := range r.list {
		r.say(sh, changes[sh])
	}
	r.notify.ready(r.status())
	return nil
}

// share has the meters of budgets on servers follow their leases, in the directions
// that are attached.
func (r *running) share() error {
	var list []budgets.Shaper
	var shapers []budgets.Leaser
	for _, direction := range r.flags.directions.list {
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
		list, shapers = append(list, budgets.Shaper{Plan: plan, Name: budgets.HostName(r.host, direction.String())}), append(shapers, shaper)
	}
	defer r.tell()
	return r.shares.Follow(context.Background(), list, shapers)
}

// loadedPlan is the plan of a shaper since a time.
type loadedPlan struct {
	loaded time.Time
	plan   *dataplane.Plan
}

// planOf returns the plan of a shaper that has budgets on servers, and an empty one of
// others. It compiles only what another process has loaded.
func (r *running) planOf(sh *kernel.Shaper) (*dataplane.Plan, error) {
	if len(sh.OnServers()) == 0 {
		return &dataplane.Plan{}, nil
	}
	known := &r.plans[sh.Direction]
	if !known.loaded.Equal(sh.Loaded) {
		plan, err := policyfile.PlanOf(sh.Label)
		if err != nil {
			return nil, err
		}
		*known = loadedPlan{sh.Loaded, plan}
	}
	return known.plan, nil
}

// prepare has budgets that a policy brings have shares when it takes over.
func (r *running) prepare(ctx context.Context, policy *policyfile.Compiled) error {
	var list []budgets.Shaper
	for _, sh := range r.list {
		list = append(list, budgets.Shaper{Plan: policy.Plan, Name: budgets.HostName(r.host, sh.Direction.String())})
	}
	return r.shares.Prepare(ctx, list...)
}

// status is what the service manager shows.
func (r *running) status() string { return "shaping " + r.name + " " + r.flags.directions.String() }

// protect starts the guard, unless there is one.
func (r *running) protect() (err error) {
	if r.guard == nil {
		r.guard, err = live.StartGuard(r.name, r.flags.directions.list)
	}
	return err
}

// instruct has the guard know what is to be done if this process is killed now.
func (r *running) instruct() error {
	if slices.ContainsFunc(r.list, (*kernel.Shaper).Outlives) {
		if err := r.protect(); err != nil {
			return err
		}
	}
	return r.guard.Instruct(live.Instructions{Stays: r.flags.pin})
}

// leave ends a shaper run --background: what is attached stays. It is looked for
// as any other command would.
func (r *running) leave() error {
	list := r.list
	r.list = nil
	live.CloseAll(list)
	r.guard.End()
	v, err := kernel.Look()
	if errors.Is(err, os.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	defer v.Close()
	for _, sh := range list {
		if !slices.ContainsFunc(v.Shapers, func(o *kernel.Shaper) bool {
			return o.Interface == sh.Interface && o.Direction == sh.Direction && o.Program == sh.Program
		}) {
			return fmt.Errorf("%s: no longer attached: another process detached it", live.Name(&sh.About))
		}
	}
	return nil
}

// errRolledBack says that nobody confirmed.
var errRolledBack = errors.New("not confirmed in time: rolled back")

// watch waits for the end, and does what is asked for meanwhile.
func (r *running) watch(ctx context.Context, hup <-chan os.Signal) error {
	var over, late <-chan time.Time
	if !r.over.IsZero() {
		over = time.After(time.Until(r.over))
	}
	if !r.until.IsZero() {
		late = time.After(time.Until(r.until))
	}
	poll, stop := r.vigil.poll(live.PollInterval)
	defer stop()
	asked := false
	for {
		var looked chan struct{}
		select {
		case <-ctx.Done():
			return nil
		case <-over:
			r.flags.pin = false
			return nil
		case <-late:
			back, err := r.rollBack()
			r.until = time.Time{} // whatever is left is confirmed, or another process's to confirm
			if err != nil || len(r.list) == 0 {
				return errors.Join(rolledBack(back), err)
			}
			if len(back) > 0 {
				r.warn("%v, except the direction that was confirmed", errRolledBack)
			}
		case <-hup:
			if err := r.notify.reload(r.status(), func() error { return r.again(ctx) }); err != nil {
				r.warn("%v: the policy is unchanged", err)
			}
		case <-r.board.Asked():
			asked = true
		case <-poll:
		case looked = <-r.wake:
		}
		if r.due(live.PollInterval) {
			continue // a deadline must find nobody at work
		}
		switch r.look() {
		case detached:
			return nil
		case gone:
			if back, err := r.wait(ctx, over); err != nil || !back {
				return err
			}
			if !r.until.IsZero() {
				late = time.After(time.Until(r.until))
			}
		}
		if looked != nil {
			close(looked)
		}
		if asked {
			asked = false
			r.board.Publish(r.observe())
		}
	}
}

// observe reads each shaper for the metrics.
func (r *running) observe() (out []metrics.Observation, err error) {
	if len(r.list) == 0 {
		for _, direction := range r.flags.directions.list {
			out = append(out, metrics.Absent(r.name, direction, "the interface is gone"))
		}
	}
	for _, sh := range r.list {
		o, err := metrics.Observe(sh, r.vigil.problem(sh))
		if err != nil {
			return nil, err
		}
		o.Shares = r.shares.Statuses(r.host, sh.Direction.String())
		out = append(out, o)
	}
	return out, nil
}

// again reads the policy file and gives it to the kernel.
func (r *running) again(ctx context.Context) error {
	policy, err := r.flags.load()
	if err != nil {
		return err
	}
	r.flags.warn(r.err, policy, "")
	if err := suits(policy, r.list); err != nil {
		return err
	}
	if err := r.prepare(ctx, policy); err != nil {
		return errors.Join(err, r.share())
	}
	for _, sh := range r.list {
		changes, err := sh.Reload(policy.Plan, policy.Label(), time.Time{})
		var active *kernel.ActiveError
		if err != nil && !errors.As(err, &active) {
			return errors.Join(explainIn(policy, err), r.share())
		}
		r.plans[sh.Direction] = loadedPlan{sh.Loaded, policy.Plan}
		r.print().reloaded(&sh.About, policy, changes)
		r.notes(sh)
		if active != nil {
			r.warn("%s: %v", live.Name(&sh.About), active)
		}
	}
	r.policy = policy
	return errors.Join(r.share(), r.instruct())
}

// rollBack returns to what was before, in all directions, unless it was
// confirmed. What came back is not this process's any more.
func (r *running) rollBack() ([]*kernel.Shaper, error) {
	back, err := kernel.RollBack(policyfile.PlanOf, r.until, r.list...)
	for _, sh := range back {
		r.drop(sh)
	}
	return back, err
}

// drop releases a shaper that is not this process's any more.
func (r *running) drop(sh *kernel.Shaper) {
	r.list = slices.DeleteFunc(r.list, func(o *kernel.Shaper) bool { return o == sh })
	sh.Close()
}

// rolledBack says that something was, or nil.
func rolledBack(back []*kernel.Shaper) error {
	if len(back) == 0 {
		return nil
	}
	return errRolledBack
}

// end detaches, unless the policy is to stay. It prints nothing before that, and
// waits for nobody.
func (r *running) end() error {
	var errs []error
	tookOver := slices.ContainsFunc(r.list, func(sh *kernel.Shaper) bool { return sh.Before != nil })
	if !r.until.IsZero() && (r.flags.pin || tookOver) {
		back, err := r.rollBack()
		errs = append(errs, rolledBack(back), err)
	}
	clean := true
	stay, failed := map[*kernel.Shaper]bool{}, map[*kernel.Shaper]error{}
	for _, sh := range r.list {
		stays, err := r.flags.pin && (r.started || sh.TookOver), error(nil)
		if stays {
			stays, err = sh.Attached()
			stays = stays || err != nil
		}
		switch {
		case !stays:
			err = sh.Detach()
			clean = clean && err == nil
		case !r.over.IsZero(): // ended before its time, it stays without one
			err = sh.Expire(time.Time{})
		}
		stay[sh], failed[sh] = stays, err
		errs = append(errs, err)
	}
	for _, sh := range r.list {
		errs = append(errs, r.sayEnd(sh, stay[sh], failed[sh]))
	}
	r.notify.stopping()
	if r.control != nil {
		errs = append(errs, r.control.Close())
	}
	r.shares.End(!slices.ContainsFunc(r.list, func(sh *kernel.Shaper) bool { return stay[sh] || failed[sh] != nil }))
	live.CloseAll(r.list) // before the guard, which leaves alone what has an owner
	r.list = nil
	if clean {
		r.guard.End()
	} else {
		r.guard.Release()
	}
	return errors.Join(errs...)
}

// tell has status see the budgets on servers, and a reload prepare those that it brings.
// Without that the shaper works as well.
func (r *running) tell() {
	if r.told {
		return
	}
	r.told = true
	control, err := live.ServeRun(os.Getpid(), r.shares, r.host, r.wake)
	switch {
	case err == nil:
		r.control = control
	case budgets.OnServer(r.policy.Plan):
		r.warn("shaper status cannot show the budgets on servers: %v", err)
	}
}
