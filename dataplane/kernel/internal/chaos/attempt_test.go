//go:build linux && amd64

package chaos

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// attempt is one scenario with one fault, in a world.
type attempt struct {
	w        *world
	s        *scenario
	f        fault
	victim   *process
	beside   *process
	besides  map[int]bool  // process IDs of beside and its guard
	points   []string      // points that the traced victim passed
	guarded  int           // index of the first point with a guard, -1 for none
	length   time.Duration // lifetime of the victim
	hit      bool          // the fault was injected
	problems []string      // violations found
	took     time.Duration // duration of the attempt
	server   *liar
	late     time.Duration // time until an end or a quota was in force
}

func (a *attempt) name() string { return a.s.name + "/" + a.f.String() }

// guardless reports whether the guard was killed too, so that anything can be left behind.
func (a *attempt) guardless() bool {
	return a.f.kind == faultKillAll || a.f.all || a.f.kind == faultKill && a.s.orphan
}

// excused reports whether leftovers are allowed if status reports them: no process was there to
// remove them.
func (a *attempt) excused() bool {
	return a.guardless() || (a.f.kind == faultKill || a.f.kind == "SIGKILL") && !a.s.foreground()
}

// problem records a violation. Its text begins with its kind.
func (a *attempt) problem(format string, args ...any) {
	a.problems = append(a.problems, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " | "))
}

// run runs the whole attempt, and reports whether the world can be used again.
func (a *attempt) run() (clean bool) {
	begin := time.Now()
	defer func() { a.took = time.Since(begin) }()
	if a.prepare() {
		a.runVictim()
		a.settle()
		a.judgeOutput()
		if a.beside != nil {
			a.endBeside()
		}
		a.judge(a.allowed())
	}
	a.detach()
	a.cleanUp()
	if len(a.problems) == 0 && a.f.rerun() {
		a.runAgain()
	}
	a.w.killAll()
	return len(a.problems) == 0
}

// cleanUp closes the scenario's server, and removes its disk and state.
func (a *attempt) cleanUp() {
	if a.server != nil {
		a.server.listener.Close()
	}
	a.w.inside(func() {
		if a.s.disk != nil {
			_ = a.s.disk.unmount() // it may be gone
		}
		_ = os.RemoveAll(stateFolder)
	})
}

// prepare runs the commands before the victim, and reports whether they succeed.
func (a *attempt) prepare() bool {
	if a.s.disk != nil && !a.onDisk("mount", (*disk).mount) {
		return false
	}
	if a.s.liar > 0 {
		var err error
		if a.server, err = a.w.newLiar(a.s.liar); err != nil {
			a.problem("setup: %v", err)
			return false
		}
	}
	for _, args := range a.s.before {
		if r, ok := a.w.runCommand(args...); !ok || r.code() != 0 {
			a.problem("setup: %s fails: %s", strings.Join(args, " "), r.stderr())
			return false
		}
	}
	if a.s.beside != nil {
		a.beside = a.w.start(nil, a.s.beside...)
		if !eventually(patience,
			func() bool { return !a.beside.alive() || a.beside.attached() >= len(a.s.within) }) ||
			!a.beside.alive() {
			a.problem("setup: %s does not attach: %s", strings.Join(a.s.beside, " "), a.beside.stderr())
			return false
		}
		a.besides = map[int]bool{}
		for pid := range a.w.commands() {
			a.besides[pid] = true
		}
		if a.s.tap && !a.useTap() {
			return false
		}
	}
	if a.s.first != nil {
		if r, ok := a.w.runCommand(a.s.first...); !ok || r.code() != 0 {
			a.problem("setup: %s fails: %s", strings.Join(a.s.first, " "), r.stderr())
			return false
		}
	}
	return true
}

// useTap sends the probes through the TAP device.
func (a *attempt) useTap() bool {
	err := a.w.useTap()
	if err != nil && a.alive() {
		a.problem("setup: use the TAP device: %v", err)
	}
	return err == nil
}

// attached is the number of directions that a run or a tap reports as attached.
func (r *process) attached() int {
	if r.args[0] == "serve" {
		return strings.Count(r.stderr(), "v0: shaped, policy") * len(directions) // in all of its directions at once
	}
	text := r.stdout()
	return strings.Count(text, "attached by") + strings.Count(text, "moving frames to and from")
}

// runVictim runs the victim with its fault to its end.
func (a *attempt) runVictim() {
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
		go a.sendSignal()
	}
	if a.s.ready > 0 {
		ready := func() bool {
			return !a.victim.alive() || a.victim.attached() >= a.s.ready || a.cannotPrint(p)
		}
		switch {
		case !eventually(patience, ready):
			a.problem("hang: neither attached nor ended after %v: %s", patience, a.victim.stderr())
		case a.cannotPrint(p):
			eventually(time.Second, func() bool { return !a.victim.alive() })
			if !a.s.tap || a.useTap() {
				a.s.then(a)
			}
		case a.victim.alive():
			if a.s.tap && !a.useTap() {
				break
			}
			a.checkActive()
			a.s.then(a)
		}
	}
	if !a.victim.wait() {
		a.problem("hang: the victim does not end: %q %q", a.victim.stdout(), a.victim.stderr())
		a.w.killAll()
		a.victim.wait()
	}
	a.length = time.Since(begin)
	a.hit = a.f.after > 0
	if p != nil {
		a.readLog(readFile(p.Log))
	}
}

// cannotPrint reports whether the fault kept the victim from printing that it is attached.
func (a *attempt) cannotPrint(p *plan) bool {
	to := "write stdout"
	if a.s.victim[0] == "serve" {
		to = "write stderr"
	}
	return strings.HasPrefix(a.f.point, to) && strings.Contains(readFile(p.Log), logFault+"\t")
}

// sendSignal sends the signal at the random moment.
func (a *attempt) sendSignal() {
	select {
	case <-a.victim.ended:
		return
	case <-time.After(a.f.after):
	}
	if a.f.all {
		beside := 0 // its guard would start again, and be taken for one that the victim left
		if a.beside != nil {
			beside = a.beside.cmd.Process.Pid
		}
		for _, m := range a.w.members() {
			if m.pid != a.victim.cmd.Process.Pid && m.parent != beside && strings.Contains(m.command, " guard ") {
				_ = syscall.Kill(m.pid, syscall.SIGKILL)
			}
		}
	}
	a.victim.signal(signals[a.f.kind])
}

// readLog reads the tracer's log.
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

// checkActive checks that the policy that the victim reports as attached is in force. A random
// signal can end the victim meanwhile.
func (a *attempt) checkActive() {
	if a.f.after > 0 {
		return
	}
	for _, d := range a.s.within {
		if got := a.w.prober.inForce(d); got != a.s.active && a.victim.alive() {
			a.problem("claim: the victim prints attached: got %[2]s in force on %[1]s, want %[3]s", d, got,
				a.s.active)
		}
	}
}

// terminate ends the victim as systemd does. Half of the random signals arrive before, the others
// may arrive while the victim ends.
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

// kill kills the victim, so that its guard has to clean up.
func (a *attempt) kill() { a.victim.signal(syscall.SIGKILL) }

// refusal matches the message about a policy that is not loaded.
var refusal = regexp.MustCompile(`the policy is unchanged|nothing is changed|its interfaces are unchanged|` +
	`is not loaded at any interface|: not reloaded`)

// hangup changes the policy file and sends SIGHUP, so that the victim reads it again.
func (a *attempt) hangup(policy string) {
	a.w.inside(func() { a.w.writePolicy("a.yaml", policies[policy+".yaml"]) })
	defer a.w.inside(func() { a.w.writePolicy("a.yaml", policies["a.yaml"]) })
	a.victim.signal(syscall.SIGHUP)
	if strings.HasPrefix(a.f.point, "write ") { // it may be unable to print the result
		eventually(time.Second, func() bool { return !a.victim.alive() })
		return
	}
	reloaded := func() bool {
		return strings.Contains(a.victim.stdout(), "reloaded") || strings.Contains(a.victim.stderr(), ": reloaded at ")
	}
	if !eventually(patience, func() bool {
		return !a.victim.alive() || reloaded() || refusal.MatchString(a.victim.stderr())
	}) {
		a.problem("hang: SIGHUP has no effect")
	}
	want := policyB
	if !reloaded() {
		want = policyA
	}
	got := a.w.prober.inForce(egress)
	if got != want && a.f.after == 0 && !eventually(time.Second, func() bool { return !a.victim.alive() }) {
		a.problem("claim: after SIGHUP: got %s in force, want %s: %q %q", got, want,
			lastLine(a.victim.stdout()), a.victim.stderr())
	}
}

// linger waits until the victim has checked its interface a few times.
func (a *attempt) linger() {
	select {
	case <-a.victim.ended:
		if a.f.after > 0 || a.f.kind == faultKill || a.f.kind == faultKillAll {
			return
		}
		a.problem("ended: a failed check of the interface ends the victim: exit %d: %s", a.victim.code(),
			a.victim.stderr())
	case <-time.After(time.Second):
	}
}

// command runs another command while the victim runs.
func (a *attempt) command(args ...string) {
	r, ok := a.w.runCommand(args...)
	if !ok || r.code() != 0 && a.f.after == 0 && a.victim.alive() {
		a.problem("beside: %s fails: %s", strings.Join(args, " "), r.stderr())
	}
}

// settle waits until all processes that the victim started have ended.
func (a *attempt) settle() {
	var left []string
	if eventually(patience, func() bool {
		left = a.processes()
		return len(left) == 0
	}) {
		return
	}
	a.problem("process: still running after %v: %s", patience, strings.Join(left, ", "))
}

// processes are the command lines of the world's processes except the run beside and its guard.
func (a *attempt) processes() []string {
	var out []string
	for pid, command := range a.w.commands() {
		if !a.besides[pid] || !a.beside.alive() {
			out = append(out, command)
		}
	}
	return out
}

// endBeside judges the interface while the run beside is alive, and then ends that run.
func (a *attempt) endBeside() {
	if !a.beside.alive() {
		a.problem("ended: the run beside has ended: exit %d: %s", a.beside.code(), a.beside.stderr())
		return
	}
	if a.s.disk != nil {
		a.judgeDisk()
	}
	if a.s.ends {
		a.awaitTerms(a.s.terms)
	}
	a.judge(a.allowedBeside())
	a.beside.signal(syscall.SIGTERM)
	if !a.beside.wait() {
		a.problem("hang: the run beside does not end")
	}
	a.settle()
}

// row is a direction as shaper status --json prints it.
type row struct {
	Interface, Direction, State, Policy string

	Attached, Pinned bool
	Changes          []change
	OverQuota        int        `json:"over_quota"`
	Problem          string     `json:"change_problem"`
	DryRun           bool       `json:"dry_run"`
	Unconfirmed      *time.Time `json:"unconfirmed_until"`
}

// left reports whether the row is about leftovers of a dead process.
func (r row) left() bool { return !r.Attached || strings.Contains(r.State, "left behind") }

// status returns the rows of the interface by direction.
func (a *attempt) status() map[string][]row {
	r, ok := a.w.runCommand("status", "--json")
	if !ok || r.code() != 0 {
		a.problem("status: the command fails: %s", r.stderr())
		return nil
	}
	rows := map[string][]row{}
	for d := json.NewDecoder(strings.NewReader(r.stdout())); d.More(); {
		var next row
		if err := d.Decode(&next); err != nil {
			a.problem("status: not JSON: %v: %s", err, r.stdout())
			return nil
		}
		if next.Interface != a.s.device() {
			a.problem("status: got interface %s, want %s", next.Interface, a.s.device())
			continue
		}
		rows[next.Direction] = append(rows[next.Direction], next)
	}
	return rows
}

// errorLine matches a line of an error message.
var errorLine = regexp.MustCompile(`^shaper: \S`)

// runtimeFault matches the message of a Go runtime that ends because one of its own calls failed.
var runtimeFault = regexp.MustCompile(`newosproc|netpollBreak|epoll|failed to create new OS thread`)

// judgeOutput checks the exit code and the error messages of the victim.
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
		a.problem("exit: ended by signal %d: %s", code-killed, stderr)
	case code == 2 && strings.Contains(stderr, "goroutine "):
		a.problem("panic: %s", stderr[:min(len(stderr), 300)])
		return
	case code == 0 && a.s.fails == always && a.f.after == 0:
		a.problem("exit: got 0 for an unconfirmed policy, want a failure")
	case code != 0 && a.s.fails == never && !a.hit:
		a.problem("exit: got %d without a fault, want 0: %s", code, stderr)
	case code != 0 && stderr == "" && a.f.point != "write stderr#1":
		a.problem("stderr: exit %d without a message", code)
	}
	if a.s.lists && r.code() == 0 && !strings.Contains(r.stdout(), `"interface":"v0"`) {
		a.problem("claim: exit 0, but v0 is not listed: %q", r.stdout())
	}
	for text := range strings.Lines(stderr) {
		text = strings.TrimSuffix(text, "\n")
		if !errorLine.MatchString(text) || strings.Contains(text, "unexpected end of JSON input") {
			a.problem("stderr: got %q, want lines of the form shaper: MESSAGE", text)
			return
		}
	}
}
