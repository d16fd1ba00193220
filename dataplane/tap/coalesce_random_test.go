package tap

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// randomUDP returns a batch of few flows, most of whose packets can be merged.
func randomUDP(r *rand.Rand) (frames [][]byte) {
	var flow udpPacket
	for range r.IntN(40) {
		if len(frames) == 0 || r.IntN(6) == 0 {
			flow = udpPacket{
				v6: r.IntN(2) == 0, ttl: byte(63 + r.IntN(2)), id: uint16(r.Uint32()),
				frag: uint16(r.IntN(2)) * 0x4000, host: byte(r.IntN(2)), port: uint16(r.IntN(2)),
				payload: make([]byte, r.IntN(300)), tags: bytes.Repeat([]byte{0x81, 0, 0, 1}, r.IntN(3)),
				partial: r.IntN(3) == 0,
			}
		}
		d := flow
		d.payload = make([]byte, len(flow.payload))
		for i := range d.payload {
			d.payload[i] = byte(r.Uint32())
		}
		switch r.IntN(12) {
		case 0:
			d.payload = d.payload[:r.IntN(len(d.payload)+1)]
		case 1:
			d.id++
		}
		flow.id++
		frames = append(frames, d.buffer(r.IntN(2)*r.IntN(1<<r.IntN(17))))
	}
	return frames
}

func TestCoalesceRandom(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	came, left := 0, 0
	for range 3000 {
		frames := randomUDP(r)
		for _, b := range frames {
			switch {
			case r.IntN(20) == 0:
				b[r.IntN(min(len(b), 80))] ^= 1 << r.IntN(8)
			case r.IntN(40) == 0:
				b[r.IntN(len(b))] ^= 1 << r.IntN(8)
			}
		}
		came += len(frames)
		left += checkCoalesce(t, frames, newCoalescer(r.IntN(3)))
	}
	if left > came*2/3 {
		t.Errorf("got %d frames in the output for %d in the input, want at most two thirds", left, came)
	}
}

// FuzzCoalesce mutates a batch. Each 4 bytes of edits are a frame, an offset,
// and the bits to flip there or a length to truncate to.
func FuzzCoalesce(f *testing.F) {
	f.Add(uint64(1), []byte{0, 0, 24, 1})
	f.Add(uint64(2), []byte{1, 0, 1, 5, 2, 0, 60, 0})
	f.Fuzz(func(t *testing.T, seed uint64, edits []byte) {
		r := rand.New(rand.NewPCG(seed, 1))
		frames := randomUDP(r)
		for ; len(edits) >= 4 && len(frames) > 0; edits = edits[4:] {
			b := &frames[int(edits[0])%len(frames)]
			at := int(be16(edits[1:])) % (len(*b) + 1)
			if edits[3] == 0 || at == len(*b) {
				*b = (*b)[:at]
			} else {
				(*b)[at] ^= edits[3]
			}
		}
		checkCoalesce(t, frames, newCoalescer(r.IntN(3)))
	})
}

// BenchmarkCoalesce merges batches of 64 packets. bytes is the length of an
// Ethernet frame.
func BenchmarkCoalesce(b *testing.B) {
	for _, test := range []struct {
		name  string
		bytes int
		left  int
		edit  func(i int, d *udpPacket)
	}{
		{"one flow", 64, 1, func(int, *udpPacket) {}},
		{"one flow", 1000, 1, func(int, *udpPacket) {}},
		{"16 flows, interleaved", 64, 16, func(i int, d *udpPacket) { d.port, d.frag = uint16(i%16), 0x4000 }},
		{"64 flows", 64, 64, func(i int, d *udpPacket) { d.port = uint16(i) }},
		{"increasing lengths", 64, 64, func(i int, d *udpPacket) { d.payload = make([]byte, 20+i) }},
		{"fragments", 64, 64, func(i int, d *udpPacket) { d.frag = uint16(i) }},
	} {
		b.Run(fmt.Sprintf("%s of %d bytes", test.name, test.bytes), func(b *testing.B) {
			var frames [][]byte
			for i := range 64 {
				d := udpPacket{
					ttl: 64, id: uint16(i), host: 2, port: 1000, payload: make([]byte, test.bytes-42),
				}
				test.edit(i, &d)
				frames = append(frames, d.buffer(MaxFrame))
			}
			var first [][]byte // headers, which merging changes
			for _, f := range frames[:test.left] {
				first = append(first, slices.Clone(f[:HeaderLen+42]))
			}
			c, out := newCoalescer(0), make([][]byte, 0, len(frames))
			b.ReportAllocs()
			for b.Loop() {
				for i, h := range first {
					copy(frames[i], h)
				}
				out = c.coalesce(out[:0], frames)
			}
			if len(out) != test.left {
				b.Fatalf("got %d frames in the output, want %d", len(out), test.left)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(frames)), "ns/packet")
		})
	}
}

func TestCoalesceAllocations(t *testing.T) {
	var frames [][]byte
	for i := range 100 {
		d := udpPacket{v6: i >= 50, ttl: 64, id: uint16(i), host: 2, port: 1000, payload: make([]byte, 100)}
		frames = append(frames, d.buffer(0)) // without room, so that no header changes
	}
	out, c := make([][]byte, 0, len(frames)), newCoalescer(2)
	if n := testing.AllocsPerRun(10, func() {
		if got := len(c.coalesce(out, frames)); got != 2 {
			t.Errorf("got %d frames in the output, want 2", got)
		}
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}
