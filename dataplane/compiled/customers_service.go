package compiled

import (
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/unsaid"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// compileService compiles a plan of customers.
func (c *compiler) compileService(p *dataplane.ServicePlan) Service {
	out := Service{Name: p.Name, Tree: -1, Source: p}
	switch {
	case p.Params == nil && p.Queue == nil:
		c.add(p, "type", "is missing: give the plan a type and its parameters, or a queue")
	case p.Params != nil && p.Queue != nil:
		c.add(p, "queue", "cannot be combined with a meter")
	case p.Up != nil && (p.Up.Params == nil) != (p.Params == nil):
		c.add(p, "up", "must be a meter in both directions, or a queue in both")
	case p.Queue != nil:
		out.Queue = *p.Queue
		switch {
		case p.Queue.Bytes != 0 || p.Queue.Packets != 0 || p.Queue.Time == 0:
			c.add(p, "limit", "must be a time, such as 50ms")
		case p.Queue.WRED != [3]queue.Early{}:
			c.add(p, "wred", "is not for queues of customers: use codel")
		}
		out.Template = c.templates[p]
		if p.InTree() {
			c.plantService(&out)
			break
		}
		c.checkNoShare(p)
		c.checkUnplaced(p, "queue")
	default:
		c.checkNoShare(p)
		profile, err := p.Params.Profile()
		if err != nil {
			c.addError(p, "type", err)
			break
		}
		out.Profile, out.Kind, out.Buckets = profile, profile.Kind(), outlineBuckets(p.Params)
	}
	for color, a := range [3]*dataplane.Action{p.Green, p.Yellow, p.Red} {
		if a != nil {
			compiled := c.compileAction(*a, a)
			out.Actions[color] = &compiled
		}
	}
	return out
}

// linkMissing is the error of a customer whose plan needs a link.
const linkMissing = "is missing: guarantee, priority and weight are for a queue on a link"

// needsLink reports whether a plan has a share of a link, and customers must name the link.
func needsLink(p *dataplane.ServicePlan) bool {
	return p.Queue != nil && p.Link == nil &&
		(p.Guarantee != (meter.Rate{}) || p.Priority != 0 || p.Weight != 0 ||
			p.Up != nil && p.Up.Guarantee != meter.Rate{})
}

// checkUnplaced refuses an invalid queue of a plan without a link. field is the one of errors that name none.
func (c *compiler) checkUnplaced(p *dataplane.ServicePlan, field string) {
	if needsLink(p) && len(c.plan.Source.Links) == 0 {
		c.add(p, "link", linkMissing)
	}
	_, err := queue.New(*p.Queue)
	if err == nil && needsLink(p) {
		_, err = p.LinkQueue().Resolve(p.Queue.Rate)
	}
	if err != nil {
		c.addError(p, field, err)
	}
}

// checkNoShare refuses a place in a tree for a plan without a queue in one. A share of a link is for
// customers that name the link.
func (c *compiler) checkNoShare(p *dataplane.ServicePlan) {
	known, reason := []string{"Name", "Params", "Queue", "Up", "Green", "Yellow", "Red"}, "needs a link"
	if p.Queue == nil {
		reason = "needs a queue: a meter has no place on a link"
	} else {
		known = append(known, "Guarantee", "Priority", "Weight")
	}
	for _, name := range unsaid.Fields(p, known...) {
		c.add(p, strings.ToLower(name), reason)
	}
}

// plantService puts the queue of a plan into a tree: of its link, or the one of fair queues without a
// link.
func (c *compiler) plantService(out *Service) {
	p := out.Source
	out.FlowKeys = newFlowKeys(p.Hosts, p.Fair)
	c.checkFair(p, p.Hosts, p.Fair)
	out.LinkQueue = p.LinkQueue()
	if p.Link == nil {
		c.checkUnplaced(p, "rate")
		out.Tree = c.looseTree()
		return
	}
	link := c.compileLink(p.Link)
	if link < 0 {
		return
	}
	out.Tree = c.plan.Links[link].Tree
	out.LinkQueue.Parent = slices.Index(c.plan.Trees[out.Tree].Links, link)
	c.plan.checkLimit(out, link, &c.errorList)
}

// checkLimit refuses the queue of a plan on a link that is invalid at the link's rate.
func (p *Plan) checkLimit(s *Service, link int, errs *errorList) {
	if rate := p.Reach(link); validRate(rate) {
		if _, err := s.LinkQueue.Resolve(rate); err != nil {
			errs.addError(s.Source, "limit", err)
		}
	}
}

// LinkOf returns the index of the link of a plan of customers, or -1.
func (p *Plan) LinkOf(s *Service) int {
	if s.Tree < 0 || len(p.Trees[s.Tree].Links) == 0 {
		return -1
	}
	return p.Trees[s.Tree].Links[s.LinkQueue.Parent]
}

// looseTree returns the index of the tree without links.
func (c *compiler) looseTree() int {
	for i := range c.plan.Trees {
		if len(c.plan.Trees[i].Links) == 0 {
			return i
		}
	}
	c.plan.Trees = append(c.plan.Trees, Tree{})
	return len(c.plan.Trees) - 1
}
