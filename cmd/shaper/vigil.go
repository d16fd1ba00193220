package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// vigil watches whether shapers are effective, for as long as shaper run runs: it
// reports each change once, and repairs if asked to.
type vigil struct {
	repair  bool
	watcher *kernel.Watcher // nil if netlink announces nothing: looking once a second must do
	changes atomic.Uint64   // that netlink announced
	known   map[*kernel.Shaper]*watched
}

// watched is what vigil knows of a shaper.
type watched struct {
	changes  uint64    // announced before the last look
	last     time.Time // the last look
	problems string    // that were reported, "" for none
	notes    string    // likewise
	failed   string    // the last error that was reported, "" for none
	repairs  []time.Time
	gaveUp   bool
	wait     time.Duration // after a repair that failed
	retry    time.Time
}

const (
	lookInterval     = time.Second // the order of TCX programs is not announced
	repairsPerMinute = 5           // then another program fights for the place
	maxRepairWait    = time.Minute
)

// poll returns a channel that receives a value every interval, and as soon as
// something near a shaper changes.
func (v *vigil) poll(interval time.Duration) (look <-chan struct{}, stop func()) {
	v.known = map[*kernel.Shaper]*watched{}
	announced := make(<-chan struct{})
	watcher, err := kernel.Watch()
	if err == nil {
		v.watcher, announced = watcher, watcher.C
	}
	out, done := make(chan struct{}), make(chan struct{})
	go func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			case <-announced:
				v.changes.Add(1)
			}
			select {
			case out <- struct{}{}:
			case <-done:
				return
			}
		}
	}()
	return out, func() {
		close(done)
		if watcher != nil {
			watcher.Close()
		}
	}
}

// look returns lines to print, and whether it changed what is to be undone. It
// does nothing if nothing was announced and the last look was less than a second
// ago.
func (v *vigil) look(sh *kernel.Shaper) (lines []string, repaired bool) {
	w := v.known[sh]
	if w == nil {
		w = &watched{}
		v.known[sh] = w
	}
	if v.watcher != nil {
		v.watcher.Add(sh)
	}
	changes := v.changes.Load()
	if w.changes == changes && time.Since(w.last) < lookInterval {
		return nil, false
	}
	say := func(format string, args ...any) {
		lines = append(lines, fmt.Sprintf("%s: %s", live.Name(&sh.About), fmt.Sprintf(format, args...)))
	}
	if !w.inspect(sh, v.repair, say) {
		return lines, false
	}
	w.changes, w.last = changes, time.Now()
	if w.problems == "" || !v.repair {
		return lines, false
	}
	return lines, w.put(sh, say)
}

// inspect looks once and reports what has changed. It returns false if there is
// to be another look soon.
func (w *watched) inspect(sh *kernel.Shaper, repair bool, say func(string, ...any)) bool {
	list, err := sh.Problems()
	if errors.Is(err, kernel.ErrChanging) {
		return false
	}
	if err != nil {
		w.fail(err, say)
		return true
	}
	var found, remedies, notes []string
	for _, p := range list {
		if p.Harmless {
			notes = append(notes, p.Found)
			continue
		}
		found = append(found, p.Found)
		if remedy := adviceOf(p.Remedy, sh.Interface); remedy != "" && !slices.Contains(remedies, remedy) {
			remedies = append(remedies, remedy)
		}
	}
	if text := strings.Join(notes, "; "); text != w.notes {
		if w.notes = text; text != "" {
			say("%s", text)
		}
	}
	text := strings.Join(found, "; ")
	switch {
	case text == w.problems:
	case text == "":
		say("shaping again")
		w.gaveUp, w.failed, w.wait = false, "", 0
	case repair || len(remedies) == 0:
		say("not shaping: %s", text)
	default:
		say("not shaping: %s: %s", text, strings.Join(remedies, "; "))
	}
	w.problems = text
	return true
}

// fail reports an error once.
func (w *watched) fail(err error, say func(string, ...any)) {
	if text := err.Error(); text != w.failed {
		w.failed = text
		say("%s", text)
	}
}

// put puts the shaper back, not too often.
func (w *watched) put(sh *kernel.Shaper, say func(string, ...any)) (repaired bool) {
	now := time.Now()
	for len(w.repairs) > 0 && now.Sub(w.repairs[0]) > time.Minute {
		w.repairs = w.repairs[1:]
	}
	switch {
	case w.gaveUp || now.Before(w.retry):
		return false
	case len(w.repairs) == repairsPerMinute:
		w.gaveUp = true
		say("displaced again after %d repairs within a minute: giving up until the other program restores the order, or you stop it and run shaper again", repairsPerMinute)
		return false
	}
	err := sh.Repair(policyfile.PlanOf)
	switch {
	case errors.Is(err, kernel.ErrChanging), errors.Is(err, kernel.ErrDetached):
		return false // the next look sees what became of it
	case err != nil:
		w.fail(fmt.Errorf("cannot repair: %w", err), say)
		w.wait = min(max(2*w.wait, lookInterval), maxRepairWait)
		w.retry = now.Add(w.wait)
		return true // it may have repaired a part
	}
	w.repairs = append(w.repairs, now)
	w.inspect(sh, true, say)
	return true
}

// problem is why packets do not all go through a shaper, by the last look.
func (v *vigil) problem(sh *kernel.Shaper) string {
	if w := v.known[sh]; w != nil {
		return w.problems
	}
	return ""
}

// forget drops what belongs to shapers that are closed.
func (v *vigil) forget() { clear(v.known) }

// problemsOf says why packets do not all go through a shaper, nothing if they
// do, and what else is unusual about its interface. An error says that this is
// not known.
func problemsOf(sh live.Shaper) (problems, notes []string, err error) {
	s, ok := sh.(interface {
		Problems() ([]kernel.Problem, error)
	})
	if !ok {
		return nil, nil, nil // shaper tap carries the frames itself
	}
	list, err := s.Problems()
	for try := 0; errors.Is(err, kernel.ErrChanging) && try < 40; try++ { // a reload takes less
		time.Sleep(50 * time.Millisecond)
		list, err = s.Problems()
	}
	for _, p := range list {
		text := p.Found
		if remedy := adviceOf(p.Remedy, sh.Info().Interface); remedy != "" {
			text += ": " + remedy
		}
		if p.Harmless {
			notes = append(notes, text)
		} else {
			problems = append(problems, text)
		}
	}
	return problems, notes, err
}

// effect notes whether a shaper is effective.
func (st *statusJSON) effect(sh live.Shaper) {
	problems, notes, err := problemsOf(sh)
	if err != nil {
		st.Problems = []string{err.Error()}
		return
	}
	effective := len(problems) == 0
	st.Effective, st.Problems, st.Notes = &effective, problems, notes
}

// effect prints why a shaper is not effective, if it is not.
func (p *printer) effect(st *statusJSON) {
	for _, problem := range st.Problems {
		if st.Effective == nil {
			p.Printf("  cannot tell whether it is effective: %s\n", problem)
		} else {
			p.Printf("  not effective: %s\n", problem)
		}
	}
	for _, note := range st.Notes {
		p.Printf("  note     %s\n", note)
	}
}
