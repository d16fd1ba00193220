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
	var l *departing
	if n := len(r.spare); n > 0 {
		l, r.spare = r.spare[n-1], r.spare[:n-1]
	} else {
		l = &departing{}
	}
	*l = departing{v.Departure, v.ID, append(l.raw[:0], rec.raw...)}
	heap.Push(&r.scheduled, l)
	return nil
}

// release writes the packets that have departed by now.
func (r *run) release(now int64) error {
	for len(r.scheduled) > 0 && r.scheduled[0].at <= now {
		l := heap.Pop(&r.scheduled).(*departing)
		if err := r.emit(l.raw); err != nil {
			return err
		}
		r.spare = append(r.spare, l)
	}
	return nil
}

// departing is the record of a scheduled packet.
type departing struct {
	at     int64 // departure, ns
	number int64
	raw    []byte
}

// departures is a heap of packets in the order (departure, number).
type departures []*departing

func (w departures) Len() int { return len(w) }
func (w departures) Less(i, j int) bool {
	return w[i].at < w[j].at || w[i].at == w[j].at && w[i].number < w[j].number
}
func (w departures) Swap(i, j int) { w[i], w[j] = w[j], w[i] }
func (w *departures) Push(x any)   { *w = append(*w, x.(*departing)) }
func (w *departures) Pop() any {
	last := len(*w) - 1
	l := (*w)[last]
	(*w)[last] = nil
	*w = (*w)[:last]
	return l
}
