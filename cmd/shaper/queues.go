package main

import (
	"fmt"
	"math"
	"math/big"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// resolved is what a queue that compiled holds: on a link, times are bytes.
func resolved(q *dataplane.Queue) queue.Config {
	s, _ := q.Resolve()
	return s.Config
}

// part is a line about a queue.
type part struct{ key, text string }

// describeQueue writes all about a queue on one line.
func describeQueue(q *dataplane.Queue) string {
	var out []string
	for _, p := range queueParts(q) {
		out = append(out, p.key+" "+p.text)
	}
	return strings.Join(out, "; ")
}

// queueParts writes a queue in exact units.
func queueParts(q *dataplane.Queue) []part {
	var parts []part
	add := func(key, format string, args ...any) { parts = append(parts, part{key, fmt.Sprintf(format, args...)}) }
	if q.Link == nil {
		add("rate", "%v", q.Rate)
	} else {
		add("link", "%s, priority %d, weight %d", q.Link.Name, q.Priority, q.Share().Weight)
	}
	add("limit", "%s", describeLimit(q))
	if q.Fair.By != dataplane.NoKey {
		own := ""
		if q.CoDel != (queue.CoDel{}) {
			own = ", and codel of its own"
		}
		add("fair", "%v: each has an even part%s", q.Fair, own)
	}
	wred := resolved(q)
	for color, e := range q.WRED {
		if e == (queue.Early{}) {
			continue
		}
		r := wred.WRED[color]
		add("wred", "%v from %s to %s, probability %.6g", meter.Color(color), describeBacklog(q, e.Min, r.Min), describeBacklog(q, e.Max, r.Max), probability(e))
	}
	if q.CoDel != (queue.CoDel{}) {
		add("codel", "target %v, interval %v", q.CoDel.Target, q.CoDel.Interval)
	}
	if q.ECN {
		add("ecn", "CE instead of an early drop")
	}
	if q.Seed != 0 {
		add("seed", "%d", q.Seed)
	}
	return parts
}

func probability(e queue.Early) float64 { return float64(e.Probability) / queue.Certain }

// describeLimit also tells what a limit comes to: a time in bytes, bytes in time
// and packets.
func describeLimit(q *dataplane.Queue) string {
	rate, c := q.Drain(), resolved(q)
	switch q.Axis() {
	case queue.ByPackets:
		return fmt.Sprintf("%d packets (%s where each has 1500 B)", q.Packets, fillTime(q.Packets*1500, rate))
	case queue.ByBytes:
		return fmt.Sprintf("%d B (%s), at most %d packets", q.Bytes, fillTime(q.Bytes, rate), c.Capacity())
	}
	if q.Link != nil {
		return fmt.Sprintf("%v at the link's rate (%d B), at most %d packets", q.Time, c.Bytes, c.Capacity())
	}
	if n, fits := rate.Burst(q.Time); fits {
		return fmt.Sprintf("%v (%d B)", q.Time, n)
	}
	return q.Time.String()
}

// describeBacklog writes a threshold as the policy does, and on a link what a
// time comes to.
func describeBacklog(q *dataplane.Queue, n, bytes int64) string {
	switch q.Axis() {
	case queue.ByBytes:
		return fmt.Sprintf("%d B", n)
	case queue.ByPackets:
		return fmt.Sprintf("%d packets", n)
	}
	if q.Link != nil {
		return fmt.Sprintf("%v (%d B)", time.Duration(n), bytes)
	}
	return time.Duration(n).String()
}

// level is the queues of a link that have the same priority.
type level struct {
	priority int
	queues   []*dataplane.Queue
	weights  int // their sum
}

// levels are those of a link, in the order in which they are served.
func levels(link *dataplane.Link, queues []*dataplane.Queue) []level {
	var out []level
	for priority := range queue.MaxPriority + 1 {
		l := level{priority: priority}
		for _, q := range queues {
			if q.Link == link && q.Priority == priority {
				l.queues = append(l.queues, q)
				l.weights += q.Share().Weight
			}
		}
		if l.queues != nil {
			out = append(out, l)
		}
	}
	return out
}

// service is what a queue of a link gets for sure, of what the queues served
// before it leave.
type service struct {
	part   *big.Rat // of the link's rate
	wait   *big.Rat // ns, at most; the queue is full, and others are busy. Nil for a fair queue
	before []*dataplane.Queue
}

// serviceOf follows from what queue.Link promises, with packets of up to mtu
// bytes. A queue that shares its priority pays for the packet that it has just
// sent, too: that may have gone at once, ahead of its part. In a fair queue
// packets of other flows go first, so nothing bounds the wait.
func serviceOf(q *dataplane.Queue, queues []*dataplane.Queue, mtu int64) service {
	var s service
	paid, sending := int64(0), mtu // bytes
	for _, l := range levels(q.Link, queues) {
		switch {
		case l.priority < q.Priority:
			s.before = append(s.before, l.queues...)
		case l.priority > q.Priority:
			sending += paid // one of theirs may be on its way first
		default:
			s.part = big.NewRat(int64(q.Share().Weight), int64(l.weights))
			if len(l.queues) > 1 {
				paid = mtu
			}
		}
	}
	if q.Fair.By != dataplane.NoKey {
		return s
	}
	c := resolved(q)
	bytes := c.Bytes
	if n := int64(c.Capacity()) * mtu; bytes == 0 || n < bytes {
		bytes = n
	}
	s.wait = new(big.Rat).Quo(big.NewRat(bytes+paid, 1), s.part)
	s.wait.Add(s.wait, big.NewRat(sending, 1))
	s.wait.Mul(s.wait, big.NewRat(int64(q.Link.Rate.Period), q.Link.Rate.Bytes))
	return s
}

// wholeNS is a time in ns, rounded up, at most what an int64 holds.
func wholeNS(ns *big.Rat) int64 {
	n := new(big.Int).Add(ns.Num(), ns.Denom())
	n.Sub(n, big.NewInt(1)).Quo(n, ns.Denom())
	if !n.IsInt64() {
		return math.MaxInt64
	}
	return n.Int64()
}

// atMost writes a time in ns with three digits, rounded up.
func atMost(ns *big.Rat) string {
	n, digit := uint64(wholeNS(ns)), uint64(1)
	for n/digit >= 1000 {
		digit *= 10
	}
	up := (n + digit - 1) / digit * digit
	return duration(new(big.Rat).SetUint64(up)) + " at most"
}

// parts are lines about it.
func (s service) parts(q *dataplane.Queue) []part {
	gets, waits := "at least "+portion(q.Link.Rate, s.part), ""
	if s.wait != nil {
		waits = atMost(s.wait)
	}
	if s.before != nil {
		var names []string
		for _, b := range s.before {
			names = append(names, b.Name)
		}
		before := strings.Join(names, ", ")
		gets += " while " + before + " sends nothing"
		waits += ", plus the time in which " + before + " sends"
	}
	if s.wait == nil {
		return []part{{"gets", gets}}
	}
	return []part{{"gets", gets}, {"waits", waits}}
}

// describeLevel writes what part of a rate each queue gets while all of its
// priority are busy.
func describeLevel(l level, rate meter.Rate) string {
	var out []string
	for _, q := range l.queues {
		share := big.NewRat(int64(q.Share().Weight), int64(l.weights))
		if share.IsInt() {
			out = append(out, q.Name+" all of it")
			continue
		}
		out = append(out, fmt.Sprintf("%s %v (%v)", q.Name, share, portion(rate, share)))
	}
	return strings.Join(out, ", ")
}

// portion is a part of a rate, to three digits where it is no whole number of
// bits.
func portion(r meter.Rate, share *big.Rat) string {
	bits := big.NewRat(r.Bytes, int64(r.Period))
	bits.Mul(bits, share).Mul(bits, big.NewRat(8e9, 1))
	if bits.IsInt() && bits.Num().IsInt64() {
		return meter.BitRate(bits.Num().Int64()).String()
	}
	about, _ := bits.Float64()
	return "about " + speed(int64(about)) + "bit/s"
}
