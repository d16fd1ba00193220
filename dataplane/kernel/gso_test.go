package kernel

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// cuttable makes a frame with n bytes of payload, as it is and as each of its
// segments would be.
type cuttable struct {
	name   string
	tunnel bool // with headers inside that only the kernel counts
	frame  func(n int) []byte
	whole  func(n int) []byte // the super-packet, nil if frame makes it; it is handed in as one of wire bytes
	wire   int
}

var cuttables = []cuttable{
	{name: "tcp4", frame: func(n int) []byte {
		b := ipv4(be16(ethernet(), 0x800), 0, 0, 6, 20+n, 0, from4, to4)
		return append(tcp(b, 0, 1000, 80), make([]byte, n)...)
	}},
	{name: "tcp4 with options of both", frame: func(n int) []byte {
		b := ipv4(be16(ethernet(), 0x800), 2, 0, 6, 32+n, 0, from4, to4)
		return append(tcp(b, 3, 1000, 80), make([]byte, n)...)
	}},
	{name: "tcp4 with all options", frame: func(n int) []byte {
		b := ipv4(be16(ethernet(), 0x800), 10, 0, 6, 60+n, 0, from4, to4)
		return append(tcp(b, 10, 1000, 80), make([]byte, n)...)
	}},
	{name: "tcp4 in two tags", frame: func(n int) []byte {
		b := ipv4(be16(ethernet(), 0x88a8, 5, 0x8100, 6, 0x800), 0, 0, 6, 32+n, 0, from4, to4)
		return append(tcp(b, 3, 1000, 80), make([]byte, n)...)
	}},
	{name: "tcp6", frame: overIPv6},
	{name: "tcp6 in a jumbogram", frame: overIPv6, whole: jumbogram(0xc2), wire: leastJumbo},
	{name: "tcp6 too short for a jumbogram", frame: jumbogram(0xc2), whole: jumbogram(0xc2), wire: leastJumbo - 1},
	{name: "tcp6 behind padding", frame: jumbogram(1), whole: jumbogram(1), wire: leastJumbo},
	{name: "tcp6 behind an extension", frame: func(n int) []byte {
		b := ipv6(be16(ethernet(), 0x86dd), 0, 60, 16+20+n, from6, to6)
		b = append(append(b, 6, 1, 1, 12), make([]byte, 12)...)
		return append(tcp(b, 0, 1000, 80), make([]byte, n)...)
	}},
	{name: "udp4", frame: func(n int) []byte {
		b := ipv4(be16(ethernet(), 0x800), 0, 0, 17, 8+n, 0, from4, to4)
		return append(udp(b, 1000, 80, n), make([]byte, n)...)
	}},
	{name: "udp6 in a tag", frame: func(n int) []byte {
		b := ipv6(be16(ethernet(), 0x8100, 7, 0x86dd), 0, 17, 8+n, from6, to6)
		return append(udp(b, 1000, 80, n), make([]byte, n)...)
	}},
	{name: "tcp4 in vxlan", tunnel: true, frame: func(n int) []byte {
		inner := 8 + 14 + 20 + 32 + n
		b := ipv4(be16(ethernet(), 0x800), 0, 0, 17, 8+inner, 0, from4, to4)
		b = append(udp(b, 1000, 4789, inner), 8, 0, 0, 0, 0, 0, 1, 0)
		b = ipv4(be16(append(b, ethernet()...), 0x800), 0, 0, 6, 32+n, 0, to4, from4)
		return append(tcp(b, 3, 1000, 80), make([]byte, n)...)
	}},
}

// jumbogram makes a super-packet of TCP over IPv6 with a hop-by-hop header that has
// an option of this type.
func jumbogram(option byte) func(n int) []byte {
	return func(n int) []byte {
		b := append(ipv6(be16(ethernet(), 0x86dd), 0, 0, 0, from6, to6), 6, 0, option, 4, 0, 2, 0, 0)
		return append(tcp(b, 3, 1000, 80), make([]byte, n)...)
	}
}

func overIPv6(n int) []byte {
	b := ipv6(be16(ethernet(), 0x86dd), 0, 6, 32+n, from6, to6)
	return append(tcp(b, 3, 1000, 80), make([]byte, n)...)
}

// leastJumbo is the shortest frame that the kernel takes for a jumbogram, whose
// header it removes: ipv6_has_hopopt_jumbo.
const leastJumbo = 14 + 1<<16 + 1

// cut is what leaves instead of a frame with n bytes of payload.
func (c *cuttable) cut(n, size int) [][]byte {
	var out [][]byte
	for ; n > size; n -= size {
		out = append(out, c.frame(size))
	}
	return append(out, c.frame(n))
}

// TestSegments holds what is metered, counted and taken of a packet that will
// be cut up to what its segments come to, one by one, in the pipeline.
func TestSegments(t *testing.T) {
	needRoot(t)
	t.Parallel()
	r := seeded(t)
	for _, rule := range []dataplane.LengthRule{
		{},
		{Base: dataplane.L2},
		{Base: dataplane.L1},
		{Overhead: 38, MPU: 84},
		{Overhead: -50, MPU: 3},
		{Base: dataplane.L2, Overhead: -70},
		{Base: dataplane.L1, Overhead: 10, MPU: 1000},
		{Base: dataplane.L1, Overhead: 1 << 15, MPU: 1 << 15},
	} {
		if inVM && rule.Overhead <= 0 { // loading a program takes seconds
			continue
		}
		bytes := &dataplane.Meter{Name: "bytes", Params: meter.TokenBucket{Rate: meter.ByteRate(1), Burst: 500e6}}
		packets := &dataplane.Meter{
			Name: "packets", Params: meter.TokenBucket{Rate: meter.Rate{Bytes: 1, Period: time.Minute}, Burst: 5e6}, Packets: true, Then: bytes,
		}
		bytes.Aware = true
		policy := &dataplane.Policy{Length: rule, Classes: []dataplane.Class{{Name: "all", Meter: packets}}}
		for _, hook := range []entry{egressEntry, ingressEntry} {
			t.Run(fmt.Sprintf("%+v/%d", rule, hook), func(t *testing.T) {
				h := newHooked(t, policy, hook, nil)
				pipeline, err := dataplane.New(policy)
				if err != nil {
					t.Fatal(err)
				}
				for range rounds(1000) {
					segmented(t, r, h, pipeline)
					if t.Failed() {
						return
					}
				}
				got, err := h.Stats()
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(got, pipeline.Stats()) {
					t.Errorf("counters %+v: want %+v", got, pipeline.Stats())
				}
				for _, m := range []*dataplane.Meter{bytes, packets} {
					gotTokens, _, err := h.Tokens(h.plan.Stage(m))
					if err != nil {
						t.Fatal(err)
					}
					if want, _ := pipeline.Tokens(h.plan.Stage(m)); gotTokens != want {
						t.Errorf("%s: %d tokens left: want %d", m.Name, gotTokens, want)
					}
				}
			})
		}
	}
}

func segmented(t *testing.T, r *rand.Rand, h *hooked, pipeline *dataplane.Pipeline) {
	c := cuttables[r.IntN(len(cuttables))]
	if c.tunnel && h.hook == ingressEntry {
		return // nobody says what the headers inside are
	}
	n := r.IntN(3400)
	size := max(pick(r, 536, 1000, 1448, n/2, n/3, n, n+1, 1+r.IntN(100)), 1)
	packet := dataplane.Packet{Data: c.frame(n), Link: dataplane.LinkEthernet}
	if c.whole != nil {
		if n <= size {
			return // it is many packets
		}
		packet.Data, packet.WireLen = c.whole(n), c.wire
	}
	leave := c.cut(n, size)
	wire := 0
	for _, data := range leave {
		wire += len(data)
	}
	removed := len(packet.Data) - len(c.frame(n)) // which the kernel has in each
	if wire+removed*len(leave) > 1<<16 {          // no test run takes it
		return
	}
	want := 0
	for _, data := range leave {
		var v dataplane.Verdict
		pipeline.Process(&dataplane.Packet{Data: data, Link: dataplane.LinkEthernet}, &v)
		want += v.Length
	}
	context := skb{GSOSize: uint32(size), GSOSegs: uint32(len(leave))}
	// Its sender, or a driver, may not say how many segments there are; then
	// the kernel works it out for wire_len, but does not tell.
	if !c.tunnel && r.IntN(2) == 0 {
		context.GSOSegs = 0
	}
	// wire_len counts the headers of all segments, at egress.
	if h.hook == egressEntry && (c.tunnel || r.IntN(2) == 0) {
		context.WireLen = uint32(wire + removed*len(leave))
	}
	var v dataplane.Verdict
	if err := h.run(&packet, &v, context); err != nil {
		t.Fatal(err)
	}
	if v.Length != want {
		t.Errorf("%s, %d bytes in segments of %d, %+v: %d bytes are metered: want %d in %d segments", c.name, n, size, context, v.Length, want, len(leave))
	}
}
