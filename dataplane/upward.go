package dataplane

import (
	"cmp"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// Upward holds the rates of a link or a queue for packets from the customers. A zero one is the same as
// for packets to the customers.
type Upward struct{ Rate, Guarantee meter.Rate }

// over returns the rates for packets from the customers, given those for packets to them.
func (u Upward) over(rate, guarantee meter.Rate) (meter.Rate, meter.Rate) {
	return cmp.Or(u.Rate, rate), cmp.Or(u.Guarantee, guarantee)
}

// UpwardPlan replaces these fields of a ServicePlan for packets from the customer.
type UpwardPlan struct {
	Params    meter.Params
	Queue     *queue.Config
	Guarantee meter.Rate
}

// same reports whether the plan has these values already.
func (u *UpwardPlan) same(p *ServicePlan) bool {
	return u.Params == p.Params && u.Guarantee == p.Guarantee && (u.Queue == nil) == (p.Queue == nil) &&
		(u.Queue == nil || *u.Queue == *p.Queue)
}

// Upward returns a copy of the policy for packets from the customers: its parts have the rates of their
// fields Up. It returns nil if these are the same as for packets to the customers. Meters and envelopes,
// which have one rate, are shared. Links must not be below themselves.
func (p *Policy) Upward() *Policy {
	c := newUpwardCopier()
	up := *p
	up.Links, up.Queues = slices.Clone(p.Links), slices.Clone(p.Queues)
	for i, l := range up.Links {
		up.Links[i] = c.link(l)
	}
	for i, q := range up.Queues {
		up.Queues[i] = c.queue(q)
	}
	up.Classes = slices.Clone(p.Classes)
	for i := range up.Classes {
		class, from := &up.Classes[i], &p.Classes[i]
		class.Green, class.Yellow, class.Red = c.action(from.Green), c.action(from.Yellow), c.action(from.Red)
		c.originals[class], c.originals[&class.Match] = from, &from.Match
	}
	c.originals[&up], c.originals[&up.Length] = p, &p.Length
	if p.Customers != nil {
		up.Customers = c.customers(p.Customers)
	}
	if !c.differs {
		return nil
	}
	up.originals = c.originals
	return &up
}

// Original returns the part that was copied by Upward, or the part itself.
func (p *Policy) Original(part any) any {
	if original, ok := p.originals[part]; ok {
		return original
	}
	return part
}

// Upward returns a copy of the link, and of the links above it, for packets from the customers, or nil if
// their rates are the same.
func (l *Link) Upward() *Link { return upward((*upwardCopier).link, l) }

// Upward returns a copy of the queue and its link for packets from the customers, or nil if their rates
// are the same.
func (q *Queue) Upward() *Queue { return upward((*upwardCopier).queue, q) }

// Upward returns a copy of the plan and its link for packets from the customer, or nil if their rates are
// the same.
func (p *ServicePlan) Upward() *ServicePlan { return upward((*upwardCopier).plan, p) }

func upward[T any](copied func(*upwardCopier, *T) *T, part *T) *T {
	c := newUpwardCopier()
	if up := copied(c, part); c.differs {
		return up
	}
	return nil
}

// upwardCopier copies parts of a policy for packets from the customers. Copies of one part are one part.
type upwardCopier struct {
	originals map[any]any // by copy
	copies    map[any]any // by original
	differs   bool        // the rates of some part differ
}

func newUpwardCopier() *upwardCopier {
	return &upwardCopier{originals: map[any]any{}, copies: map[any]any{}}
}

// copyOf returns a copy of a part, and whether it is a new one.
func copyOf[T any](c *upwardCopier, part *T) (out *T, added bool) {
	if known, ok := c.copies[part]; ok {
		return known.(*T), false
	}
	out = new(T)
	*out = *part
	c.copies[part], c.originals[out] = out, part
	return out, true
}

func (c *upwardCopier) link(l *Link) *Link {
	if l == nil {
		return nil
	}
	up, added := copyOf(c, l)
	if !added {
		return up
	}
	up.Rate, up.Guarantee = l.Up.over(l.Rate, l.Guarantee)
	up.Up, up.Link = Upward{}, c.link(l.Link)
	c.differs = c.differs || up.Rate != l.Rate || up.Guarantee != l.Guarantee
	return up
}

func (c *upwardCopier) queue(q *Queue) *Queue {
	up, added := copyOf(c, q)
	if !added {
		return up
	}
	up.Rate, up.Guarantee = q.Up.over(q.Rate, q.Guarantee)
	up.Up, up.Link = Upward{}, c.link(q.Link)
	c.differs = c.differs || up.Rate != q.Rate || up.Guarantee != q.Guarantee
	if rate := up.Drain(); rate != q.Drain() {
		next := queue.CoDelAt(rate)
		if q.TargetAtRate {
			up.CoDel.Target = next.Target
		}
		if q.IntervalAtRate {
			up.CoDel.Interval = next.Interval
		}
	}
	return up
}

// action copies an action with a queue.
func (c *upwardCopier) action(a *Action) *Action {
	if a == nil || a.Queue == nil {
		return a
	}
	up, added := copyOf(c, a)
	if added {
		up.Queue = c.queue(a.Queue)
	}
	return up
}

func (c *upwardCopier) plan(p *ServicePlan) *ServicePlan {
	up, added := copyOf(c, p)
	if !added {
		return up
	}
	if u := p.Up; u != nil {
		up.Params, up.Queue, up.Guarantee = u.Params, u.Queue, u.Guarantee
		c.differs = c.differs || !u.same(p)
	}
	up.Up, up.Link = nil, c.link(p.Link)
	up.Green, up.Yellow, up.Red = c.action(p.Green), c.action(p.Yellow), c.action(p.Red)
	return up
}

// customers copies the customers, whose plans differ.
func (c *upwardCopier) customers(from *Customers) *Customers {
	up := *from
	c.originals[&up] = from
	up.Plans = slices.Clone(from.Plans)
	for i, p := range up.Plans {
		up.Plans[i] = c.plan(p)
	}
	var last *ServicePlan // most neighbors have the same plan
	for i := range from.List {
		if p := from.List[i].Plan; p != last && p != nil {
			c.plan(p)
			last = p
		}
	}
	if !c.differs {
		return &up
	}
	up.List = slices.Clone(from.List)
	for i := range up.List {
		if p := up.List[i].Plan; p != nil {
			up.List[i].Plan = c.plan(p)
		}
	}
	return &up
}
