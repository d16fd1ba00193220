package replay

import (
	"container/heap"
	"fmt"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// schedule keeps a packet until its departure, unless it was dropped.
func (r *run) schedule(rec *record, v *dataplane.Verdict) error {
	if v.Done.Dropped() {
		return nil
	}
	rec.updateFCS()
	if err := r.format.restamp(rec, v.Departure); err != nil {
		return fmt.Errorf("packet %d: %w", v.ID, err)
	}
	var p *departing
	if n := len(r.spare); n > 0 {
		p, r.spare = r.spare[n-1], r.spare[:n-1]
	} else {
		p = &departing{}
	}
	*p = departing{v.Departure, v.ID, append(p.raw[:0], rec.raw...)}
	heap.Push(&r.scheduled, p)
	return nil
}

// release writes the packets that have departed by now.
func (r *run) release(now int64) error {
	for len(r.scheduled) > 0 && r.scheduled[0].at <= now {
		p := heap.Pop(&r.scheduled).(*departing)
		if err := r.emit(p.raw); err != nil {
			return err
		}
		r.spare = append(r.spare, p)
	}
	return nil
}

// departing is the record of a scheduled packet.
type departing struct {
	at     int64 // departure, ns
	number int64 // packet number
	raw    []byte
}

// departures is a heap of packets in the order (departure, number).
type departures []*departing

func (d departures) Len() int { return len(d) }
func (d departures) Less(i, j int) bool {
	return d[i].at < d[j].at || d[i].at == d[j].at && d[i].number < d[j].number
}
func (d departures) Swap(i, j int) { d[i], d[j] = d[j], d[i] }
func (d *departures) Push(x any)   { *d = append(*d, x.(*departing)) }
func (d *departures) Pop() any {
	last := len(*d) - 1
	p := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	return p
}
