package queue

import (
	"errors"
	"fmt"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Bounds of a LinkQueue's priority and weight.
const (
	MaxPriority = 7
	MaxWeight   = 1000
)

// LinkQueue configures a queue of a Link. It is sent at the link's rate.
type LinkQueue struct {
	Config
	Priority int  // 0 is served first, MaxPriority last
	Weight   int  // weight among the queues of its priority, 1 to MaxWeight
	Fair     Fair // what shares the queue evenly
}

// Link is a rate shared by queues: lower priority numbers first, queues of the same priority by
// weight (WF2Q+; Bennett and Zhang 1997). Bandwidth unused by a queue goes to the others. A queue
// lags its part of the bytes sent at its priority by at most the longest packet, whatever the scale
// of the weights. T is the caller's value for a packet. A Link is for one goroutine at a time.
type Link[T any] struct {
	pace    pace
	queues  []queueState[T]
	levels  [MaxPriority + 1]level
	sending *level // level of the packet being sent
	backlog int    // backlog of all queues, packets
	decided ring[Decision[T]]
}

// queueState is a LinkQueue with its state.
type queueState[T any] struct {
	LinkQueue
	flows[T]
	capacity int
	dice     dice
	start    int64 // virtual time of its first packet; if empty, the finish of its last one
}

// Decision is the outcome for an admitted packet.
type Decision[T any] struct {
	Value  T
	Depart int64 // ns, rounded up
	Fate   Fate
}

// NewLink returns an idle link. The error joins all errors, as
// meter.FieldErrors of the link's rate and those of LinkQueue.Resolve.
func NewLink[T any](rate meter.Rate, queues []LinkQueue) (*Link[T], error) {
	p, err := newPace(rate)
	if err != nil {
		return nil, err
	}
	l := &Link[T]{pace: p, queues: make([]queueState[T], len(queues))}
	backlogs := new(store[T])
	for i, s := range queues {
		s, invalid := s.Resolve(rate)
		if invalid != nil {
			err = errors.Join(err, invalid)
			continue
		}
		l.queues[i] = queueState[T]{
			LinkQueue: s, flows: newFlows(&s, backlogs), capacity: s.Capacity(), dice: dice{seed: s.Seed},
		}
		l.levels[s.Priority].weight += int64(s.Weight)
	}
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Resolve converts limits in time to bytes at the rate of a link, which must be
// valid. The error joins all errors, as meter.FieldErrors of rate, limit, wred,
// codel, priority and weight.
func (s LinkQueue) Resolve(rate meter.Rate) (LinkQueue, error) {
	err := s.check()
	add := func(field, reason string) {
		err = errors.Join(err, &meter.FieldError{Field: field, Reason: reason})
	}
	if s.Rate != (meter.Rate{}) {
		add("rate", "must not be set: a queue on a link is sent at the link's rate")
	}
	if s.Priority < 0 || s.Priority > MaxPriority {
		add("priority", fmt.Sprintf("%d is not between 0 and %d", s.Priority, MaxPriority))
	}
	if s.Weight < 1 || s.Weight > MaxWeight {
		add("weight", fmt.Sprintf("%d is not between 1 and %d", s.Weight, MaxWeight))
	}
	if err != nil || s.Time == 0 {
		return s, err
	}
	limit := bytesDuring(rate, s.Time)
	if limit == 0 {
		add("limit", fmt.Sprintf("of %v is less than a byte at the link's rate of %v", s.Time, rate))
	}
	if s.Bytes == 0 || limit < s.Bytes {
		s.Bytes = limit
	}
	s.Time = 0
	for i := range s.WRED {
		e := &s.WRED[i]
		if e.Max > 0 && bytesDuring(rate, time.Duration(e.Max)) == 0 {
			add("wred", fmt.Sprintf("max of %v is less than a byte at the link's rate of %v",
				time.Duration(e.Max), rate))
		}
		e.Min, e.Max = bytesDuring(rate, time.Duration(e.Min)), bytesDuring(rate, time.Duration(e.Max))
	}
	return s, err
}

// bytesDuring returns the number of whole bytes in a time at a rate, at most 2^39-1.
func bytesDuring(r meter.Rate, t time.Duration) int64 {
	n, ok := r.Burst(t)
	if !ok || n >= maxThreshold {
		return maxThreshold - 1
	}
	return n
}

// Follow makes l continue the pacing of before, the link it replaces. Call it after before decided
// all its packets.
func (l *Link[T]) Follow(before *Link[T]) { l.pace.follow(&before.pace) }

// SetRate changes the rate at now, in ns, and converts the queues' limits in time to bytes at this
// rate. queues may differ from those of NewLink only in CoDel, whose state continues unless it is
// switched on or off. The packet being sent ends when it would have ended. Queued packets stay
// queued, even above a smaller limit, and are sent at the new rate. Nothing changes on an error,
// which is one of NewLink.
func (l *Link[T]) SetRate(now int64, rate meter.Rate, queues []LinkQueue) error {
	p, err := newPace(rate)
	if err != nil {
		return err
	}
	resolved := make([]LinkQueue, len(queues))
	for i, s := range queues {
		s, invalid := s.Resolve(rate)
		resolved[i], err = s, errors.Join(err, invalid)
	}
	if err != nil {
		return err
	}
	l.run(now)
	l.pace.change(&p)
	for i, s := range resolved {
		q := &l.queues[i]
		if q.CoDel.switches(s.CoDel) {
			q.resetCoDel()
		}
		q.Bytes, q.WRED, q.CoDel, q.capacity = s.Bytes, s.WRED, s.CoDel, s.Capacity()
	}
	return nil
}

// Admit adds a packet arriving at now (ns, on a clock which never goes back) to a queue, or drops
// it. Only a drop is final: Decide returns the outcome of an admitted packet, including any mark.
// Admit allocates only if more packets or more flows are queued on the link than ever before.
//
// A full fair queue drops the first packet of the flow with the largest backlog
// in bytes, not the arriving packet. With FairHosts it is the flow of the host with the
// largest backlog.
func (l *Link[T]) Admit(now int64, queue int, p Packet, value T) Fate {
	l.run(now)
	q := &l.queues[queue]
	tooLarge := q.Bytes > 0 && int64(p.Bytes) > q.Bytes || p.packets() > q.capacity
	if int64(p.Bytes) > MaxBytes || q.full(&p) && (q.Fair == FairNone || tooLarge) {
		return Full
	}
	depth := q.bytes
	if q.Axis() == ByPackets {
		depth = int64(q.packets)
	}
	f := q.applyWRED(p, depth, &q.dice)
	if f.Dropped() {
		return f
	}
	idle := q.packets == 0
	for q.full(&p) {
		victim := q.shed()
		l.backlog--
		l.decided.push(Decision[T]{victim.value, now, Full})
	}
	if idle {
		q.start = l.levels[q.Priority].activate(queue, q.start)
	}
	q.push(now, &p, f, value)
	l.backlog++
	l.pace.notBefore(now)
	l.run(now)
	return f
}

// full reports whether a packet would exceed a limit.
func (q *queueState[T]) full(p *Packet) bool {
	return q.Bytes > 0 && q.bytes+int64(p.Bytes) > q.Bytes || q.packets+p.packets() > q.capacity
}

// Decide returns the next decision made by now, in order of departure, or false if
// there is none. now must not be before the last Admit.
func (l *Link[T]) Decide(now int64) (d Decision[T], ok bool) {
	l.run(now)
	if l.decided.len == 0 {
		return d, false
	}
	return l.decided.pop(), true
}

// Due returns the time of the next decision, in ns, or false if none is pending.
func (l *Link[T]) Due() (at int64, ok bool) {
	if l.decided.len > 0 {
		return l.decided.item(0).Depart, true
	}
	return l.pace.due(), l.backlog > 0
}

// Backlog returns the backlog of a queue.
func (l *Link[T]) Backlog(queue int) (packets, bytes int64) {
	q := &l.queues[queue]
	return int64(q.packets), q.bytes
}

// run makes all selections due by now.
func (l *Link[T]) run(now int64) {
	for l.pace.due() <= now {
		if l.sending != nil {
			l.sending.finishPacket()
		}
		if l.backlog == 0 {
			return
		}
		l.send()
	}
}

// send selects the next packet and sends it, unless CoDel drops it. A drop is
// not charged to its queue.
func (l *Link[T]) send() {
	priority := 0
	for len(l.levels[priority].active) == 0 {
		priority++
	}
	level := &l.levels[priority]
	index, finish := l.choose(level)
	q := &l.queues[level.active[index]]
	p, flow := q.pop()
	l.backlog--
	if q.packets == 0 {
		level.deactivate(index)
	}
	depart := l.pace.due()
	delay := depart - p.arrived
	if flow.bytes <= Quantum {
		delay = 0 // CoDel spares the last frame of a flow (RFC 8289 §5)
	}
	d := Decision[T]{p.value, depart, p.fate}
	next, ok := l.pace.after(int(p.bytes))
	switch {
	case !ok:
		d.Fate = Full
	case q.codelDrops(flow, &q.CoDel, depart, delay, &p):
		d.Fate = q.markOrDrop(p.ecn, Stale)
	}
	if !d.Fate.Dropped() {
		l.pace.instant, l.sending = next, level
		q.start = finish
		q.charge(flow, int64(p.bytes))
		level.startPacket(int64(p.bytes), finish)
		l.rewind(priority)
	}
	l.decided.push(d)
}
