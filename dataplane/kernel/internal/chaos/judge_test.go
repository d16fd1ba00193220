//go:build linux && amd64

package chaos

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// judge holds the state of the interface after a fault against what it may be:
// whole, or shaping as shaper status says.
func (a *attempt) judge(may []string) {
	if a.guardless() {
		may = []string{nothing, policyA, policyB}
	}
	now := a.w.look()
	rows := a.status()
	shaping := false
	for _, d := range directions {
		if a.judgeDirection(d, now, rows[d.String()], may) {
			shaping = true
		}
	}
	if !shaping {
		if diff := now.differs(a.w.picture, partGSO, partClsact, partPins, partNotes); len(diff) > 0 && !a.reported(rows) {
			a.wrong("half: nothing is attached, but %s", strings.Join(diff, ", "))
		}
	}
	if a.s.name == "confirm" && a.victim.code() == 0 {
		for _, r := range slices.Concat(slices.Collect(maps.Values(rows))...) {
			if r.Unconfirmed != nil {
				a.wrong("claim: it says confirmed, but status says unconfirmed until %s", r.Unconfirmed.Format(time.TimeOnly))
			}
		}
	}
}

// may is what may be in force when all has ended.
func (a *attempt) may() []string {
	if a.victim.code() == 0 {
		return []string{a.s.want}
	}
	return a.s.may
}

// mayBeside is what may be in force while the run beside is there.
func (a *attempt) mayBeside() []string {
	if a.victim.code() == 0 {
		return []string{policyB}
	}
	return []string{policyA, policyB}
}

// reported says whether status tells of leftovers.
func (a *attempt) reported(rows map[string][]row) bool {
	found := false
	for _, list := range rows {
		for _, r := range list {
			found = found || r.left()
		}
	}
	if found && !a.excused() {
		a.wrong("left: status reports leftovers, and nobody removes them")
	}
	return found
}

// last is the last line of an output.
func last(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// judgeDirection says whether a direction is shaped.
func (a *attempt) judgeDirection(d direction, now picture, rows []row, may []string) (shaping bool) {
	found := a.w.prober.inForce(d)
	if !slices.Contains(a.s.within, d) {
		may = []string{nothing}
	}
	attached := slices.DeleteFunc(slices.Clone(rows), row.left)
	diff := now.differs(a.w.picture, d.String())
	switch {
	case len(attached) > 1:
		a.wrong("status: %s is listed %d times", d, len(attached))
	case len(attached) == 0 && found != nothing && len(rows) == 0:
		a.wrong("invisible: %s has %s in force, status does not list it", d, found)
	case len(attached) == 0 && len(diff) > 0 && len(rows) == 0:
		a.wrong("half: nothing is attached, but %s", strings.Join(diff, ", "))
	case len(attached) == 0 && len(rows) > 0 && !a.excused():
		a.wrong("left: %s is %q", d, rows[0].State)
	case len(attached) == 1:
		r := attached[0]
		named := map[bool]string{true: policyA, false: policyB}[strings.HasPrefix(r.Policy, "a")]
		if a.s.name == "hangup" {
			named = found
		}
		if r.DryRun {
			named = nothing
		}
		if found != named {
			a.wrong("status: %s is %q with policy %s, but %s is in force", d, r.State, r.Policy, found)
		}
		if len(diff) == 0 {
			a.wrong("status: %s is %q, but the kernel has nothing there", d, r.State)
		}
		waits := r.Unconfirmed != nil && time.Now().Before(*r.Unconfirmed)
		if !r.Pinned && !waits && (a.beside == nil || !a.beside.alive()) {
			a.wrong("status: %s is %q, but no process is left and it is not pinned", d, r.State)
		}
	}
	switch code := a.victim.code(); {
	case slices.Contains(may, found):
	case code == 0:
		a.wrong("claim: exit 0 with %q, but %s has %s in force, want %v", last(a.victim.stdout()), d, found, may)
	default:
		a.wrong("force: %s has %s in force, want %v", d, found, may)
	}
	return len(attached) > 0
}

// detach holds that one detach leaves nothing.
func (a *attempt) detach() {
	before := a.w.look()
	r, ok := a.w.do("detach", "v0")
	if !ok {
		a.wrong("detach: it does not end")
		return
	}
	for text := range strings.Lines(r.stderr()) {
		if !line.MatchString(text) || strings.Contains(text, "unexpected end of JSON input") {
			a.wrong("detach: %q", strings.TrimSuffix(text, "\n"))
		}
	}
	diff := before.differs(a.w.picture, lasting...)
	some := len(diff) > 0
	if code := r.code(); some && code != 0 {
		a.wrong("detach: exit %d: %s: there was %s", code, strings.TrimSpace(r.stderr()), strings.Join(diff, ", "))
	}
	if left := a.processes(); len(left) > 0 && !soon(patience, func() bool { return len(a.processes()) == 0 }) {
		a.wrong("detach: leaves processes: %s", strings.Join(left, ", "))
	}
	after := a.w.look()
	if diff := after.differs(a.w.picture, lasting...); len(diff) > 0 {
		a.wrong("detach: leaves %s", strings.Join(diff, ", "))
	}
	if diff := after.differs(a.w.picture, partLocks); len(diff) > 0 {
		a.wrong("locks: detach leaves files of %s", strings.Join(diff, ", "))
	}
	if !some {
		return
	}
	for _, d := range directions {
		if found := a.w.prober.inForce(d); found != nothing {
			a.wrong("detach: leaves %s in force in %s", found, d)
		}
	}
}

// again holds that shaper run works afterwards, and leaves nothing.
func (a *attempt) again() {
	args := a.s.plain()
	r := a.w.start(nil, args...)
	want := 1
	if strings.Contains(strings.Join(args, " "), "--direction both") {
		want = 2
	}
	if !soon(patience, func() bool { return !r.alive() || r.attached() >= want }) || !r.alive() {
		a.wrong("again: %s does not attach: %q %q", strings.Join(args, " "), r.stdout(), r.stderr())
		return
	}
	for _, d := range a.s.within {
		if found := a.w.prober.inForce(d); found == nothing {
			a.wrong("again: run says attached, but nothing is in force in %s", d)
		}
	}
	r.signal(15)
	if !r.wait() || r.code() != 0 {
		a.wrong("again: it does not end well: %q", r.stderr())
	}
	if diff := a.w.look().differs(a.w.picture, everything...); len(diff) > 0 {
		a.wrong("again: it leaves %s", strings.Join(diff, ", "))
	}
}
