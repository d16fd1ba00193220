package process

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// watchdog checks whether the shapers of a shaper run are effective: whether all packets go
// through them. It reports each change once, and repairs with --repair.
type watchdog struct {
	process   *process
	repair    bool
	announced chan struct{} // receives announcements of netlink
	changes   atomic.Uint64 // number of them
	shapers   map[*kernel.Shaper]*watched
}

func newWatchdog(p *process, repair bool) *watchdog {
	return &watchdog{
		process: p, repair: repair, announced: make(chan struct{}, 1),
		shapers: map[*kernel.Shaper]*watched{},
	}
}

// watched is the state of a shaper, as last checked.
type watched struct {
	changes  uint64      // changes announced before the last check
	last     time.Time   // time of the last check
	problems string      // last reported problems, "" for none
	notes    string      // last reported notes, "" for none
	outdated string      // what the policy does not know yet, "" for nothing
	failed   string      // last reported error, "" for none
	repairs  []time.Time // within the last minute
	gaveUp   bool
	wait     time.Duration // pause after a failed repair
	retry    time.Time     // end of that pause
}

const (
	checkInterval    = time.Second // the kernel does not announce the order of TCX programs
	repairsPerMinute = 5           // more repairs would be a fight with another program
	maxRepairWait    = time.Minute
)

// poll returns a channel receiving a value every interval, and when netlink announces a change.
func (v *watchdog) poll(interval time.Duration) (look <-chan struct{}, stop func()) {
	p := v.process
	p.services.Add(1)
	look, end := poll(func() time.Duration { return p.scaled(interval) }, v.announced,
		func() { v.changes.Add(1) })
	return look, func() {
		end()
		if w := p.watch(); w != nil {
			w.Remove(v.announced)
		}
		p.services.Add(-1)
	}
}

// poll returns a channel receiving a value every interval and, after a call of note, when a change
// is announced.
func poll(
	interval func() time.Duration, announced <-chan struct{}, note func(),
) (look <-chan struct{}, stop func()) {
	out, done := make(chan struct{}), make(chan struct{})
	go func() {
		tick := time.NewTimer(interval())
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				tick.Reset(interval())
			case <-announced:
				note()
			}
			select {
			case out <- struct{}{}:
			case <-done:
				return
			}
		}
	}()
	return out, func() { close(done) }
}

// check checks a shaper and returns lines to print. repaired reports a changed setup: the guard
// needs new instructions. If nothing was announced, check does nothing within a second of the last
// check.
func (v *watchdog) check(sh *kernel.Shaper) (lines []string, repaired bool) {
	w := v.shapers[sh]
	if w == nil {
		w = &watched{}
		v.shapers[sh] = w
	}
	if watcher := v.process.watch(); watcher != nil {
		watcher.Add(sh, v.announced)
	}
	changes := v.changes.Load()
	if w.changes == changes && time.Since(w.last) < v.process.scaled(checkInterval) {
		return nil, false
	}
	report := func(format string, args ...any) {
		lines = append(lines, fmt.Sprintf("%s: %s", live.Name(&sh.About), fmt.Sprintf(format, args...)))
	}
	if !w.inspect(sh, v.repair, report) {
		return lines, false
	}
	now := time.Now()
	w.changes, w.last = changes, now
	if w.outdated != "" && !now.Before(w.retry) {
		return lines, w.renew(sh, report)
	}
	if w.problems == "" || !v.repair {
		return lines, false
	}
	return lines, w.restore(sh, report)
}

// inspect reads the problems of a shaper and reports changes. It returns false if the shaper is
// just changing and must be checked again soon.
func (w *watched) inspect(sh *kernel.Shaper, repair bool, report func(string, ...any)) bool {
	list, err := sh.Problems()
	if errors.Is(err, kernel.ErrChanging) {
		return false
	}
	if err != nil {
		w.reportError(err, report)
		return true
	}
	var found, remedies, notes, outdated []string
	for _, p := range list {
		switch {
		case p.Harmless:
			notes = append(notes, p.Found)
			continue
		case p.Outdated:
			outdated = append(outdated, p.Found)
			continue
		}
		found = append(found, p.Found)
		if remedy := cli.AdviceOf(p.Remedy, sh.Interface); remedy != "" &&
			!slices.Contains(remedies, remedy) {
			remedies = append(remedies, remedy)
		}
	}
	if text := strings.Join(notes, "; "); text != w.notes {
		switch {
		case text != "":
			report("%s", text)
		case len(found) == 0:
			report("no longer: %s", w.notes)
		}
		w.notes = text
	}
	if text := strings.Join(outdated, "; "); text != w.outdated {
		if text != "" {
			report("%s: loading it again", text)
		}
		w.outdated = text
	}
	text := strings.Join(found, "; ")
	switch {
	case text == w.problems:
	case text == "":
		report("shaping again")
		w.gaveUp, w.failed, w.wait = false, "", 0
	case repair || len(remedies) == 0:
		report("not shaping: %s", text)
	default:
		report("not shaping: %s: %s", text, strings.Join(remedies, "; "))
	}
	w.problems = text
	return true
}

// reportError reports an error once.
func (w *watched) reportError(err error, report func(string, ...any)) {
	if text := err.Error(); text != w.failed {
		w.failed = text
		report("%s", text)
	}
}

// failedTo reports an error, and lets the next attempt wait.
func (w *watched) failedTo(do string, err error, report func(string, ...any)) {
	w.reportError(fmt.Errorf("cannot %s: %w", do, err), report)
	w.wait = min(max(2*w.wait, checkInterval), maxRepairWait)
	w.retry = time.Now().Add(w.wait)
}

// renew loads the policy of a shaper again.
func (w *watched) renew(sh *kernel.Shaper, report func(string, ...any)) (renewed bool) {
	err := sh.Renew(policyfile.PlanOf)
	switch {
	case errors.Is(err, kernel.ErrChanging), errors.Is(err, kernel.ErrDetached):
		return false // the next check sees the result
	case err != nil:
		w.failedTo("load the policy again", err, report)
		return false
	}
	w.wait = 0
	w.inspect(sh, true, report)
	return true
}

// restore repairs the setup of a shaper, but not too often.
func (w *watched) restore(sh *kernel.Shaper, report func(string, ...any)) (repaired bool) {
	now := time.Now()
	for len(w.repairs) > 0 && now.Sub(w.repairs[0]) > time.Minute {
		w.repairs = w.repairs[1:]
	}
	switch {
	case w.gaveUp || now.Before(w.retry):
		return false
	case len(w.repairs) == repairsPerMinute:
		w.gaveUp = true
		report("displaced again after %d repairs within a minute: giving up until the other program restores the order, or you stop it and run shaper again",
			repairsPerMinute)
		return false
	}
	err := sh.Repair(policyfile.PlanOf)
	switch {
	case errors.Is(err, kernel.ErrChanging), errors.Is(err, kernel.ErrDetached):
		return false // the next check sees the result
	case err != nil:
		w.failedTo("repair", err, report)
		return true // a part may be repaired
	}
	w.repairs = append(w.repairs, now)
	w.inspect(sh, true, report)
	return true
}

// problem returns the reason why not all packets go through a shaper, as of the last check; ""
// if they do.
func (v *watchdog) problem(sh *kernel.Shaper) string {
	if w := v.shapers[sh]; w != nil {
		return w.problems
	}
	return ""
}

// reset forgets all shapers.
func (v *watchdog) reset() { clear(v.shapers) }
