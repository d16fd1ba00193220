package lint

import (
	"fmt"
	"maps"
	"math/big"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// queues checks every queue and every link.
func (l *linter) queues() {
	for _, q := range l.File.Policy.Queues {
		l.queueLimit(q)
		if text := l.longBacklog(&q.Config, q.Drain()); text != "" {
			l.add(Warning, q, "limit", "queue %s: %s", q.Name, text)
		}
		l.codelTarget(q, &q.Config, q.Drain())
		l.wredOrder(q)
		l.ecnAlone(q, "queue "+q.Name, &q.Config)
		if q.Seed != 0 && q.WRED == [3]queue.Early{} && q.Fair.By == dataplane.NoKey {
			l.add(Note, q, "seed", "seed of queue %s has no effect: only wred and fair use it", q.Name)
		}
	}
	l.planQueues()
	for _, root := range say.NewTrees(l.File.Policy).Roots {
		if root.Children == nil && !l.File.Policy.CustomersOnLinks() {
			l.add(Note, root.Link, "", "no queue uses link %s", root.Name())
		}
		root.Walk(func(n *say.Node) {
			if n.Link != nil {
				l.starvation(n)
				l.guarantees(n)
			}
		})
	}
}

// packetTime returns the transmission time of a packet of the MTU at a rate, rounded up.
func (l *linter) packetTime(r meter.Rate) time.Duration {
	ns := big.NewRat(int64(r.Period), r.Bytes)
	return time.Duration(say.WholeNS(ns.Mul(ns, big.NewRat(l.MTU, 1))))
}

// queueLimit finds limits exceeded by a packet of the MTU, alone or behind another one.
func (l *linter) queueLimit(q *dataplane.Queue) {
	r := q.Drain()
	if q.Bytes > 0 && q.Bytes < l.MTU {
		l.add(Warning, q, "limit",
			"limit of %d B is below the MTU: a packet of %d bytes never enters queue %s", q.Bytes, l.MTU,
			q.Name)
	}
	switch {
	case q.Time == 0:
	case q.Link == nil:
		if text := l.onePacket(&q.Config); text != "" {
			l.add(Warning, q, "limit", "%s", text)
		}
	default:
		if text := l.neverEnters(&q.Config, r, "queue "+q.Name); text != "" {
			l.add(Warning, q, "limit", "%s", text)
		}
	}
}

// neverEnters describes a limit in time that is below the MTU at a rate; "" for others.
func (l *linter) neverEnters(c *queue.Config, r meter.Rate, name string) string {
	bytes, fits := r.Burst(c.Time)
	if !fits || bytes >= l.MTU || c.Time == 0 {
		return ""
	}
	return fmt.Sprintf("limit of %v is %d B at %v, below the MTU: a packet of %d bytes never enters %s",
		c.Time, bytes, r, l.MTU, name)
}

// onePacket describes the limit of a queue with a rate if it admits only one packet of the MTU at a
// time; "" if more fit.
func (l *linter) onePacket(c *queue.Config) string {
	need := l.packetTime(c.Rate)
	if c.Time >= need {
		return ""
	}
	return fmt.Sprintf("limit of %v is below the %v that a packet of %d bytes takes at %v: a packet right behind another is always dropped",
		c.Time, need, l.MTU, c.Rate)
}

// codelTarget finds CoDel targets below the transmission time of one packet. object is the queue or
// the plan.
func (l *linter) codelTarget(object any, c *queue.Config, r meter.Rate) {
	if need := l.packetTime(r); c.CoDel.Target > 0 && c.CoDel.Target < need {
		l.add(Warning, object, "codel",
			"codel's target of %v is below the %v that a packet of %d bytes takes at %v: a backlog of one packet counts as a bad queue (RFC 8289 wants at least one MTU)",
			c.CoDel.Target, need, l.MTU, r)
	}
}

// ecnAlone finds queues which never drop a packet early, and so mark none. name is that of the object, a
// queue or a plan.
func (l *linter) ecnAlone(object any, name string, c *queue.Config) {
	if c.ECN && c.WRED == [3]queue.Early{} && c.CoDel == (queue.CoDel{}) {
		l.add(Warning, object, "ecn", "ecn of %s has no effect: without wred or codel it drops no packet early",
			name)
	}
}

// wredOrder finds WRED dropping a color before a worse one, and WRED of colors which never enter
// the queue.
func (l *linter) wredOrder(q *dataplane.Queue) {
	enters := l.colorsOf(q)
	if enters == [3]bool{} {
		return // unused reports the queue
	}
	better := -1
	for color, e := range q.WRED {
		switch {
		case enters[color]:
			if better >= 0 && harsher(q.WRED[better], e) {
				l.add(Warning, q, "wred",
					"wred drops %v before %v in queue %s: the worse color should be dropped first (RFC 2597 §2)",
					meter.Color(better), meter.Color(color), q.Name)
			}
			better = color
		case e != queue.Early{}:
			l.add(Note, q, "wred", "wred of %v has no effect: no %[1]v packet enters queue %s",
				meter.Color(color), q.Name)
		}
	}
}

// harsher reports whether WRED begins or ends earlier for a color than for a worse one, or
// drops more of it between the same thresholds.
func harsher(better, worse queue.Early) bool {
	none := queue.Early{}
	switch {
	case better == none:
		return false
	case worse == none, better.Min < worse.Min, better.Max < worse.Max:
		return true
	}
	return better.Min == worse.Min && better.Max == worse.Max && better.Probability > worse.Probability
}

// colorsOf returns the colors of the packets sent into a queue.
func (l *linter) colorsOf(q *dataplane.Queue) (colors [3]bool) {
	for i := range l.File.Policy.Classes {
		c := &l.File.Policy.Classes[i]
		for _, color := range policyfile.Colors(c) {
			colors[color] = colors[color] || c.Action(color).Queue == q
		}
	}
	return colors
}

func bytesPerNS(r meter.Rate) *big.Rat {
	if r.Bytes == 0 {
		return new(big.Rat)
	}
	return big.NewRat(r.Bytes, int64(r.Period))
}

// maxRateInto returns the rate, in bytes per ns, passed into a queue by meters, or the name of a
// class without such a bound.
func (l *linter) maxRateInto(q *dataplane.Queue) (*big.Rat, string) {
	colors := map[*dataplane.Meter]meter.Color{} // worst color sent into the queue, by meter
	for i := range l.File.Policy.Classes {
		c := &l.File.Policy.Classes[i]
		for _, color := range policyfile.Colors(c) {
			switch {
			case c.Action(color).Queue != q:
			case !bounded(c.Meter) || color == meter.Red:
				return new(big.Rat), c.Name
			default:
				colors[c.Meter] = max(colors[c.Meter], color)
			}
		}
	}
	sum := new(big.Rat)
	for m, color := range l.withLenders(colors) {
		if _, ok := colors[m]; ok {
			sum.Add(sum, l.chainRate(m, color))
		} else {
			sum.Add(sum, l.meterRate(m, color))
		}
	}
	return sum, ""
}

// bounded reports whether some meter of a chain meters all of its packets together.
func bounded(m *dataplane.Meter) bool {
	for m != nil && perKey(m) {
		m = m.Then
	}
	return m != nil
}

// perKey reports whether a meter is one for each key or customer.
func perKey(m *dataplane.Meter) bool { return m.Per.By != dataplane.NoKey || m.Params == nil }

// chainRate returns the rate passed by the strictest meter of a chain.
func (l *linter) chainRate(m *dataplane.Meter, color meter.Color) *big.Rat {
	var least *big.Rat
	for ; m != nil; m = m.Then {
		if perKey(m) {
			continue
		}
		if n := l.meterRate(m, color); least == nil || n.Cmp(least) < 0 {
			least = n
		}
	}
	return least
}

// withLenders adds the meters that can lend tokens to the given ones. In an envelope these are the
// flows of higher ranks. With coupling, green tokens of all other flows can become yellow ones.
func (l *linter) withLenders(colors map[*dataplane.Meter]meter.Color) map[*dataplane.Meter]meter.Color {
	out := maps.Clone(colors)
	for to, color := range colors {
		for _, from := range l.plan.Meters() {
			switch {
			case to.Envelope == nil || from.Envelope != to.Envelope:
			case from.Rank > to.Rank:
				out[from] = max(out[from], color)
			case to.Envelope.Coupling && color == meter.Yellow:
				out[from] = max(out[from], meter.Green)
			}
		}
	}
	return out
}

// meterRate returns the rate, in bytes per ns, of packets with the worst color or a better
// one.
func (l *linter) meterRate(m *dataplane.Meter, worst meter.Color) *big.Rat {
	kind, buckets := m.Params.Kind().Info(), m.Params.Buckets()
	n := bytesPerNS(buckets[0].Rate)
	switch {
	case worst == meter.Green:
	case kind.Peak:
		n = bytesPerNS(buckets[1].Rate)
	case kind.Beside:
		n.Add(n, bytesPerNS(buckets[1].Rate))
	}
	if m.Packets {
		n.Mul(n, big.NewRat(l.MTU, 1))
	}
	return n
}
