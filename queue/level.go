package queue

import "math"

// level schedules the queues of one priority by WF2Q+ (Bennett and Zhang 1997).
// Each queue's first packet has a start and a finish in virtual time, n*grain/weight
// apart for n bytes. Of the packets whose start has been reached, the one with the
// smallest finish is sent.
type level struct {
	weight  int64 // of all its queues
	active  []int // queues that have packets
	now     int64 // virtual time
	latest  int64 // the largest finish of a packet that was sent
	sending int64 // bytes being sent, which now does not include yet
}

const (
	grain    = 1 << 20 // virtual time of a byte at weight 1
	longTime = 1 << 61 // virtual time from which it is set back
)

// lasts is the virtual time that n bytes take at a weight, rounded down.
func lasts(n, weight int64) int64 { return n * grain / weight }

// begin adds a queue that was empty, and returns the start of its packet. last is
// the finish of the queue's packet before.
func (v *level) begin(queue int, last int64) (start int64) {
	if len(v.active) == 0 && v.sending == 0 { // all queues start afresh
		v.now = max(v.now, v.latest)
	}
	v.active = append(v.active, queue)
	return max(last, v.now)
}

// end takes out the i-th of the active queues.
func (v *level) end(i int) {
	last := len(v.active) - 1
	v.active[i] = v.active[last]
	v.active = v.active[:last]
}

// send notes that a packet of n bytes is being sent.
func (v *level) send(n int, finish int64) {
	v.sending = int64(n)
	v.latest = max(v.latest, finish)
}

// sent advances virtual time by the packet that has been sent.
func (v *level) sent() {
	v.now += lasts(v.sending, v.weight)
	v.sending = 0
}

// choose returns the index in v.active of the queue to serve, and the finish of its
// first packet. Of equal ones the queue with the lowest index in the link wins.
func (l *Link[T]) choose(v *level) (at int, finish int64) {
	least := int64(math.MaxInt64)
	for _, i := range v.active {
		least = min(least, l.queues[i].start)
	}
	v.now = max(v.now, least)
	finish = math.MaxInt64
	for n, i := range v.active {
		q := &l.queues[i]
		if q.start > v.now {
			continue
		}
		f := q.start + lasts(int64(q.first().Bytes), int64(q.Weight))
		if f < finish || f == finish && i < v.active[at] {
			at, finish = n, f
		}
	}
	return at, finish
}

// rewind subtracts the virtual time of a level from all its times before they
// overflow. Only their differences matter.
func (l *Link[T]) rewind(priority int) {
	v := &l.levels[priority]
	if v.now < longTime {
		return
	}
	for i := range l.queues {
		if q := &l.queues[i]; q.Priority == priority {
			q.start = max(q.start-v.now, -longTime)
		}
	}
	v.latest -= v.now
	v.now = 0
}
