package compare

import (
	"math/bits"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// MaxMeters is the maximum number of meters in a comparison, which stores one bit per meter
// and packet.
const MaxMeters = 64

// measured is the result of one meter.
type measured struct {
	colors  [3]dataplane.Count
	passed  dataplane.Count
	dropped dataplane.Count
	burst   peak
	starved starvation
}

// packet counts a packet of n bytes with the color given by the meter.
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

// peak is the largest number of bytes passed in any span of a given width.
type peak struct {
	now   int64 // bytes in the span ending with the latest packet
	bytes int64 // largest number so far
	from  int64 // time of the span's first packet, ns
}

// spans holds the packets of the latest span of time in a ring. The peaks of all meters share it.
type spans struct {
	width int64 // length of a span, ns; packets at both ends are not in one span
	ring  []sighting
	head  uint64 // number of the first packet in the ring
	tail  uint64 // number after the last packet
}

// sighting is a packet in the ring, or several with one timestamp.
type sighting struct {
	at, n  int64  // ns, bytes
	passed uint64 // one bit per meter
}

// packet adds a packet. Its time must not be before the previous one's.
func (s *spans) packet(p sighting, meters []measured) {
	for ; s.head < s.tail; s.head++ {
		old := s.entry(s.head)
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
			b.bytes, b.from = b.now, s.entry(s.head).at
		}
	}
}

// add adds a packet to the ring. Packets with one timestamp that the same meters passed share an
// entry, so a capture cannot fill the memory with them.
func (s *spans) add(p sighting) {
	if s.tail > s.head {
		if last := s.entry(s.tail - 1); last.at == p.at && last.passed == p.passed {
			last.n += p.n
			return
		}
	}
	if s.tail-s.head == uint64(len(s.ring)) {
		s.grow()
	}
	*s.entry(s.tail) = p
	s.tail++
}

func (s *spans) entry(i uint64) *sighting { return &s.ring[i&uint64(len(s.ring)-1)] }

// grow doubles the ring. Its length is a power of two.
func (s *spans) grow() {
	bigger := spans{ring: make([]sighting, max(64, 2*len(s.ring)))}
	for i := s.head; i < s.tail; i++ {
		*bigger.entry(i) = *s.entry(i)
	}
	s.ring = bigger.ring
}

// starvation is the longest run of dropped packets: the time from the first to the last of
// successive dropped packets. A pause before or after them does not count, because the meter does
// not cause it.
type starvation struct {
	ns, from int64 // longest run so far, and its beginning, ns
	dry      bool  // the previous packet was dropped
	since    int64 // beginning of the current run, ns
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
