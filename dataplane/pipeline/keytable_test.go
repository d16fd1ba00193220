package pipeline

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// sourceFrame returns a frame of 100 bytes from source n: an IPv4 packet, or an IPv6 packet
// whose address is the same number.
func sourceFrame(ipv6 bool, n uint32) ([]byte, netip.Addr) {
	var addr [16]byte
	binary.BigEndian.PutUint32(addr[12:], n)
	if ipv6 {
		src := netip.AddrFrom16(addr)
		return frametest.Concat(frametest.Ethernet(frametest.EtherIPv6),
			frametest.V6{Next: frametest.ProtoUDP, Src: src}.Packet(make([]byte, 46))), src
	}
	src := netip.AddrFrom4([4]byte(addr[12:]))
	return frametest.Concat(frametest.Ethernet(frametest.EtherIPv4),
		frametest.V4{Proto: frametest.ProtoUDP, Src: src}.Packet(make([]byte, 66))), src
}

// TestKeysOfBothFamilies compares the keys of packets with a table of addresses. At first all
// packets are IPv4, then some have the same number as an IPv6 address. Both families share
// the bound and the order of use.
func TestKeysOfBothFamilies(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 9))
	evicted, refused := uint64(0), uint64(0)
	for round := range 100 {
		params := meter.TokenBucket{Rate: meter.ByteRate(1e6), Burst: 150}
		m := &dataplane.Meter{
			Params: params,
			Per:    dataplane.Key{By: dataplane.BySrc, V4: uint8(r.IntN(33)), V6: uint8(r.IntN(129))},
			Keys:   1 + r.IntN(30), Idle: r.IntN(2) == 0,
		}
		l := newPipeline(t, &dataplane.Policy{Classes: []dataplane.Class{{Name: "a", Meter: m}}})
		want, err := meter.NewTable[netip.Prefix](l.plan.Stages[0].Profile, l.plan.Stages[0].TableConfig())
		if err != nil {
			t.Fatal(err)
		}
		for i := range 1000 {
			data, src := sourceFrame(i > 300 && r.IntN(3) == 0, r.Uint32N(40))
			bits := src.BitLen()
			switch {
			case src.Is4() && m.Per.V4 > 0:
				bits = int(m.Per.V4)
			case src.Is6() && m.Per.V6 > 0:
				bits = int(m.Per.V6)
			}
			prefix, _ := src.Prefix(bits)
			p := &dataplane.Packet{Data: data, Link: dataplane.LinkEthernet, Time: int64(i) * 20 * µs}
			var v dataplane.Verdict
			if i%7 == 0 {
				l.Explain(p, &v)
			} else {
				l.Process(p, &v)
			}
			if c := want.Color(prefix, p.Time, v.Length, meter.Green); v.Color != c {
				t.Fatalf("round %d, %+v, packet %d of %v: got %v, want %v", round, m.Per, i, prefix, v.Color,
					c)
			}
			if l.Keys(0) != want.Stats() {
				t.Fatalf("round %d, packet %d: got %+v, want %+v", round, i, l.Keys(0), want.Stats())
			}
			if i%400 == 250 { // before and after the first IPv6 packet
				l, _ = inherited(t, l, l.plan.Source)
			}
		}
		evicted, refused = evicted+want.Stats().Evicted, refused+want.Stats().Refused
	}
	if evicted < 1000 || refused < 500 {
		t.Errorf("%d evictions and %d refusals are too few for a test", evicted, refused)
	}
}

// TestSmallKeysAllocateNothing has packets of both families, which arrive one by one.
func TestSmallKeysAllocateNothing(t *testing.T) {
	m := &dataplane.Meter{
		Params: meter.TokenBucket{Rate: frametest.Mega, Burst: 1500}, Per: dataplane.Key{By: dataplane.BySrc},
		Keys: 5,
	}
	l := newPipeline(t, &dataplane.Policy{Classes: []dataplane.Class{{Name: "a", Meter: m}}})
	var frames [2][]byte
	for i := range frames {
		frames[i], _ = sourceFrame(i > 0, 7)
	}
	for _, ipv6 := range []bool{false, true} {
		i, p, v := 1, dataplane.Packet{Link: dataplane.LinkEthernet}, dataplane.Verdict{}
		allocs := testing.AllocsPerRun(100, func() {
			p.Data = frames[0]
			if ipv6 {
				p.Data = frames[i%2]
			}
			l.Process(&p, &v)
			i++
		})
		if allocs != 0 || (l.stages[0].keyed.small == nil) != ipv6 {
			t.Errorf("IPv6 %v: %v allocations per packet, small keys %v", ipv6, allocs,
				l.stages[0].keyed.small != nil)
		}
	}
	if n := l.Keys(0).Keys; n != 2 {
		t.Errorf("got %d keys, want 2", n)
	}
}
