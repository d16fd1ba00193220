package queue

import "math"

// level is the queues of one priority. Who is next follows WF2Q+ (Bennett and
// Zhang 1997): each packet starts and finishes in a virtual time, in which a
// weight of one is sent a byte per unit of grain. Of the packets that should
// have started by now the one that finishes first is sent.
type level struct {
	weight  int64 // of all its queues
	active  []int // queues that have packets
	now     int64 // virtual time
	latest  int64 // finish of all packets sent
	sending int64 // bytes under way, which now does not count yet
}

const (
	grain    = 1 << 20
	longTime = 1 << 61 // virtual
)

// lasts is how long n bytes take a weight, in virtual time.
func lasts(n, weight int64) int64 { return n * grain / weight }

// begin adds a queue that has a packet again, and returns when that starts, where
// the one before finished at last.
func (v *level) begin(queue int, last int64) (start int64) {
	if len(v.active) == 0 && v.sending == 0 { // nobody is owed anything
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

// send counts a packet that is sent from now on.
func (v *level) send(n int, finish int64) {
	v.sending = int64(n)
	v.latest = max(v.latest, finish)
}

// sent moves the time on by what has been sent since.
func (v *level) sent() {
	v.now += lasts(v.sending, v.weight)
	v.sending = 0
}

// choose says which of the active queues is next, and when its first packet
// finishes. The first of the policy wins a tie.
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

// rewind keeps virtual times small: they only matter as differences.
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
