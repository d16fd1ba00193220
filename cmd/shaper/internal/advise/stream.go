package advise

import (
	"cmp"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Stream has the metered packets of a class in the order of their arrival. It takes 16 bytes
// per packet.
type Stream struct {
	packets []arrival
	keys    map[string]int32 // numbers of keys; nil without per-key meters
	key     []byte
}

// arrival is a packet.
type arrival struct {
	at  int64 // ns
	n   int32 // metered bytes
	key int32 // number of its key
}

// newStream returns an empty stream. If it is keyed, each key has a meter of its own.
func newStream(keyed bool) *Stream {
	s := &Stream{}
	if keyed {
		s.keys = map[string]int32{}
	}
	return s
}

// Add adds a packet with its verdict.
func (s *Stream) Add(plan *dataplane.Plan, p *dataplane.Packet, v *dataplane.Verdict) {
	a := arrival{at: v.Now, n: int32(v.Length)}
	if s.keys != nil {
		s.key = plan.AppendKey(s.key[:0], p, v)
		number, known := s.keys[string(s.key)]
		if !known {
			number = int32(len(s.keys))
			s.keys[string(s.key)] = number
		}
		a.key = number
	}
	s.packets = append(s.packets, a)
}

// group sorts the packets by key, and keeps the order of packets with one key. So a single meter
// can color the packets of all keys, one key after the other.
func (s *Stream) group() {
	if s.keys != nil {
		slices.SortStableFunc(s.packets, func(a, b arrival) int { return cmp.Compare(a.key, b.key) })
	}
}

// Total counts the packets.
func (s *Stream) Total() dataplane.Count {
	total := dataplane.Count{Packets: int64(len(s.packets))}
	for _, a := range s.packets {
		total.Bytes += int64(a.n)
	}
	return total
}

// largest returns the length of the largest packet, bytes.
func (s *Stream) largest() int64 {
	n := int32(0)
	for _, a := range s.packets {
		n = max(n, a.n)
	}
	return int64(n)
}

// color runs the packets through meters that start full, one for each key, until f returns false.
// f gets the meter after the packet.
func (s *Stream) color(p *meter.Profile, f func(m *meter.Meter, a arrival, c meter.Color) bool) bool {
	m, key := meter.New(p), int32(0)
	for _, a := range s.packets {
		if a.key != key {
			m, key = meter.New(p), a.key
		}
		if !f(&m, a, m.Color(a.at, int(a.n), meter.Green)) {
			return false
		}
	}
	return true
}

// through counts the packets by color, until holds returns false for the counts.
func (s *Stream) through(p *meter.Profile, holds func(colors *[3]dataplane.Count) bool) bool {
	var colors [3]dataplane.Count
	return s.color(p, func(_ *meter.Meter, a arrival, c meter.Color) bool {
		colors[c] = colors[c].Plus(dataplane.Count{Packets: 1, Bytes: int64(a.n)})
		return holds(&colors)
	})
}
