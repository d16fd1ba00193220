package queue

import (
	"errors"
	"fmt"
	"math"
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
	Priority int // 0 is served first, MaxPriority last
	Weight   int // of the link among those of its priority, 1 to MaxWeight
}

// Quantum is how many bytes a weight of one may send before others of its
// priority have their turn: an Ethernet frame of 1500 bytes.
const Quantum = 1514

// Link is a rate that queues share: those of a lower priority number first,
// those of the same one by deficit round robin (Shreedhar and Varghese 1996). A
// queue may use what others leave. T is what the caller knows of a packet. A
// Link is for one goroutine at a time.
type Link[T any] struct {
	pace    pace
	queues  []share[T]
	active  [MaxPriority + 1]ring[int32] // queues that have packets, in their turn
	waiting int                          // packets
	decided ring[Decision[T]]
}

// share is a queue at work.
type share[T any] struct {
	Share
	capacity int
	dice     dice
	codel    codel
	packets  ring[waiting[T]]
	bytes    int64
	deficit  int64
	fresh    bool // its turn begins
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
		l.queues[i] = share[T]{Share: s, capacity: s.Capacity(), dice: dice{seed: s.Seed}, codel: newCoDel(s.CoDel)}
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
// allocates only where more packets wait than ever before.
func (l *Link[T]) Admit(now int64, queue int, p Packet, value T) Fate {
	l.run(now)
	q := &l.queues[queue]
	if q.Bytes > 0 && q.bytes+int64(p.Bytes) > q.Bytes || q.packets.len >= q.capacity {
		return Full
	}
	backlog := q.bytes
	if q.Axis() == ByPackets {
		backlog = int64(q.packets.len)
	}
	f := q.early(p, backlog, &q.dice)
	if f.Dropped() {
		return f
	}
	if q.packets.len == 0 {
		q.deficit, q.fresh = 0, true
		l.active[q.Priority].push(int32(queue))
	}
	q.packets.push(waiting[T]{p, now, f, value})
	q.bytes += int64(p.Bytes)
	l.waiting++
	l.pace.from(now)
	l.run(now)
	return f
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
	return int64(q.packets.len), q.bytes
}

// run makes the choices of all times up to now.
func (l *Link[T]) run(now int64) {
	for l.waiting > 0 && l.pace.due() <= now {
		w, q := l.choose()
		l.waiting--
		depart := l.pace.due()
		d := Decision[T]{w.value, depart, w.fate}
		next, ok := l.pace.after(w.Bytes)
		switch {
		case !ok:
			d.Fate = Full
		case q.codel.takes(depart, depart-w.came):
			d.Fate = q.victim(w.Packet, Stale)
		}
		if d.Fate.Dropped() {
			q.deficit += int64(w.Bytes)
		} else {
			l.pace = next
		}
		l.decided.push(d)
	}
}

// choose takes the packet that is next out of its queue.
func (l *Link[T]) choose() (waiting[T], *share[T]) {
	level := 0
	for l.active[level].len == 0 {
		level++
	}
	turns := &l.active[level]
	for visits := 0; ; visits++ {
		if visits == turns.len {
			l.skip(turns)
		}
		q := &l.queues[*turns.at(0)]
		if q.fresh {
			q.deficit += int64(q.Weight) * Quantum
			q.fresh = false
		}
		if n := int64(q.packets.at(0).Bytes); n <= q.deficit {
			q.deficit -= n
			q.bytes -= n
			w := q.packets.pop()
			if q.packets.len == 0 {
				turns.pop()
			}
			return w, q
		}
		q.fresh = true
		turns.push(turns.pop())
	}
}

// skip is all the rounds in which no queue could send, at once: a packet may be
// much longer than a quantum.
func (l *Link[T]) skip(turns *ring[int32]) {
	rounds := int64(math.MaxInt64)
	for i := range turns.len {
		q := &l.queues[*turns.at(i)]
		rounds = min(rounds, (int64(q.packets.at(0).Bytes)-q.deficit-1)/(int64(q.Weight)*Quantum))
	}
	for i := range turns.len {
		q := &l.queues[*turns.at(i)]
		q.deficit += rounds * int64(q.Weight) * Quantum
	}
}
