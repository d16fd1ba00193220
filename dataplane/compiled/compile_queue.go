package compiled

import (
	"cmp"
	"fmt"
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
		if q.Guarantee != (meter.Rate{}) {
			c.add(q, "guarantee", "needs a link: a queue without one has its rate for itself")
		}
		c.checkHosts(q, q.Hosts, q.Fair)
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
	if out.Link = c.compileLink(q.Link); out.Link < 0 {
		return
	}
	out.FlowKeys = newFlowKeys(q.Hosts, q.Fair)
	link := &c.plan.Links[out.Link]
	link.Queues = append(link.Queues, i)
	tree := &c.plan.Trees[link.Tree]
	tree.Queues = append(tree.Queues, i)
	if rate := c.plan.Reach(out.Link); validRate(rate) {
		var err error
		if out.LinkQueue, err = q.LinkQueue().Resolve(rate); err != nil {
			c.addError(q, "limit", err)
		}
		out.Parent = slices.Index(tree.Links, out.Link)
	}
	c.checkFair(q, q.Hosts, q.Fair)
}

// checkFair adds the errors of the keys of a queue of a link.
func (c *compiler) checkFair(object any, hosts, flows dataplane.Key) {
	if reason := cmp.Or(invalidFair(flows), invalidFair(hosts)); reason != "" {
		c.add(object, "fair", reason)
	}
	c.checkHosts(object, hosts, flows)
}

// checkHosts refuses a key of hosts without one of their flows.
func (c *compiler) checkHosts(object any, hosts, flows dataplane.Key) {
	if hosts != (dataplane.Key{}) && flows.By == dataplane.NoKey {
		c.add(object, "fair", "needs a key for the flows of a host, such as [dst, flow]")
	}
}

func validRate(r meter.Rate) bool {
	_, _, err := queue.Pace(r)
	return err == nil
}

// compileLink compiles a link, after the link above it, and returns its index, or a negative number
// if it is below itself.
func (c *compiler) compileLink(l *dataplane.Link) int {
	if i, ok := c.links[l]; ok {
		return i
	}
	out := Link{
		Name: l.Name, Source: l, Above: -1, Tree: len(c.plan.Trees),
		TreeLink: queue.TreeLink{
			Rate: l.Rate, Guarantee: l.Guarantee, Priority: l.Priority, Weight: l.Weight,
		},
	}
	const pending, failed = -1, -2
	c.links[l] = pending
	if l.Link != nil {
		if out.Above = c.compileLink(l.Link); out.Above == pending {
			c.add(l, "link", "is below itself")
		}
		if out.Above < 0 {
			c.links[l] = failed
			return failed
		}
		above := &c.plan.Links[out.Above]
		out.Tree, out.Weight = above.Tree, cmp.Or(l.Weight, 1)
		if c.depth(out.Above) >= queue.MaxLevels-1 {
			c.add(l, "link", fmt.Sprintf("has too many links above it: a tree has at most %d levels with its queues",
				queue.MaxLevels))
		}
	}
	if err := out.Check(l.Link == nil); err != nil {
		c.addError(l, "rate", err)
	}
	i := len(c.plan.Links)
	c.links[l] = i
	if l.Link == nil {
		c.plan.Trees = append(c.plan.Trees, Tree{})
	}
	tree := &c.plan.Trees[out.Tree]
	out.Parent = max(slices.Index(tree.Links, out.Above), 0)
	tree.Links = append(tree.Links, i)
	c.plan.Links = append(c.plan.Links, out)
	return i
}

// checkChildren refuses links below another one without queues and links below them. used contains the
// queues of actions. If there are customers on links, any link may get some.
func (c *compiler) checkChildren(p *dataplane.Policy, used map[*dataplane.Queue]int) {
	if p.CustomersOnLinks() {
		return
	}
	parents := map[*dataplane.Link]bool{}
	for _, q := range p.Queues {
		parents[q.Link] = true
	}
	for q := range used {
		parents[q.Link] = true
	}
	for _, l := range p.Links {
		parents[l.Link] = true
	}
	for _, l := range p.Links {
		if l.Link != nil && !parents[l] {
			c.add(l, "link", fmt.Sprintf("is useless: no queue and no link uses link %q: remove it, or give it a queue",
				l.Name))
		}
	}
}

// depth returns the number of links from a link to its root, both included.
func (c *compiler) depth(link int) (n int) {
	for ; link >= 0; link = c.plan.Links[link].Above {
		n++
	}
	return n
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
