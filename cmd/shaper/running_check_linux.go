package main

import (
	"errors"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/stats"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// condition is the result of a check.
type condition int

const (
	attached      condition = iota
	interfaceGone           // the interface does not exist any more
	detached                // another process detached the shaper
)

// problem is the error of the last attempt of something that is tried again and again; "": none.
type problem string

// isNew keeps the error of an attempt, or nil, and reports whether it is another one than before.
func (p *problem) isNew(err error) bool {
	was := *p
	if *p = ""; err != nil {
		*p = problem(err.Error())
	}
	return *p != "" && *p != was
}

// check checks whether the shapers are still attached. It prints an error once and returns
// attached, because the next check may succeed.
func (r *running) check() condition {
	for _, sh := range slices.Clone(r.list) {
		state, err := r.checkShaper(sh)
		if err != nil {
			if r.checkProblem.isNew(err) {
				r.warn("%s: cannot check the shaper: %v", live.Name(&sh.About), err)
			}
			return attached
		}
		if state == detached {
			at, direction := sh.Identity(), sh.Direction
			r.release(sh)
			if err := kernel.Rescue(at, direction); err != nil { // its qdisc may still be there
				r.warn("%s %v: %v", r.name, direction, err)
			}
			if len(r.list) == 0 {
				return detached
			}
			continue // the other direction continues
		}
		if state != attached {
			return state
		}
	}
	r.checkProblem = ""
	if r.shares.Abandoned() {
		if err := r.followLeases(); err != nil {
			r.warn("%v", err)
		}
	}
	return attached
}

// checkShaper checks one shaper, and adopts changes that other processes made.
func (r *running) checkShaper(sh *kernel.Shaper) (condition, error) {
	switch gone, err := sh.Gone(); {
	case err != nil:
		return attached, err
	case gone:
		return interfaceGone, nil
	case sh.Interface != r.name: // other calls update the name of the shaper, too
		r.warn("%s is now called %s", r.name, sh.Interface)
		r.name = sh.Interface
	}
	switch err := sh.Refresh(); {
	case errors.Is(err, kernel.ErrGone):
		return interfaceGone, nil
	case errors.Is(err, kernel.ErrDetached) && r.flags.repair && !sh.Ended():
	case errors.Is(err, kernel.ErrDetached):
		by := "detached: another program removed the eBPF program"
		if sh.Ended() {
			by = "detached by " + r.heard.By(live.Detach, sh.Direction)
		}
		r.warn("%s: %s", live.Name(&sh.About), by)
		return detached, nil
	case err != nil:
		return attached, err
	}
	if r.deadlineWithin(0) {
		return attached, nil
	}
	if !r.until.IsZero() && !r.confirmed[sh.Direction] && sh.Until.IsZero() {
		r.confirmed[sh.Direction] = true
		r.warn("%s: confirmed by %s", live.Name(&sh.About), r.heard.By(live.Confirm, sh.Direction))
	}
	lines, repaired := r.watchdog.check(sh)
	if len(lines) > 0 { // they are wrong if the interface has disappeared meanwhile
		if gone, err := sh.Gone(); gone && err == nil {
			return interfaceGone, nil
		}
	}
	for _, line := range lines {
		r.warn("%s", line)
	}
	if repaired || !sh.Loaded.Equal(r.checked[sh.Direction]) { // or another process reloaded it
		if !repaired {
			r.logReload(sh)
			r.changer.Reloaded()
		}
		r.checked[sh.Direction] = sh.Loaded
		if err := r.instructGuard(); err != nil {
			r.warn("%s: cannot start the guard: %v", live.Name(&sh.About), err)
		}
		if err := r.followLeases(); err != nil {
			r.warn("%s: %v", live.Name(&sh.About), err)
		}
	}
	r.armed[sh.Direction] = !sh.Until.IsZero()
	return attached, nil
}

// logReload prints the author of a reload by another process.
func (r *running) logReload(sh *kernel.Shaper) {
	name := "unknown"
	if source, err := policyfile.SourceOf(sh.Label); err == nil {
		name = source.Name
	}
	by := r.heard.By(live.Reload, sh.Direction)
	if by == live.Unknown && r.armed[sh.Direction] && sh.Until.IsZero() {
		r.warn("%s: not confirmed in time: rolled back to policy %s", live.Name(&sh.About), name)
		return
	}
	r.warn("%s: reloaded by %s, policy %s", live.Name(&sh.About), by, name)
}

// logChanges prints changes that were just made.
func (r *running) logChanges(list []changes.Change) { logChanges(r.warn, r.name, list) }

// logChanges prints changes of an interface by warn.
func logChanges(warn func(string, ...any), iface string, list []changes.Change) {
	for i := range list {
		if i == stats.ShownChanges {
			warn("%s: and %d more changes", iface, len(list)-i)
			return
		}
		c := list[i]
		c.Since = time.Time{}
		warn("%s: %s", iface, stats.ChangeWords(&c))
	}
}

// deadlineWithin reports whether a deadline passes within a time, or has passed.
func (r *running) deadlineWithin(span time.Duration) bool {
	then := time.Now().Add(span)
	return !r.end.IsZero() && !then.Before(r.end) || !r.until.IsZero() && !then.Before(r.until)
}
