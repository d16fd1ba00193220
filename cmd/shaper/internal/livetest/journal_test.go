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

// TestLiveSlowChange holds that what is being made is not called left behind.
func TestLiveSlowChange(t *testing.T) {
	hereOnly(t)
	p := newQueuePair(t)
	policy := file(t, fmt.Sprintf(slowQueue, "50ms"))
	for range 3 {
		r := p.start("run", "v0", "--both", "--policy", policy)
		for !strings.Contains(r.out.String(), "v0 ingress: attached") {
			if r.ended() {
				t.Fatalf("it ended: %q", r.err.String())
			}
			for _, s := range p.status() {
				if s.State == "left behind" {
					t.Errorf("status %+v", s)
				}
			}
		}
		r.term()
	}
	p.nothing()
}

// TestLiveMadeAgain holds that an interface that was deleted and made again is
// shaped: the pin of its predecessor is in nobody's way.
func TestLiveMadeAgain(t *testing.T) {
	t.Parallel()
	hereOnly(t)
	for _, how := range []string{"--background", "--pin"} {
		t.Run(how, func(t *testing.T) {
			p := newPair(t)
			p.withBpffs()
			args := append([]string{"run", "v0", "--hook", "tcx", how}, closed...)
			start := func() {
				if how == "--background" {
					p.do(0, args...)
				} else {
					r := p.start(args...)
					r.attached()
					r.kill()
				}
			}
			for range 3 {
				start()
				p.passesNone(true)
				if s := p.status(); len(s) != 1 || !s[0].Attached || !s[0].Pinned || s[0].State != "attached, pinned" {
					t.Errorf("status %+v: want one, pinned", s)
				}
				p.near.Delete("v0")
				p.near.Veth(p.far)
			}
			start()
			p.do(0, "detach", "v0")
			p.passesNone(false)
			p.nothing()
		})
	}
}

// TestLiveTornJournal holds that a journal that cannot be read is named and set
// aside, and stops no command.
func TestLiveTornJournal(t *testing.T) {
	t.Parallel()
	hereOnly(t)
	for _, text := range []string{"", "{", `{"Version":99}`, "\x00\x00\x00"} {
		t.Run(fmt.Sprintf("%q", text), func(t *testing.T) {
			p := newQueuePair(t) // without a GSO limit, which only the journal knows
			before, qdiscs := p.attached(), p.qdiscs()
			policy := file(t, fmt.Sprintf(slowQueue, "50ms"))
			p.run("--policy", policy, "--gso-limit", "off").killBoth()
			notes := p.notes()
			if len(notes) != 1 {
				t.Fatalf("journals %v: want one", notes)
			}
			rewrite(t, notes[0], text)
			if s := p.status(); len(s) != 2 || s[0].State != "left behind" || s[1].State != "left behind" {
				t.Errorf("status %+v: want the qdisc and the journal, left behind", s)
			}
			r := p.run("--policy", policy, "--gso-limit", "off")
			r.err.await(t, "journal .* cannot be read .*: set aside as .*broken")
			r.term()
			if now := p.attached(); now != before || p.qdiscs() != qdiscs {
				t.Errorf("at v0 is\n%s%s", now, p.qdiscs())
			}
			p.run("--policy", policy, "--gso-limit", "off").killBoth()
			rewrite(t, notes[0], text)
			if out, _ := p.do(0, "detach", "v0"); !strings.Contains(out, "cleaned up") {
				t.Errorf("detach says %q", out)
			}
			if now := p.attached(); now != before || p.qdiscs() != qdiscs {
				t.Errorf("at v0 is\n%s%s", now, p.qdiscs())
			}
			p.fails(1, "v0 is not shaped: .*", "detach", "v0")
		})
	}
}

// TestLiveRenamed holds that a shaper is found by the new name of its interface,
// and that nobody shapes it a second time.
func TestLiveRenamed(t *testing.T) {
	t.Parallel()
	hereOnly(t)
	for _, queues := range []bool{false, true} {
		t.Run(fmt.Sprint("queues=", queues), func(t *testing.T) {
			p := newPair(t)
			policy := file(t, "classes: [{name: a}]")
			if queues {
				policy = file(t, fmt.Sprintf(slowQueue, "50ms"))
			}
			r := p.run("--direction", "ingress", "--policy", policy)
			p.near.Run("ip", "link", "set", "v0", "down")
			p.near.Run("ip", "link", "set", "v0", "name", "wan0")
			p.near.Run("ip", "link", "set", "wan0", "up")
			r.err.await(t, "v0 is now called wan0\n")
			if s := p.status("wan0"); len(s) != 1 || s[0].Interface != "wan0" || !s[0].Attached {
				t.Errorf("status %+v: want wan0", s)
			}
			p.fails(1, "there is no interface v0", "stats", "v0")
			p.fails(1, "wan0 ingress is already shaped by process .*", "run", "wan0", "--direction", "ingress", "--policy", policy)
			p.do(0, "reload", "wan0")
			r.term()
			p.nothing()
		})
	}
}

// TestLiveAway holds that a shaper whose interface is away is listed, keeps its
// place, and can be ended.
func TestLiveAway(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	r := p.run("--meter", never)
	p.near.Delete("v0")
	r.err.await(t, "v0 is gone .*: waiting for it to come back")
	eventually(t, func() error {
		if s := p.status(); len(s) != 1 || s[0].State != "waiting" || s[0].Interface != "v0" || s[0].Process != r.cmd.Process.Pid {
			return fmt.Errorf("status %+v: want v0, waiting", s)
		}
		return nil
	})
	p.fails(1, "v0 does not exist: process .* waits for it; kill -HUP .*", "reload", "v0")
	second := p.start("run", "v0", "--wait", "--meter", never)
	if code := second.wait(); code != 1 || !strings.Contains(second.err.String(), "v0 does not exist: process") {
		t.Errorf("a second run ends by %d: %q", code, second.err.String())
	}
	p.do(0, "detach", "v0")
	if code := r.wait(); code != 0 {
		t.Errorf("exit %d, stderr %q", code, r.err.String())
	}
	p.nothing()
}

// TestLiveAwayDirections holds that processes wait for each direction by itself.
func TestLiveAwayDirections(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	r := p.run("--direction", "both", "--meter", never)
	r.out.await(t, "v0 ingress: attached")
	p.near.Delete("v0")
	r.err.await(t, "v0 is gone .*: waiting for it to come back")
	second := p.start("run", "v0", "--wait", "--direction", "egress", "--meter", never)
	if code := second.wait(); code != 1 || !strings.Contains(second.err.String(), "v0 does not exist: process") {
		t.Errorf("a second run ends by %d: %q", code, second.err.String())
	}
	if out, _ := p.do(0, "status"); !regexp.MustCompile(`^v0 egress: away: process \d+ is waiting for it, .*\nv0 ingress: away: .*\n$`).MatchString(out) {
		t.Errorf("status says %q: want both directions", out)
	}
	p.do(0, "detach", "v0", "--direction", "ingress")
	p.near.Veth(p.far)
	r.out.await(t, "(?s)v0 egress: attached.*v0 egress: attached")
	if s := p.status(); len(s) != 1 || s[0].Direction != "egress" {
		t.Errorf("status %+v: want egress alone", s)
	}
	r.term()
	p.nothing()
}

// TestLiveUnreadable holds that a shaper whose record cannot be read stops no
// command, is named, and can be detached.
func TestLiveUnreadable(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	p.near.VethNamed("w0", p.far, "w0")
	r := p.run("--meter", never)
	for _, record := range []string{`{"Version":99}`, "{", `{"Version":2,"Stages":[{}],"Classes":[{"Stage":0}]}`} {
		unbind := p.unreadable("w0", record)
		list := p.status()
		if len(list) != 2 || list[0].Interface != "v0" || !list[0].Attached || list[1].Interface != "w0" || list[1].State != "left behind" {
			t.Errorf("record %s: status %+v: want v0, and w0 left behind", record, list)
		}
		p.do(0, "stats")
		p.do(0, "reload", "v0", "--meter", never)
		if out, _ := p.do(0, "detach", "w0"); !strings.Contains(out, "cleaned up: w0 egress: program") {
			t.Errorf("record %s: detach says %q", record, out)
		}
		if list := p.status(); len(list) != 1 {
			t.Errorf("record %s: status %+v after detach", record, list)
		}
		unbind()
	}
	r.term()
	p.nothing()
}

// unreadable attaches a program that looks like one of shaper's, with a record.
func (p *pair) unreadable(dev, record string) (closeAll func()) {
	p.t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "shaper_egress", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	about, err := ebpf.NewMap(&ebpf.MapSpec{Name: "about", Type: ebpf.Array, KeySize: 4, ValueSize: 256, MaxEntries: 1})
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
		l, err = link.AttachTCX(link.TCXOptions{Interface: index, Program: program, Attach: ebpf.AttachTCXEgress})
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
