package queue

import (
	"errors"
	"time"
)

// Leaky is a leaky bucket as a queue. It is for one goroutine at a time.
type Leaky struct {
	cfg      Config
	capacity int // packets, 0 for any number
	pace     pace
	dice     dice
	codel    codel
	waiting  ring[departure] // kept only where there is a capacity
	bytes    int64           // waiting
}

type departure struct {
	at    int64 // ns, rounded up
	bytes int64
}

// New returns an empty queue. The error joins all that is wrong with cfg, as
// meter.FieldErrors of rate, limit, wred and codel.
func New(cfg Config) (*Leaky, error) {
	p, err := newPace(cfg.Rate)
	if err := errors.Join(err, cfg.check()); err != nil {
		return nil, err
	}
	return &Leaky{cfg: cfg, capacity: cfg.Capacity(), pace: p, dice: dice{seed: cfg.Seed}, codel: newCoDel(cfg.CoDel)}, nil
}

// Follow makes the queue free when another would have been, whose place it
// takes. What waits there does not count here.
func (q *Leaky) Follow(before *Leaky) { q.pace.follow(&before.pace) }

// Admit asks for the departure of a packet that came at now (ns, on a clock
// that does not go back). It returns the time to send it, rounded up to a ns,
// unless it is dropped. It allocates only where a limit in bytes or packets
// lets more packets wait than ever before.
func (q *Leaky) Admit(now int64, p Packet) (depart int64, f Fate) {
	at := q.pace
	at.from(now)
	depart = at.due()
	wait := depart - now
	if q.capacity > 0 {
		q.leave(now)
	}
	next, ok := at.after(p.Bytes)
	if !ok || q.full(wait, int64(p.Bytes)) {
		return 0, Full
	}
	backlog := [...]int64{wait, q.bytes, int64(q.waiting.len)}[q.cfg.Axis()]
	f = q.cfg.early(p, backlog, &q.dice)
	if !f.Dropped() && q.codel.takes(depart, wait) {
		f = q.cfg.victim(p, Stale)
	}
	if f.Dropped() {
		return 0, f
	}
	if q.capacity > 0 && wait > 0 {
		q.waiting.push(departure{depart, int64(p.Bytes)})
		q.bytes += int64(p.Bytes)
	}
	q.pace = next
	return depart, f
}

// Delay is how long a packet would wait that came at now.
func (q *Leaky) Delay(now int64) time.Duration {
	at := q.pace
	at.from(now)
	return time.Duration(at.due() - now)
}

// full says whether a packet of n bytes that would wait breaks a limit.
func (q *Leaky) full(wait, n int64) bool {
	return q.cfg.Time > 0 && wait > int64(q.cfg.Time) ||
		q.cfg.Bytes > 0 && q.bytes+n > q.cfg.Bytes ||
		q.capacity > 0 && q.waiting.len >= q.capacity
}

// leave forgets the packets that have left by now.
func (q *Leaky) leave(now int64) {
	for q.waiting.len > 0 && q.waiting.at(0).at <= now {
		q.bytes -= q.waiting.pop().bytes
	}
}
