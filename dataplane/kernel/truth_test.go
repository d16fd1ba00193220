package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/replay"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// plane is a way into the programs.
type plane struct {
	name string
	mark bool // there is an skb mark
	slow bool // left out in a VM, where a program takes seconds to load
	open func(t testing.TB, policy *dataplane.Policy) engine
}

var planes = slices.DeleteFunc([]plane{
	{"egress", true, false, at(egressEntry, dataplane.LinkEthernet)},
	{"ingress", true, true, at(ingressEntry, dataplane.LinkEthernet)},
	{"xdp", false, false, at(xdpEntry, dataplane.LinkEthernet)},
	{"egress-raw", true, true, at(egressEntry, dataplane.LinkRaw)},
	{"xdp-raw", false, true, at(xdpEntry, dataplane.LinkRaw)},
	{"walk-1", true, true, walker(1)},
	{"walk-7", true, false, walker(7)},
	{"walk-512", true, true, walker(512)},
}, func(p plane) bool { return p.slow && inVM })

func at(hook entry, link dataplane.LinkType) func(t testing.TB, p *dataplane.Policy) engine {
	return func(t testing.TB, p *dataplane.Policy) engine {
		t.Helper()
		return newHooked(t, p, hook, func(c *bpf.ShaperConstants) { c.Link = uint8(link) })
	}
}

func walker(batch int) func(t testing.TB, p *dataplane.Policy) engine {
	return func(t testing.TB, p *dataplane.Policy) engine {
		t.Helper()
		w, err := newWalker(p, batch)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Close)
		return w
	}
}

// collector is an engine that keeps what a capture holds.
type collector struct{ packets []dataplane.Packet }

func (*collector) Accepts(dataplane.LinkType) error      { return nil }
func (*collector) Batch() int                            { return 1 }
func (*collector) Settle(int64, *dataplane.Verdict) bool { return false }

func (c *collector) Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error {
	for i, p := range packets {
		p.Data = slices.Clone(p.Data)
		c.packets = append(c.packets, p)
		verdicts[i] = dataplane.Verdict{Done: dataplane.Pass}
	}
	return nil
}

// marks are values of skb marks, those of which a map knows the color among
// them.
var marks = []uint32{0, 1, 2, 7, 63, 64, 65, 1000, 1 << 31, math.MaxUint32}

// captured reads all captures, one after the other, and gives the packets skb
// marks. A capture that breaks off counts as far as it goes.
func captured(t testing.TB) []dataplane.Packet {
	t.Helper()
	var c collector
	for _, dir := range []string{"../../testdata/pcaps", "../../../shared/pcaps"} {
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Logf("not tested: %v", err)
		}
		for _, file := range files {
			switch filepath.Ext(file.Name()) {
			case ".pcap", ".pcapng", ".gz":
			default:
				continue
			}
			in, err := os.Open(filepath.Join(dir, file.Name()))
			if err != nil {
				t.Fatal(err)
			}
			_, err = replay.Run(context.Background(), in, &c, replay.Config{})
			in.Close()
			if err != nil && !errors.As(err, new(*replay.BrokenError)) {
				t.Fatalf("%s: %v", file.Name(), err)
			}
		}
	}
	if len(c.packets) < 1000 {
		t.Fatalf("only %d packets in all captures", len(c.packets))
	}
	for i := range c.packets {
		c.packets[i].Mark = marks[i%len(marks)]
	}
	return c.packets
}

// fixed are policies that have, together, everything a policy can have but
// queues.
func fixed() map[string]*dataplane.Policy {
	ranges := func(bounds ...uint32) []dataplane.Range {
		var out []dataplane.Range
		for i := 0; i < len(bounds); i += 2 {
			out = append(out, dataplane.Range{First: bounds[i], Last: bounds[i+1]})
		}
		return out
	}
	prefixes := func(list ...string) []netip.Prefix {
		var out []netip.Prefix
		for _, s := range list {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	mark := func(field dataplane.Field, value uint32) *dataplane.Action {
		return &dataplane.Action{Marks: []dataplane.Mark{{Field: field, Value: value}}}
	}
	chain := func(n int, params func(i int) dataplane.Params) *dataplane.Meter {
		var next *dataplane.Meter
		for i := n; i > 0; i-- {
			next = &dataplane.Meter{Name: fmt.Sprint("m", i), Params: params(i), Aware: true, Then: next}
		}
		return next
	}
	everyMatch := func() *dataplane.Policy {
		return &dataplane.Policy{Classes: []dataplane.Class{
			{Name: "dns", Match: dataplane.Match{SPort: ranges(53, 53)}, Meter: &dataplane.Meter{Params: meter.TokenBucket{Rate: bps(64e3), Burst: 600}}},
			{Name: "high", Match: dataplane.Match{DPort: ranges(0, 79, 81, 442, 5000, 65535), Proto: ranges(6, 6)}},
			{Name: "pairs", Match: dataplane.Match{Src: prefixes("192.0.2.0/25", "10.0.0.0/8", "2001:db8::/48"), Dst: prefixes("0.0.0.0/1", "::/1")}},
			{Name: "from", Match: dataplane.Match{Src: prefixes("192.0.2.0/24", "2001:db8::/32", "141.142.0.0/16")}},
			{Name: "ef", Match: dataplane.Match{DSCP: ranges(46, 46, 10, 14)}, Green: mark(dataplane.DSCP, 0)},
			{Name: "tagged", Match: dataplane.Match{VLAN: ranges(1, 100, 4095, 4095), PCP: ranges(0, 3)}, Green: mark(dataplane.PCP, 6)},
			{Name: "pcp", Match: dataplane.Match{PCP: ranges(4, 7)}, Green: mark(dataplane.DEI, 1)},
			{Name: "types", Match: dataplane.Match{EtherType: ranges(0x0806, 0x0806, 0x8847, 0x8864)}, Green: mark(dataplane.MPLSTC, 5)},
			{Name: "large", Match: dataplane.Match{Length: ranges(1000, 1<<32-1)}},
			{Name: "icmp", Match: dataplane.Match{Proto: ranges(1, 1, 58, 58)}},
			{Name: "rest", Green: mark(dataplane.DSCP, 8)},
		}}
	}
	closed := everyMatch()
	closed.Classes, closed.DropUnclassified = closed.Classes[:6], true
	marked := everyMatch()
	marked.Classes = slices.Insert(marked.Classes, 2, dataplane.Class{
		Name: "marked", Match: dataplane.Match{Mark: ranges(1, 7, 1000, 1<<31)}, Green: mark(dataplane.SKBMark, 77),
	})
	return map[string]*dataplane.Policy{
		"matches":      everyMatch(),
		"matches-mark": marked,
		"closed":       closed,
		"meters": {Classes: []dataplane.Class{
			{Name: "a", Match: dataplane.Match{Proto: ranges(6, 6)}, Meter: &dataplane.Meter{
				Name: "srtcm", Params: meter.SRTCM{CIR: bps(123457), CBS: 3000, EBS: 2000}, Aware: true,
			}, Yellow: mark(dataplane.DSCP, 12)},
			{Name: "b", Match: dataplane.Match{Proto: ranges(17, 17)}, Meter: &dataplane.Meter{
				Name: "trtcm", Params: meter.TRTCM{CIR: bps(100003), CBS: 1500, PIR: bps(200003), PBS: 4000}, Initial: dataplane.Share{Num: 1, Den: 3},
			}, Red: &dataplane.Action{ECN: dataplane.CEOrDrop, Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 14}, {Field: dataplane.DEI, Value: 1}}}},
			{Name: "c", Match: dataplane.Match{VLAN: ranges(0, 4095)}, Meter: &dataplane.Meter{
				Name: "4115", Params: meter.TRTCM4115{CIR: bps(50e3), CBS: 1000, EIR: bps(70e3), EBS: 1500}, Aware: true, PreColor: dataplane.PreColor{From: dataplane.DEI},
			}, Red: &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.PCP, Value: 1}, {Field: dataplane.DEI, Value: 1}, {Field: dataplane.DSCP, Value: 1}}}},
			{Name: "d", Meter: &dataplane.Meter{
				Name: "coupled", Params: meter.TRTCM4115{CIR: bps(80e3), CBS: 1000, EIR: meter.Rate{Bytes: 7, Period: 3 * time.Millisecond}, EBS: 1500, Coupling: true},
				Initial: dataplane.Share{Num: 0, Den: 1},
			}, Yellow: &dataplane.Action{ECN: dataplane.CE}, Green: &dataplane.Action{}},
		}},
		"precolors": {Length: dataplane.LengthRule{Overhead: 38, MPU: 84}, Classes: []dataplane.Class{
			{Name: "mpls", Match: dataplane.Match{EtherType: ranges(0x8847, 0x8848)}, Meter: &dataplane.Meter{
				Params: meter.SRTCM{CIR: bps(123457), CBS: 0, EBS: 2000}, Aware: true,
				PreColor: dataplane.PreColor{From: dataplane.MPLSTC, Map: map[uint32]meter.Color{0: meter.Yellow, 3: meter.Red}},
			}, Yellow: mark(dataplane.MPLSTC, 7)},
			{Name: "pcp", Match: dataplane.Match{PCP: ranges(0, 7)}, Meter: &dataplane.Meter{
				Params: meter.TokenBucket{Rate: meter.Rate{Bytes: 5, Period: time.Second}, Burst: 10}, Packets: true, Aware: true,
				PreColor: dataplane.PreColor{From: dataplane.PCP, Map: map[uint32]meter.Color{0: meter.Yellow, 5: meter.Red}},
			}},
			{Name: "dscp", Meter: &dataplane.Meter{
				Params: meter.TRTCM{CIR: bps(1e6), CBS: 3000, PIR: bps(3e6), PBS: 3000}, Aware: true,
				PreColor: dataplane.PreColor{From: dataplane.DSCP, Map: map[uint32]meter.Color{0: meter.Yellow, 46: meter.Red, 63: meter.Green}},
			}},
		}},
		"precolor-mark": {Classes: []dataplane.Class{{Name: "all", Meter: &dataplane.Meter{
			Name: "first", Params: meter.TRTCM4115{CIR: bps(1e6), CBS: 9000, EIR: bps(1e6), EBS: 9000}, Aware: true,
			PreColor: dataplane.PreColor{From: dataplane.SKBMark, Map: map[uint32]meter.Color{
				1: meter.Yellow, 63: meter.Red, 64: meter.Yellow, 65: meter.Red, 1000: meter.Green, math.MaxUint32: meter.Red,
			}},
			Then: &dataplane.Meter{
				Name: "second", Params: meter.SRTCM{CIR: bps(900e3), CBS: 3000, EBS: 0}, Aware: true,
				PreColor: dataplane.PreColor{From: dataplane.SKBMark}, // not asked: the color comes from the first
			},
		}, Green: mark(dataplane.SKBMark, 1<<31), Yellow: mark(dataplane.SKBMark, 0), Red: &dataplane.Action{
			ECN: dataplane.CE, Marks: []dataplane.Mark{{Field: dataplane.SKBMark, Value: math.MaxUint32}},
		}}}},
		"chain": {Length: dataplane.LengthRule{Base: dataplane.L1}, Classes: []dataplane.Class{
			{Name: "long", Match: dataplane.Match{Length: ranges(200, 1<<32-1)}, Meter: chain(MaxChain, func(i int) dataplane.Params {
				return meter.TRTCM{CIR: bps(int64(2e6 - i*1e5)), CBS: 9000, PIR: bps(int64(3e6 - i*1e5)), PBS: 9000}
			})},
			{Name: "all", Match: dataplane.Match{Length: ranges(0, 1<<32-1)}, Meter: chain(3, func(i int) dataplane.Params {
				return meter.SRTCM{CIR: bps(int64(200e3 - i*1e4)), CBS: 1000, EBS: 500}
			})},
		}},
		"frames": {Length: dataplane.LengthRule{Base: dataplane.L2, Overhead: -20}, Classes: []dataplane.Class{{Name: "all", Meter: &dataplane.Meter{
			Params: meter.TokenBucket{Rate: bps(1e6), Burst: 5000},
		}, Red: &dataplane.Action{ECN: dataplane.CEOrDrop}}}},
	}
}

// TestOneTruth holds every program to the pipeline on every capture, packet by
// packet, for policies that use all there is.
func TestOneTruth(t *testing.T) {
	needRoot(t)
	t.Parallel()
	packets := captured(t)
	if inVM { // a part of each capture, in which the same things happen
		packets = slices.Collect(func(yield func(dataplane.Packet) bool) {
			for i := range packets {
				if i/100%5 == 0 && !yield(packets[i]) {
					return
				}
			}
		})
	}
	for name, policy := range fixed() {
		if inVM && name != "meters" && name != "matches-mark" && name != "precolor-mark" {
			continue
		}
		for _, plane := range planes {
			if !plane.mark && usesMark(policy) {
				continue
			}
			t.Run(name+"/"+plane.name, func(t *testing.T) {
				e := plane.open(t, policy)
				n := follow(t, policy, e, packets)
				if e.Accepts(dataplane.LinkRaw) == nil && n < len(packets)/2 && !t.Failed() {
					t.Errorf("only %d of %d packets were compared", n, len(packets))
				}
			})
		}
	}
}

// usesMark says that a policy cannot be had at XDP.
func usesMark(policy *dataplane.Policy) bool {
	_, err := encodePolicy(policy, xdpEntry, "")
	return err != nil
}

// TestRandomPolicies holds every program to the pipeline for policies that
// nobody would write, on packets that nobody would send.
func TestRandomPolicies(t *testing.T) {
	needRoot(t)
	t.Parallel()
	r := seeded(t)
	all := captured(t)
	for i := range rounds(48) {
		plane := planes[i%len(planes)]
		policy := randomPolicy(r, plane.mark)
		packets := randomPackets(r, 200, all[len(all)-1].Time)
		for range 5 {
			first := r.IntN(len(all) - 40)
			packets = append(packets, all[first:first+40]...)
		}
		t.Run(fmt.Sprint(i, "/", plane.name), func(t *testing.T) {
			t.Cleanup(func() {
				if !t.Failed() {
					return
				}
				t.Logf("length %+v", policy.Length)
				for i := range policy.Classes {
					t.Log(describe(&policy.Classes[i]))
				}
			})
			follow(t, policy, plane.open(t, policy), packets)
		})
		if t.Failed() {
			return
		}
	}
}

func describe(c *dataplane.Class) string {
	s := fmt.Sprintf("class %s match %+v", c.Name, c.Match)
	for m := c.Meter; m != nil; m = m.Then {
		s += fmt.Sprintf("\n  meter %q %T%+v aware %v precolor %+v initial %v packets %v per %v", m.Name, m.Params, m.Params, m.Aware, m.PreColor, m.Initial, m.Packets, m.Per)
	}
	for i, a := range []*dataplane.Action{c.Green, c.Yellow, c.Red} {
		if a != nil {
			s += fmt.Sprintf("\n  %v %+v", meter.Color(i), *a)
		}
	}
	return s
}

// TestManyClasses holds the search over vectors of several words to the
// pipeline, at and beside the bounds of the classes.
func TestManyClasses(t *testing.T) {
	needRoot(t)
	t.Parallel()
	r := seeded(t)
	for _, n := range []int{64, 65, 300, MaxClasses} {
		if inVM && n != 300 {
			continue
		}
		policy := manyClasses(r, n)
		for _, plane := range planes {
			if plane.name == "walk-1" || plane.name == "egress-raw" || plane.name == "xdp-raw" {
				continue
			}
			count := rounds(1000)
			if plane.name == "walk-512" {
				count = 30_000
			}
			packets := make([]dataplane.Packet, count)
			for i := range packets {
				packets[i] = packetFor(r, &policy.Classes[r.IntN(n)].Match)
				packets[i].Time = int64(i) * 1000
			}
			t.Run(fmt.Sprint(n, "/", plane.name), func(t *testing.T) {
				e := plane.open(t, policy)
				follow(t, policy, e, packets)
				taken := 0
				all, err := e.Stats()
				if err != nil {
					t.Fatal(err)
				}
				for i := range all[:n] {
					if total := all[i].Total(); total.Packets > 0 {
						taken++
					}
				}
				if taken < min(n, count)/10 {
					t.Errorf("only %d of %d classes took a packet", taken, n)
				}
			})
		}
	}
}

// TestDry holds a program that only counts to the verdicts of the pipeline, and
// lets it change nothing.
func TestDry(t *testing.T) {
	needRoot(t)
	t.Parallel()
	r := seeded(t)
	for _, hook := range allEntries {
		if inVM && hook == ingressEntry {
			continue
		}
		policy := randomPolicy(r, hook != xdpEntry)
		policy.Length = dataplane.LengthRule{}
		pipeline, err := dataplane.New(policy)
		if err != nil {
			t.Fatal(err)
		}
		h := newHooked(t, policy, hook, func(c *bpf.ShaperConstants) { c.Dry = 1 })
		for _, p := range handable(h, randomPackets(r, rounds(1000), 0)) {
			same := p
			same.Data = slices.Clone(p.Data)
			before := slices.Clone(p.Data)
			var got, want dataplane.Verdict
			if err := h.run(&p, &got, skb{}); err != nil {
				t.Fatal(err)
			}
			pipeline.Process(&same, &want)
			if got != want {
				t.Fatalf("hook %d:\nkernel   %+v\npipeline %+v\n%s", hook, got, want, show(&p, before))
			}
			if !slices.Equal(p.Data, before) {
				t.Fatalf("hook %d: %x became %x", hook, before, p.Data)
			}
		}
		if got, err := h.Stats(); err != nil || !slices.Equal(got, pipeline.Stats()) {
			t.Errorf("hook %d: %v: %+v: want %+v", hook, err, got, pipeline.Stats())
		}
	}
}

// TestFarHeaders holds the programs to the pipeline where headers are further
// in than a packet's linear bytes, or than direct access goes.
func TestFarHeaders(t *testing.T) {
	needRoot(t)
	t.Parallel()
	policy := &dataplane.Policy{Classes: []dataplane.Class{
		{Name: "port", Match: dataplane.Match{DPort: []dataplane.Range{{First: 80, Last: 80}}}, Meter: &dataplane.Meter{
			Params: meter.TokenBucket{Rate: bps(1e9), Burst: 300_000}, Aware: true,
		}, Green: &dataplane.Action{ECN: dataplane.CE, Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 9}}}},
		{Name: "rest"},
	}}
	var packets []dataplane.Packet
	for n := 1; n <= 16; n++ {
		for _, size := range []byte{0, 30, 100, 221, 255} { // units of 8 bytes, less one
			b := ipv6(be16(ethernet(), 0x86dd), 0x2d, 60, 0, [16]byte{1}, [16]byte{2})
			for i := range n {
				next := byte(60)
				if i == n-1 {
					next = 6
				}
				header := make([]byte, 8*(int(size)+1))
				header[0], header[1] = next, size
				b = append(b, header...)
			}
			b = tcp(b, 0, 1234, 80)
			packets = append(packets, dataplane.Packet{Data: b, Link: dataplane.LinkEthernet, Time: int64(len(packets))})
			// Ends between the ports.
			packets = append(packets, dataplane.Packet{Data: b[:len(b)-17], Link: dataplane.LinkEthernet, Time: int64(len(packets))})
		}
	}
	for _, plane := range planes {
		t.Run(plane.name, func(t *testing.T) { follow(t, policy, plane.open(t, policy), packets) })
	}
}

// TestOddHeaders holds the programs to the pipeline on fragments, whose flow has no
// ports, on a PPP protocol of one byte, and on IPv4 options that were not captured.
func TestOddHeaders(t *testing.T) {
	needRoot(t)
	t.Parallel()
	m := &dataplane.Meter{Params: meter.TokenBucket{Rate: bps(8), Burst: 3}, Packets: true, Per: dataplane.Key{By: dataplane.ByFlow}}
	policy := &dataplane.Policy{Classes: []dataplane.Class{
		{Name: "port", Match: dataplane.Match{DPort: []dataplane.Range{{First: 80, Last: 80}}}, Meter: m},
		{Name: "rest", Meter: m, Green: &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 9}}}},
	}}
	var packets []dataplane.Packet
	add := func(b []byte, wire int) {
		packets = append(packets, dataplane.Packet{Data: b, WireLen: wire, Link: dataplane.LinkEthernet, Time: int64(len(packets))})
	}
	ports := udp(nil, 1000, 80, 0)
	for range 2 {
		for _, proto := range []byte{6, 17, 1} {
			for _, place := range []uint16{0, 0x2000, 0x2001, 0x1fff, 0x4000, 0x8000} {
				add(append(ipv4(be16(ethernet(), 0x800), 0, 0, proto, 8, place, from4, to4), ports...), 0)
			}
			for _, place := range []uint16{0, 1, 2, 4, 6, 8, 9, 0xfff8} {
				for _, behind := range [][]byte{nil, {proto, 0, 1, 4, 0, 0, 0, 0}} {
					next := proto
					if behind != nil {
						next = 60
					}
					b := ipv6(be16(ethernet(), 0x86dd), 0, 44, 16+len(behind), from6, to6)
					add(slices.Concat(b, be16([]byte{next, 0}, place, 0, 1), behind, ports), 0)
					b = ipv6(be16(ethernet(), 0x86dd), 0, 44, 24+len(behind), from6, to6)
					add(slices.Concat(b, be16([]byte{44, 0}, place^1, 0, 1), be16([]byte{next, 0}, place, 0, 1), behind, ports), 0)
				}
			}
		}
		for _, proto := range [][]byte{{0x21}, {0x57}, {0, 0x21}, {0, 0x57}, {0xc0, 0x21}, {0xfd}, {0x21, 0x21}, {0x20, 0x21}, {0x57, 0x57}} {
			for _, ip := range [][]byte{ipv4(nil, 0, 0, 17, 8, 0, from4, to4), ipv6(nil, 0, 17, 8, from6, to6)} {
				b := slices.Concat(be16(ethernet(), 0x8864, 0x1100, 1, 50), proto, ip, ports)
				for n := range b[14:] {
					add(b[:14+n], 0)
					add(b[:14+n], 100)
				}
			}
		}
		b := append(ipv4(be16(ethernet(), 0x800), 10, 0, 17, 8, 0, from4, to4), ports...)
		for n := range b[14:] {
			for _, wire := range []int{0, 60, 73, 74, 75, 200} {
				add(b[:14+n], wire)
			}
		}
	}
	for _, plane := range planes {
		t.Run(plane.name, func(t *testing.T) { follow(t, policy, plane.open(t, policy), packets) })
	}
}

// TestLongest holds the programs to the pipeline where lengths come near what 32
// bits hold, or would go beyond.
func TestLongest(t *testing.T) {
	needRoot(t)
	t.Parallel()
	var packets []dataplane.Packet
	for _, wire := range []int{0, 60, 14 + 200, 1<<15 - 1, 1<<31 - 1, 1 << 31, 1<<32 - 1 - 1<<15, 1<<32 - 25, 1<<32 - 24, 1<<32 - 23, 1<<32 - 1} {
		b := append(ipv4(be16(ethernet(), 0x800), 0, 0, 17, 8, 0, from4, to4), udp(nil, 1000, 80, 0)...)
		packets = append(packets, dataplane.Packet{Data: b, WireLen: wire, Link: dataplane.LinkEthernet})
	}
	for _, base := range []dataplane.LengthBase{dataplane.L3, dataplane.L2, dataplane.L1} {
		for _, overhead := range []int{0, 1 << 15, -1 << 15} {
			rule := dataplane.LengthRule{Base: base, Overhead: overhead}
			policy := &dataplane.Policy{Length: rule, Classes: []dataplane.Class{
				{Name: "short", Match: dataplane.Match{Length: []dataplane.Range{{First: 0, Last: 200}}}},
				{Name: "long", Match: dataplane.Match{Length: []dataplane.Range{{First: 1<<32 - 1, Last: 1<<32 - 1}}}},
				{Name: "rest", Meter: &dataplane.Meter{Params: meter.FixedWindow{Limit: 1 << 34, Window: time.Second}}},
			}}
			t.Run(fmt.Sprintf("%+v", rule), func(t *testing.T) {
				t.Parallel()
				follow(t, policy, walker(7)(t, policy), packets)
			})
		}
	}
}

// TestEveryChecksum holds what the programs make of every checksum that a header
// can have, right or wrong, to the pipeline: by marks that change much, little and
// nothing.
func TestEveryChecksum(t *testing.T) {
	needRoot(t)
	t.Parallel()
	dscp := func(value uint32, ecn dataplane.ECN) *dataplane.Policy {
		return oneClass(dataplane.Class{Green: &dataplane.Action{ECN: ecn, Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: value}}}})
	}
	for name, policy := range map[string]*dataplane.Policy{
		"ce":         oneClass(dataplane.Class{Green: &dataplane.Action{ECN: dataplane.CE}}),
		"dscp 63":    dscp(63, dataplane.NoECN),
		"ce, dscp 0": dscp(0, dataplane.CE),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var packets []dataplane.Packet
			for _, tos := range []byte{0x00, 0x01, 0xfc, 0xff} {
				for sum := range 1 << 16 {
					b := ipv4(be16(ethernet(), 0x800), 0, tos, 17, 0, 0, from4, to4)
					binary.BigEndian.PutUint16(b[24:], uint16(sum))
					packets = append(packets, dataplane.Packet{Data: b, Link: dataplane.LinkEthernet})
				}
			}
			follow(t, policy, walker(512)(t, policy), packets)
		})
	}
}

// randomPolicy is a policy of up to 8 classes. mark says that it may use the
// skb mark.
func randomPolicy(r *rand.Rand, mark bool) *dataplane.Policy {
	policy := &dataplane.Policy{DropUnclassified: r.IntN(3) == 0}
	if r.IntN(2) == 0 {
		policy.Length = dataplane.LengthRule{Base: dataplane.LengthBase(r.IntN(3)), Overhead: r.IntN(100) - 60, MPU: r.IntN(3) * 50}
	}
	var shared [MaxChain - 1]*dataplane.Meter // each may lead to one before it
	for i := range shared {
		shared[i] = randomMeter(r, mark)
		shared[i].Name, shared[i].Aware = fmt.Sprint("shared ", i), true
		if i > 0 && r.IntN(3) > 0 {
			shared[i].Then = shared[i-1-r.IntN(min(i, 2))]
		}
	}
	var queues []*dataplane.Queue
	for range r.IntN(4) {
		if mark { // and packets that can wait
			queues = append(queues, randomQueue(r))
		}
	}
	for i := range 1 + r.IntN(8) {
		c := dataplane.Class{Name: fmt.Sprint("c", i)}
		if r.IntN(5) > 0 {
			c.Match = randomMatch(r, mark)
		}
		switch r.IntN(5) {
		case 0:
		case 1:
			c.Meter = shared[r.IntN(len(shared))]
		default:
			c.Meter = randomMeter(r, mark)
			if r.IntN(2) == 0 {
				c.Meter.Then = shared[r.IntN(len(shared))]
			}
		}
		for _, a := range []**dataplane.Action{&c.Green, &c.Yellow, &c.Red} {
			if r.IntN(3) > 0 {
				*a = randomAction(r, mark)
				if len(queues) > 0 && !(*a).Drop && r.IntN(2) == 0 {
					(*a).Queue = queues[r.IntN(len(queues))]
				}
			}
		}
		policy.Classes = append(policy.Classes, c)
	}
	return policy
}

func randomMeter(r *rand.Rand, mark bool) *dataplane.Meter {
	m := &dataplane.Meter{Aware: r.IntN(2) == 0}
	burst := func() int64 { return pick[int64](r, 1, 64, 1500, 3000, 9216, 100_000) }
	rate := func() meter.Rate {
		return meter.Rate{Bytes: 1 + r.Int64N(1_000_000)/(1+r.Int64N(1000)), Period: pick(r, 8*time.Second, 8*time.Millisecond, time.Second, 7*time.Millisecond, time.Minute)}
	}
	window := func() time.Duration {
		return pick(r, time.Microsecond, 999*time.Microsecond, 7*time.Millisecond, time.Second, time.Minute, 366*24*time.Hour)
	}
	switch r.IntN(8) {
	case 5:
		m.Params = meter.TokenBucket{Rate: rate(), Burst: burst(), GCRA: r.IntN(2) == 0}
	case 6:
		m.Params = meter.FixedWindow{Limit: pick(r, burst(), 1<<47), Window: window()}
	case 7:
		m.Params = meter.SlidingCounter{Limit: pick(r, burst(), 10*burst(), 1<<47), Window: window()}
	case 0:
		m.Params = meter.SRTCM{CIR: rate(), CBS: burst(), EBS: burst() - 1}
	case 1:
		slow := 1 + r.Int64N(1e7)
		m.Params = meter.TRTCM{CIR: bps(slow), CBS: burst(), PIR: bps(slow + r.Int64N(1e7)), PBS: burst()}
	case 2:
		m.Params = meter.TRTCM4115{CIR: bps(r.Int64N(1e7)), CBS: burst(), EIR: bps(r.Int64N(3) * r.Int64N(1e7)), EBS: burst() - 1}
	case 3:
		m.Params = meter.TRTCM4115{CIR: rate(), CBS: burst() - 1, EIR: bps(999e3), EBS: burst(), Coupling: true}
	case 4:
		m.Params = meter.TokenBucket{Rate: rate(), Burst: burst(), GCRA: r.IntN(2) == 0}
	}
	if _, err := m.Params.Profile(); err != nil { // the rates do not go together
		m.Params = meter.TokenBucket{Rate: bps(12345), Burst: burst()}
	}
	if r.IntN(4) == 0 {
		m.Packets = true
	}
	if r.IntN(3) == 0 {
		m.Initial = dataplane.Share{Num: r.Int64N(8), Den: 7}
	}
	if r.IntN(3) == 0 {
		m.Keys = 4096
		m.Per = dataplane.Key{By: dataplane.KeyField(1 + r.IntN(5))}
		if m.Per.By <= dataplane.ByDst && r.IntN(2) == 0 {
			m.Per.V4, m.Per.V6 = uint8(r.IntN(33)), uint8(r.IntN(129))
		}
		m.Initial = pick(r, dataplane.Share{}, dataplane.Share{Den: 1})
	}
	m.PreColor.From = dataplane.Field(r.IntN(4))
	if mark {
		m.PreColor.From = dataplane.Field(r.IntN(5))
	}
	if r.IntN(2) == 0 {
		m.PreColor.Map = map[uint32]meter.Color{}
		for range r.IntN(6) {
			v := uint32(0)
			switch m.PreColor.From {
			case dataplane.DSCP:
				v = r.Uint32N(64)
			case dataplane.DEI:
				v = r.Uint32N(2)
			case dataplane.SKBMark:
				v = pick(r, marks...)
			default:
				v = r.Uint32N(8)
			}
			m.PreColor.Map[v] = meter.Color(r.IntN(3))
		}
	}
	return m
}

func randomMatch(r *rand.Rand, mark bool) dataplane.Match {
	var m dataplane.Match
	ranges := func(most uint32) []dataplane.Range {
		var out []dataplane.Range
		for range 1 + r.IntN(3) {
			a, b := uint32(r.Uint64N(uint64(most)+1)), uint32(r.Uint64N(uint64(most)+1))
			out = append(out, pick(r, dataplane.Range{First: min(a, b), Last: max(a, b)}, dataplane.Range{First: a, Last: a}, dataplane.Range{First: 0, Last: b}))
		}
		return out
	}
	for _, key := range []func(){
		func() { m.Src = randomPrefixes(r) },
		func() { m.Dst = randomPrefixes(r) },
		func() {
			m.Proto = append(ranges(255), pick(r, dataplane.Range{First: 6, Last: 6}, dataplane.Range{First: 17, Last: 17}))
		},
		func() { m.SPort = append(ranges(65535), dataplane.Range{First: 1, Last: uint32(r.IntN(3))}) },
		func() { m.DPort = append(ranges(65535), dataplane.Range{First: 53, Last: 53}) },
		func() { m.DSCP = ranges(63) },
		func() { m.VLAN = ranges(4095) },
		func() { m.PCP = ranges(7) },
		func() {
			m.EtherType = append(ranges(65535), dataplane.Range{First: 0x800, Last: pick[uint32](r, 0x800, 0x86dd)})
		},
		func() {
			m.Length = append(ranges(1600), dataplane.Range{First: 1000, Last: pick[uint32](r, 1000, 1500, 1<<32-1)})
		},
	} {
		if r.IntN(6) == 0 {
			key()
		}
	}
	if mark && r.IntN(6) == 0 {
		v := pick(r, marks...)
		m.Mark = append(ranges(math.MaxUint32), dataplane.Range{First: v, Last: v})
	}
	for i, p := range m.SPort { // the one range that may be the wrong way round
		m.SPort[i] = dataplane.Range{First: min(p.First, p.Last), Last: max(p.First, p.Last)}
	}
	return m
}

// randomQueue is a queue that packets of randomPackets fill.
func randomQueue(r *rand.Rand) *dataplane.Queue {
	q := &dataplane.Queue{Config: queue.Config{
		Rate: pick(r, bps(1+r.Int64N(1e6)), bps(8e6), meter.Rate{Bytes: 7, Period: 3 * time.Millisecond}, bps(1e9)),
		ECN:  r.IntN(2) == 0, Seed: r.Uint64(),
	}}
	limit := int64(0)
	switch r.IntN(3) {
	case 0:
		q.Time = time.Duration(1 + r.Int64N(1e9)/(1+r.Int64N(1e4)))
		limit = int64(q.Time)
	case 1:
		q.Bytes = 1 + r.Int64N(100_000)
		limit = q.Bytes
	case 2:
		q.Packets = 1 + r.Int64N(60)
		limit = q.Packets
	}
	for color := range q.WRED {
		if r.IntN(2) == 0 {
			continue
		}
		most := 1 + r.Int64N(limit)
		q.WRED[color] = queue.Early{Min: r.Int64N(most + 1), Max: most, Probability: r.Uint32N(queue.Certain + 1)}
	}
	if r.IntN(2) == 0 {
		q.CoDel = queue.CoDel{Target: time.Duration(1 + r.Int64N(1e7)), Interval: time.Duration(1 + r.Int64N(3e7))}
	}
	return q
}

func randomAction(r *rand.Rand, mark bool) *dataplane.Action {
	if r.IntN(4) == 0 {
		return &dataplane.Action{Drop: r.IntN(2) == 0}
	}
	a := &dataplane.Action{ECN: dataplane.ECN(r.IntN(3))}
	values := []uint32{64, 8, 2, 8, math.MaxUint32}
	if !mark {
		values = values[:4]
	}
	for _, field := range r.Perm(len(values)) {
		if r.IntN(3) == 0 {
			a.Marks = append(a.Marks, dataplane.Mark{Field: dataplane.Field(field), Value: r.Uint32N(values[field])})
		}
	}
	return a
}

// Addresses come from 10.0.0.0/14 and 2001:db8::/46, in which prefixes are
// dense enough to nest.

func randomAddr4(r *rand.Rand) [4]byte {
	return [4]byte{10, byte(r.IntN(4)), byte(r.IntN(4)), byte(r.Uint32())}
}

func randomAddr6(r *rand.Rand) [16]byte {
	a := [16]byte{0x20, 1, 0xd, 0xb8, 0, byte(r.IntN(4)), 0, byte(r.IntN(4))}
	a[8+r.IntN(8)] = byte(r.Uint32())
	return a
}

func randomPrefix(r *rand.Rand) netip.Prefix {
	if r.IntN(2) == 0 {
		return netip.PrefixFrom(netip.AddrFrom4(randomAddr4(r)), pick(r, r.IntN(33), 14+r.IntN(19))).Masked()
	}
	return netip.PrefixFrom(netip.AddrFrom16(randomAddr6(r)), pick(r, r.IntN(129), 46+r.IntN(83), 64)).Masked()
}

func randomPrefixes(r *rand.Rand) []netip.Prefix {
	var out []netip.Prefix
	for range 1 + r.IntN(4) {
		out = append(out, randomPrefix(r))
	}
	return out
}

// randomPackets have times from start on, mostly a few ms apart, and at times
// years.
func randomPackets(r *rand.Rand, n int, start int64) []dataplane.Packet {
	out := make([]dataplane.Packet, n)
	for i := range out {
		start += pick(r, 0, 0, r.Int64N(1000), r.Int64N(1e6), r.Int64N(1e7), r.Int64N(1e7), r.Int64N(1e9), -r.Int64N(1e9))
		if r.IntN(200) == 0 {
			start += r.Int64N(1e17)
		}
		out[i] = randomPacket(r, randomAddr4(r), randomAddr4(r), randomAddr6(r), randomAddr6(r))
		out[i].Time = start
	}
	return out
}

// randomPacket is any stack of headers, cut anywhere in a fifth of all cases.
func randomPacket(r *rand.Rand, src4, dst4 [4]byte, src6, dst6 [16]byte) dataplane.Packet {
	p := dataplane.Packet{Link: dataplane.LinkEthernet, Mark: pick(r, marks...)}
	var b []byte
	ip := pick[uint16](r, 4, 6)
	ethertype := map[uint16]uint16{4: 0x800, 6: 0x86dd}[ip]
	switch r.IntN(10) {
	case 0:
		p.Link = pick(r, dataplane.LinkRaw, dataplane.LinkRawBSD, dataplane.LinkIPv4, dataplane.LinkIPv6)
	case 1:
		b = be16(ethernet(), uint16(r.Uint32()))
	default:
		b = ethernet()
		for range pick(r, 0, 0, 0, 1, 1, 2, 3, 4) {
			b = be16(b, pick[uint16](r, 0x8100, 0x88a8, 0x9100), uint16(r.Uint32()))
		}
		switch r.IntN(8) {
		case 0:
			b = be16(b, pick[uint16](r, 0x8847, 0x8848))
			for labels := pick(r, 1, 1, 2, 15, 16, 17); labels > 0; labels-- {
				label := r.Uint32() &^ 0x100
				if labels == 1 {
					label |= 0x100
				}
				b = binary.BigEndian.AppendUint32(b, label)
			}
		case 1:
			b = append(be16(b, 0x8864, 0x1100, 1, 50), pick(r, []byte{0, 0x21}, []byte{0, 0x57}, []byte{0xc0, 0x21}, []byte{0x21}, []byte{0x57})...)
		default:
			b = be16(b, ethertype)
		}
	}
	payload := pick(r, 0, 1, 3, r.IntN(60), r.IntN(1480), 1480)
	total := payload
	if r.IntN(8) == 0 {
		total = r.IntN(1 << 16) // a header that lies
	}
	proto := pick[byte](r, 6, 6, 17, 17, 33, 132, 136, 1, byte(r.Uint32()))
	fragment := pick[uint16](r, 0, 0, 0, 0x4000, 0x2000, uint16(r.Uint32()))
	if ip == 4 {
		b = ipv4(b, pick(r, 0, 0, 0, 1, 10), byte(r.Uint32()), proto, total, fragment, src4, dst4)
	} else {
		extensions := pick(r, 0, 0, 0, 1, 2, 15, 16, 17)
		var chain []byte
		next := proto
		for range extensions {
			kind := pick[byte](r, 0, 43, 60, 135, 139, 140, 44, 51)
			size := pick(r, 0, 0, 1, r.IntN(4))
			header := make([]byte, 8*(size+1))
			switch kind {
			case 44:
				header = make([]byte, 8)
				if r.IntN(4) == 0 {
					header[2], header[3] = byte(fragment>>8), byte(fragment)
				}
			case 51:
				size = pick(r, 0, 1, 4, 5)
				header = make([]byte, 4*(size+2))
				header[1] = byte(size)
			default:
				header[1] = byte(size)
			}
			header[0] = next
			next = kind
			chain = append(header, chain...)
		}
		b = append(ipv6(b, byte(r.Uint32()), next, min(total+len(chain), math.MaxUint16), src6, dst6), chain...)
	}
	data := make([]byte, payload)
	for i := range min(payload, 4) {
		data[i] = byte(r.Uint32())
	}
	if payload > 4 && r.IntN(3) > 0 { // ports that classes know
		copy(data, be16(nil, pick[uint16](r, 0, 1, 53, 1024), pick[uint16](r, 53, 80, 65535)))
	}
	b = append(b, data...)
	if r.IntN(20) == 0 {
		b[r.IntN(len(b))] ^= 1 << r.IntN(8)
	}
	p.WireLen = len(b)
	if r.IntN(10) == 0 { // padding, or bytes that were not captured
		p.WireLen = max(p.WireLen, 60) + pick(r, 0, 0, 4, 8, 12, r.IntN(70_000))
	}
	if r.IntN(5) == 0 {
		b = b[:r.IntN(len(b)+1)]
	}
	p.Data = b
	return p
}

// manyClasses is a policy of n classes by prefixes, ports and protocols, each a
// small part of what packetFor makes.
func manyClasses(r *rand.Rand, n int) *dataplane.Policy {
	policy := &dataplane.Policy{}
	for i := range n {
		c := dataplane.Class{Name: fmt.Sprint("c", i)}
		narrow := func() netip.Prefix {
			if r.IntN(2) == 0 {
				return netip.PrefixFrom(netip.AddrFrom4(randomAddr4(r)), 28+r.IntN(5)).Masked()
			}
			return netip.PrefixFrom(netip.AddrFrom16(randomAddr6(r)), 80+r.IntN(49)).Masked()
		}
		c.Match.Src = []netip.Prefix{narrow()}
		if r.IntN(3) == 0 {
			c.Match.Src = append(c.Match.Src, narrow())
		}
		if r.IntN(3) == 0 {
			c.Match.Dst = []netip.Prefix{randomPrefix(r), randomPrefix(r), netip.MustParsePrefix("10.0.0.0/15"), netip.MustParsePrefix("2001:db8::/47")}
		}
		port := uint32(r.IntN(60000))
		switch r.IntN(4) {
		case 0:
			c.Match.DPort = []dataplane.Range{{First: port, Last: port + uint32(r.IntN(5000))}}
		case 1:
			c.Match.SPort = []dataplane.Range{{First: port, Last: port}, {First: 1024, Last: 65535}}
		case 2:
			c.Match.Proto = []dataplane.Range{{First: 6, Last: 17}}
		}
		if r.IntN(8) == 0 {
			c.Match.DSCP = []dataplane.Range{{First: 0, Last: uint32(r.IntN(64))}}
		}
		if i%100 == 0 {
			c.Meter = &dataplane.Meter{Name: c.Name, Params: meter.TokenBucket{Rate: bps(1e6), Burst: 3000}}
		}
		policy.Classes = append(policy.Classes, c)
	}
	return policy
}

// packetFor is a packet at or beside a bound of a match, so that it is likely
// to be taken.
func packetFor(r *rand.Rand, m *dataplane.Match) dataplane.Packet {
	address := func(list []netip.Prefix, v6 bool) netip.Addr {
		random := netip.AddrFrom4(randomAddr4(r))
		if v6 {
			random = netip.AddrFrom16(randomAddr6(r))
		}
		for _, i := range r.Perm(len(list)) {
			if p := list[i]; p.Addr().Is6() == v6 {
				return pick(r, p.Addr(), p.Addr(), last(p), p.Addr().Prev(), last(p).Next(), random)
			}
		}
		return random
	}
	v6 := m.Src[r.IntN(len(m.Src))].Addr().Is6()
	src, dst := address(m.Src, v6), address(m.Dst, v6)
	if !src.IsValid() || !dst.IsValid() { // beside the end of all addresses
		return packetFor(r, m)
	}
	port := func(list []dataplane.Range) uint16 {
		if len(list) == 0 {
			return uint16(r.Uint32())
		}
		a := list[r.IntN(len(list))]
		return uint16(pick(r, a.First, a.Last, a.First-1, a.Last+1))
	}
	b := ethernet()
	tos := byte(r.Uint32())
	if v6 {
		b = ipv6(be16(b, 0x86dd), tos, 6, 20, src.As16(), dst.As16())
	} else {
		b = ipv4(be16(b, 0x800), 0, tos, 6, 20, 0, src.As4(), dst.As4())
	}
	b = tcp(b, 0, port(m.SPort), port(m.DPort))
	return dataplane.Packet{Data: b, WireLen: len(b), Link: dataplane.LinkEthernet}
}

// last is the last address of a prefix.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
