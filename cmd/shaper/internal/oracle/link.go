package oracle

import (
	"math/big"
	"slices"
)

// link sends the packets of its queues one at a time: by priority, and by WF2Q+ among the
// queues of one priority.
type link struct {
	rate   *big.Rat // bytes per nanosecond
	free   *big.Rat // end of the transmission so far; nil before the first packet
	levels [8]level // by priority
	busy   *level   // priority of the packet being sent

	dropped []*queued // whose tokens must go back
}

// level holds the queues of one priority. Its times are virtual, in 1/2^20 of a byte per weight.
type level struct {
	queues    []*queue // in the order in which actions name them
	now, last *big.Int // last is the largest finish time
	sending   int64    // bytes
}

func newLink(rate *big.Rat) *link {
	l := &link{rate: rate}
	for i := range l.levels {
		l.levels[i].now, l.levels[i].last = new(big.Int), new(big.Int)
	}
	return l
}

// share adds a queue to its link once.
func (q *queue) share() {
	if q.link == nil {
		return
	}
	v := &q.link.levels[q.priority]
	if !slices.Contains(v.queues, q) {
		v.queues = append(v.queues, q)
	}
}

// grains converts a length to units of virtual time.
func grains(length int64) *big.Int { return new(big.Int).Lsh(big.NewInt(length), 20) }

func (v *level) weights() *big.Int {
	sum := int64(0)
	for _, q := range v.queues {
		sum += q.weight
	}
	return big.NewInt(sum)
}

func (v *level) waits() bool {
	for _, q := range v.queues {
		if len(q.waiting) > 0 {
			return true
		}
	}
	return false
}

func largest(a, b *big.Int) *big.Int {
	if a.Cmp(b) > 0 {
		return a
	}
	return b
}

func (l *link) offer(q *queue, p *queued) {
	now := new(big.Rat).SetInt(p.arrival)
	l.run(now)
	if !q.room(p) || !q.early(p, q.backlog(q.waiting, nil)) {
		l.drop(p, p.arrival)
		return
	}
	v := &l.levels[q.priority]
	if !v.waits() && l.busy != v {
		v.now = largest(v.now, v.last)
	}
	if len(q.waiting) == 0 {
		q.start = largest(q.start, v.now)
	}
	for q.breaks(p, q.backlog(q.waiting, nil), len(q.waiting)) {
		l.drop(q.shed(), p.arrival)
	}
	q.take(p)
	if l.free == nil || l.free.Cmp(now) < 0 { // idle
		l.free = now
	}
	l.run(now)
}

// drop remembers a dropped packet and the time of its drop.
func (l *link) drop(p *queued, t *big.Int) {
	p.droppedAt = t
	l.dropped = append(l.dropped, p)
}

// room reports whether a packet fits into a queue of a link. A fair queue makes room, unless the
// packet alone is too long.
func (q *queue) room(p *queued) bool {
	backlog, packets := q.backlog(q.waiting, nil), len(q.waiting)
	if q.key != nil {
		backlog, packets = new(big.Rat), 0
	}
	if q.breaks(p, backlog, packets) {
		p.drop("queue-full")
		return false
	}
	return true
}

// run makes all choices up to a time; nil: all choices.
func (l *link) run(until *big.Rat) {
	for l.free != nil && (until == nil || l.free.Cmp(until) <= 0) {
		if l.busy != nil {
			passed := grains(l.busy.sending)
			l.busy.now = new(big.Int).Add(l.busy.now, passed.Div(passed, l.busy.weights()))
			l.busy = nil
		}
		v := l.next()
		if v == nil {
			return
		}
		l.send(v)
	}
}

// next returns the first priority with packets.
func (l *link) next() *level {
	for i := range l.levels {
		if l.levels[i].waits() {
			return &l.levels[i]
		}
	}
	return nil
}

// send removes the next packet of a priority, and sends it unless CoDel drops it.
func (l *link) send(v *level) {
	q, finish := v.choose()
	f := q.flow()
	p := f.waiting[0]
	q.remove(p)
	t := ceil(l.free)
	if !q.control(p, t, f) {
		l.drop(p, t)
		return
	}
	p.leave(t)
	l.free = new(big.Rat).Add(l.free, sending(p.length, l.rate))
	q.start = finish
	v.last = largest(v.last, finish)
	v.sending, l.busy = p.length, v
	f.deficit -= p.length
	q.turn = nil
}

// choose returns the next queue, and the finish time of its packet.
func (v *level) choose() (best *queue, finish *big.Int) {
	var first *big.Int
	for _, q := range v.queues {
		if len(q.waiting) > 0 && (first == nil || q.start.Cmp(first) < 0) {
			first = q.start
		}
	}
	v.now = largest(v.now, first)
	for _, q := range v.queues {
		if len(q.waiting) == 0 || q.start.Cmp(v.now) > 0 {
			continue
		}
		end := grains(q.flow().waiting[0].length)
		end.Div(end, big.NewInt(q.weight)).Add(end, q.start)
		if finish == nil || end.Cmp(finish) < 0 {
			best, finish = q, end
		}
	}
	return best, finish
}
