package routers

import (
	"fmt"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/marker"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/unsaid"
)

// mark writes a mark in one of the formats by field.
func (e *exporter) mark(c *dataplane.Class, m dataplane.Mark, formats map[dataplane.Field]string) string {
	e.Unsaid("class "+c.Name, m, notOfRouters, "Field", "Value")
	format, ok := formats[m.Field]
	if !ok {
		e.Cannot("class %s: %v: %d: the router does not write this field", c.Name, m.Field, m.Value)
		return "transmit"
	}
	value := fmt.Sprint(m.Value)
	if m.Field == dataplane.DSCP {
		if value = marker.DSCPName(uint8(m.Value)); value == "be" {
			value = e.zero
		}
	}
	return fmt.Sprintf(format, value)
}

// checkAction names the parts of an action that no router has.
func (e *exporter) checkAction(c *dataplane.Class, a dataplane.Action) {
	e.Unsaid("class "+c.Name, &a, notOfRouters, "Drop", "ECN", "Marks", "Queue")
	if a.ECN != dataplane.NoECN {
		e.Cannot("class %s: ecn: the router marks ECN in queues only", c.Name)
	}
}

// queueOf returns the queue of all packets of a class that are not dropped, or nil.
func (e *exporter) queueOf(c *dataplane.Class, colors []meter.Color) (q *dataplane.Queue) {
	first := true
	for _, color := range colors {
		a := c.Action(color)
		if a.Drop {
			continue
		}
		if !first && a.Queue != q {
			e.Cannot("class %s: some colors are queued and others not: the router queues all packets of a class that it does not drop",
				c.Name)
		}
		q, first = a.Queue, false
	}
	return q
}

// allQueues returns the queues of a policy: those with a name of their own, and others that actions use.
func allQueues(p *dataplane.Policy) []*dataplane.Queue {
	all := slices.Clone(p.Queues)
	for i := range p.Classes {
		for color := range meter.Red + 1 {
			if q := p.Classes[i].Action(color).Queue; q != nil && !slices.Contains(all, q) {
				all = append(all, q)
			}
		}
	}
	return all
}

// checkQueue names the parts of a queue that no router has.
func (e *exporter) checkQueue(q *dataplane.Queue) {
	what := "queue " + q.Name
	// Seed and ECN have an effect with wred and codel only.
	e.Unsaid(what, q, notOfRouters,
		"Name", "Rate", "Time", "Bytes", "Packets", "WRED", "Seed", "CoDel", "ECN", "TargetAtRate",
		"IntervalAtRate",
		"Link", "Guarantee", "Priority", "Weight", "Fair")
	e.checkTree(q)
	if n := min(q.Time, 1) + time.Duration(min(q.Bytes, 1)+min(q.Packets, 1)); n > 1 {
		e.Cannot("%s: the router has one limit for a queue, and this has %d", what, n)
	}
	for _, w := range q.WRED {
		if w.Max != 0 {
			e.Cannot("queue %s: wred: the router drops by an average backlog, which is another algorithm",
				q.Name)
		}
	}
	if q.CoDel.Interval != 0 {
		e.Cannot("queue %s: codel: the router has none: write codel: false", q.Name)
	}
}

// oneClass refuses a queue with packets of several classes.
func (e *exporter) oneClass(p *dataplane.Policy, q *dataplane.Queue) {
	users := 0
	for i := range p.Classes {
		for color := meter.Green; color <= meter.Red; color++ {
			if p.Classes[i].Action(color).Queue == q {
				users++
				break
			}
		}
	}
	if users > 1 {
		e.Cannot("queue %s has packets of several classes: the router has a queue for each class", q.Name)
	}
}

// checkTree names the parts of a queue's place in a tree of links that no router has.
func (e *exporter) checkTree(q *dataplane.Queue) {
	l := q.Link
	if l == nil {
		return
	}
	if q.Rate != (meter.Rate{}) {
		e.Cannot("queue %s: rate: a queue that shares a link has no rate of its own in a router: remove rate, or meter its class",
			q.Name)
	}
	if q.Guarantee != (meter.Rate{}) {
		e.Cannot("queue %s: guarantee: queues share a link by priority and weight only: write a weight instead", q.Name)
	}
	if l.Link != nil {
		e.Cannot("queue %s: link %s is below link %s, and only one level is exported: put the queue on a link with a rate",
			q.Name, l.Name, l.Link.Name)
	}
	for ; l != nil; l = l.Link {
		e.Unsaid("link "+l.Name, l, notOfRouters, "Name", "Rate", "Link", "Guarantee", "Priority", "Weight")
	}
}

// matchesAll reports whether a condition is empty.
func matchesAll(m *dataplane.Match) bool {
	return unsaid.Fields(m) == nil
}

// sortedMarks returns the marks of an action in the order of fields.
func sortedMarks(a dataplane.Action) (sorted []dataplane.Mark) {
	for _, m := range a.Marks {
		sorted = setMark(sorted, m)
	}
	return sorted
}
