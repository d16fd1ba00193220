package queue

import (
	"errors"
	"fmt"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Of a Share.
const (
	MaxPriority = 7
	MaxWeight   = 1000
)

// Share is a queue of a Link, which has the link's rate.
type Share struct {
	Config
	Priority int  // 0 is served first, MaxPriority last
	Weight   int  // of the link among those of its priority, 1 to MaxWeight
	Fair     bool // the flows of its packets share it evenly (RFC 8290)
}

// Link is a rate that queues share: those of a lower priority number first,
// those of the same one by weight (WF2Q+; Bennett and Zhang 1997). What a queue
// has sent is at most the longest packet behind its part of what its priority
// sends, however weights are written. A queue may use what others leave. T is
// what the caller knows of a packet. A Link is for one goroutine at a time.
type Link[T any] struct {
	pace    pace
	queues  []share[T]
	levels  [MaxPriority + 1]level
	sending *level // of the last packet
	waiting int    // packets
	decided ring[Decision[T]]
}

// share is a queue at work.
type share[T any] struct {
	Share
	flows[T]
	capacity int
	dice     dice
	start    int64 // virtual time of its first packet, or where its last one ended
}

type waiting[T any] struct {
	Packet
	came  int64 // ns
	fate  Fate  // so far
	value T
}

// Decision is what became of a packet that waited.
type Decision[T any] struct {
	Value  T
	Depart int64 // ns, rounded up
	Fate   Fate
}

// NewLink returns an idle link. The error joins all that is wrong, as
// meter.FieldErrors of the link's rate and as Share.Resolve has them.
func NewLink[T any](rate meter.Rate, shares []Share) (*Link[T], error) {
	p, err := newPace(rate)
	if err != nil {
		return nil, err
	}
	l := &Link[T]{pace: p, queues: make([]share[T], len(shares))}
	for i, s := range shares {
		s, fault := s.Resolve(rate)
		err = errors.Join(err, fault)
		if fault != nil {
			continue
		}
		l.queues[i] = share[T]{Share: s, flows: newFlows[T](&s), capacity: s.Capacity(), dice: dice{seed: s.Seed}}
		l.levels[s.Priority].weight += int64(s.Weight)
	}
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Resolve makes limits in time what a link of a valid rate sends meanwhile, in
// bytes. The error joins all that is wrong, as meter.FieldErrors of rate, limit,
// wred, codel, priority and weight.
func (s Share) Resolve(rate meter.Rate) (Share, error) {
	err := s.check()
	field := func(field, reason string) {
		err = errors.Join(err, &meter.FieldError{Field: field, Reason: reason})
	}
	if s.Rate != (meter.Rate{}) {
		field("rate", "goes with no link: a queue has a rate of its own, or a link's")
	}
	if s.Priority < 0 || s.Priority > MaxPriority {
		field("priority", fmt.Sprintf("%d is not between 0 and %d", s.Priority, MaxPriority))
	}
	if s.Weight < 1 || s.Weight > MaxWeight {
		field("weight", fmt.Sprintf("%d is not between 1 and %d", s.Weight, MaxWeight))
	}
	if err != nil || s.Time == 0 {
		return s, err
	}
	limit := during(rate, s.Time)
	if limit == 0 {
		field("limit", fmt.Sprintf("of %v is less than a byte at the link's rate of %v", s.Time, rate))
	}
	if s.Bytes == 0 || limit < s.Bytes {
		s.Bytes = limit
	}
	s.Time = 0
	for i := range s.WRED {
		e := &s.WRED[i]
		if e.Max > 0 && during(rate, time.Duration(e.Max)) == 0 {
			field("wred", fmt.Sprintf("has a max of %v, less than a byte at the link's rate of %v", time.Duration(e.Max), rate))
		}
		e.Min, e.Max = during(rate, time.Duration(e.Min)), during(rate, time.Duration(e.Max))
	}
	return s, err
}

// during is how many whole bytes a rate sends in a time, at most 2^39-1.
func during(r meter.Rate, t time.Duration) int64 {
	n, ok := r.Burst(t)
	if !ok || n >= bound {
		return bound - 1
	}
	return n
}

// Follow makes the link free when another would have been, whose place it
// takes, after that has decided all that waits.
func (l *Link[T]) Follow(before *Link[T]) { l.pace.follow(&before.pace) }

// Admit takes a packet into a queue at now (ns, on a clock that does not go
// back), unless it is dropped. Decide says what becomes of it; its mark, too. It
// allocates only where more packets of a flow wait than ever before.
//
// A fair queue that is full drops the first packet of the flow that has the
// most bytes, rather than the one that comes.
func (l *Link[T]) Admit(now int64, queue int, p Packet, value T) Fate {
	l.run(now)
	q := &l.queues[queue]
	if int64(p.Bytes) > MaxBytes || q.full(p.Bytes) && (!q.Fair || q.Bytes > 0 && int64(p.Bytes) > q.Bytes) {
		return Full
	}
	backlog := q.bytes
	if q.Axis() == ByPackets {
		backlog = int64(q.packets)
	}
	f := q.early(p, backlog, &q.dice)
	if f.Dropped() {
		return f
	}
	idle := q.packets == 0
	for q.full(p.Bytes) {
		w := q.shed()
		l.waiting--
		l.decided.push(Decision[T]{w.value, now, Full})
	}
	if idle {
		q.start = l.levels[q.Priority].begin(queue, q.start)
	}
	q.push(waiting[T]{p, now, f, value})
	l.waiting++
	l.pace.from(now)
	l.run(now)
	return f
}

// full says whether a packet of n bytes would break a limit.
func (q *share[T]) full(n int) bool {
	return q.Bytes > 0 && q.bytes+int64(n) > q.Bytes || q.packets >= q.capacity
}

// Decide returns, in the order of departures, what became of a packet by now,
// which is not before the last Admit.
func (l *Link[T]) Decide(now int64) (d Decision[T], ok bool) {
	l.run(now)
	if l.decided.len == 0 {
		return d, false
	}
	return l.decided.pop(), true
}

// Due is when Decide has the next decision, in ns, or false where nothing
// waits.
func (l *Link[T]) Due() (at int64, ok bool) {
	if l.decided.len > 0 {
		return l.decided.at(0).Depart, true
	}
	return l.pace.due(), l.waiting > 0
}

// Waiting is what waits in a queue.
func (l *Link[T]) Waiting(queue int) (packets, bytes int64) {
	q := &l.queues[queue]
	return int64(q.packets), q.bytes
}

// run makes the choices of all times up to now.
func (l *Link[T]) run(now int64) {
	for l.pace.due() <= now {
		if l.sending != nil {
			l.sending.sent()
		}
		if l.waiting == 0 {
			return
		}
		l.send()
	}
}

// send takes out the packet that is next, and sends it unless CoDel drops it:
// that costs its queue nothing.
func (l *Link[T]) send() {
	priority := 0
	for len(l.levels[priority].active) == 0 {
		priority++
	}
	level := &l.levels[priority]
	at, finish := l.choose(level)
	q := &l.queues[level.active[at]]
	w, flow := q.pop()
	l.waiting--
	if q.packets == 0 {
		level.end(at)
	}
	depart := l.pace.due()
	wait := depart - w.came
	if flow.bytes <= Quantum {
		wait = 0 // too few wait to drop any (RFC 8289 §5)
	}
	d := Decision[T]{w.value, depart, w.fate}
	next, ok := l.pace.after(w.Bytes)
	switch {
	case !ok:
		d.Fate = Full
	case flow.codel.takes(depart, wait):
		d.Fate = q.victim(w.Packet, Stale)
	}
	if !d.Fate.Dropped() {
		l.pace, l.sending = next, level
		q.start = finish
		q.sent(flow, w.Bytes)
		level.send(w.Bytes, finish)
		l.rewind(priority)
	}
	l.decided.push(d)
}
