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

// TestLiveForeignInClsact checks that a clsact qdisc of a killed shaper is not reported as left
// behind if other programs use it.
func TestLiveForeignInClsact(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	r := p.runShaper("--hook", "tc", "--meter", unlimitedMeter)
	p.near.Run("tc", "filter", "add", "dev", "v0", "ingress", "pref", "9", "protocol", "ip", "u32", "match",
		"u32", "0", "0", "flowid", "1:1")
	r.stopBySIGTERM()
	p.wantNothingLeft()
	if now := p.near.Run("tc", "filter", "show", "dev", "v0", "ingress"); !strings.Contains(now, "pref 9") {
		t.Errorf("filters are %q: want that of the other program", now)
	}
	p.wantError(1, "v0 is not shaped: .*", "detach", "v0")
}

// TestLiveForeign checks that programs of others before and after ours see the packets that
// pass, and stay attached when ours is detached.
func TestLiveForeign(t *testing.T) {
	t.Parallel()
	for _, m := range placements {
		if m.hook == "xdp" {
			continue
		}
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.skipIfUnsupported(t)
			p := newPair(t)
			from, to := p.senderAndReceiver(m)
			_, at := p.addresses(m, false)
			filter := newForeign(t, ebpf.SchedCLS, -1, 0)
			filter.attachFilter(p.near, m.direction)
			others := []*foreign{filter}
			if haveTCX() {
				tcx := newForeign(t, ebpf.SchedCLS, -1, 0)
				tcx.attachTCX(p.near, m.direction, link.Tail())
				others = append(others, tcx)
			}
			before := p.deviceState()
			r := p.runShaper(m.flags("--meter", ladderMeter)...)
			for range 2 {
				in := listenUDP(t, to, at)
				was := []uint64{}
				for _, f := range others {
					was = append(was, f.packetsSeen())
				}
				all := p.deviceState()
				sendUDP(t, newSender(t, from, at, 0, 0), 8, 100)
				got := uint64(len(in.receiveAll()))
				in.conn.Close()
				for i, f := range others {
					// A tcx program runs before all filters.
					want := got
					if m.hook == "tc" && i == 1 {
						want = 8
					}
					if seen := f.packetsSeen() - was[i]; seen != want {
						t.Errorf("the foreign program %d saw %d packets: want %d\n%s", i, seen, want, all)
					}
				}
				if r == nil {
					break
				}
				if got != 5 {
					t.Errorf("%d packets passed: want 5", got)
				}
				r.stopBySIGTERM()
				p.wantState(before)
				r = nil
				// Without ours all packets pass.
			}
		})
	}
}

// TestLiveForeignFirst checks that packets that a program before ours drops or redirects are
// not metered.
func TestLiveForeignFirst(t *testing.T) {
	m := placement{"tcx", "egress"}
	m.skipIfUnsupported(t)
	p := newPair(t)
	_, at := p.addresses(m, false)
	r := p.runShaper(m.flags("--meter", unlimitedMeter)...)
	newForeign(t, ebpf.SchedCLS, 2, 0).attachTCX(p.near, m.direction, link.Head())
	in := listenUDP(t, p.far, at)
	sendUDP(t, newSender(t, p.near, at, 0, 0), 3, 100)
	s := p.stats()
	if got := s.sumOfClasses(); len(in.receiveAll()) != 0 || got != (packetCount{}) {
		t.Errorf("counted %+v: want nothing", got)
	}
	r.stopBySIGTERM()
}

// TestLiveForeignXDP checks that shaper does not replace the XDP program of another program.
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
	before := p.deviceState()
	p.wantError(1, "interface v0 already has an XDP program, and cannot have two: use --hook tc", "run", "v0",
		"--hook", "xdp", "--direction", "ingress", "--meter", unlimitedMeter)
	p.wantState(before)
	at := []byte{10, 0, 0, 1}
	in := listenUDP(t, p.near, at)
	sendUDP(t, newSender(t, p.far, at, 0, 0), 3, 100)
	if got := len(in.receiveAll()); got != 3 || f.packetsSeen() != 3 {
		t.Errorf("%d packets arrived, the program saw %d: want 3", got, f.packetsSeen())
	}
	r := p.runShaper("--hook", "tc", "--direction", "ingress", "--meter", unlimitedMeter)
	r.stopBySIGTERM()
	p.wantState(before)
}

// TestLiveForeignNetlinkXDP checks the same for an XDP program that was attached without a
// link, as ip does.
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
			before := p.deviceState()
			p.wantError(1, "interface v0 already has an XDP program, .*", "run", "v0", "--hook", "xdp",
				"--direction", "ingress", "--meter", unlimitedMeter)
			p.wantState(before)
		})
	}
}

// TestLiveClsactStays checks that a clsact qdisc that existed before stays.
func TestLiveClsactStays(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed=%v", killed), func(t *testing.T) {
			p := newPair(t)
			index := p.near.Index("v0")
			p.near.Do(func() {
				if err := netlink.QdiscAdd(clsactQdisc(index)); err != nil {
					t.Fatal(err)
				}
			})
			before := p.deviceState()
			r := p.runShaper("--hook", "tc", "--meter", unlimitedMeter)
			if killed {
				r.killAndWait()
			} else {
				r.stopBySIGTERM()
			}
			p.awaitState(before)
		})
	}
}

// TestLiveForeignUsesOurClsact checks that a clsact qdisc that shaper created stays if another
// program has a filter in it.
func TestLiveForeignUsesOurClsact(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	r := p.runShaper("--hook", "tc", "--meter", unlimitedMeter)
	newForeign(t, ebpf.SchedCLS, -1, 0).attachFilter(p.near, "ingress")
	r.stopBySIGTERM()
	if now := p.deviceState(); !strings.Contains(now, "foreign") || strings.Contains(now, "shaper") {
		t.Errorf("attached to v0: %s: want the foreign filter only", now)
	}
}

// foreign is a program of another user. It counts packets and remembers their mark. By default
// it passes all packets.
type foreign struct {
	t       *testing.T
	program *ebpf.Program
	values  *ebpf.Map
}

// newForeign loads a foreign program. At tc it returns verdict, or redirects to the device with
// index redirect if that is not 0.
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
		in = append(in, asm.Mov.Imm(asm.R1, int32(redirect)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call(),
			asm.Return())
	}
	in = append(in, asm.Mov.Imm(asm.R0, verdict).WithSymbol("out"), asm.Return())
	f.program, err = ebpf.NewProgram(
		&ebpf.ProgramSpec{Name: "foreign", Type: kind, Instructions: in, License: "GPL"})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { f.program.Close() })
	return f
}

func (f *foreign) readCounter(key uint32) (v uint64) {
	f.t.Helper()
	if err := f.values.Lookup(key, &v); err != nil {
		f.t.Fatal(err)
	}
	return v
}

func (f *foreign) packetsSeen() uint64 { return f.readCounter(0) }

func (f *foreign) lastMark() uint64 { return f.readCounter(1) }

// attachFilter attaches the program to v0 as a tc filter, and creates clsact if it is missing.
func (f *foreign) attachFilter(n *nettest.Namespace, direction string) {
	f.t.Helper()
	index := n.Index("v0")
	parent := uint32(netlink.HANDLE_MIN_EGRESS)
	if direction == "ingress" {
		parent = netlink.HANDLE_MIN_INGRESS
	}
	n.Do(func() {
		err := netlink.QdiscAdd(clsactQdisc(index))
		if errors.Is(err, unix.EEXIST) {
			err = nil
		}
		if err == nil {
			err = netlink.FilterAdd(&netlink.BpfFilter{
				FilterAttrs: netlink.FilterAttrs{
					LinkIndex: index, Parent: parent, Priority: 50000, Protocol: unix.ETH_P_ALL,
				},
				Fd: f.program.FD(), Name: "foreign", DirectAction: true,
			})
		}
		if err != nil {
			f.t.Fatal(err)
		}
	})
}

// attachTCX attaches the program to v0 by a TCX link, at the head or the tail.
func (f *foreign) attachTCX(n *nettest.Namespace, direction string, anchor link.Anchor) {
	f.t.Helper()
	index := n.Index("v0")
	at := ebpf.AttachTCXEgress
	if direction == "ingress" {
		at = ebpf.AttachTCXIngress
	}
	n.Do(func() {
		l, err := link.AttachTCX(
			link.TCXOptions{Interface: index, Program: f.program, Attach: at, Anchor: anchor})
		if err != nil {
			f.t.Fatal(err)
		}
		f.t.Cleanup(func() { l.Close() })
	})
}
