package say

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

// Part is a line about a queue.
type Part struct{ Key, Text string }

// Queue writes all about a queue on one line.
func Queue(q *dataplane.Queue) string {
	var out []string
	for _, p := range QueueParts(q) {
		out = append(out, p.Key+" "+p.Text)
	}
	return strings.Join(out, "; ")
}

// QueueParts writes a queue in exact units.
func QueueParts(q *dataplane.Queue) []Part {
	var parts []Part
	add := func(key, format string, args ...any) { parts = append(parts, Part{key, fmt.Sprintf(format, args...)}) }
	if q.Link == nil {
		add("rate", "%v", q.Rate)
	} else {
		add("link", "%s, priority %d, weight %d", q.Link.Name, q.Priority, q.Share().Weight)
	}
	add("limit", "%s", describeLimit(q))
	if q.Fair.By != dataplane.NoKey {
		own := ""
		if q.CoDel != (queue.CoDel{}) {
			own = ", with its own codel"
		}
		add("fair", "%v: an equal share for each%s", q.Fair, own)
	}
	wred := resolved(q)
	for color, e := range q.WRED {
		if e == (queue.Early{}) {
			continue
		}
		r := wred.WRED[color]
		add("wred", "%v from %s to %s, probability %.6g", meter.Color(color), describeBacklog(q, e.Min, r.Min), describeBacklog(q, e.Max, r.Max), Probability(e))
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

func Probability(e queue.Early) float64 { return float64(e.Probability) / queue.Certain }

// describeLimit also tells what a limit comes to: a time in bytes, bytes in time
// and packets.
func describeLimit(q *dataplane.Queue) string {
	rate, c := q.Drain(), resolved(q)
	switch q.Axis() {
	case queue.ByPackets:
		return fmt.Sprintf("%d packets (%s if each has 1500 B)", q.Packets, FillTime(q.Packets*1500, rate))
	case queue.ByBytes:
		return fmt.Sprintf("%d B (%s), at most %d packets", q.Bytes, FillTime(q.Bytes, rate), c.Capacity())
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

// PriorityLevel is the queues of a link that have the same priority.
type PriorityLevel struct {
	Priority int
	Queues   []*dataplane.Queue
	weights  int // their sum
}

// Levels are those of a link, in the order in which they are served.
func Levels(link *dataplane.Link, queues []*dataplane.Queue) []PriorityLevel {
	var out []PriorityLevel
	for priority := range queue.MaxPriority + 1 {
		l := PriorityLevel{Priority: priority}
		for _, q := range queues {
			if q.Link == link && q.Priority == priority {
				l.Queues = append(l.Queues, q)
				l.weights += q.Share().Weight
			}
		}
		if l.Queues != nil {
			out = append(out, l)
		}
	}
	return out
}

// Service is what a queue of a link gets for sure, of what the queues served
// before it leave.
type Service struct {
	Part   *big.Rat // of the link's rate
	Wait   *big.Rat // ns, at most; the queue is full, and others are busy. Nil for a fair queue
	Before []*dataplane.Queue
}

// ServiceOf follows from what queue.Link promises, with packets of up to mtu
// bytes. A queue that shares its priority pays for the packet that it has just
// sent, too: that may have gone at once, ahead of its part. In a fair queue
// packets of other flows go first, so nothing bounds the wait.
func ServiceOf(q *dataplane.Queue, queues []*dataplane.Queue, mtu int64) Service {
	var s Service
	paid, sending := int64(0), mtu // bytes
	for _, l := range Levels(q.Link, queues) {
		switch {
		case l.Priority < q.Priority:
			s.Before = append(s.Before, l.Queues...)
		case l.Priority > q.Priority:
			sending += paid // one of theirs may be on its way first
		default:
			s.Part = big.NewRat(int64(q.Share().Weight), int64(l.weights))
			if len(l.Queues) > 1 {
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
	s.Wait = new(big.Rat).Quo(big.NewRat(bytes+paid, 1), s.Part)
	s.Wait.Add(s.Wait, big.NewRat(sending, 1))
	s.Wait.Mul(s.Wait, big.NewRat(int64(q.Link.Rate.Period), q.Link.Rate.Bytes))
	return s
}

// WholeNS is a time in ns, rounded up, at most what an int64 holds.
func WholeNS(ns *big.Rat) int64 {
	n := new(big.Int).Add(ns.Num(), ns.Denom())
	n.Sub(n, big.NewInt(1)).Quo(n, ns.Denom())
	if !n.IsInt64() {
		return math.MaxInt64
	}
	return n.Int64()
}

// atMost writes a time in ns with three digits, rounded up.
func atMost(ns *big.Rat) string {
	n, digit := uint64(WholeNS(ns)), uint64(1)
	for n/digit >= 1000 {
		digit *= 10
	}
	up := (n + digit - 1) / digit * digit
	return "at most " + duration(new(big.Rat).SetUint64(up))
}

// Parts are lines about it.
func (s Service) Parts(q *dataplane.Queue) []Part {
	gets, waits := "at least "+portion(q.Link.Rate, s.Part), ""
	if s.Wait != nil {
		waits = atMost(s.Wait)
	}
	if s.Before != nil {
		var names []string
		for _, b := range s.Before {
			names = append(names, b.Name)
		}
		before := strings.Join(names, ", ")
		gets += " while " + before + " sends nothing"
		waits += ", plus the time during which " + before + " sends"
	}
	if s.Wait == nil {
		return []Part{{"gets", gets}}
	}
	return []Part{{"gets", gets}, {"delay", waits}}
}

// Level writes what part of a rate each queue gets while all of its
// priority are busy.
func Level(l PriorityLevel, rate meter.Rate) string {
	var out []string
	for _, q := range l.Queues {
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
	return "about " + Speed(int64(about)) + "bit/s"
}
