package process

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// condition is the result of a check.
type condition int

const (
	attached      condition = iota
	interfaceGone           // the interface does not exist any more
	detached                // another process detached the shaper
)

// seen is the last known state of the shaper of one direction. Other processes may change the
// shaper.
type seen struct {
	policy    loadedPolicy
	rules     loadedRules
	checked   time.Time // About.Loaded at the last check
	armed     bool      // the policy was to be confirmed when this process saw it last
	confirmed bool      // another process confirmed the policy
	logged    time.Time // About.Loaded of the last rollback that this process printed
}

// confirm notes that the policy was confirmed.
func (s *seen) confirm() { s.confirmed, s.armed = true, false }

func (k *kernelPlane) settled() bool {
	return k.deadline.rollback.IsZero() || !slices.ContainsFunc(k.list, func(sh *kernel.Shaper) bool {
		return !k.seen[sh.Direction].confirmed
	})
}

func (k *kernelPlane) dueWithin(span time.Duration) bool { return k.deadline.within(span) }

func (k *kernelPlane) problemOf(about *kernel.About) string {
	for _, sh := range k.list {
		if sh.Direction == about.Direction {
			return k.watchdog.problem(sh)
		}
	}
	return ""
}

func (k *kernelPlane) poll() (look <-chan struct{}, stop func()) {
	return k.watchdog.poll(live.PollInterval)
}

// check checks whether the shapers are still attached, and waits for the interface if it is gone.
func (k *kernelPlane) check(ctx context.Context) (over bool, err error) {
	switch k.over = k.checkAll(); k.over {
	case detached:
		return true, nil
	case interfaceGone:
		if !k.alone {
			k.dropShapers()
			return true, nil
		}
		k.over = attached
		if back, err := k.waitForInterface(ctx); err != nil || !back {
			return true, err
		}
		if !k.deadline.rollback.IsZero() {
			k.rollback = after(k.deadline.rollback)
		}
	}
	return false, nil
}

// checkAll checks whether the shapers are still attached. It prints an error once and returns
// attached, because the next check may succeed.
func (k *kernelPlane) checkAll() condition {
	for _, sh := range slices.Clone(k.list) {
		state, err := k.checkShaper(sh)
		if err != nil {
			if k.problem.isNew(err) {
				k.warn("%s: cannot check the shaper: %v", live.Name(&sh.About), err)
			}
			return attached
		}
		if state == detached {
			at, direction := sh.Identity(), sh.Direction
			k.release(sh)
			if err := kernel.Rescue(at, direction); err != nil { // its qdisc may still be there
				k.warn("%s %v: %v", k.name, direction, err)
			}
			if len(k.list) == 0 {
				return detached
			}
			continue // the other direction continues
		}
		if state != attached {
			return state
		}
	}
	k.problem = ""
	if k.shares.Abandoned() {
		if err := k.follow(context.Background()); err != nil {
			k.warn("%v", err)
		}
	}
	return attached
}

// checkShaper checks one shaper, and adopts changes of other processes.
func (k *kernelPlane) checkShaper(sh *kernel.Shaper) (condition, error) {
	seen := &k.seen[sh.Direction]
	switch gone, err := sh.Gone(); {
	case err != nil:
		return attached, err
	case gone:
		return interfaceGone, nil
	case sh.Interface != k.name: // other calls update the name of the shaper, too
		k.warn("%s is now called %s", k.name, sh.Interface)
		k.name = sh.Interface
	}
	switch err := sh.Refresh(); {
	case errors.Is(err, kernel.ErrGone):
		return interfaceGone, nil
	case errors.Is(err, kernel.ErrDetached) && k.options.Repair && !sh.Ended():
	case errors.Is(err, kernel.ErrDetached):
		by := "detached: another program removed the eBPF program"
		if sh.Ended() {
			k.by = k.heard.By(live.Detach, sh.Direction)
			by = "detached by " + k.by
		}
		k.warn("%s: %s", live.Name(&sh.About), by)
		return detached, nil
	case err != nil:
		return attached, err
	}
	if k.dueWithin(0) {
		return attached, nil
	}
	if !k.deadline.rollback.IsZero() && !seen.confirmed && sh.Until.IsZero() {
		seen.confirm()
		k.warn("%s: confirmed by %s", live.Name(&sh.About), k.heard.By(live.Confirm, sh.Direction))
	}
	lines, repaired := k.watchdog.check(sh)
	if len(lines) > 0 { // the lines are wrong if the interface disappeared meanwhile
		if gone, err := sh.Gone(); gone && err == nil {
			return interfaceGone, nil
		}
	}
	for _, line := range lines {
		k.warn("%s", line)
	}
	if repaired || !sh.Loaded.Equal(seen.checked) { // or another process reloaded it
		if !repaired {
			if !sh.Loaded.Equal(seen.logged) {
				k.logReload(sh)
			}
			k.changer.Lock()
			k.changer.Reloaded()
			k.changer.Unlock()
		}
		seen.checked = sh.Loaded
		if err := k.instructGuard(); err != nil {
			k.warn("%s: cannot start the guard: %v", live.Name(&sh.About), err)
		}
		if err := k.follow(context.Background()); err != nil {
			k.warn("%s: %v", live.Name(&sh.About), err)
		}
	}
	seen.armed = !sh.Until.IsZero()
	return attached, nil
}

// unconfirmed is why a policy was rolled back at the end of its time.
const unconfirmed = "not confirmed in time"

// logReload prints the author of a reload or rollback by another process.
func (k *kernelPlane) logReload(sh *kernel.Shaper) {
	by := k.heard.By(live.Reload, sh.Direction)
	if by == live.Unknown && k.seen[sh.Direction].armed && sh.Until.IsZero() {
		k.logRollback(sh, unconfirmed)
		return
	}
	k.warn("%s: reloaded by %s, policy %s", live.Name(&sh.About), by, policyName(&sh.About))
}

func (k *kernelPlane) logRollback(sh *kernel.Shaper, why string) {
	k.warn("%s: %s: rolled back to policy %s", live.Name(&sh.About), why, policyName(&sh.About))
}

// policyName returns the name of a shaper's policy, for the log.
func policyName(about *kernel.About) string {
	return cmp.Or(live.PolicyName(about), "unknown")
}
