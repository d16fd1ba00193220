package oracle

import "math/big"

// link sends the packets of its queues, one at a time: by priority, and among the queues
// of one priority by deficit round robin.
type link struct {
	rate   *big.Rat    // bytes a nanosecond
	free   *big.Rat    // when it has sent what it was given; nil before the first packet
	active [8][]*queue // by priority: the queues that have packets, the one to serve first
}

// quantum is what a weight of 1 may send in a round: a full frame.
const quantum = 1514

func (l *link) offer(q *queue, p *queued) {
	now := new(big.Rat).SetInt(p.arrival)
	l.run(now)
	if !q.admit(p, q.backlog(q.waiting, nil), len(q.waiting)) {
		return
	}
	if len(q.waiting) == 0 {
		l.active[q.priority] = append(l.active[q.priority], q)
		q.deficit, q.fresh = 0, true
	}
	q.waiting = append(q.waiting, p)
	if l.free == nil || l.free.Cmp(now) < 0 { // idle
		l.free = now
	}
	l.run(now)
}

// run makes the choices up to a time, or all where that is nil.
func (l *link) run(until *big.Rat) {
	for priority := 0; priority < len(l.active); {
		switch {
		case len(l.active[priority]) == 0:
			priority++
		case until != nil && l.free.Cmp(until) > 0:
			return
		default:
			l.choose(priority)
			priority = 0
		}
	}
}

// choose takes one packet of a priority and sends it when the link is free, unless CoDel
// drops it: that costs no deficit and no time.
func (l *link) choose(priority int) {
	q := l.turn(priority)
	p := q.waiting[0]
	q.waiting = q.waiting[1:]
	if t := ceil(l.free); q.control(p, t) {
		p.leave(t)
		q.deficit -= p.length
		l.free = new(big.Rat).Add(l.free, sending(p.length, l.rate))
	}
	if len(q.waiting) == 0 {
		q.deficit = 0
		l.active[priority] = l.active[priority][1:]
	}
}

// turn is the queue of a priority whose first packet is next.
func (l *link) turn(priority int) *queue {
	for {
		active := l.active[priority]
		q := active[0]
		if q.fresh { // once a visit
			q.deficit += q.weight * quantum
			q.fresh = false
		}
		if q.deficit >= q.waiting[0].length {
			return q
		}
		l.active[priority] = append(active[1:], q)
		q.fresh = true
	}
}
