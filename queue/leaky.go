package queue

import (
	"errors"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Leaky is a queue with a rate of its own, a leaky bucket. It is for one
// goroutine at a time.
type Leaky struct {
	cfg      Config
	capacity int // maximum backlog in packets; 0: not limited
	pace     pace
	dice     dice
	codel    codel
	backlog  ring[departure] // packets admitted and not yet departed; empty if capacity is 0
	bytes    int64           // bytes in backlog
	packets  int             // packets in backlog
}

type departure struct {
	at      int64 // ns, rounded up
	bytes   int64
	packets int
}

// New returns an empty queue. The error joins all errors in cfg, as
// meter.FieldErrors of rate, limit, wred and codel.
func New(cfg Config) (*Leaky, error) {
	p, err := newPace(cfg.Rate)
	if err := errors.Join(err, cfg.check()); err != nil {
		return nil, err
	}
	return &Leaky{
		cfg: cfg, capacity: cfg.Capacity(), pace: p, dice: dice{seed: cfg.Seed},
	}, nil
}

// Follow makes q continue the pacing of before, the queue it replaces. The packets queued in before
// do not count against q's limits.
func (q *Leaky) Follow(before *Leaky) { q.pace.follow(&before.pace) }

// Free returns the time from which the queue is free for later packets, ns; math.MinInt64 before the first.
func (q *Leaky) Free() int64 { return q.pace.free() }

// NotBefore makes the queue free at a time, ns, if it was free before.
func (q *Leaky) NotBefore(at int64) { q.pace.notBefore(at) }

// SetRate changes the rate. The queue is free at the time at which it would have been
// free; the backlog, CoDel and WRED continue. Nothing changes on an error, which is a
// meter.FieldError of rate.
func (q *Leaky) SetRate(rate meter.Rate) error {
	p, err := newPace(rate)
	if err != nil {
		return err
	}
	q.cfg.Rate = rate
	q.pace.change(&p)
	return nil
}

// SetCoDel changes the target and the interval of CoDel. Its state continues, unless it is switched on or
// off. Nothing changes on an error, which is a meter.FieldError of codel.
func (q *Leaky) SetCoDel(c CoDel) error {
	if reason := c.check(); reason != "" {
		return &meter.FieldError{Field: "codel", Reason: reason}
	}
	if q.cfg.CoDel.switches(c) {
		q.codel = codel{}
	}
	q.cfg.CoDel = c
	return nil
}

// Admit decides about a packet arriving at now (ns, on a clock which never goes back). If the
// packet is admitted, depart is its departure time, rounded up to a ns. Admit allocates only if the
// queue is limited in bytes or packets and more packets are queued than ever before.
func (q *Leaky) Admit(now int64, p Packet) (depart int64, f Fate) {
	depart, next, f := q.decide(now, p)
	if f.Dropped() {
		return 0, f
	}
	if q.capacity > 0 && depart > now {
		q.backlog.push(departure{depart, int64(p.Bytes), p.packets()})
		q.bytes += int64(p.Bytes)
		q.packets += p.packets()
	}
	q.pace.instant = next
	return depart, f
}

// Try is Admit for a packet that something else may still drop. A drop is final. Otherwise Try
// leaves the queue unchanged, and Admit at the same time returns the same fate.
func (q *Leaky) Try(now int64, p Packet) Fate {
	codel, dice := q.codel, q.dice
	_, _, f := q.decide(now, p)
	if !f.Dropped() {
		q.codel, q.dice = codel, dice
	}
	return f
}

// decide returns the departure of a packet, and the time at which the queue is free after
// it. It changes only CoDel and the number of random numbers.
func (q *Leaky) decide(now int64, p Packet) (depart int64, next instant, f Fate) {
	q.pace.notBefore(now) // without effect on later packets if this one is dropped
	depart = q.pace.due()
	delay := depart - now
	if q.capacity > 0 {
		q.removeDeparted(now)
	}
	next, ok := q.pace.after(p.Bytes)
	if !ok || q.full(delay, &p) {
		return 0, next, Full
	}
	depth := [...]int64{delay, q.bytes, int64(q.packets)}[q.cfg.Axis()]
	f = q.cfg.applyWRED(p, depth, &q.dice)
	if !f.Dropped() && q.codel.drops(&q.cfg.CoDel, depart, delay, p.packets()) {
		f = q.cfg.markOrDrop(p.ECN, Stale)
	}
	return depart, next, f
}

// Delay returns the queueing delay of a packet arriving at now.
func (q *Leaky) Delay(now int64) time.Duration {
	start := q.pace
	start.notBefore(now)
	return time.Duration(start.due() - now)
}

// full reports whether a packet with this delay, in ns, would exceed a limit.
func (q *Leaky) full(delay int64, p *Packet) bool {
	return q.cfg.Time > 0 && delay > int64(q.cfg.Time) ||
		q.cfg.Bytes > 0 && int64(p.Bytes) > q.cfg.Bytes-q.bytes ||
		q.capacity > 0 && q.packets+p.packets() > q.capacity
}

// removeDeparted removes the packets departed by now from the backlog.
func (q *Leaky) removeDeparted(now int64) {
	for q.backlog.len > 0 && q.backlog.item(0).at <= now {
		d := q.backlog.pop()
		q.bytes -= d.bytes
		q.packets -= d.packets
	}
}
