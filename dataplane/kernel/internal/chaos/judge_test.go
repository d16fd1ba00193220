//go:build linux && amd64

package chaos

import (
	"cmp"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// judge checks the interface after a fault: it must be untouched or shaped, as shaper status
// prints it, with one of the allowed policies in force.
func (a *attempt) judge(may []string) {
	if a.guardless() {
		may = []string{nothing, policyA, policyB}
	}
	now := a.w.takePicture()
	rows := a.status()
	shaping := map[direction]bool{}
	for _, d := range directions {
		shaping[d] = a.judgeDirection(d, now, rows[d.String()], may)
	}
	if !shaping[egress] && !shaping[ingress] {
		parts := []string{partGSO, partClsact, partPins, partNotes}
		if !a.f.kills() { // a run without a guard leaves its file of changes, which the next one does not use
			parts = append(parts, partChanges)
		}
		if diff := now.differs(a.w.picture, parts...); len(diff) > 0 && !a.reported(rows) {
			a.problem("half: nothing is attached, but %s", strings.Join(diff, ", "))
		}
	}
	a.judgeTerms(shaping[egress], rows, a.allowedTerms())
	if a.s.name == "confirm" && a.victim.code() == 0 {
		for _, r := range slices.Concat(slices.Collect(maps.Values(rows))...) {
			if r.Unconfirmed != nil {
				a.problem("claim: confirm succeeded, but status prints unconfirmed until %s",
					r.Unconfirmed.Format(time.TimeOnly))
			}
		}
	}
}

// allowed are the policies that can be in force when all processes have ended.
func (a *attempt) allowed() []string {
	if a.victim.code() == 0 {
		return []string{a.s.want}
	}
	return a.s.may
}

// allowedBeside are the policies that can be in force while the run beside is alive.
func (a *attempt) allowedBeside() []string {
	want := cmp.Or(a.s.besideWant, policyB)
	if a.victim.code() == 0 {
		return []string{want}
	}
	return []string{policyA, want}
}

// reported reports whether status lists leftovers.
func (a *attempt) reported(rows map[string][]row) bool {
	found := false
	for _, list := range rows {
		for _, r := range list {
			found = found || r.left()
		}
	}
	if found && !a.excused() {
		a.problem("left: status lists leftovers, want none")
	}
	return found
}

// lastLine is the last line of an output.
func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// judgeDirection checks one direction, and reports whether it is shaped.
func (a *attempt) judgeDirection(d direction, now picture, rows []row, may []string) (shaping bool) {
	found := a.w.prober.inForce(d)
	if !slices.Contains(a.s.within, d) {
		may = []string{nothing}
	}
	attached := slices.DeleteFunc(slices.Clone(rows), row.left)
	diff := now.differs(a.w.picture, d.String())
	switch {
	case len(attached) > 1:
		a.problem("status: %s is listed %d times", d, len(attached))
	case len(attached) == 0 && found != nothing && len(rows) == 0:
		a.problem("invisible: %s has %s in force, but status does not list it", d, found)
	case len(attached) == 0 && len(diff) > 0 && len(rows) == 0:
		a.problem("half: nothing is attached, but %s", strings.Join(diff, ", "))
	case len(attached) == 0 && len(rows) > 0 && !a.excused():
		a.problem("left: %s is %q", d, rows[0].State)
	case len(attached) == 1:
		r := attached[0]
		named := map[bool]string{
			true: policyA, false: policyB,
		}[strings.HasPrefix(filepath.Base(r.Policy), "a")]
		if strings.HasSuffix(a.s.name, "hangup") {
			named = found
		}
		if r.DryRun {
			named = nothing
		}
		if found != named {
			a.problem("status: %s is %q with policy %s, but %s is in force", d, r.State, r.Policy, found)
		}
		if len(diff) == 0 && !a.s.tap {
			a.problem("status: %s is %q, but the kernel has no program or qdisc there", d, r.State)
		}
		pending := r.Unconfirmed != nil && time.Now().Before(*r.Unconfirmed)
		if !r.Pinned && !pending && (a.beside == nil || !a.beside.alive()) {
			a.problem("status: %s is %q, but no process is left and it is not pinned", d, r.State)
		}
	}
	switch code := a.victim.code(); {
	case slices.Contains(may, found):
	case code == 0:
		a.problem("claim: exit 0 with %q, but %s has %s in force, want %v", lastLine(a.victim.stdout()), d,
			found, may)
	default:
		a.problem("force: %s has %s in force, want %v", d, found, may)
	}
	return len(attached) > 0
}

// detach runs one shaper detach and checks that it leaves nothing behind.
func (a *attempt) detach() {
	before := a.w.takePicture()
	r, ok := a.w.runCommand("detach", a.s.device())
	if !ok {
		a.problem("detach: the command does not end")
		return
	}
	for text := range strings.Lines(r.stderr()) {
		if !errorLine.MatchString(text) || strings.Contains(text, "unexpected end of JSON input") {
			a.problem("detach: %q", strings.TrimSuffix(text, "\n"))
		}
	}
	diff := before.differs(a.w.picture, lasting...)
	some := len(diff) > 0
	if code := r.code(); some && code != 0 {
		a.problem("detach: exit %d: %s; before: %s", code, strings.TrimSpace(r.stderr()),
			strings.Join(diff, ", "))
	}
	if left := a.processes(); len(left) > 0 &&
		!eventually(patience, func() bool { return len(a.processes()) == 0 }) {
		a.problem("detach: leaves processes: %s", strings.Join(left, ", "))
	}
	after := a.w.takePicture()
	if diff := after.differs(a.w.picture, lasting...); len(diff) > 0 {
		a.problem("detach: leaves %s", strings.Join(diff, ", "))
	}
	if diff := after.differs(a.w.picture, partLocks); len(diff) > 0 {
		a.problem("locks: detach leaves files of %s", strings.Join(diff, ", "))
	}
	if !some {
		return
	}
	for _, d := range directions {
		if found := a.w.prober.inForce(d); found != nothing {
			a.problem("detach: leaves %s in force in %s", found, d)
		}
	}
}

// runAgain checks that shaper run works after the fault and leaves nothing behind.
func (a *attempt) runAgain() {
	args := a.s.plain()
	r := a.w.start(nil, args...)
	want := 1
	if strings.Contains(strings.Join(args, " "), "--direction both") {
		want = 2
	}
	if !eventually(patience, func() bool { return !r.alive() || r.attached() >= want }) || !r.alive() {
		a.problem("again: %s does not attach: %q %q", strings.Join(args, " "), r.stdout(), r.stderr())
		return
	}
	if a.s.tap && !a.useTap() {
		return
	}
	for _, d := range a.s.within {
		if found := a.w.prober.inForce(d); found == nothing {
			a.problem("again: run prints attached, but nothing is in force in %s", d)
		}
	}
	r.signal(syscall.SIGTERM)
	if !r.wait() || r.code() != 0 {
		a.problem("again: run does not end with exit code 0: %q", r.stderr())
	}
	if diff := a.w.takePicture().differs(a.w.picture, everything...); len(diff) > 0 {
		a.problem("again: run leaves %s", strings.Join(diff, ", "))
	}
}
