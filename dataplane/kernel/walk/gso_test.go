package walk

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// segmentable builds super-packets of one kind, and their segments.
type segmentable struct {
	name        string
	tunnel      bool               // has inner headers that only the kernel counts
	frame       func(n int) []byte // a segment with n bytes of payload
	superPacket func(n int) []byte // nil: the same as frame
	wire        int                // length on the wire of superPacket, bytes
}

var segmentables = []segmentable{
	{name: "tcp4", frame: func(n int) []byte {
		b := ipv4(kerneltest.Be16(ethernet(), 0x800), 0, 0, 6, 20+n, 0, from4, to4)
		return append(tcp(b, 0, 1000, 80), make([]byte, n)...)
	}},
	{name: "tcp4 with IP and TCP options", frame: func(n int) []byte {
		b := ipv4(kerneltest.Be16(ethernet(), 0x800), 2, 0, 6, 32+n, 0, from4, to4)
		return append(tcp(b, 3, 1000, 80), make([]byte, n)...)
	}},
	{name: "tcp4 with the longest options", frame: func(n int) []byte {
		b := ipv4(kerneltest.Be16(ethernet(), 0x800), 10, 0, 6, 60+n, 0, from4, to4)
		return append(tcp(b, 10, 1000, 80), make([]byte, n)...)
	}},
	{name: "tcp4 with two tags", frame: func(n int) []byte {
		b := ipv4(kerneltest.Be16(ethernet(), 0x88a8, 5, 0x8100, 6, 0x800), 0, 0, 6, 32+n, 0, from4, to4)
		return append(tcp(b, 3, 1000, 80), make([]byte, n)...)
	}},
	{name: "tcp6", frame: overIPv6},
	{name: "tcp6 in a jumbogram", frame: overIPv6, superPacket: jumbogram(0xc2), wire: leastJumbo},
	{name: "tcp6 too short for a jumbogram", frame: jumbogram(0xc2), superPacket: jumbogram(0xc2), wire: leastJumbo - 1},
	{name: "tcp6 after padding", frame: jumbogram(1), superPacket: jumbogram(1), wire: leastJumbo},
	{name: "tcp6 after an extension header", frame: func(n int) []byte {
		b := ipv6(kerneltest.Be16(ethernet(), 0x86dd), 0, 60, 16+20+n, from6, to6)
		b = append(append(b, 6, 1, 1, 12), make([]byte, 12)...)
		return append(tcp(b, 0, 1000, 80), make([]byte, n)...)
	}},
	{name: "udp4", frame: func(n int) []byte {
		b := ipv4(kerneltest.Be16(ethernet(), 0x800), 0, 0, 17, 8+n, 0, from4, to4)
		return append(udp(b, 1000, 80, n), make([]byte, n)...)
	}},
	{name: "udp6 with a tag", frame: func(n int) []byte {
		b := ipv6(kerneltest.Be16(ethernet(), 0x8100, 7, 0x86dd), 0, 17, 8+n, from6, to6)
		return append(udp(b, 1000, 80, n), make([]byte, n)...)
	}},
	{name: "tcp4 in vxlan", tunnel: true, frame: func(n int) []byte {
		inner := 8 + 14 + 20 + 32 + n
		b := ipv4(kerneltest.Be16(ethernet(), 0x800), 0, 0, 17, 8+inner, 0, from4, to4)
		b = append(udp(b, 1000, 4789, inner), 8, 0, 0, 0, 0, 0, 1, 0)
		b = ipv4(kerneltest.Be16(append(b, ethernet()...), 0x800), 0, 0, 6, 32+n, 0, to4, from4)
		return append(tcp(b, 3, 1000, 80), make([]byte, n)...)
	}},
}

// jumbogram returns a builder of super-packets of TCP over IPv6. Their hop-by-hop header has one
// option of this type.
func jumbogram(option byte) func(n int) []byte {
	return func(n int) []byte {
		b := append(ipv6(kerneltest.Be16(ethernet(), 0x86dd), 0, 0, 0, from6, to6), 6, 0, option, 4, 0, 2, 0,
			0)
		return append(tcp(b, 3, 1000, 80), make([]byte, n)...)
	}
}

// overIPv6 builds a TCP segment over IPv6 with n bytes of payload.
func overIPv6(n int) []byte {
	b := ipv6(kerneltest.Be16(ethernet(), 0x86dd), 0, 6, 32+n, from6, to6)
	return append(tcp(b, 3, 1000, 80), make([]byte, n)...)
}

// leastJumbo is the shortest frame, bytes, that the kernel treats as a jumbogram and removes the
// hop-by-hop header of (ipv6_has_hopopt_jumbo).
const leastJumbo = 14 + 1<<16 + 1

// segments are the frames that a super-packet with n bytes of payload is cut into.
func (c *segmentable) segments(n, size int) [][]byte {
	var out [][]byte
	for ; n > size; n -= size {
		out = append(out, c.frame(size))
	}
	return append(out, c.frame(n))
}

// TestSegments checks that a super-packet is metered and counted as the sum of its segments in
// the pipeline.
func TestSegments(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	r := kerneltest.Seeded(t)
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
		if kerneltest.InVM && rule.Overhead <= 0 { // loading a program takes seconds
			continue
		}
		bytes := &dataplane.Meter{
			Name: "bytes", Params: meter.TokenBucket{Rate: meter.ByteRate(1), Burst: 500e6},
		}
		packets := &dataplane.Meter{
			Name:    "packets",
			Params:  meter.TokenBucket{Rate: meter.Rate{Bytes: 1, Period: time.Minute}, Burst: 5e6},
			Packets: true, Then: bytes,
		}
		bytes.Aware = true
		policy := &dataplane.Policy{Length: rule, Classes: []dataplane.Class{{Name: "all", Meter: packets}}}
		for _, hook := range []image.Entry{image.EgressEntry, image.IngressEntry} {
			t.Run(fmt.Sprintf("%+v/%d", rule, hook), func(t *testing.T) {
				h := newHooked(t, policy, hook, nil)
				pl, err := pipeline.New(policy)
				if err != nil {
					t.Fatal(err)
				}
				for range kerneltest.Rounds(1000) {
					runSegmentable(t, r, h, pl)
					if t.Failed() {
						return
					}
				}
				got, err := h.Stats()
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(got, pl.Stats()) {
					t.Errorf("got counters %+v, want %+v", got, pl.Stats())
				}
				for _, m := range []*dataplane.Meter{bytes, packets} {
					gotTokens, _, err := h.Tokens(h.image.Plan.Stage(m))
					if err != nil {
						t.Fatal(err)
					}
					if want, _ := pl.Tokens(h.image.Plan.Stage(m)); gotTokens != want {
						t.Errorf("meter %s: got %d tokens, want %d", m.Name, gotTokens, want)
					}
				}
			})
		}
	}
}

// runSegmentable runs the program on a random super-packet and the pipeline on its segments.
func runSegmentable(t *testing.T, r *rand.Rand, h *hooked, pl *pipeline.Pipeline) {
	c := segmentables[r.IntN(len(segmentables))]
	if c.tunnel && h.hook == image.IngressEntry {
		return // ingress has no length of the inner headers
	}
	n := r.IntN(3400)
	size := max(kerneltest.Pick(r, 536, 1000, 1448, n/2, n/3, n, n+1, 1+r.IntN(100)), 1)
	packet := dataplane.Packet{Data: c.frame(n), Link: dataplane.LinkEthernet}
	if c.superPacket != nil {
		if n <= size {
			return // a jumbogram has several segments
		}
		packet.Data, packet.WireLen = c.superPacket(n), c.wire
	}
	leave := c.segments(n, size)
	wire := 0
	for _, data := range leave {
		wire += len(data)
	}
	removed := len(packet.Data) - len(c.frame(n)) // the kernel counts it in each segment
	if wire+removed*len(leave) > 1<<16 {          // too long for a test run
		return
	}
	want := 0
	for _, data := range leave {
		var v dataplane.Verdict
		pl.Process(&dataplane.Packet{Data: data, Link: dataplane.LinkEthernet}, &v)
		want += v.Length
	}
	context := skb{GSOSize: uint32(size), GSOSegs: uint32(len(leave))}
	// A sender or driver can leave gso_segs 0. The kernel then computes the number for
	// wire_len, but does not store it.
	if !c.tunnel && r.IntN(2) == 0 {
		context.GSOSegs = 0
	}
	// At egress wire_len includes the headers of all segments.
	if h.hook == image.EgressEntry && (c.tunnel || r.IntN(2) == 0) {
		context.WireLen = uint32(wire + removed*len(leave))
	}
	var v dataplane.Verdict
	if err := h.run(&packet, &v, context); err != nil {
		t.Fatal(err)
	}
	if v.Length != want {
		t.Errorf("%s, %d bytes in segments of %d, %+v: metered %d bytes, want %d in %d segments", c.name, n,
			size, context, v.Length, want, len(leave))
	}
}
