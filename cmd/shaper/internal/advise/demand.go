package advise

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// demand is the demand of a stream on a token bucket of a rate.
//
// Take a bucket so large that it never drops a packet. A smaller bucket is never short of more
// bytes. So when the large bucket is full, all are full, and the next packet starts a busy period.
// A bucket as large as a period's peak drops nothing in the period, so only periods with larger
// peaks are run through a meter.
type demand struct {
	*Stream
	rate     meter.Rate
	periods  []period
	lossFree int64 // smallest burst without drops, bytes: the highest peak
	hungry   int32 // key with the highest peak
}

// period is a busy period.
type period struct {
	from, to int   // packets
	peak     int64 // largest fill deficit of a bucket without drops, bytes
}

// demandAt returns the demand at a rate, with a bucket for each key.
func (s *Stream) demandAt(rate meter.Rate) (*demand, error) {
	d := &demand{Stream: s, rate: rate}
	largest := s.Total().Bytes + 1 // never drops
	p, err := meter.TokenBucket{Rate: rate, Burst: largest}.Profile()
	if err != nil {
		return nil, err
	}
	m, key := meter.New(p), int32(0)
	for i, a := range s.packets {
		fresh := a.key != key
		if fresh {
			m, key = meter.New(p), a.key
		}
		m.Color(a.at, int(a.n), meter.Green)
		tokens, _ := m.Tokens(a.at)
		lack := largest - tokens
		if i == 0 || fresh || lack == int64(a.n) {
			d.periods = append(d.periods, period{from: i})
		}
		last := &d.periods[len(d.periods)-1]
		last.to, last.peak = i+1, max(last.peak, lack)
		if lack > d.lossFree {
			d.lossFree, d.hungry = lack, a.key
		}
	}
	return d, nil
}

// losses are the packets dropped by a token bucket.
type losses struct {
	dataplane.Count
	worst int32           // key losing the largest share of its packets
	most  dataplane.Count // packets lost by this key
}

// dropped counts the packets dropped with a burst. It stops and returns false if a key loses more
// packets than most allows. A nil most is no limit.
func (d *demand) dropped(burst int64, most []int64) (n losses, all bool, err error) {
	p, err := meter.TokenBucket{Rate: d.rate, Burst: max(burst, 1)}.Profile()
	if err != nil {
		return n, false, err
	}
	n.worst = d.hungry
	lost, key := dataplane.Count{}, int32(-1) // of a key
	for i := range d.periods {
		busy := &d.periods[i]
		if busy.peak <= burst {
			continue
		}
		if k := d.packets[busy.from].key; k != key {
			lost, key = dataplane.Count{}, k
		}
		m := meter.New(p)
		for _, a := range d.packets[busy.from:busy.to] {
			if m.Color(a.at, int(a.n), meter.Green) == meter.Green {
				continue
			}
			one := dataplane.Count{Packets: 1, Bytes: int64(a.n)}
			n.Count, lost = n.Plus(one), lost.Plus(one)
			if most != nil && lost.Packets > most[key] {
				return n, false, nil
			}
		}
		if compareShares(lost.Packets, d.keys[key].Offered.Packets, n.most.Packets,
			d.keys[n.worst].Offered.Packets) > 0 {
			n.worst, n.most = key, lost
		}
	}
	return n, true, nil
}

// smallest returns the smallest burst with which each key loses at most as many packets as most
// allows.
func (d *demand) smallest(most []int64) (int64, error) {
	return smallest(1, d.lossFree, func(burst int64) (bool, error) {
		_, all, err := d.dropped(burst, most)
		return all, err
	})
}

// Point is a burst and its loss, on the frontier between small bursts and few losses.
type Point struct {
	Burst   int64           `json:"burst"`   // bytes
	Dropped dataplane.Count `json:"dropped"` // by a token bucket
	// of a per-key meter: the key losing the largest share
	Worst *KeyColors `json:"worst_key,omitempty"`
}

// perOctave is the number of bursts of a frontier between a burst and its double.
const perOctave = 8

// frontier returns the loss for bursts from the largest packet to the first one without loss.
func (d *demand) frontier() ([]Point, error) {
	var points []Point
	for base := max(d.largest(), 1); base < d.lossFree; base *= 2 {
		for i := int64(0); i < perOctave; i++ {
			if b := base + base*i/perOctave; b < d.lossFree &&
				(len(points) == 0 || b > points[len(points)-1].Burst) {
				points = append(points, Point{Burst: b})
			}
		}
	}
	points = append(points, Point{Burst: d.lossFree})
	return points, parallel(len(points), func(i int) (err error) {
		n, _, err := d.dropped(points[i].Burst, nil)
		points[i].Dropped = n.Count
		if d.numbers != nil {
			k := &d.keys[n.worst]
			points[i].Worst = &KeyColors{Key: k.Key, Offered: k.Offered, Red: n.most}
		}
		return err
	})
}
