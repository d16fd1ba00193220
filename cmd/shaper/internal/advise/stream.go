package advise

import (
	"cmp"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Stream holds a meter's packets in the order of arrival, 16 bytes per packet.
type Stream struct {
	packets []arrival
	keys    []KeyColors      // by number; one without per-key meters
	numbers map[string]int32 // of keys; nil without per-key meters
	key     []byte
}

// arrival is a packet.
type arrival struct {
	at  int64  // ns
	n   uint32 // metered bytes, at most 2^32-1 as dataplane counts
	key int32  // number of its key
}

// KeyColors counts the packets of a key.
type KeyColors struct {
	Key     string          `json:"key"` // "": packets without the key
	Offered dataplane.Count `json:"offered"`
	Yellow  dataplane.Count `json:"yellow"`
	Red     dataplane.Count `json:"red"`
}

func (k *KeyColors) add(c meter.Color, n uint32) {
	one := dataplane.Count{Packets: 1, Bytes: int64(n)}
	k.Offered = k.Offered.Plus(one)
	switch c {
	case meter.Yellow:
		k.Yellow = k.Yellow.Plus(one)
	case meter.Red:
		k.Red = k.Red.Plus(one)
	}
}

// worse reports whether a larger share of k's packets is red than of other's, or an equal one, and
// a larger share is yellow or red.
func (k *KeyColors) worse(other *KeyColors) bool {
	order := compareShares(k.Red.Packets, k.Offered.Packets, other.Red.Packets, other.Offered.Packets)
	return cmp.Or(order, compareShares(k.Yellow.Packets+k.Red.Packets, k.Offered.Packets,
		other.Yellow.Packets+other.Red.Packets, other.Offered.Packets)) > 0
}

// compareShares compares a/of with b/ofB. Streams have fewer than 2^31 packets.
func compareShares(a, of, b, ofB int64) int { return cmp.Compare(a*ofB, b*of) }

// newStream returns an empty stream, with a meter for each key if keyed.
func newStream(keyed bool) *Stream {
	s := &Stream{}
	if keyed {
		s.numbers = map[string]int32{}
	}
	return s
}

// Add adds a packet with its verdict, and returns the number of its key.
func (s *Stream) Add(plan *compiled.Plan, p *dataplane.Packet, v *dataplane.Verdict) int32 {
	number, known := int32(0), true
	if s.numbers != nil {
		s.key = plan.AppendKey(s.key[:0], p, v)
		if number, known = s.numbers[string(s.key)]; !known {
			number = int32(len(s.keys))
		}
	}
	s.add(arrival{v.Now, uint32(v.Length), number}, v.Color)
	if !known {
		name := string(s.key)
		s.numbers[name], s.keys[number].Key = number, name
	}
	return number
}

// add adds a packet of a key, at most one more than those so far, with its present color.
func (s *Stream) add(a arrival, c meter.Color) {
	if int(a.key) == len(s.keys) {
		s.keys = append(s.keys, KeyColors{})
	}
	s.keys[a.key].add(c, a.n)
	s.packets = append(s.packets, a)
}

// group sorts the packets by key, and keeps the order of packets with one key. So a single meter
// can color the packets of all keys, one key after the other.
func (s *Stream) group() {
	if len(s.keys) > 1 {
		slices.SortStableFunc(s.packets, func(a, b arrival) int { return cmp.Compare(a.key, b.key) })
	}
}

// Total counts the packets.
func (s *Stream) Total() (total dataplane.Count) {
	for i := range s.keys {
		total = total.Plus(s.keys[i].Offered)
	}
	return total
}

// largest returns the length of the largest packet, bytes.
func (s *Stream) largest() int64 {
	n := uint32(0)
	for _, a := range s.packets {
		n = max(n, a.n)
	}
	return int64(n)
}

// allowed returns, for each key, a share of its packets as a number of packets, rounded down.
func (s *Stream) allowed(share dataplane.Fraction) []int64 {
	out := make([]int64, len(s.keys))
	for i := range s.keys {
		out[i] = share.Of(s.keys[i].Offered.Packets)
	}
	return out
}

// color runs the packets through full meters, one for each key, until f returns false. f gets the
// meter after the packet.
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

// within reports whether of each key at most some packets have a color, or a worse one.
func (s *Stream) within(p *meter.Profile, least meter.Color, most []int64) bool {
	n, key := int64(0), int32(0)
	return s.color(p, func(_ *meter.Meter, a arrival, c meter.Color) bool {
		if a.key != key {
			n, key = 0, a.key
		}
		if c >= least {
			n++
		}
		return n <= most[a.key]
	})
}

// worst returns the key of which a meter colors the largest share of the packets red. Of several, it
// is a preferred one.
func (s *Stream) worst(p *meter.Profile, preferred int32) *KeyColors {
	colors := make([]KeyColors, len(s.keys))
	s.color(p, func(_ *meter.Meter, a arrival, c meter.Color) bool {
		colors[a.key].add(c, a.n)
		return true
	})
	for i := range colors {
		colors[i].Key = s.keys[i].Key
	}
	return worstOf(colors, preferred)
}

func worstOf(keys []KeyColors, preferred int32) *KeyColors {
	worst := &keys[preferred]
	for i := range keys {
		if keys[i].worse(worst) {
			worst = &keys[i]
		}
	}
	return worst
}
