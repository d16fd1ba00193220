package livetest

import (
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestLiveDisplaced checks that changes by another program are detected, reported once and
// shown by status, and that they survive the end of the shaper.
func TestLiveDisplaced(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	for _, d := range displacements() {
		if d.ends {
			continue
		}
		t.Run(d.name, func(t *testing.T) {
			p := newQueuePair(t)
			before := p.deviceState()
			r := p.startDisplaced(&d)
			if e := p.effectStatus(); e.Effective == nil || !*e.Effective || len(e.Problems) > 0 {
				t.Errorf("status %+v before the change: want it effective", e)
			}
			d.do(p)
			r.err.awaitMatch(t, `(?m)^shaper: v0 \w+: not shaping: `+d.found+`: .*--repair restores ours`)
			e := p.effectStatus()
			if e.Effective == nil || *e.Effective || len(e.Problems) != 1 ||
				!regexp.MustCompile(`^`+d.found+`: .*`).MatchString(e.Problems[0]) {
				t.Errorf("status %+v: want one problem, %s", e, d.found)
			}
			out, _ := p.wantExit(0, "status")
			if !regexp.MustCompile(` not effective: ` + d.found + `: `).MatchString(
				strings.Join(strings.Fields(out), " ")) {
				t.Errorf("status prints %q: want that it is not effective", out)
			}
			if n := r.countStderrLines(`shaper: v0 \w+: (not )?shaping.*`); n != 1 {
				t.Errorf("stderr %q: want one line", &r.err)
			}
			if strings.HasSuffix(d.name, "ahead") {
				if n, _ := p.probeShaper(&d); n != 3 {
					t.Errorf("%d of 3 packets bypass the shaper: want all", n)
				}
			}
			if d.undo != nil {
				d.undo(p)
				r.err.awaitMatch(t, `(?m)^shaper: v0 \w+: shaping again$`)
				if e := p.effectStatus(); e.Effective == nil || !*e.Effective {
					t.Errorf("status %+v: want it effective again", e)
				}
			}
			r.stopBySIGTERM()
			p.awaitEnded(&d, before)
		})
	}
}

// TestLiveRepaired checks that --repair restores the shaper once, and that it shapes again.
func TestLiveRepaired(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	for _, d := range displacements() {
		t.Run(d.name, func(t *testing.T) {
			p := newQueuePair(t)
			before := p.deviceState()
			r := p.startDisplaced(&d, "--repair")
			d.do(p)
			r.err.awaitMatch(t, `(?m)^shaper: v0 \w+: not shaping: `+d.found)
			r.err.awaitMatch(t, `(?m)^shaper: v0 \w+: shaping again$`)
			if e := p.effectStatus(); e.Effective == nil || !*e.Effective || len(e.Problems) > 0 {
				t.Errorf("status %+v: want it effective again", e)
			}
			if n, _ := p.probeShaper(&d); n != 0 {
				t.Errorf("%d of 3 packets bypass the shaper", n)
			}
			if n := r.countStderrLines(`shaper: v0 \w+: (not )?shaping.*`); n != 2 {
				t.Errorf("stderr %q: want the problem, and that it shapes again", &r.err)
			}
			if d.undo != nil {
				d.undo(p)
			}
			r.stopBySIGTERM()
			p.awaitEnded(&d, before)
		})
	}
}

// TestLiveRemoved checks that run ends if its program was removed, and restores the previous
// state.
func TestLiveRemoved(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	for _, d := range displacements() {
		if !d.ends {
			continue
		}
		t.Run(d.name, func(t *testing.T) {
			p := newQueuePair(t)
			before := p.deviceState()
			if !d.queues && !slices.Contains(d.args, "ingress") {
				d.queues = true // the qdisc must be removed, too
				d.args = append(d.args, "--pacer", "htb")
			}
			r := p.startDisplaced(&d)
			d.do(p)
			if code := r.waitForExit(); code != 0 ||
				!strings.Contains(r.err.String(), "detached: another program removed the eBPF program\n") {
				t.Errorf("exit %d, stderr %q: want that it was detached", code, &r.err)
			}
			p.awaitEnded(&d, before)
			if out, _ := p.wantExit(0, "status"); !strings.HasPrefix(out, "no shaper is attached") {
				t.Errorf("status prints %q", out)
			}
		})
	}
}

// TestLiveInterfaceChanges sets an interface down, renames it and moves it to another
// namespace. The shaper must continue and report the changes.
func TestLiveInterfaceChanges(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	for _, hook := range []string{"tcx", "tc"} {
		t.Run("renamed "+hook, func(t *testing.T) {
			placement{hook, "egress"}.skipIfUnsupported(t)
			p := newPair(t)
			r := p.runShaper("--hook", hook, "--repair", "--meter", unlimitedMeter)
			p.near.Run("ip", "link", "set", "v0", "down")
			r.err.awaitMatch(t, `(?m)^shaper: v0 egress: interface v0 is down$`)
			e := p.effectStatus()
			if e.Effective == nil || !*e.Effective || len(e.Notes) != 1 ||
				e.Notes[0] != "interface v0 is down" {
				t.Errorf("status %+v: want it effective, and the interface down", e)
			}
			p.near.Run("ip", "link", "set", "v0", "name", "w0")
			p.near.Run("ip", "link", "set", "w0", "up")
			r.err.awaitMatch(t, `(?m)^shaper: v0 is now called w0$`)
			r.err.awaitMatch(t, `(?m)^shaper: \w0 egress: no longer: interface \w0 is down$`)
			if out, _ := p.wantExit(0, "status"); !strings.HasPrefix(out, "w0 egress: attached") {
				t.Errorf("status prints %q: want the new name", out)
			}
			p.near.Run("ip", "link", "set", "w0", "name", "v0")
			eventually(t, func() error {
				if e := p.effectStatus(); len(e.Notes) > 0 {
					return fmt.Errorf("notes %q: want none", e.Notes)
				}
				return nil
			})
			if n := r.countStderrLines(`.*shaping.*`); n != 0 {
				t.Errorf("stderr %q: want no line about shaping", &r.err)
			}
			r.stopBySIGTERM()
		})
	}
	t.Run("moved", func(t *testing.T) {
		placement{"tcx", "egress"}.skipIfUnsupported(t)
		p := newPair(t)
		r := p.runShaper("--hook", "tcx", "--meter", unlimitedMeter)
		other := nettest.New(t)
		holder := exec.Command("sleep", "1000")
		other.Start(holder)
		p.near.Run("ip", "link", "set", "v0", "netns", fmt.Sprint(holder.Process.Pid))
		r.err.awaitMatch(t,
			`(?m)^shaper: v0 is gone .deleted, or moved to another network namespace.: waiting for it to come back$`)
		eventually(t, func() error {
			if s := p.status(); len(s) != 1 || s[0].State != "waiting" {
				return fmt.Errorf("status %+v: want it waiting", s)
			}
			return nil
		})
		r.stopBySIGTERM()
		if n := len(tcxLinks(t, other, ebpf.AttachTCXEgress)); n != 0 {
			t.Errorf("%d TCX links are left on it: want none", n)
		}
	})
}

// TestLiveNoFalseAlarm checks that normal operation causes no reports: policies change in both
// directions, and programs of others run after ours.
func TestLiveNoFalseAlarm(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	for _, hook := range []string{"auto", "tc"} {
		t.Run(hook, func(t *testing.T) {
			p := newQueuePair(t)
			plain := writePolicy(t,
				"classes:\n  - name: a\n    meter: {type: token-bucket, rate: 1mbit, burst: 9000}\n")
			two := writePolicy(t, `
classes:
  - {name: a, match: {proto: udp}, green: {queue: q}}
  - {name: b, green: {queue: rest}}
links: {l: {rate: 9mbit}}
queues: {rest: {link: l, limit: 100kB}, q: {rate: 2mbit, limit: 50ms}}
`)
			p.near.Run("ip", "link", "add", "b0", "type", "bridge")
			p.near.Run("ip", "link", "set", "v0", "master", "b0")
			r := p.runShaper("--hook", hook, "--direction", "both", "--pacer", "htb", "--policy",
				writePolicy(t, probedPolicy), "--pin", "--repair")
			r.out.awaitMatch(t, "v0 ingress: attached")
			newForeign(t, ebpf.SchedCLS, -1, 0).attachFilter(p.near, "egress")
			if hook == "auto" && haveTCX() {
				newForeign(t, ebpf.SchedCLS, -1, 0).attachTCX(p.near, "egress", link.Tail())
			}
			check := func() {
				t.Helper()
				out, _ := p.wantExit(0, "status", "--json")
				for line := range strings.Lines(out) {
					if e := decodeJSON[effectJSON](t, line); e.Effective == nil || !*e.Effective ||
						len(e.Notes) > 0 {
						t.Errorf("status %s: want it effective", line)
					}
				}
			}
			check()
			p.wantExit(0, "reload", "--direction", "egress", "--policy", plain)
			p.wantExit(0, "reload", "--policy", two)
			check()
			p.wantExit(0, "reload", "--direction", "egress", "--meter", unlimitedMeter)
			p.wantExit(0, "reload", "--direction", "egress", "--policy", two)
			p.wantExit(0, "reload", "--policy", writePolicy(t, probedPolicy))
			r.killAndWait()
			r2 := p.runShaper("--hook", hook, "--direction", "both", "--pacer", "htb", "--policy", two,
				"--repair")
			r2.out.awaitMatch(t, "v0 ingress: attached")
			check()
			p.wantExit(0, "detach")
			if code := r2.waitForExit(); code != 0 || !strings.Contains(r2.err.String(), ": detached by ") {
				t.Errorf("exit %d, stderr %q: want that it was detached", code, &r2.err)
			}
			for _, e := range []*output{&r.err, &r2.err} {
				if strings.Contains(e.String(), "shaping") || strings.Contains(e.String(), "repair") {
					t.Errorf("stderr %q: want no alarm", e)
				}
			}
		})
	}
}

// TestLiveFlowLeafRemoved removes a leaf for flows of a fair queue in a kernel without fq_codel.
func TestLiveFlowLeafRemoved(t *testing.T) {
	skipInVM(t)
	if haveQdisc(t, "fq_codel") {
		t.Skip("this kernel has fq_codel, which needs no leaves for flows")
	}
	p := newQueuePair(t)
	before, qdiscs := p.deviceState(), p.qdiscState()
	r := p.runShaper("--rate", "20mbit")
	leaf := regexp.MustCompile(`class htb (\w+:\w+) parent \S+ leaf \S+ prio 1`).FindStringSubmatch(p.near.Run("tc", "class", "show", "dev", "v0"))
	if leaf == nil {
		t.Fatal("there are no leaves for flows")
	}
	p.near.Run("tc", "class", "del", "dev", "v0", "classid", leaf[1])
	out, _ := p.wantExit(0, "status", "--json")
	const want = "HTB classes are missing: those of queue all"
	if e := decodeJSON[effectJSON](t, out); e.Effective == nil || *e.Effective || len(e.Problems) != 1 ||
		!strings.HasPrefix(e.Problems[0], want+":") {
		t.Errorf("status %s: want %q", out, want)
	}
	r.stopBySIGTERM()
	p.awaitClean(before, qdiscs)
}
