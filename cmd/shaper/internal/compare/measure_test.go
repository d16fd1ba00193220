package compare

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// seen is a packet and its treatment by one meter.
type seen struct {
	at, n  int64
	passes bool
}

// worstOf computes the worst span by its definition: for every packet, the bytes that passed
// less than width after it. from is the beginning of the first of the largest spans.
func worstOf(packets []seen, width int64) (bytes int64) {
	for i, first := range packets {
		sum := int64(0)
		for _, p := range packets[i:] {
			if p.passes && p.at-first.at < width {
				sum += p.n
			}
		}
		bytes = max(bytes, sum)
	}
	return bytes
}

// starvedOf computes the starvation by its definition: the longest time between two dropped
// packets between which none passed.
func starvedOf(packets []seen) (ns int64) {
	for i, first := range packets {
		for _, last := range packets[i:] {
			if first.passes || last.passes {
				break
			}
			ns = max(ns, last.at-first.at)
		}
	}
	return ns
}

func TestMeasures(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		width := 1 + r.Int64N(300)
		const meters = 3
		got := make([]measured, meters)
		packets := make([][]seen, meters)
		s := spans{width: width}
		now := r.Int64N(1000) - 500
		for range r.IntN(300) {
			now += []int64{0, 1, r.Int64N(10), r.Int64N(2 * width)}[r.IntN(4)]
			p := sighting{at: now, n: r.Int64N(1500)}
			for i := range meters {
				passes, color := r.IntN(i+2) == 0, meter.Red
				if passes {
					p.passed |= 1 << i
					color = meter.Green
				}
				got[i].packet(p.at, p.n, color, passes)
				packets[i] = append(packets[i], seen{p.at, p.n, passes})
			}
			s.packet(p, got)
		}
		for i := range meters {
			if want := worstOf(packets[i], width); got[i].burst.bytes != want {
				t.Errorf("worst of meter %d in %d ns: got %d bytes, want %d", i, width, got[i].burst.bytes,
					want)
			}
			// The reported span has these bytes.
			var named int64
			for _, p := range packets[i] {
				if since := p.at - got[i].burst.from; p.passes && 0 <= since && since < width {
					named += p.n
				}
			}
			if named != got[i].burst.bytes {
				t.Errorf("from %d pass %d bytes, want %d", got[i].burst.from, named, got[i].burst.bytes)
			}
			if want := starvedOf(packets[i]); got[i].starved.ns != want {
				t.Errorf("meter %d starved for %d ns, want %d", i, got[i].starved.ns, want)
			}
		}
		if len(s.ring) > 512 || s.tail-s.head > 300 {
			t.Errorf("got a ring of %d entries with %d in use, want at most 512 and 300", len(s.ring),
				s.tail-s.head)
		}
	}
}

// TestSpansAreBounded checks that the ring has at most the packets of one window.
func TestSpansAreBounded(t *testing.T) {
	s := spans{width: 100}
	m := make([]measured, 1)
	for at := range int64(1_000_000) {
		s.packet(sighting{at, 1, 1}, m)
	}
	if len(s.ring) != 128 || m[0].burst.bytes != 100 {
		t.Errorf("got %d entries and a worst of %d, want 128 and 100", len(s.ring), m[0].burst.bytes)
	}
	if n := testing.AllocsPerRun(100, func() { s.packet(sighting{2_000_000, 1, 1}, m) }); n > 0 {
		t.Errorf("got %v allocations per packet, want 0", n)
	}
}

// TestSpansOfOneTimestamp checks that millions of packets with one timestamp need no more memory
// than a few. A small capture can have so many.
func TestSpansOfOneTimestamp(t *testing.T) {
	s := spans{width: 100}
	m := make([]measured, 2)
	for i := range int64(100_000) {
		s.packet(sighting{7, 1, uint64(1 + i/50_000)}, m) // first one meter, then the other
	}
	if s.tail-s.head != 2 || m[0].burst.bytes != 50_000 || m[1].burst.bytes != 50_000 {
		t.Errorf("got %d entries, %d and %d bytes, want 2 and 50,000 each", s.tail-s.head, m[0].burst.bytes,
			m[1].burst.bytes)
	}
}
