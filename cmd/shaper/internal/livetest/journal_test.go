package livetest

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// TestLiveStatusDuringChange checks that status does not report a shaper as left behind while
// it is being attached.
func TestLiveStatusDuringChange(t *testing.T) {
	skipInVM(t)
	p := newQueuePair(t)
	policy := writePolicy(t, fmt.Sprintf(slowQueue, "50ms"))
	for range 2 {
		r := p.startShaper("run", "v0", "--both", "--policy", policy)
		for !strings.Contains(r.out.String(), "v0 ingress: attached") {
			if r.hasExited() {
				t.Fatalf("it ended: %q", r.err.String())
			}
			for _, s := range p.status() {
				if s.State == "left behind" {
					t.Errorf("status %+v", s)
				}
			}
		}
		r.stopBySIGTERM()
	}
	p.wantNothingLeft()
}

// TestLiveInterfaceRecreated checks that an interface that was deleted and created again can be
// shaped. The pin of the deleted interface must not prevent it.
func TestLiveInterfaceRecreated(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	for _, how := range []string{"--background", "--pin"} {
		t.Run(how, func(t *testing.T) {
			p := newPair(t)
			args := append([]string{"run", "v0", "--hook", "tcx", how}, dropAll...)
			start := func() {
				if how == "--background" {
					p.wantExit(0, args...)
				} else {
					r := p.startShaper(args...)
					r.awaitAttached()
					r.killAndWait()
				}
			}
			for range 3 {
				start()
				p.wantDropped(true)
				if s := p.status(); len(s) != 1 || !s[0].Attached || !s[0].Pinned ||
					s[0].State != "attached, pinned" {
					t.Errorf("status %+v: want one, pinned", s)
				}
				p.near.Delete("v0")
				p.near.Veth(p.far)
			}
			start()
			p.wantExit(0, "detach", "v0")
			p.wantDropped(false)
			p.wantNothingLeft()
		})
	}
}

// TestLiveTornJournal checks that an unreadable journal is reported and set aside, and blocks
// no command.
func TestLiveTornJournal(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	for _, text := range []string{"", "{", `{"Version":99}`, "\x00\x00\x00"} {
		t.Run(fmt.Sprintf("%q", text), func(t *testing.T) {
			p := newQueuePair(t) // without a GSO limit: only the journal has the previous one
			before, qdiscs := p.deviceState(), p.qdiscState()
			policy := writePolicy(t, fmt.Sprintf(slowQueue, "50ms"))
			p.runShaper("--policy", policy, "--gso-limit", "off").killWithGuard()
			notes := p.journals()
			if len(notes) != 1 {
				t.Fatalf("journals %v: want one", notes)
			}
			rewriteFile(t, notes[0], text)
			if s := p.status(); len(s) != 2 || s[0].State != "left behind" || s[1].State != "left behind" {
				t.Errorf("status %+v: want the qdisc and the journal, left behind", s)
			}
			r := p.runShaper("--policy", policy, "--gso-limit", "off")
			r.err.awaitMatch(t, "journal .* cannot be read .*: set aside as .*broken")
			r.stopBySIGTERM()
			if now := p.deviceState(); now != before || p.qdiscState() != qdiscs {
				t.Errorf("attached to v0:\n%s%s", now, p.qdiscState())
			}
			p.runShaper("--policy", policy, "--gso-limit", "off").killWithGuard()
			rewriteFile(t, notes[0], text)
			if out, _ := p.wantExit(0, "detach", "v0"); !strings.Contains(out, "cleaned up") {
				t.Errorf("detach prints %q", out)
			}
			if now := p.deviceState(); now != before || p.qdiscState() != qdiscs {
				t.Errorf("attached to v0:\n%s%s", now, p.qdiscState())
			}
			p.wantError(1, "v0 is not shaped: .*", "detach", "v0")
		})
	}
}

// TestLiveOtherNamespace checks that detach removes leftovers of another network namespace, which
// may be gone, and still says that its own interface is not shaped.
func TestLiveOtherNamespace(t *testing.T) {
	skipInVM(t)
	other := newBudgetHost(t)
	p := anotherPair(t)
	p.wrap = other.wrap
	policy := budgetPolicy(t, "type: token-bucket, rate: 1bit, burst: 3000")
	for _, name := range []string{"v0", "v7"} { // v7 does not exist
		other.wantExit(0, "run", "v0", "--hook", "tcx", "--policy", policy, "--background")
		other.near.Delete("v0")
		if out, _ := p.wantExit(1, "detach", name); out != "" {
			t.Errorf("detach %s prints %q", name, out)
		}
		other.awaitNoBudgets()
		other.near.Veth(other.far)
	}
}

// TestLiveRenamed checks that commands find a shaper by the new name of its interface, and that
// no second shaper can be attached.
func TestLiveRenamed(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	for _, queues := range []bool{false, true} {
		t.Run(fmt.Sprint("queues=", queues), func(t *testing.T) {
			p := newPair(t)
			policy := writePolicy(t, "classes: [{name: a}]")
			if queues {
				policy = writePolicy(t, fmt.Sprintf(slowQueue, "50ms"))
			}
			r := p.runShaper("--direction", "ingress", "--policy", policy)
			p.near.Run("ip", "link", "set", "v0", "down")
			p.near.Run("ip", "link", "set", "v0", "name", "wan0")
			p.near.Run("ip", "link", "set", "wan0", "up")
			r.err.awaitMatch(t, "v0 is now called wan0\n")
			if s := p.status("wan0"); len(s) != 1 || s[0].Interface != "wan0" || !s[0].Attached {
				t.Errorf("status %+v: want wan0", s)
			}
			p.wantError(1, "there is no interface v0", "stats", "v0")
			p.wantError(1, "wan0 ingress is already shaped by process .*", "run", "wan0", "--direction",
				"ingress", "--policy", policy)
			p.wantExit(0, "reload", "wan0")
			r.stopBySIGTERM()
			p.wantNothingLeft()
		})
	}
}

// TestLiveInterfaceAway checks that a shaper whose interface is gone is listed, keeps others
// from the interface, and can be detached.
func TestLiveInterfaceAway(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	r := p.runShaper("--meter", unlimitedMeter)
	p.near.Delete("v0")
	r.err.awaitMatch(t, "v0 is gone .*: waiting for it to come back")
	eventually(t, func() error {
		if s := p.status(); len(s) != 1 || s[0].State != "waiting" || s[0].Interface != "v0" ||
			s[0].Process != r.cmd.Process.Pid {
			return fmt.Errorf("status %+v: want v0, waiting", s)
		}
		return nil
	})
	p.wantError(1, "v0 does not exist: process .* waits for it; unless it has a terminal, kill -HUP .*",
		"reload", "v0")
	second := p.startShaper("run", "v0", "--wait", "--meter", unlimitedMeter)
	if code := second.waitForExit(); code != 1 ||
		!strings.Contains(second.err.String(), "v0 does not exist: process") {
		t.Errorf("a second run exits with %d: %q", code, second.err.String())
	}
	p.wantExit(0, "detach", "v0")
	if code := r.waitForExit(); code != 0 {
		t.Errorf("exit %d, stderr %q", code, r.err.String())
	}
	p.wantNothingLeft()
}

// TestLiveInterfaceAwayDirections checks that each direction of a gone interface can be
// detached separately.
func TestLiveInterfaceAwayDirections(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	r := p.runShaper("--direction", "both", "--meter", unlimitedMeter)
	r.out.awaitMatch(t, "v0 ingress: attached")
	p.near.Delete("v0")
	r.err.awaitMatch(t, "v0 is gone .*: waiting for it to come back")
	second := p.startShaper("run", "v0", "--wait", "--direction", "egress", "--meter", unlimitedMeter)
	if code := second.waitForExit(); code != 1 ||
		!strings.Contains(second.err.String(), "v0 does not exist: process") {
		t.Errorf("a second run exits with %d: %q", code, second.err.String())
	}
	if out, _ := p.wantExit(0, "status"); !regexp.MustCompile(
		`^v0 egress: away: process \d+ is waiting for it, .*\nv0 ingress: away: .*\n$`).MatchString(out) {
		t.Errorf("status prints %q: want both directions", out)
	}
	p.wantExit(0, "detach", "v0", "--direction", "ingress")
	p.near.Veth(p.far)
	r.out.awaitMatch(t, "(?s)v0 egress: attached.*v0 egress: attached")
	if s := p.status(); len(s) != 1 || s[0].Direction != "egress" {
		t.Errorf("status %+v: want egress alone", s)
	}
	r.stopBySIGTERM()
	p.wantNothingLeft()
}

// TestLiveUnreadableRecord checks that a shaper with an unreadable record blocks no command, is
// reported, and can be detached.
func TestLiveUnreadableRecord(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	p.near.VethNamed("w0", p.far, "w0")
	r := p.runShaper("--meter", unlimitedMeter)
	for _, record := range []string{
		`{"Version":99}`, "{", `{"Version":2,"Stages":[{}],"Classes":[{"Stage":0}]}`,
	} {
		unbind := p.attachUnreadable("w0", record)
		list := p.status()
		if len(list) != 2 || list[0].Interface != "v0" || !list[0].Attached || list[1].Interface != "w0" ||
			list[1].State != "left behind" {
			t.Errorf("record %s: status %+v: want v0, and w0 left behind", record, list)
		}
		p.wantExit(0, "stats")
		p.wantExit(0, "reload", "v0", "--meter", unlimitedMeter)
		if out, _ := p.wantExit(0, "detach", "w0"); !strings.Contains(out, "cleaned up: w0 egress: program") {
			t.Errorf("record %s: detach prints %q", record, out)
		}
		if list := p.status(); len(list) != 1 {
			t.Errorf("record %s: status %+v after detach", record, list)
		}
		unbind()
	}
	r.stopBySIGTERM()
	p.wantNothingLeft()
}

// attachUnreadable attaches a program that looks like a shaper and has the given record.
func (p *pair) attachUnreadable(dev, record string) (closeAll func()) {
	p.t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "shaper_egress", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	about, err := ebpf.NewMap(
		&ebpf.MapSpec{Name: "about", Type: ebpf.Array, KeySize: 4, ValueSize: 256, MaxEntries: 1})
	if err != nil {
		p.t.Fatal(err)
	}
	value := make([]byte, 256)
	copy(value, record)
	if err := errors.Join(about.Put(uint32(0), value), program.BindMap(about)); err != nil {
		p.t.Fatal(err)
	}
	index := p.near.Index(dev)
	var l link.Link
	p.near.Do(func() {
		l, err = link.AttachTCX(
			link.TCXOptions{Interface: index, Program: program, Attach: ebpf.AttachTCXEgress})
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return func() {
		l.Close()
		about.Close()
		program.Close()
	}
}
