package process

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// deadlines are the times at which a service must do something; zero: never.
type deadlines struct {
	end      time.Time // end by --for
	rollback time.Time // rollback by --confirm
	trial    time.Time // rollback of a policy by the API
}

// within reports whether a deadline passes within a time, or has passed.
func (d *deadlines) within(span time.Duration) bool {
	then := time.Now().Add(span)
	return !d.end.IsZero() && !then.Before(d.end) || !d.rollback.IsZero() && !then.Before(d.rollback)
}

// startGuard starts the guard unless it runs already.
func (k *kernelPlane) startGuard() (err error) {
	if k.guard == nil {
		if k.options.Background { // readers of this process's output must not wait for the guard
			k.guards.Stderr = nil
		}
		k.guard, err = k.guards.Add(k.name, k.wanted)
	}
	return err
}

// instructGuard gives the guard instructions for the case that this process is killed. It starts a
// guard if something attached outlives this process.
func (k *kernelPlane) instructGuard() error {
	if slices.ContainsFunc(k.list, (*kernel.Shaper).Outlives) {
		if err := k.startGuard(); err != nil {
			return err
		}
	}
	return k.guard.Instruct(live.Instructions{Stays: k.pin})
}

// errBackground is the error for a user who could neither see nor detach a shaper without a
// process.
var errBackground = errors.New("--background: this user could neither see nor detach the shaper afterwards, " +
	"which needs CAP_SYS_ADMIN: run without --background, or as root")

// checkBackground checks that other commands of this user will find a shaper without a process.
func checkBackground() error {
	v, err := kernel.Look()
	if errors.Is(err, os.ErrPermission) {
		return errBackground
	}
	if err == nil {
		v.Close()
	}
	return err
}

// exitBackground ends a shaper run --background and leaves the policy attached. It checks whether
// other commands can find the shapers.
func (k *kernelPlane) exitBackground() error {
	list := k.list
	k.list = nil
	live.CloseAll(list)
	if k.deadline.rollback.IsZero() { // otherwise the guard rolls back unless the policy is confirmed
		k.guard.End()
	}
	k.guard, k.deadline.rollback = nil, time.Time{}
	v, err := kernel.Look()
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

// rollBack rolls back the policy at the time of --confirm.
func (k *kernelPlane) rollBack() (over bool, err error) {
	unconfirmed, err := k.rollBackAll()
	k.deadline.rollback = time.Time{} // the others are confirmed, or another process armed their rollback
	if err != nil || len(k.list) == 0 {
		return true, errors.Join(unconfirmed, err)
	}
	if unconfirmed != nil {
		k.warn("%v, except the direction that was confirmed", unconfirmed)
	}
	return false, nil
}

// rollBackAll rolls back all unconfirmed directions. They do not belong to this process any more.
// unconfirmed is live.ErrRolledBack if there are any.
func (k *kernelPlane) rollBackAll() (unconfirmed, err error) {
	back, err := kernel.RollBack(policyfile.PlanOf, k.deadline.rollback, k.list...)
	for _, sh := range back {
		k.release(sh)
	}
	return live.RolledBack(back), err
}

// release closes a shaper that does not belong to this process any more.
func (k *kernelPlane) release(sh *kernel.Shaper) {
	if err := k.keepState(); err != nil {
		k.warn("%v", err)
	}
	k.list = slices.DeleteFunc(k.list, func(o *kernel.Shaper) bool { return o == sh })
	sh.Close()
}

// keepState counts the bytes used by customers with quotas, and saves the state. The shapers may be
// detached: this process still holds their maps.
func (k *kernelPlane) keepState() error {
	if !k.started {
		return nil
	}
	return k.service.keepState()
}

// expired makes detach remove the policy, also with --pin.
func (k *kernelPlane) expired() { k.pin = false }

// detach detaches the shapers, unless the policy stays. Before that it prints nothing and
// waits for nothing.
func (k *kernelPlane) detach() error {
	var errs []error
	tookOver := slices.ContainsFunc(k.list, func(sh *kernel.Shaper) bool { return sh.Before != nil })
	if !k.deadline.rollback.IsZero() && (k.pin || tookOver) {
		unconfirmed, err := k.rollBackAll()
		errs = append(errs, unconfirmed, err)
	}
	if k.pin && !k.deadline.trial.IsZero() {
		k.endTrial("not confirmed before the end")
	}
	clean := true
	stay, failed := map[*kernel.Shaper]bool{}, map[*kernel.Shaper]error{}
	for _, sh := range k.list {
		stays, err := k.pin && (k.started || sh.TookOver), error(nil)
		if stays {
			stays, err = sh.Attached()
			stays = stays || err != nil
		}
		switch {
		case !stays:
			err = sh.Detach()
			clean = clean && err == nil
		case !k.deadline.end.IsZero(): // ended before --for: it stays without a deadline
			err = sh.Expire(time.Time{})
		}
		stay[sh], failed[sh] = stays, err
		errs = append(errs, err)
	}
	errs = append(errs, k.keepState())
	for _, sh := range k.list {
		errs = append(errs, k.printEnd(sh, stay[sh], failed[sh]))
	}
	k.notify.stopping()
	if k.answers.run != nil {
		errs = append(errs, k.calls.Remove(k.answers.run))
	}
	k.shares.End(!slices.ContainsFunc(k.list, func(sh *kernel.Shaper) bool {
		return stay[sh] || failed[sh] != nil
	}))
	live.CloseAll(k.list) // before the guard acts, which skips shapers with an owner
	k.list = nil
	if clean {
		k.guard.End()
	} else {
		k.guard.Release()
	}
	return errors.Join(errs...)
}
