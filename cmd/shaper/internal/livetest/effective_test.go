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

// TestLiveDisplaced holds that what another program does to a shaper is noticed,
// said once, and shown by status, and that the end is as that program wants it.
func TestLiveDisplaced(t *testing.T) {
	t.Parallel()
	hereOnly(t)
	for _, d := range displacements() {
		if d.ends {
			continue
		}
		t.Run(d.name, func(t *testing.T) {
			p := newQueuePair(t)
			before := p.attached()
			r := p.startDisplaced(&d)
			if e := p.effect(); e.Effective == nil || !*e.Effective || len(e.Problems) > 0 {
				t.Errorf("status %+v before: want it effective", e)
			}
			d.do(p)
			r.err.await(t, `(?m)^shaper: v0 \w+: not shaping: `+d.found+`: .*--repair restores ours`)
			e := p.effect()
			if e.Effective == nil || *e.Effective || len(e.Problems) != 1 || !regexp.MustCompile(`^`+d.found+`: .*`).MatchString(e.Problems[0]) {
				t.Errorf("status %+v: want one problem, %s", e, d.found)
			}
			out, _ := p.do(0, "status")
			if !regexp.MustCompile(` not effective: ` + d.found + `: `).MatchString(strings.Join(strings.Fields(out), " ")) {
				t.Errorf("status says %q: want that it is not effective", out)
			}
			if n := r.lines(`shaper: v0 \w+: (not )?shaping.*`); n != 1 {
				t.Errorf("stderr %q: want one line", &r.err)
			}
			if strings.HasSuffix(d.name, "ahead") {
				if n, _ := p.probe(&d); n != 3 {
					t.Errorf("%d of 3 packets bypass the shaper: want all", n)
				}
			}
			if d.undo != nil {
				d.undo(p)
				r.err.await(t, `(?m)^shaper: v0 \w+: shaping again$`)
				if e := p.effect(); e.Effective == nil || !*e.Effective {
					t.Errorf("status %+v: want it effective again", e)
				}
			}
			r.term()
			p.ends(&d, before)
		})
	}
}

// TestLiveRepaired holds that --repair puts back whatever was displaced, once, and
// that packets are shaped as before.
func TestLiveRepaired(t *testing.T) {
	t.Parallel()
	hereOnly(t)
	for _, d := range displacements() {
		t.Run(d.name, func(t *testing.T) {
			p := newQueuePair(t)
			before := p.attached()
			r := p.startDisplaced(&d, "--repair")
			d.do(p)
			r.err.await(t, `(?m)^shaper: v0 \w+: not shaping: `+d.found)
			r.err.await(t, `(?m)^shaper: v0 \w+: shaping again$`)
			if e := p.effect(); e.Effective == nil || !*e.Effective || len(e.Problems) > 0 {
				t.Errorf("status %+v: want it effective again", e)
			}
			if n, _ := p.probe(&d); n != 0 {
				t.Errorf("%d of 3 packets bypass the shaper", n)
			}
			if n := r.lines(`shaper: v0 \w+: (not )?shaping.*`); n != 2 {
				t.Errorf("stderr %q: want what was wrong, and that it is right", &r.err)
			}
			if d.undo != nil {
				d.undo(p)
			}
			r.term()
			p.ends(&d, before)
		})
	}
}

// TestLiveRemoved holds that a shaper whose program is removed ends, and puts back
// what was there before.
func TestLiveRemoved(t *testing.T) {
	t.Parallel()
	hereOnly(t)
	for _, d := range displacements() {
		if !d.ends {
			continue
		}
		t.Run(d.name, func(t *testing.T) {
			p := newQueuePair(t)
			before := p.attached()
			if !d.queues && !slices.Contains(d.args, "ingress") {
				d.queues = true // what holds packets is to go as well
				d.args = append(d.args, "--pacer", "htb")
			}
			r := p.startDisplaced(&d)
			d.do(p)
			if code := r.wait(); code != 0 || !strings.Contains(r.err.String(), "detached: another program removed the eBPF program\n") {
				t.Errorf("exit %d, stderr %q: want that it was detached", code, &r.err)
			}
			p.ends(&d, before)
			if out, _ := p.do(0, "status"); !strings.HasPrefix(out, "no shaper is attached") {
				t.Errorf("status says %q", out)
			}
		})
	}
}

// TestLiveInterfaceChanges holds that shaper survives what happens to an
// interface, and says what it is.
func TestLiveInterfaceChanges(t *testing.T) {
	t.Parallel()
	hereOnly(t)
	for _, hook := range []string{"tcx", "tc"} {
		t.Run("renamed "+hook, func(t *testing.T) {
			method{hook, "egress"}.need(t)
			p := newPair(t)
			r := p.run("--hook", hook, "--repair", "--meter", never)
			p.near.Run("ip", "link", "set", "v0", "down")
			r.err.await(t, `(?m)^shaper: v0 egress: interface v0 is down$`)
			e := p.effect()
			if e.Effective == nil || !*e.Effective || len(e.Notes) != 1 || e.Notes[0] != "interface v0 is down" {
				t.Errorf("status %+v: want it effective, and the interface down", e)
			}
			p.near.Run("ip", "link", "set", "v0", "name", "w0")
			p.near.Run("ip", "link", "set", "w0", "up")
			r.err.await(t, `(?m)^shaper: v0 is now called w0$`)
			if out, _ := p.do(0, "status"); !strings.HasPrefix(out, "w0 egress: attached") {
				t.Errorf("status says %q: want the name", out)
			}
			p.near.Run("ip", "link", "set", "w0", "name", "v0")
			eventually(t, func() error {
				if e := p.effect(); len(e.Notes) > 0 {
					return fmt.Errorf("notes %q: want none", e.Notes)
				}
				return nil
			})
			if n := r.lines(`.*shaping.*`); n != 0 {
				t.Errorf("stderr %q: want nothing of shaping", &r.err)
			}
			r.term()
		})
	}
	t.Run("moved", func(t *testing.T) {
		method{"tcx", "egress"}.need(t)
		p := newPair(t)
		r := p.run("--hook", "tcx", "--meter", never)
		other := nettest.New(t)
		holder := exec.Command("sleep", "1000")
		other.Start(holder)
		p.near.Run("ip", "link", "set", "v0", "netns", fmt.Sprint(holder.Process.Pid))
		r.err.await(t, `(?m)^shaper: v0 is gone .deleted, or moved to another network namespace.: waiting for it to come back$`)
		eventually(t, func() error {
			if s := p.status(); len(s) != 1 || s[0].State != "waiting" {
				return fmt.Errorf("status %+v: want that it waits", s)
			}
			return nil
		})
		r.term()
		if n := len(tcxLinks(t, other, ebpf.AttachTCXEgress)); n != 0 {
			t.Errorf("%d TCX links are left on it: want none", n)
		}
	})
}

// TestLiveNoFalseAlarm holds that nothing is reported in normal operation: while
// policies change, in both directions, with programs of others behind ours.
func TestLiveNoFalseAlarm(t *testing.T) {
	t.Parallel()
	hereOnly(t)
	for _, hook := range []string{"auto", "tc"} {
		t.Run(hook, func(t *testing.T) {
			p := newQueuePair(t)
			p.withBpffs()
			plain := file(t, "classes:\n  - name: a\n    meter: {type: token-bucket, rate: 1mbit, burst: 9000}\n")
			two := file(t, `
classes:
  - {name: a, match: {proto: udp}, green: {queue: q}}
  - {name: b, green: {queue: rest}}
links: {l: {rate: 9mbit}}
queues: {rest: {link: l, limit: 100kB}, q: {rate: 2mbit, limit: 50ms}}
`)
			p.near.Run("ip", "link", "add", "b0", "type", "bridge")
			p.near.Run("ip", "link", "set", "v0", "master", "b0")
			r := p.run("--hook", hook, "--direction", "both", "--pacer", "htb", "--policy", file(t, probed), "--pin", "--repair")
			r.out.await(t, "v0 ingress: attached")
			newForeign(t, ebpf.SchedCLS, -1, 0).filter(p.near, "egress")
			if hook == "auto" && haveTCX() {
				newForeign(t, ebpf.SchedCLS, -1, 0).tcx(p.near, "egress", link.Tail())
			}
			check := func() {
				t.Helper()
				out, _ := p.do(0, "status", "--json")
				for line := range strings.Lines(out) {
					if e := decode[effect](t, line); e.Effective == nil || !*e.Effective || len(e.Notes) > 0 {
						t.Errorf("status %s: want it effective", line)
					}
				}
			}
			check()
			for range 2 {
				p.do(0, "reload", "--direction", "egress", "--policy", plain)
				p.do(0, "reload", "--policy", two)
				check()
				p.do(0, "reload", "--direction", "egress", "--meter", never)
				p.do(0, "reload", "--direction", "egress", "--policy", two)
				p.do(0, "reload", "--policy", file(t, probed))
			}
			r.kill()
			r2 := p.run("--hook", hook, "--direction", "both", "--pacer", "htb", "--policy", two, "--repair")
			r2.out.await(t, "v0 ingress: attached")
			check()
			p.do(0, "detach")
			if code := r2.wait(); code != 0 || !strings.Contains(r2.err.String(), "detached by another process") {
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
