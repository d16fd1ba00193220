package compare

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// seen is a packet as one meter treated it.
type seen struct {
	at, n  int64
	passes bool
}

// worstOf is the definition: for every packet, what passed less than width after
// it, and when the first of the largest spans begins.
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

// starvedOf is the definition: over all pairs of dropped packets between which
// none passed, the time between them.
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
				t.Errorf("worst of meter %d in %d ns: %d bytes, want %d", i, width, got[i].burst.bytes, want)
			}
			// The span that was named has them.
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
			t.Errorf("the ring has %d entries, %d in use", len(s.ring), s.tail-s.head)
		}
	}
}

// TestSpansForget holds that the ring has no more than a window of packets.
func TestSpansForget(t *testing.T) {
	s := spans{width: 100}
	m := make([]measured, 1)
	for at := range int64(1_000_000) {
		s.packet(sighting{at, 1, 1}, m)
	}
	if len(s.ring) != 128 || m[0].burst.bytes != 100 {
		t.Errorf("%d entries and a worst of %d, want 128 and 100", len(s.ring), m[0].burst.bytes)
	}
	if n := testing.AllocsPerRun(100, func() { s.packet(sighting{2_000_000, 1, 1}, m) }); n > 0 {
		t.Errorf("%v allocations a packet", n)
	}
}

// TestSpansOfOneStamp holds that any number of packets with one stamp, of which
// a capture of a few bytes may have millions, take no more room than a few.
func TestSpansOfOneStamp(t *testing.T) {
	s := spans{width: 100}
	m := make([]measured, 2)
	for i := range int64(100_000) {
		s.packet(sighting{7, 1, uint64(1 + i/50_000)}, m) // first one meter, then the other
	}
	if s.tail-s.head != 2 || m[0].burst.bytes != 50_000 || m[1].burst.bytes != 50_000 {
		t.Errorf("%d entries, %d and %d bytes, want 2 and 50,000 each", s.tail-s.head, m[0].burst.bytes, m[1].burst.bytes)
	}
}
