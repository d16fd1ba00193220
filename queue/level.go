package queue

import "math"

// level schedules the queues of one priority by WF2Q+ (Bennett and Zhang 1997). The first packet of
// each queue, of n bytes, starts at a virtual time and finishes n*grain/weight later. Among the
// packets whose start is reached, the one that finishes first is sent.
type level struct {
	weight  int64 // sum of the weights of all its queues
	active  []int // indexes of the queues with packets
	now     int64 // virtual time
	latest  int64 // largest finish of the packets sent
	sending int64 // length of the packet being sent, in bytes, not yet included in now
}

const (
	grain    = 1 << 20 // virtual time of one byte at weight 1
	rewindAt = 1 << 61 // rewind threshold: far below 2^63, and a packet adds at most 2^52
)

// virtualTime returns the virtual time of n bytes at a weight, rounded down.
func virtualTime(n, weight int64) int64 { return n * grain / weight }

// activate adds a queue after a time without packets, and returns the start of its first packet.
// last is the finish of its previous packet.
func (v *level) activate(queue int, last int64) (start int64) {
	if len(v.active) == 0 && v.sending == 0 { // the priority is idle: all queues start afresh
		v.now = max(v.now, v.latest)
	}
	v.active = append(v.active, queue)
	return max(last, v.now)
}

// deactivate removes the i-th of the active queues.
func (v *level) deactivate(i int) {
	last := len(v.active) - 1
	v.active[i] = v.active[last]
	v.active = v.active[:last]
}

// startPacket begins the sending of a packet of n bytes.
func (v *level) startPacket(n, finish int64) {
	v.sending = n
	v.latest = max(v.latest, finish)
}

// finishPacket advances virtual time by the packet sent.
func (v *level) finishPacket() {
	v.now += virtualTime(v.sending, v.weight)
	v.sending = 0
}

// choose returns the index in v.active of the queue to serve and the finish of
// its first packet. Among equal finishes, the queue with the lowest index in
// the link wins.
func (l *Link[T]) choose(v *level) (index int, finish int64) {
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
		f := q.start + virtualTime(int64(q.peek().bytes), int64(q.Weight))
		if f < finish || f == finish && i < v.active[index] {
			index, finish = n, f
		}
	}
	return index, finish
}

// rewind subtracts the virtual time of a level from all its times before they
// overflow. Only differences matter.
func (l *Link[T]) rewind(priority int) {
	v := &l.levels[priority]
	if v.now < rewindAt {
		return
	}
	for i := range l.queues {
		if q := &l.queues[i]; q.Priority == priority {
			q.start = max(q.start-v.now, -rewindAt)
		}
	}
	v.latest -= v.now
	v.now = 0
}
