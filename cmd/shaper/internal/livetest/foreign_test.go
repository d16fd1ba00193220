package livetest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestLiveForeignInClsact holds that a clsact of ours that others use by now is
// theirs: nothing is called left behind.
func TestLiveForeignInClsact(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	r := p.run("--hook", "tc", "--meter", never)
	p.near.Run("tc", "filter", "add", "dev", "v0", "ingress", "pref", "9", "protocol", "ip", "u32", "match", "u32", "0", "0", "flowid", "1:1")
	r.term()
	p.nothing()
	if now := p.near.Run("tc", "filter", "show", "dev", "v0", "ingress"); !strings.Contains(now, "pref 9") {
		t.Errorf("filters are %q: want theirs", now)
	}
	p.fails(1, "v0 is not shaped: .*", "detach", "v0")
}

// TestLiveForeign holds that programs of others before and behind ours still
// see the packets that pass, and stay when ours goes.
func TestLiveForeign(t *testing.T) {
	t.Parallel()
	for _, m := range methods {
		if m.hook == "xdp" {
			continue
		}
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.need(t)
			p := newPair(t)
			from, to := p.sides(m)
			_, at := p.addresses(m, false)
			filter := newForeign(t, ebpf.SchedCLS, -1, 0)
			filter.filter(p.near, m.direction)
			others := []*foreign{filter}
			if haveTCX() {
				tcx := newForeign(t, ebpf.SchedCLS, -1, 0)
				tcx.tcx(p.near, m.direction, link.Tail())
				others = append(others, tcx)
			}
			before := p.attached()
			r := p.run(m.args("--meter", ladder)...)
			for range 2 {
				in := listen(t, to, at)
				was := []uint64{}
				for _, f := range others {
					was = append(was, f.packets())
				}
				all := p.attached()
				send(t, sender(t, from, at, 0, 0), 8, 100)
				got := uint64(len(in.take()))
				in.conn.Close()
				for i, f := range others {
					// A tcx program runs before all filters.
					want := got
					if m.hook == "tc" && i == 1 {
						want = 8
					}
					if seen := f.packets() - was[i]; seen != want {
						t.Errorf("the foreign program %d saw %d packets: want %d\n%s", i, seen, want, all)
					}
				}
				if r == nil {
					break
				}
				if got != 5 {
					t.Errorf("%d packets passed: want 5", got)
				}
				r.term()
				p.unchanged(before)
				r = nil
				// Once more without ours: all pass.
			}
		})
	}
}

// TestLiveForeignFirst holds that what a foreign program in front drops or
// takes is not metered.
func TestLiveForeignFirst(t *testing.T) {
	m := method{"tcx", "egress"}
	m.need(t)
	p := newPair(t)
	_, at := p.addresses(m, false)
	r := p.run(m.args("--meter", never)...)
	newForeign(t, ebpf.SchedCLS, 2, 0).tcx(p.near, m.direction, link.Head())
	in := listen(t, p.far, at)
	send(t, sender(t, p.near, at, 0, 0), 3, 100)
	s := p.stats()
	if got := s.sum(); len(in.take()) != 0 || got != (count{}) {
		t.Errorf("counted %+v: want nothing", got)
	}
	r.term()
}

// TestLiveForeignXDP holds that an XDP program of somebody else is left alone.
func TestLiveForeignXDP(t *testing.T) {
	p := newPair(t)
	f := newForeign(t, ebpf.XDP, 2, 0)
	index := p.near.Index("v0")
	p.near.Do(func() {
		l, err := link.AttachXDP(link.XDPOptions{Program: f.program, Interface: index})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	})
	before := p.attached()
	p.fails(1, "interface v0 already has an XDP program, and cannot have two: use --hook tc", "run", "v0", "--hook", "xdp", "--direction", "ingress", "--meter", never)
	p.unchanged(before)
	at := []byte{10, 0, 0, 1}
	in := listen(t, p.near, at)
	send(t, sender(t, p.far, at, 0, 0), 3, 100)
	if got := len(in.take()); got != 3 || f.packets() != 3 {
		t.Errorf("%d packets came, the program saw %d: want 3", got, f.packets())
	}
	r := p.run("--hook", "tc", "--direction", "ingress", "--meter", never)
	r.term()
	p.unchanged(before)
}

// TestLiveForeignNetlinkXDP is the same for one attached without a link, as ip
// does.
func TestLiveForeignNetlinkXDP(t *testing.T) {
	t.Parallel()
	for _, flags := range []int{0, unix.XDP_FLAGS_SKB_MODE} {
		t.Run(fmt.Sprint(flags), func(t *testing.T) {
			p := newPair(t)
			f := newForeign(t, ebpf.XDP, 2, 0)
			p.near.Do(func() {
				l, err := netlink.LinkByName("v0")
				if err == nil {
					err = netlink.LinkSetXdpFdWithFlags(l, f.program.FD(), flags)
				}
				if err != nil {
					t.Fatal(err)
				}
			})
			before := p.attached()
			p.fails(1, "interface v0 already has an XDP program, .*", "run", "v0", "--hook", "xdp", "--direction", "ingress", "--meter", never)
			p.unchanged(before)
		})
	}
}

// TestLiveClsactStays holds that a clsact qdisc that was there before stays.
func TestLiveClsactStays(t *testing.T) {
	t.Parallel()
	hereOnly(t)
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed=%v", killed), func(t *testing.T) {
			p := newPair(t)
			index := p.near.Index("v0")
			p.near.Do(func() {
				if err := netlink.QdiscAdd(clsact(index)); err != nil {
					t.Fatal(err)
				}
			})
			before := p.attached()
			r := p.run("--hook", "tc", "--meter", never)
			if killed {
				r.kill()
			} else {
				r.term()
			}
			p.soonUnchanged(before)
		})
	}
}

// TestLiveForeignUsesOurClsact holds that a qdisc that we made stays when
// somebody else has a filter there by now.
func TestLiveForeignUsesOurClsact(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	r := p.run("--hook", "tc", "--meter", never)
	newForeign(t, ebpf.SchedCLS, -1, 0).filter(p.near, "ingress")
	r.term()
	if now := p.attached(); !strings.Contains(now, "foreign") || strings.Contains(now, "shaper") {
		t.Errorf("at v0 is %s: want the foreign filter only", now)
	}
}

// foreign is a program of somebody else. It counts packets, keeps their mark,
// and lets them pass.
type foreign struct {
	t       *testing.T
	program *ebpf.Program
	values  *ebpf.Map
}

// newForeign makes one. At tc it returns verdict, or what redirecting to a
// device returns where that is not 0.
func newForeign(t *testing.T, kind ebpf.ProgramType, verdict int32, redirect int) *foreign {
	t.Helper()
	f := &foreign{t: t}
	var err error
	f.values, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.values.Close() })
	value := func(key int32) asm.Instructions {
		return asm.Instructions{
			asm.StoreImm(asm.RFP, -4, int64(key), asm.Word),
			asm.LoadMapPtr(asm.R1, f.values.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"),
		}
	}
	in := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}
	in = append(in, value(0)...)
	in = append(in, asm.Mov.Imm(asm.R1, 1), asm.StoreXAdd(asm.R0, asm.R1, asm.DWord))
	if kind == ebpf.SchedCLS {
		in = append(in, value(1)...)
		in = append(in, asm.LoadMem(asm.R1, asm.R6, 8, asm.Word), asm.StoreMem(asm.R0, 0, asm.R1, asm.DWord))
	}
	if redirect != 0 {
		in = append(in, asm.Mov.Imm(asm.R1, int32(redirect)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call(), asm.Return())
	}
	in = append(in, asm.Mov.Imm(asm.R0, verdict).WithSymbol("out"), asm.Return())
	f.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: "foreign", Type: kind, Instructions: in, License: "GPL"})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { f.program.Close() })
	return f
}

func (f *foreign) get(key uint32) (v uint64) {
	f.t.Helper()
	if err := f.values.Lookup(key, &v); err != nil {
		f.t.Fatal(err)
	}
	return v
}

func (f *foreign) packets() uint64 { return f.get(0) }

func (f *foreign) mark() uint64 { return f.get(1) }

// filter attaches it to v0 as a tc filter, and clsact if it is missing.
func (f *foreign) filter(n *nettest.Namespace, direction string) {
	f.t.Helper()
	index := n.Index("v0")
	parent := uint32(netlink.HANDLE_MIN_EGRESS)
	if direction == "ingress" {
		parent = netlink.HANDLE_MIN_INGRESS
	}
	n.Do(func() {
		err := netlink.QdiscAdd(clsact(index))
		if errors.Is(err, unix.EEXIST) {
			err = nil
		}
		if err == nil {
			err = netlink.FilterAdd(&netlink.BpfFilter{
				FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: parent, Priority: 50000, Protocol: unix.ETH_P_ALL},
				Fd:          f.program.FD(), Name: "foreign", DirectAction: true,
			})
		}
		if err != nil {
			f.t.Fatal(err)
		}
	})
}

// tcx attaches it to v0 by a link, at the head or the tail.
func (f *foreign) tcx(n *nettest.Namespace, direction string, anchor link.Anchor) {
	f.t.Helper()
	index := n.Index("v0")
	at := ebpf.AttachTCXEgress
	if direction == "ingress" {
		at = ebpf.AttachTCXIngress
	}
	n.Do(func() {
		l, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: f.program, Attach: at, Anchor: anchor})
		if err != nil {
			f.t.Fatal(err)
		}
		f.t.Cleanup(func() { l.Close() })
	})
}
