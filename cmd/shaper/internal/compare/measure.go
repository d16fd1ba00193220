package compare

import (
	"math/bits"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// MaxMeters is how many meters one comparison takes: spans.passed has a bit
// for each.
const MaxMeters = 64

// measured is what one meter of a comparison did.
type measured struct {
	colors  [3]dataplane.Count
	passed  dataplane.Count
	dropped dataplane.Count
	burst   peak
	starved starvation
}

// packet counts a packet that the meter colored.
func (m *measured) packet(now, n int64, c meter.Color, passes bool) {
	one := dataplane.Count{Packets: 1, Bytes: n}
	m.colors[c] = m.colors[c].Plus(one)
	if passes {
		m.passed = m.passed.Plus(one)
	} else {
		m.dropped = m.dropped.Plus(one)
	}
	m.starved.packet(now, passes)
}

// peak is the most bytes that passed in any span of a given width.
type peak struct {
	now   int64 // bytes in the span that ends with the latest packet
	bytes int64 // the most so far
	from  int64 // ns: the first packet of that span
}

// spans keeps the packets of the latest span of time, which every meter's peak
// shares, and no more: a ring.
type spans struct {
	width int64 // ns; two packets less than this apart are in one span
	ring  []sighting
	head  uint64 // of all packets: the first in the ring
	tail  uint64 // and behind the last
}

// sighting is a packet of the ring, or several of one stamp.
type sighting struct {
	at, n  int64  // ns, bytes
	passed uint64 // a bit a meter
}

// packet adds a packet, which is not before the one before it.
func (s *spans) packet(p sighting, meters []measured) {
	for ; s.head < s.tail; s.head++ {
		old := s.at(s.head)
		if uint64(p.at)-uint64(old.at) < uint64(s.width) {
			break
		}
		for rest := old.passed; rest != 0; rest &= rest - 1 {
			meters[bits.TrailingZeros64(rest)].burst.now -= old.n
		}
	}
	s.add(p)
	for rest := p.passed; rest != 0; rest &= rest - 1 {
		b := &meters[bits.TrailingZeros64(rest)].burst
		if b.now += p.n; b.now > b.bytes {
			b.bytes, b.from = b.now, s.at(s.head).at
		}
	}
}

// add puts a packet into the ring. Packets of one stamp that the same meters
// passed share an entry, so that a capture cannot fill the memory with them.
func (s *spans) add(p sighting) {
	if s.tail > s.head {
		if last := s.at(s.tail - 1); last.at == p.at && last.passed == p.passed {
			last.n += p.n
			return
		}
	}
	if s.tail-s.head == uint64(len(s.ring)) {
		s.grow()
	}
	*s.at(s.tail) = p
	s.tail++
}

func (s *spans) at(i uint64) *sighting { return &s.ring[i&uint64(len(s.ring)-1)] }

// grow doubles the ring; its length is a power of two.
func (s *spans) grow() {
	bigger := spans{ring: make([]sighting, max(64, 2*len(s.ring)))}
	for i := s.head; i < s.tail; i++ {
		*bigger.at(i) = *s.at(i)
	}
	s.ring = bigger.ring
}

// starvation is the longest run of dropped packets, as a time: from the first to
// the last of those between which none passed. A pause before or after them is
// no fault of the meter's.
type starvation struct {
	ns, from int64 // the longest so far, and when it began
	dry      bool  // the packet before was dropped
	since    int64 // ns: the first of the run
}

func (s *starvation) packet(now int64, passes bool) {
	if !passes {
		if !s.dry {
			s.since = now
		}
		if now-s.since > s.ns {
			s.ns, s.from = now-s.since, s.since
		}
	}
	s.dry = !passes
}
