package say

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// resolved returns the limits of a compiled queue. On a link, times have become bytes.
func resolved(q *dataplane.Queue) queue.Config {
	s, _ := q.Resolve()
	return s.Config
}

// Part is a line of a description.
type Part struct{ Key, Text string }

// Queue writes a queue of a policy with the given queues on one line.
func Queue(q *dataplane.Queue, queues []*dataplane.Queue) string {
	var out []string
	for _, p := range QueueParts(q, queues) {
		out = append(out, p.Key+" "+p.Text)
	}
	return strings.Join(out, "; ")
}

// OwnLink reports whether a queue of a policy with the given queues is alone on a link of its own name.
// For people, this link is the rate of the fair queue.
func OwnLink(q *dataplane.Queue, queues []*dataplane.Queue) bool {
	none := meter.Rate{}
	if q.Link == nil || q.Link.Name != q.Name || q.Fair.By == dataplane.NoKey || q.Priority != 0 ||
		q.LinkQueue().Weight != 1 || q.Rate != none || q.Guarantee != none || q.Link.Link != nil ||
		q.Up != (dataplane.Upward{}) {
		return false
	}
	return alone(q, queues)
}

// alone reports whether no other queue is on the link of a queue or below it.
func alone(q *dataplane.Queue, queues []*dataplane.Queue) bool {
	return !slices.ContainsFunc(queues, func(other *dataplane.Queue) bool {
		return other != q && other.Link != nil && below(other.Link, q.Link)
	})
}

// below reports whether a link is l or below it.
func below(link, l *dataplane.Link) bool {
	for link != nil && link != l {
		link = link.Link
	}
	return link != nil
}

// SharedLinks returns the links of a policy, except for the own ones of queues.
func SharedLinks(p *dataplane.Policy) []*dataplane.Link {
	return slices.DeleteFunc(slices.Clone(p.Links), func(l *dataplane.Link) bool {
		return slices.ContainsFunc(p.Queues,
			func(q *dataplane.Queue) bool { return q.Link == l && OwnLink(q, p.Queues) })
	})
}

// QueueParts writes a queue of a policy with the given queues in exact units, for both directions.
func QueueParts(q *dataplane.Queue, queues []*dataplane.Queue) []Part {
	own := OwnLink(q, queues)
	parts := queueParts(q, own)
	if up := q.Upward(); up != nil {
		parts = Both(parts, queueParts(up, own))
	}
	return parts
}

// queueParts writes a queue for packets to the customers. own means that its link serves it alone.
func queueParts(q *dataplane.Queue, own bool) []Part {
	var parts []Part
	add := func(key, format string, args ...any) {
		parts = append(parts, Part{key, fmt.Sprintf(format, args...)})
	}
	if q.Link == nil || own {
		add("rate", "%v", q.Drain())
	} else {
		add("link", "%s, priority %d, weight %d", Path(q.Link), q.Priority, q.LinkQueue().Weight)
		if q.Rate != (meter.Rate{}) {
			add("rate", "%v", q.Rate)
		}
	}
	if q.Guarantee != (meter.Rate{}) {
		add("guarantee", "%v", q.Guarantee)
	}
	add("limit", "%s", describeLimit(q, own))
	if q.Fair.By != dataplane.NoKey {
		each := ""
		if q.CoDel != (queue.CoDel{}) {
			each = ", with its own codel"
		}
		if q.Hosts.By != dataplane.NoKey {
			add("fair", "%v, %v: an equal share for each %[1]v, and in it for each %[2]v%s", q.Hosts, q.Fair, each)
		} else {
			add("fair", "%v: an equal share for each%s", q.Fair, each)
		}
	}
	wred := resolved(q)
	for color, e := range q.WRED {
		if e == (queue.Early{}) {
			continue
		}
		r := wred.WRED[color]
		add("wred", "%v from %s to %s, probability %.6g", meter.Color(color),
			describeBacklog(q, e.Min, r.Min), describeBacklog(q, e.Max, r.Max), Probability(e))
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
	known := []string{
		"Name", "Rate", "Time", "Bytes", "Packets", "WRED", "Seed", "CoDel", "ECN", "TargetAtRate",
		"IntervalAtRate", "Link", "Guarantee", "Up",
	}
	if q.Link != nil {
		known = append(known, "Priority", "Weight")
	}
	if q.Fair.By != dataplane.NoKey {
		known = append(known, "Fair", "Hosts")
	}
	return append(parts, Rest(q, known...)...)
}

// Probability returns the drop probability of WRED at its maximum threshold.
func Probability(e queue.Early) float64 { return float64(e.Probability) / queue.Certain }

// describeLimit writes a limit with its equivalents: a time in bytes, bytes in time and packets.
// own means that the link serves this queue alone.
func describeLimit(q *dataplane.Queue, own bool) string {
	rate, c := q.Drain(), resolved(q)
	switch q.Axis() {
	case queue.ByPackets:
		return fmt.Sprintf("%d packets (%s if each has 1500 B)", q.Packets, FillTime(q.Packets*1500, rate))
	case queue.ByBytes:
		return fmt.Sprintf("%d B (%s), at most %d packets", q.Bytes, FillTime(q.Bytes, rate), c.Capacity())
	}
	switch {
	case own:
		return fmt.Sprintf("%v (%d B), at most %d packets", q.Time, c.Bytes, c.Capacity())
	case q.Link != nil && rate == q.Link.Rate:
		return fmt.Sprintf("%v at the link's rate (%d B), at most %d packets", q.Time, c.Bytes, c.Capacity())
	case q.Link != nil:
		return fmt.Sprintf("%v at %v (%d B), at most %d packets", q.Time, rate, c.Bytes, c.Capacity())
	}
	if n, fits := rate.Burst(q.Time); fits {
		return fmt.Sprintf("%v (%d B)", q.Time, n)
	}
	return q.Time.String()
}

// describeBacklog writes a threshold in the unit of the policy. On a link a time is followed by its
// bytes in parentheses.
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

// PriorityLevel lists the queues of a link with one priority.
type PriorityLevel struct {
	Priority int
	Queues   []*dataplane.Queue
	weights  int // sum
}

// Levels returns the priorities of a link in the order of service.
func Levels(link *dataplane.Link, queues []*dataplane.Queue) []PriorityLevel {
	var out []PriorityLevel
	for priority := range queue.MaxPriority + 1 {
		l := PriorityLevel{Priority: priority}
		for _, q := range queues {
			if q.Link == link && q.Priority == priority {
				l.Queues = append(l.Queues, q)
				l.weights += q.LinkQueue().Weight
			}
		}
		if l.Queues != nil {
			out = append(out, l)
		}
	}
	return out
}

// Service is the guaranteed service of a queue of a link while the queues served before it
// send nothing.
type Service struct {
	Part   *big.Rat           // guaranteed part of the link's rate
	Wait   *big.Rat           // maximum queueing delay, ns, if all queues are busy; nil for a fair queue
	Before []*dataplane.Queue // queues of higher priority
}

// ServiceOf derives the service of a queue of a flat link (see Node.Flat) from the guarantees of
// queue.Link, for packets of up to mtu bytes. The bound of a queue sharing its priority includes the
// packet it sent last, because it may have been sent ahead of the queue's part. In a fair queue, packets
// of other flows are sent first, so its delay is unbounded.
func ServiceOf(q *dataplane.Queue, queues []*dataplane.Queue, mtu int64) Service {
	var s Service
	paid, sending := int64(0), mtu // bytes
	for _, l := range Levels(q.Link, queues) {
		switch {
		case l.Priority < q.Priority:
			s.Before = append(s.Before, l.Queues...)
		case l.Priority > q.Priority:
			sending += paid // a packet of lower priority may be on the link already
		default:
			s.Part = big.NewRat(int64(q.LinkQueue().Weight), int64(l.weights))
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

// WholeNS rounds a time in ns up, to at most the largest int64.
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
	return "at most " + duration(float64(up))
}

// Parts describes the service of q.
func (s Service) Parts(q *dataplane.Queue) []Part {
	rate, delay := "at least "+portion(q.Link.Rate, s.Part), ""
	if s.Wait != nil {
		delay = atMost(s.Wait)
	}
	if s.Before != nil {
		var names []string
		for _, b := range s.Before {
			names = append(names, b.Name)
		}
		before := strings.Join(names, ", ")
		rate += " while " + before + " sends nothing"
		delay += ", plus the time during which " + before + " sends"
	}
	if s.Wait == nil {
		return []Part{{"rate", rate}}
	}
	return []Part{{"rate", rate}, {"delay", delay}}
}

// Level writes each queue's part of a rate while all queues of the priority are busy.
func Level(l PriorityLevel, rate meter.Rate) string {
	var out []string
	for _, q := range l.Queues {
		share := big.NewRat(int64(q.LinkQueue().Weight), int64(l.weights))
		if share.IsInt() {
			out = append(out, q.Name+" all")
			continue
		}
		out = append(out, fmt.Sprintf("%s %v (%v)", q.Name, share, portion(rate, share)))
	}
	return strings.Join(out, ", ")
}

// portion writes a part of a rate, with three digits if it is not a whole number of bit/s.
func portion(r meter.Rate, share *big.Rat) string {
	bits := big.NewRat(r.Bytes, int64(r.Period))
	bits.Mul(bits, share).Mul(bits, big.NewRat(8e9, 1))
	if bits.IsInt() && bits.Num().IsInt64() {
		return meter.BitRate(bits.Num().Int64()).String()
	}
	about, _ := bits.Float64()
	return "about " + Speed(int64(about)) + "bit/s"
}
