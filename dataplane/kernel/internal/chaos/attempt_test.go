//go:build linux && amd64

package chaos

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// attempt is a scenario with a fault, in a world.
type attempt struct {
	w        *world
	s        *scenario
	f        fault
	victim   *process
	beside   *process
	besides  map[int]bool  // its process and its guard
	points   []string      // that the victim passed, traced
	guarded  int           // index of the first point with a guard, -1 for none
	length   time.Duration // of the victim's life
	hit      bool          // the fault happened
	problems []string      // what was wrong
	took     time.Duration
}

func (a *attempt) name() string { return a.s.name + "/" + a.f.String() }

// guardless says that the guard was killed too, so anything may be left.
func (a *attempt) guardless() bool {
	return a.f.kind == faultKillAll || a.f.all || a.f.kind == faultKill && a.s.orphan
}

// excused says that leftovers are right if status reports them: nobody was there
// to remove them.
func (a *attempt) excused() bool {
	return a.guardless() || (a.f.kind == faultKill || a.f.kind == "SIGKILL") && !a.s.foreground()
}

// wrong notes a problem. Its text begins with its kind.
func (a *attempt) wrong(format string, args ...any) {
	a.problems = append(a.problems, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " | "))
}

// run does it all, and says whether the world is as it was.
func (a *attempt) run() (clean bool) {
	begin := time.Now()
	defer func() { a.took = time.Since(begin) }()
	if a.prepare() {
		a.suffer()
		a.settle()
		a.judgeOutput()
		if a.beside != nil {
			a.endBeside()
		}
		a.judge(a.may())
	}
	a.detach()
	if len(a.problems) == 0 && a.f.again() {
		a.again()
	}
	a.w.killAll()
	return len(a.problems) == 0
}

// prepare runs what comes before.
func (a *attempt) prepare() bool {
	for _, args := range a.s.before {
		if r, ok := a.w.do(args...); !ok || r.code() != 0 {
			a.wrong("setup: %s does not succeed: %s", strings.Join(args, " "), r.stderr())
			return false
		}
	}
	if a.s.beside != nil {
		a.beside = a.w.start(nil, a.s.beside...)
		if !soon(patience, func() bool { return !a.beside.alive() || a.beside.attached() >= len(a.s.within) }) || !a.beside.alive() {
			a.wrong("setup: %s does not attach: %s", strings.Join(a.s.beside, " "), a.beside.stderr())
			return false
		}
		a.besides = map[int]bool{}
		for pid := range a.w.commands() {
			a.besides[pid] = true
		}
	}
	return true
}

// attached is how many directions a run says it has attached.
func (r *process) attached() int { return strings.Count(r.stdout(), "attached by") }

// suffer runs the victim to its end.
func (a *attempt) suffer() {
	var p *plan
	switch {
	case a.f.after > 0:
	case a.f.kind == "none":
		p = &plan{Guard: a.s.orphan}
	default:
		p = &plan{Point: a.f.point, Fault: a.f.kind, Guard: a.s.orphan}
	}
	begin := time.Now()
	a.victim = a.w.start(p, a.s.victim...)
	if a.f.after > 0 {
		go a.strike()
	}
	if a.s.ready > 0 {
		ready := func() bool { return !a.victim.alive() || a.victim.attached() >= a.s.ready || a.mute(p) }
		switch {
		case !soon(patience, ready):
			a.wrong("hang: neither attached nor ended after %v: %s", patience, a.victim.stderr())
		case a.mute(p):
			soon(time.Second, func() bool { return !a.victim.alive() })
			a.s.then(a)
		case a.victim.alive():
			a.active()
			a.s.then(a)
		}
	}
	if !a.victim.wait() {
		a.wrong("hang: it does not end: %q %q", a.victim.stdout(), a.victim.stderr())
		a.w.killAll()
		a.victim.wait()
	}
	a.length = time.Since(begin)
	a.hit = a.f.after > 0
	if p != nil {
		a.readLog(read(p.Log))
	}
}

// mute says that the victim could not print what it waits to be told by.
func (a *attempt) mute(p *plan) bool {
	return strings.HasPrefix(a.f.point, "write stdout") && strings.Contains(read(p.Log), logFault+"\t")
}

// strike sends the signal at the random moment.
func (a *attempt) strike() {
	select {
	case <-a.victim.ended:
		return
	case <-time.After(a.f.after):
	}
	if a.f.all {
		for _, m := range a.w.members() {
			if m.pid != a.victim.cmd.Process.Pid && strings.Contains(m.command, " guard ") {
				_ = syscall.Kill(m.pid, syscall.SIGKILL)
			}
		}
	}
	a.victim.signal(signals[a.f.kind])
}

func (a *attempt) readLog(log string) {
	a.guarded = -1
	for line := range strings.Lines(log) {
		word, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		switch word {
		case logPoint:
			a.points = append(a.points, rest)
		case logChild:
			if a.guarded < 0 {
				a.guarded = len(a.points)
			}
		case logFault:
			a.hit = true
		}
	}
}

// active holds that what a victim says it attached is in force. A signal may
// end it meanwhile.
func (a *attempt) active() {
	if a.f.after > 0 {
		return
	}
	for _, d := range a.s.within {
		if got := a.w.prober.inForce(d); got != a.s.active && a.victim.alive() {
			a.wrong("claim: it says attached, but %s has %s in force, want %s", d, got, a.s.active)
		}
	}
}

// terminate ends the victim as systemd does. Half of the random moments are to
// be in the time before, half may be in what the victim does at its end.
func (a *attempt) terminate() {
	if a.f.after > 0 && a.f.after%2 == 0 {
		select {
		case <-a.victim.ended:
			return
		case <-time.After(a.f.after):
		}
	}
	a.victim.signal(syscall.SIGTERM)
}

// kill ends the victim, so that its guard has to act.
func (a *attempt) kill() { a.victim.signal(syscall.SIGKILL) }

// hangup changes the policy file and has the victim read it again.
func (a *attempt) hangup(policy string) {
	a.w.inside(func() { a.w.write("a.yaml", policies[policy+".yaml"]) })
	defer a.w.inside(func() { a.w.write("a.yaml", policies["a.yaml"]) })
	a.victim.signal(syscall.SIGHUP)
	if strings.HasPrefix(a.f.point, "write ") { // it may be unable to say so
		soon(time.Second, func() bool { return !a.victim.alive() })
		return
	}
	if !soon(patience, func() bool {
		return !a.victim.alive() || strings.Contains(a.victim.stdout(), "reloaded") || strings.Contains(a.victim.stderr(), "the policy is unchanged")
	}) {
		a.wrong("hang: SIGHUP has no effect")
	}
	want := policyB
	if !strings.Contains(a.victim.stdout(), "reloaded") {
		want = policyA
	}
	got := a.w.prober.inForce(egress)
	if got != want && a.f.after == 0 && !soon(time.Second, func() bool { return !a.victim.alive() }) {
		a.wrong("claim: after SIGHUP %s is in force, want %s: %q %q", got, want, last(a.victim.stdout()), a.victim.stderr())
	}
}

// linger lets the victim look at its interface a few times.
func (a *attempt) linger() {
	select {
	case <-a.victim.ended:
		if a.f.after > 0 || a.f.kind == faultKill || a.f.kind == faultKillAll {
			return
		}
		a.wrong("ended: a fault of a look at the interface ends it: exit %d: %s", a.victim.code(), a.victim.stderr())
	case <-time.After(time.Second):
	}
}

// command runs another command meanwhile.
func (a *attempt) command(args ...string) {
	r, ok := a.w.do(args...)
	if !ok || r.code() != 0 && a.f.after == 0 && a.victim.alive() {
		a.wrong("beside: %s fails: %s", strings.Join(args, " "), r.stderr())
	}
}

// settle waits until all that the victim started has ended.
func (a *attempt) settle() {
	var left []string
	if soon(patience, func() bool {
		left = a.processes()
		return len(left) == 0
	}) {
		return
	}
	a.wrong("process: still running after %v: %s", patience, strings.Join(left, ", "))
}

// processes are those of the world but the run beside, and its guard.
func (a *attempt) processes() []string {
	var out []string
	for pid, command := range a.w.commands() {
		if !a.besides[pid] || !a.beside.alive() {
			out = append(out, command)
		}
	}
	return out
}

// endBeside judges what there is while the run beside is alive, and ends it.
func (a *attempt) endBeside() {
	if !a.beside.alive() {
		a.wrong("ended: the run beside has ended: exit %d: %s", a.beside.code(), a.beside.stderr())
		return
	}
	a.judge(a.mayBeside())
	a.beside.signal(syscall.SIGTERM)
	if !a.beside.wait() {
		a.wrong("hang: the run beside does not end")
	}
	a.settle()
}

// row is what shaper status --json prints of a direction.
type row struct {
	Interface, Direction, State, Policy string

	Attached, Pinned bool
	DryRun           bool       `json:"dry_run"`
	Unconfirmed      *time.Time `json:"unconfirmed_until"`
}

// left says that it is what a dead process left.
func (r row) left() bool { return !r.Attached || strings.Contains(r.State, "left behind") }

// status are the rows of an interface by direction.
func (a *attempt) status() map[string][]row {
	r, ok := a.w.do("status", "--json")
	if !ok || r.code() != 0 {
		a.wrong("status: it fails: %s", r.stderr())
		return nil
	}
	rows := map[string][]row{}
	for d := json.NewDecoder(strings.NewReader(r.stdout())); d.More(); {
		var next row
		if err := d.Decode(&next); err != nil {
			a.wrong("status: not JSON: %v: %s", err, r.stdout())
			return nil
		}
		if next.Interface != "v0" {
			a.wrong("status: it lists %s", next.Interface)
			continue
		}
		rows[next.Direction] = append(rows[next.Direction], next)
	}
	return rows
}

// line is what each line of an error must look like.
var line = regexp.MustCompile(`^shaper: \S`)

// runtimeFault is an end that the Go runtime chose, for an error in a call of
// its own.
var runtimeFault = regexp.MustCompile(`newosproc|netpollBreak|epoll|failed to create new OS thread`)

// judgeOutput judges the exit code and the texts of the victim.
func (a *attempt) judgeOutput() {
	r := a.victim
	stderr := r.stderr()
	if runtimeFault.MatchString(stderr) {
		return
	}
	switch code := r.code(); {
	case code > killed && (a.s.orphan || a.f.kind == faultKill || a.f.kind == faultKillAll || a.f.after > 0):
		return
	case code > killed:
		a.wrong("exit: it was ended by a signal: %d: %s", code-killed, stderr)
	case code == 2 && strings.Contains(stderr, "goroutine "):
		a.wrong("panic: %s", stderr[:min(len(stderr), 300)])
		return
	case code == 0 && a.s.fails == always && a.f.after == 0:
		a.wrong("exit: 0 for a policy that nobody confirmed")
	case code != 0 && a.s.fails == never && !a.hit:
		a.wrong("exit: %d without a fault: %s", code, stderr)
	case code != 0 && stderr == "" && a.f.point != "write stderr#1":
		a.wrong("stderr: exit %d, and no word about it", code)
	}
	if a.s.lists && r.code() == 0 && !strings.Contains(r.stdout(), `"interface":"v0"`) {
		a.wrong("claim: exit 0, and v0 is not listed: %q", r.stdout())
	}
	for text := range strings.Lines(stderr) {
		text = strings.TrimSuffix(text, "\n")
		if !line.MatchString(text) || strings.Contains(text, "unexpected end of JSON input") {
			a.wrong("stderr: %q is not an error as people read them", text)
			return
		}
	}
}
