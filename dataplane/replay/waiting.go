package replay

import (
	"container/heap"
	"fmt"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// queue holds a packet until its departure, unless it was dropped.
func (r *run) queue(rec *record, v *dataplane.Verdict) error {
	if v.Done.Dropped() {
		return nil
	}
	rec.seal()
	if err := r.format.restamp(rec, v.Departure); err != nil {
		return fmt.Errorf("packet %d: %w", v.ID, err)
	}
	var l *leaving
	if n := len(r.spare); n > 0 {
		l, r.spare = r.spare[n-1], r.spare[:n-1]
	} else {
		l = &leaving{}
	}
	*l = leaving{v.Departure, v.ID, append(l.raw[:0], rec.raw...)}
	heap.Push(&r.waiting, l)
	return nil
}

// release writes the packets that have left by now.
func (r *run) release(now int64) error {
	for len(r.waiting) > 0 && r.waiting[0].at <= now {
		l := heap.Pop(&r.waiting).(*leaving)
		if err := r.emit(l.raw); err != nil {
			return err
		}
		r.spare = append(r.spare, l)
	}
	return nil
}

// leaving is a packet's record on its way out.
type leaving struct {
	at     int64 // ns
	number int64
	raw    []byte
}

// waiting is a heap of packets in the order in which they leave.
type waiting []*leaving

func (w waiting) Len() int { return len(w) }
func (w waiting) Less(i, j int) bool {
	return w[i].at < w[j].at || w[i].at == w[j].at && w[i].number < w[j].number
}
func (w waiting) Swap(i, j int) { w[i], w[j] = w[j], w[i] }
func (w *waiting) Push(x any)   { *w = append(*w, x.(*leaving)) }
func (w *waiting) Pop() any {
	last := len(*w) - 1
	l := (*w)[last]
	(*w)[last] = nil
	*w = (*w)[:last]
	return l
}
