package main

import (
	"errors"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// What look may find.
type found int

const (
	well     found = iota
	gone           // the interface
	detached       // by another process
)

// look sees whether the shapers are still there. An error says nothing about
// them: it is printed, once, and the next look may succeed.
func (r *running) look() found {
	for _, sh := range slices.Clone(r.list) {
		state, err := r.lookAt(sh)
		if err != nil {
			if text := err.Error(); text != r.trouble {
				r.trouble = text
				r.warn("%s: cannot check the shaper: %v", live.Name(&sh.About), err)
			}
			return well
		}
		if state == detached {
			at, direction := sh.Identity(), sh.Direction
			r.drop(sh)
			if err := kernel.Rescue(at, direction); err != nil { // what holds packets may be there still
				r.warn("%s %v: %v", r.name, direction, err)
			}
			if len(r.list) == 0 {
				return detached
			}
			continue // the other direction goes on
		}
		if state != well {
			return state
		}
	}
	r.trouble = ""
	if r.shares.Abandoned() {
		if err := r.share(); err != nil {
			r.warn("%v", err)
		}
	}
	return well
}

func (r *running) lookAt(sh *kernel.Shaper) (found, error) {
	name := sh.Interface
	switch isGone, err := sh.Gone(); {
	case err != nil:
		return well, err
	case isGone:
		return gone, nil
	case sh.Interface != name:
		r.warn("%s is now called %s", name, sh.Interface)
		r.name = sh.Interface
	}
	loaded := sh.Loaded
	switch err := sh.Refresh(); {
	case errors.Is(err, kernel.ErrGone):
		return gone, nil
	case errors.Is(err, kernel.ErrDetached) && r.flags.repair && !sh.Ended():
	case errors.Is(err, kernel.ErrDetached):
		by := "detached: another program removed the eBPF program"
		if sh.Ended() {
			by = "detached by another process"
		}
		r.warn("%s: %s", live.Name(&sh.About), by)
		return detached, nil
	case err != nil:
		return well, err
	}
	if r.due(0) {
		return well, nil
	}
	lines, repaired := r.vigil.look(sh)
	if len(lines) > 0 { // they do not hold if the interface vanished meanwhile
		if isGone, err := sh.Gone(); isGone && err == nil {
			return gone, nil
		}
	}
	for _, line := range lines {
		r.warn("%s", line)
	}
	if repaired || !sh.Loaded.Equal(loaded) { // or another process gave it a policy
		if err := r.instruct(); err != nil {
			r.warn("%s: cannot start the guard: %v", live.Name(&sh.About), err)
		}
		if err := r.share(); err != nil {
			r.warn("%s: %v", live.Name(&sh.About), err)
		}
	}
	return well, nil
}

// due says whether a deadline passes within that time, or has passed: then the
// program does nothing any more.
func (r *running) due(within time.Duration) bool {
	then := time.Now().Add(within)
	return !r.over.IsZero() && !then.Before(r.over) || !r.until.IsZero() && !then.Before(r.until)
}
