package main

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

// startGuard starts the guard unless it runs already.
func (r *running) startGuard() (err error) {
	if r.guard == nil {
		stderr := os.Stderr
		if r.flags.background { // who reads the output of this process must not wait for the guard
			stderr = nil
		}
		r.guard, err = live.StartGuard(r.name, r.flags.Directions.List, stderr)
	}
	return err
}

// instructGuard gives the guard instructions for the case that this process is killed. It
// starts a guard if something attached outlives this process.
func (r *running) instructGuard() error {
	if slices.ContainsFunc(r.list, (*kernel.Shaper).Outlives) {
		if err := r.startGuard(); err != nil {
			return err
		}
	}
	return r.guard.Instruct(live.Instructions{Stays: r.flags.pin})
}

// errBackground means that the user of a shaper run --background could do nothing about it afterwards.
var errBackground = errors.New("--background: this user could neither see nor detach the shaper afterwards, which needs CAP_SYS_ADMIN: run without --background, or as root")

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

// exitBackground ends a shaper run --background and leaves the policy attached. It checks that
// other commands can find the shapers.
func (r *running) exitBackground() error {
	list := r.list
	r.list = nil
	live.CloseAll(list)
	if r.until.IsZero() { // otherwise the guard rolls back unless the policy is confirmed
		r.guard.End()
	}
	r.guard, r.until = nil, time.Time{}
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

// rollBack rolls back all directions that are not confirmed, and returns their shapers. They
// do not belong to this process any more.
func (r *running) rollBack() ([]*kernel.Shaper, error) {
	back, err := kernel.RollBack(policyfile.PlanOf, r.until, r.list...)
	for _, sh := range back {
		r.release(sh)
	}
	return back, err
}

// release closes a shaper that does not belong to this process any more.
func (r *running) release(sh *kernel.Shaper) {
	if err := r.keepState(); err != nil {
		r.warn("%v", err)
	}
	r.list = slices.DeleteFunc(r.list, func(o *kernel.Shaper) bool { return o == sh })
	sh.Close()
}

// rolledBack returns errRolledBack if shapers were rolled back.
func rolledBack(back []*kernel.Shaper) error {
	if len(back) == 0 {
		return nil
	}
	return errRolledBack
}

// detach detaches the shapers, unless the policy stays. Before that it prints nothing and
// waits for nothing.
func (r *running) detach() error {
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
		case !r.end.IsZero(): // ended before --for: it stays without a deadline
			err = sh.Expire(time.Time{})
		}
		stay[sh], failed[sh] = stays, err
		errs = append(errs, err)
	}
	errs = append(errs, r.keepState())
	for _, sh := range r.list {
		errs = append(errs, r.printEnd(sh, stay[sh], failed[sh]))
	}
	r.notify.stopping()
	if r.control != nil {
		errs = append(errs, r.control.Close())
	}
	r.shares.End(!slices.ContainsFunc(r.list, func(sh *kernel.Shaper) bool { return stay[sh] || failed[sh] != nil }))
	live.CloseAll(r.list) // before the guard acts, which skips shapers with an owner
	r.list = nil
	if clean {
		r.guard.End()
	} else {
		r.guard.Release()
	}
	return errors.Join(errs...)
}
