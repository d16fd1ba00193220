package compiled

import (
	"slices"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// compileQueue compiles a queue and its link, and returns its index.
func (c *compiler) compileQueue(q *dataplane.Queue) int {
	if i, ok := c.queues[q]; ok {
		return i
	}
	i := len(c.plan.Queues)
	c.queues[q] = i
	out := Queue{QueueOutline: QueueOutline{q.Name, -1}, Drain: q.Drain(), Source: q}
	if q.Link == nil {
		out.Config = q.Config
		if _, err := queue.New(q.Config); err != nil {
			c.addError(q, "rate", err)
		}
		if q.Priority != 0 || q.Weight != 0 {
			c.add(q, "rate", "cannot be combined with priority or weight: they are for queues of a link")
		}
		switch {
		case q.Fair == dataplane.Key{}:
		case q.Fair.By == dataplane.NoKey:
			c.add(q, "fair", invalidKey(q.Fair))
		default:
			c.add(q, "fair",
				"needs a queue of a link: a queue with a rate fixes each departure on arrival, before later flows arrive")
		}
	} else {
		c.compileLinkQueue(&out, i)
	}
	if (q.TargetAtRate || q.IntervalAtRate) && q.CoDel == (queue.CoDel{}) {
		c.add(q, "codel", "is missing: its times follow the rate")
	}
	c.plan.Queues = append(c.plan.Queues, out)
	return i
}

// compileLinkQueue compiles queue i, which belongs to a link.
func (c *compiler) compileLinkQueue(out *Queue, i int) {
	q := out.Source
	out.Link, out.Key = c.compileLink(q.Link), q.Fair
	link := &c.plan.Links[out.Link]
	link.Queues = append(link.Queues, i)
	if q.Rate != (meter.Rate{}) {
		c.add(q, "rate", "must not be set: a queue on a link is sent at the link's rate")
	}
	if _, _, err := queue.Pace(link.Rate); err == nil {
		if out.LinkQueue, err = q.Resolve(); err != nil {
			c.addError(q, "limit", err)
		}
	}
	if reason := invalidKey(q.Fair); reason != "" {
		c.add(q, "fair", reason)
	}
}

// compileLink compiles a link and returns its index.
func (c *compiler) compileLink(l *dataplane.Link) int {
	if i, ok := c.links[l]; ok {
		return i
	}
	i := len(c.plan.Links)
	c.links[l] = i
	c.plan.Links = append(c.plan.Links, Link{Name: l.Name, Rate: l.Rate, Source: l})
	if _, _, err := queue.Pace(l.Rate); err != nil {
		c.addError(l, "rate", err)
	}
	return i
}

// findQueues finds the classes whose packets are queued: by an action of the class, or by a plan
// of customers.
func (c *compiler) findQueues() {
	queues := func(a *Action) bool { return a != nil && a.Queue >= 0 }
	plans := false
	if customers := c.plan.Customers; customers != nil {
		for i := range customers.Plans {
			s := &customers.Plans[i]
			plans = plans || s.Profile == nil || slices.ContainsFunc(s.Actions[:], queues)
		}
	}
	for i := range c.plan.Classes {
		class := &c.plan.Classes[i]
		for color := range class.Actions {
			class.Queues = class.Queues || queues(&class.Actions[color])
		}
		class.Queues = class.Queues || class.Customers && plans
	}
}
