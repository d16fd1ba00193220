package walk

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// keyedPacket is a packet by its fields, from which its keys follow.
type keyedPacket struct {
	src, dst     netip.Addr // invalid if the packet is not IP
	proto        byte
	sport, dport uint16
	fragment     bool
	first        bool     // the first fragment
	tags         []uint16 // outer tag first
	dscp         byte
	size         int // bytes of the network packet
}

// Some addresses share a prefix. Some IPv6 addresses have the bits of an IPv4 address.
var (
	addrs4 = []string{"10.0.0.1", "10.0.0.2", "10.0.1.1", "10.128.0.1", "192.0.2.6", "192.0.2.7"}
	addrs6 = []string{"::a00:1", "::a00:2", "2001:db8::6", "2001:db8::7", "2001:db8:0:1::6", "fe80:1::6"}
)

// anyKeyedPacket returns a random packet of few keys.
func anyKeyedPacket(r *rand.Rand) *keyedPacket {
	s := &keyedPacket{
		dscp: kerneltest.Pick[byte](r, 0, 0, 0, 1, 2, 46),
		size: kerneltest.Pick(r, 100, 300, 1500, 100+r.IntN(1400)),
	}
	for range r.IntN(3) {
		s.tags = append(s.tags, uint16(r.IntN(8))<<13|kerneltest.Pick[uint16](r, 0, 1, 1, 2, 4095))
	}
	if r.IntN(8) == 0 {
		s.dscp = 0
		return s
	}
	list := kerneltest.Pick(r, addrs4, addrs6)
	s.src, s.dst = netip.MustParseAddr(kerneltest.Pick(r, list...)),
		netip.MustParseAddr(kerneltest.Pick(r, list...))
	s.proto, s.fragment = kerneltest.Pick[byte](r, 6, 17, 17, 1, 50), r.IntN(4) == 0
	s.first = r.IntN(2) == 0
	s.sport, s.dport = kerneltest.Pick[uint16](r, 1, 2), kerneltest.Pick[uint16](r, 1, 53)
	return s
}

// frame encodes the packet. The bytes at the place of the ports are never zero, even if they are
// not ports.
func (s *keyedPacket) frame() []byte {
	b := ethernet()
	for _, tag := range s.tags {
		b = kerneltest.Be16(b, 0x8100, tag)
	}
	network := len(b) + 2
	switch {
	case !s.src.IsValid():
		b = kerneltest.Be16(b, 0x0806)
	case s.src.Is4():
		offset := uint16(0x4000) // don't fragment
		switch {
		case s.fragment && s.first:
			offset = 0x2000 // more fragments
		case s.fragment:
			offset = 5
		}
		b = ipv4(kerneltest.Be16(b, 0x800), 1, s.dscp<<2|2, s.proto, s.size-24, offset, s.src.As4(),
			s.dst.As4())
	case s.fragment:
		offset := byte(1) // more fragments
		if !s.first {
			offset = 8
		}
		b = append(ipv6(kerneltest.Be16(b, 0x86dd), s.dscp<<2|2, 44, s.size-40, s.src.As16(), s.dst.As16()),
			s.proto, 0, 0, offset, 0, 0, 0, 1)
	default:
		b = append(ipv6(kerneltest.Be16(b, 0x86dd), s.dscp<<2|2, 0, s.size-40, s.src.As16(), s.dst.As16()),
			s.proto, 0, 0, 0, 0, 0, 0, 0)
	}
	b = kerneltest.Be16(b, s.sport, s.dport)
	return append(b, make([]byte, s.size-(len(b)-network))...)
}

// key is the packet's key as text. It is empty if the packet has none.
func (s *keyedPacket) key(k dataplane.Key) string {
	prefix := func(a netip.Addr) string {
		bits := int(k.V4)
		if a.Is6() {
			bits = int(k.V6)
		}
		if bits == 0 {
			return a.String()
		}
		p, err := a.Prefix(bits)
		if err != nil {
			panic(err)
		}
		return p.String()
	}
	switch {
	case k.By == dataplane.ByVLAN && len(s.tags) > 0:
		return fmt.Sprint(s.tags[0] & 0xfff)
	case k.By == dataplane.ByVLAN || !s.src.IsValid():
		return ""
	case k.By == dataplane.BySrc:
		return prefix(s.src)
	case k.By == dataplane.ByDst:
		return prefix(s.dst)
	case k.By == dataplane.ByDSCP:
		return fmt.Sprint(s.dscp)
	}
	ports := [2]uint16{s.sport, s.dport}
	if s.fragment || s.proto != 6 && s.proto != 17 {
		ports = [2]uint16{}
	}
	return fmt.Sprint(s.src, s.dst, s.proto, ports)
}

// modelsByKey has a model for each key, and one for packets without a key.
type modelsByKey map[string]func(now, n int64, in meter.Color) meter.Color

func (c modelsByKey) color(m *dataplane.Meter, key string, now, n int64, in meter.Color) meter.Color {
	if in == meter.Red {
		return meter.Red
	}
	if m.Packets {
		n = 1
	}
	if c[key] == nil {
		if model := newCounting(m.Params, m.Initial); model != nil {
			c[key] = model.color
		} else {
			c[key] = newExact(m.Params, m.Initial).color
		}
	}
	return c[key](now, n, in)
}

var keyKinds = []dataplane.Key{
	{By: dataplane.BySrc},
	{By: dataplane.BySrc, V4: 24},
	{By: dataplane.BySrc, V4: 24, V6: 64},
	{By: dataplane.ByDst, V4: 1, V6: 1},
	{By: dataplane.ByDst, V4: 31, V6: 127},
	{By: dataplane.ByFlow},
	{By: dataplane.ByVLAN},
	{By: dataplane.ByDSCP},
}

// TestKeys compares meters of every type, by keys of every kind, with one exact model per key.
// The tables are just large enough.
func TestKeys(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	r := kerneltest.Seeded(t)
	var meters []*dataplane.Meter
	for _, key := range keyKinds {
		for i, params := range []meter.Params{
			meter.TokenBucket{Rate: meter.BitRate(100_003), Burst: 1900},
			meter.TokenBucket{Rate: meter.BitRate(1e6), Burst: 1500, GCRA: true},
			meter.SRTCM{CIR: meter.BitRate(40e3), CBS: 1500, EBS: 3000},
			meter.TRTCM{CIR: meter.BitRate(50e3), CBS: 2000, PIR: meter.BitRate(80e3), PBS: 3000},
			meter.TRTCM4115{
				CIR: meter.BitRate(50e3), CBS: 1500, EIR: meter.BitRate(7e3), EBS: 1500, Coupling: true,
			},
			meter.FixedWindow{Limit: 4000, Window: 300 * time.Millisecond},
			meter.SlidingCounter{Limit: 4000, Window: 301 * time.Millisecond},
		} {
			m := &dataplane.Meter{
				Name: fmt.Sprint(key, " ", i), Params: params, Per: key, Aware: r.IntN(3) > 0,
				PreColor: dscpColors,
			}
			if r.IntN(3) == 0 {
				m.Initial = dataplane.Fraction{Num: 0, Den: 1}
			}
			if r.IntN(6) == 0 {
				m.Packets = true
				m.Params = meter.SRTCM{CIR: meter.Rate{Bytes: 9, Period: time.Second}, CBS: 2, EBS: 3}
			}
			meters = append(meters, m)
		}
	}
	policy := metersByMark(meters)
	policy.Length = dataplane.LengthRule{}
	for i := range policy.Classes { // packets other than IP too
		policy.Classes[i].Match.EtherType = []dataplane.Range{{First: 0, Last: 65535}}
	}
	type step struct {
		*keyedPacket
		in   meter.Color
		want meter.Color
	}
	steps := make([]step, kerneltest.Rounds(30_000))
	packets := make([]dataplane.Packet, len(steps))
	models := make([]modelsByKey, len(meters))
	now := int64(1e18)
	for i := range steps {
		s, at := anyKeyedPacket(r), r.IntN(len(meters))
		now += kerneltest.Pick(r, 0, r.Int64N(1000), r.Int64N(1e6), r.Int64N(1e6), r.Int64N(3e6))
		packets[i] = dataplane.Packet{
			Data: s.frame(), Link: dataplane.LinkEthernet, Mark: uint32(at), Time: now,
		}
		in := meter.Green
		if m := meters[at]; m.Aware && s.src.IsValid() {
			in = dscpColors.Map[uint32(s.dscp)]
		}
		if models[at] == nil {
			models[at] = modelsByKey{}
		}
		steps[i] = step{s, in, models[at].color(meters[at], s.key(meters[at].Per), now, int64(s.size), in)}
	}
	var seen [3]int
	for i, m := range meters {
		keys := len(models[i])
		if models[i][""] != nil {
			keys--
		}
		m.Keys = max(keys, 1)
	}
	for _, plane := range planes {
		if plane.name != "egress" && plane.name != "walk" {
			continue
		}
		e := plane.open(t, policy)
		verdicts := make([]dataplane.Verdict, 1)
		for i, p := range acceptedPackets(e, packets) {
			if err := e.Process([]dataplane.Packet{p}, verdicts); err != nil {
				t.Fatal(err)
			}
			m, s, v := meters[p.Mark], &steps[i], &verdicts[0]
			if v.Length != s.size || v.Color != s.want || v.Pre != s.in {
				t.Fatalf("%s, packet %d, %+v at %d, key %q of meter %s %+v, keys %d, aware %v, initial %v, packets %v: got %d bytes, %v, want %v",
					plane.name, i, s.keyedPacket, p.Time, s.key(m.Per), m.Name, m.Params, m.Keys, m.Aware,
					m.Initial, m.Packets, v.Length, v.Color, s.want)
			}
			seen[v.Color]++
		}
		w, ok := e.(*mixedWalker)
		for i, m := range meters {
			if !ok {
				break
			}
			delete(models[i], "")
			if n := knownKeys(t, w.maps, w.image.Stages[w.image.Plan.Stage(m)].Table); n != len(models[i]) {
				t.Errorf("meter %s: got %d keys, want %d: those of packets of an input color other than red",
					m.Name, n, len(models[i]))
			}
		}
	}
	t.Logf("packets by color %v", seen)
	for c, n := range seen {
		if n < len(steps)/20 {
			t.Errorf("%d packets are %v, want at least %d", n, meter.Color(c), len(steps)/20)
		}
	}
}

// knownKeys returns the number of keys of a table. It fails the test if a lock is closed.
func knownKeys(t *testing.T, maps *image.Maps, slot int32) (n int) {
	t.Helper()
	table, err := image.OpenTable(maps.Keys, slot)
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	var key bpf.ShaperKey
	var v image.KeyState
	for all := table.Iterate(); all.Next(&key, &v); n++ {
		if v.Lock != 0 {
			t.Errorf("the lock of key %+v is closed, want it open", key)
		}
	}
	return n
}
