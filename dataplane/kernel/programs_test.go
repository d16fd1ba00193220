package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// sharers are interfaces in one namespace, whose shapers share programs.
type sharers struct {
	*nettest.Namespace
	t        *testing.T
	programs *Programs
}

func newSharers(t *testing.T) *sharers {
	t.Helper()
	kerneltest.NeedRoot(t)
	return &sharers{nettest.New(t), t, &Programs{}}
}

// add adds an interface with an index, and its peer, for packets of the test alone.
func (s *sharers) add(name string, index int) {
	s.t.Helper()
	s.Run("ip", "link", "add", "name", name, "index", fmt.Sprint(index), "type", "veth", "peer", "name", "p"+name)
	for _, end := range []string{name, "p" + name} {
		s.Run("ip", "link", "set", "dev", end, "arp", "off", "up")
	}
	for _, end := range []string{name, "p" + name} { // the kernel sets the carrier later
		for !strings.Contains(s.Run("ip", "link", "show", "dev", end), "state UP") {
			time.Sleep(time.Millisecond)
		}
	}
}

// attach attaches a plan at ingress, and closes the shaper after the test.
func (s *sharers) attach(name string, plan *compiled.Plan, change func(*Config)) (sh *Shaper) {
	s.t.Helper()
	s.Do(func() {
		cfg := Config{Interface: name, Direction: Ingress, Programs: s.programs}
		if change != nil {
			change(&cfg)
		}
		var err error
		sh, _, err = Attach(cfg, plan)
		if errors.Is(err, hook.ErrNoTCX) {
			s.t.Skip(err)
		}
		if err != nil {
			s.t.Fatal(err)
		}
		if s.programs.refused != nil {
			s.t.Skipf("this kernel does not support shared programs: %v", s.programs.refused)
		}
	})
	s.t.Cleanup(func() {
		s.Do(func() { _ = sh.Detach() })
		sh.Close()
	})
	return sh
}

// send sends packets of 86 bytes to an interface.
func (s *sharers) send(name string, n int) {
	s.t.Helper()
	frames := make([][]byte, n)
	for i := range frames {
		frames[i] = make([]byte, 100)
		copy(frames[i], []byte{
			2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 8, 0, // to nobody
			0x45, 0, 0, 86, 0, 0, 0, 0, 64, 17, 0x66, 0x98, 10, 0, 0, 1, 10, 0, 0, 2,
		})
	}
	s.Inject("p"+name, frames...)
}

// wantSeen checks the number of packets that passed and were dropped, as seen by a process that looks at the
// interface.
func (s *sharers) wantSeen(name string, passed, dropped int64) {
	s.t.Helper()
	s.Do(func() {
		v, err := LookAt(name)
		if err != nil {
			s.t.Fatal(err)
		}
		defer v.Close()
		if len(v.Shapers) != 1 || v.Shapers[0].Interface != name {
			s.t.Fatalf("%s: got %d shapers", name, len(v.Shapers))
		}
		stats, err := v.Shapers[0].Stats()
		if err != nil {
			s.t.Fatal(err)
		}
		if c := stats[0].Colors; c[meter.Green].Packets != passed || c[meter.Red].Packets != dropped {
			s.t.Errorf("%s: got %d green and %d red packets, want %d and %d", name, c[meter.Green].Packets,
				c[meter.Red].Packets, passed, dropped)
		}
	})
}

// places returns the number of places in use, by program.
func (p *Programs) places() (out []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, list := range p.list {
		for _, s := range list {
			out = append(out, len(s.used))
		}
	}
	slices.Sort(out)
	return out
}

// wantPlaces waits until programs have these numbers of places in use.
func (s *sharers) wantPlaces(want ...int) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); !slices.Equal(s.programs.places(), want); {
		if time.Sleep(time.Millisecond); time.Now().After(end) {
			s.t.Fatalf("got places %v, want %v", s.programs.places(), want)
		}
	}
}

// burst is a policy that passes packets of 86 bytes up to a burst, and grows no tokens in a test.
func burst(t *testing.T, packets int64) *compiled.Plan {
	t.Helper()
	return kerneltest.Compiled(t, &dataplane.Policy{Classes: []dataplane.Class{{
		Name: "all", Red: &dataplane.Action{Drop: true}, Meter: &dataplane.Meter{
			Name: "m", Params: meter.TokenBucket{Rate: meter.BitRate(8), Burst: 86 * packets},
		},
	}}})
}

// TestPrograms checks that interfaces share a program, have meters and counters of their own, and leave it
// one by one.
func TestPrograms(t *testing.T) {
	t.Parallel()
	s := newSharers(t)
	for i, name := range []string{"a", "b", "c"} {
		s.add(name, 100+2*i)
	}
	plan := burst(t, 5)
	a, b, c := s.attach("a", plan, nil), s.attach("b", plan, nil), s.attach("c", plan, nil)
	if a.Program != b.Program || b.Program != c.Program {
		t.Fatalf("programs %d, %d and %d: want one", a.Program, b.Program, c.Program)
	}
	s.wantPlaces(3)
	s.send("a", 9)
	s.send("b", 3)
	s.wantSeen("a", 5, 4)
	s.wantSeen("b", 3, 0)
	s.wantSeen("c", 0, 0)

	// A reload keeps tokens and counters. Those of the same policies share a program again.
	s.Do(func() {
		for _, sh := range []*Shaper{a, b} {
			if _, err := sh.Reload(burst(t, 6), nil, time.Time{}); err != nil {
				t.Fatal(err)
			}
		}
	})
	if a.Program == c.Program || b.Program != a.Program {
		t.Errorf("programs %d, %d and %d: want two", a.Program, b.Program, c.Program)
	}
	s.wantPlaces(1, 2)
	s.send("a", 2)
	s.send("b", 4)
	s.send("c", 6)
	s.wantSeen("a", 5, 6)
	s.wantSeen("b", 5, 2)
	s.wantSeen("c", 5, 1)

	s.Do(func() {
		if err := c.Detach(); err != nil {
			t.Fatal(err)
		}
	})
	c.Close()
	s.wantPlaces(2)
	s.send("a", 1)
	s.wantSeen("a", 5, 7)
	s.wantSeen("b", 5, 2)
	for _, sh := range []*Shaper{a, b} {
		s.Do(func() {
			if err := sh.Detach(); err != nil {
				t.Fatal(err)
			}
		})
		sh.Close()
	}
	s.wantPlaces()
}

// TestProgramsPlace checks two interfaces that would have the same place in a program.
func TestProgramsPlace(t *testing.T) {
	t.Parallel()
	s := newSharers(t)
	s.add("a", 100)
	s.add("b", 100+4096)
	plan := burst(t, 5)
	a, b := s.attach("a", plan, nil), s.attach("b", plan, nil)
	if a.Program == b.Program {
		t.Error("both have the same program")
	}
	s.send("a", 6)
	s.send("b", 7)
	s.wantSeen("a", 5, 1)
	s.wantSeen("b", 5, 2)
}

// TestProgramsPinned checks that a pinned shaper works after its process has closed it, and that the next
// one takes it over with its tokens.
func TestProgramsPinned(t *testing.T) {
	t.Parallel()
	s := newSharers(t)
	s.add("a", 100)
	s.add("b", 102)
	plan := burst(t, 5)
	pinned := func(c *Config) { c.Pin = true }
	a, b := s.attach("a", plan, pinned), s.attach("b", plan, nil)
	a.Close()
	b.Close()
	s.wantPlaces(1)
	s.send("a", 3)
	s.wantSeen("a", 3, 0)
	again := s.attach("a", plan, pinned) // by the same process
	s.wantPlaces(1)
	again.Close()
	s.programs = &Programs{} // of the next process
	again = s.attach("a", plan, nil)
	if !again.TookOver {
		t.Error("not taken over")
	}
	s.send("a", 3)
	s.wantSeen("a", 5, 1)
}

// TestProgramsForm checks which policies and hooks share a program.
func TestProgramsForm(t *testing.T) {
	t.Parallel()
	s := newSharers(t)
	s.add("a", 100)
	s.add("b", 102)
	limit := meter.TokenBucket{Rate: meter.BitRate(8e6), Burst: 1 << 20}
	class := func(c dataplane.Class) *compiled.Plan {
		c.Name = "all"
		return kerneltest.Compiled(t, &dataplane.Policy{Classes: []dataplane.Class{c}})
	}
	queued := &dataplane.Action{
		Queue: &dataplane.Queue{Name: "q", Config: queue.Config{Rate: meter.BitRate(8e6), Bytes: 1 << 20}},
	}
	for _, row := range []struct {
		name      string
		plan      *compiled.Plan
		direction dataplane.Direction
		hook      Hook
		shared    bool
	}{
		{"meter", class(dataplane.Class{Meter: &dataplane.Meter{Name: "m", Params: limit}}), Egress, TCX, true},
		{"meter of tc", class(dataplane.Class{Meter: &dataplane.Meter{Name: "m", Params: limit}}), Egress, TC, true},
		{"meter of XDP", class(dataplane.Class{Meter: &dataplane.Meter{Name: "m", Params: limit}}), Ingress, XDP, true},
		{"queue", class(dataplane.Class{Green: queued}), Egress, TCX, true},
		{"queue at ingress", class(dataplane.Class{Green: queued}), Ingress, TCX, true},
		{"keys", class(dataplane.Class{Meter: &dataplane.Meter{
			Name: "m", Params: limit, Per: dataplane.Key{By: dataplane.BySrc},
		}}), Egress, TCX, false},
		{
			"customers", kerneltest.Compiled(t, kerneltest.CustomerPolicy([]dataplane.Customer{{
				Name: "c", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")},
				Plan: &dataplane.ServicePlan{Name: "p", Params: limit},
			}})),
			Egress, TCX, false,
		},
		{"meter at ingress", class(dataplane.Class{Meter: &dataplane.Meter{Name: "m", Params: limit}}), Ingress, TCX, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := *s
			s.t = t
			at := func(c *Config) { c.Direction, c.Hook = row.direction, row.hook }
			a, b := s.attach("a", row.plan, at), s.attach("b", row.plan, at)
			if shared := a.Program == b.Program; shared != row.shared {
				t.Errorf("shared: %v", shared)
			}
			if row.direction == Ingress {
				s.send("a", 1)
				s.wantSeen("a", 1, 0)
				s.wantSeen("b", 0, 0)
			}
		})
	}
	var left []ebpf.ProgramID
	s.Do(func() {
		for _, name := range []string{"a", "b"} {
			list, err := hook.TCXPrograms(map[string]int{"a": 100, "b": 102}[name], false)
			if err != nil && err != hook.ErrNoTCX {
				t.Error(err)
			}
			for _, p := range list {
				left = append(left, p.ID)
			}
		}
	})
	if len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
