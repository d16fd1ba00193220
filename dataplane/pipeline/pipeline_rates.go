package pipeline

import (
	"fmt"

	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// SetRates changes the rates of queues and links, their guarantees, priorities and weights, and the times of
// CoDel, at now (ns, on the clock of the packets) to those of a plan, such as one of Plan.WithShares. Queued
// packets stay queued, in their order. Those of a queue with a rate keep their departures; those of a link are
// sent at the new rate. A queue or link is free at the time at which it would have been free. Parts of the plan
// other than queues and links are not used. Nothing changes on an error: the queues or links differ in more
// than these values.
func (l *Pipeline) SetRates(now int64, plan *compiled.Plan) error {
	if err := checkRatesOnly(plan, l.plan); err != nil {
		return err
	}
	l.advance(now)
	before := l.plan
	next := *before
	next.Queues, next.Links, next.Trees = plan.Queues, plan.Links, plan.Trees
	l.plan = &next
	for i := range l.queues {
		q := &l.queues[i]
		q.plan = &next.Queues[i]
		if q.leaky != nil {
			q.setRate()
		}
	}
	for i, tree := range l.trees {
		links, queues := l.treeConfig(i)
		_ = tree.Change(l.now, links, queues) // as above
	}
	return nil
}

// treeConfig returns a tree with the present plans of its customers.
func (l *Pipeline) treeConfig(i int) ([]queue.TreeLink, []queue.LinkQueue) {
	return l.plan.Config(&l.plan.Trees[i], func(number uint32) *compiled.Service {
		return l.customers.customer(number).service
	})
}

// checkRatesOnly returns an error unless the queues and links of both plans differ in nothing but
// rates, guarantees, priorities, weights, the times of CoDel, and limits following from a link's rate.
func checkRatesOnly(p, before *compiled.Plan) error {
	if len(p.Queues) != len(before.Queues) || len(p.Links) != len(before.Links) {
		return fmt.Errorf("the plan has %d queues and %d links instead of %d and %d: reload it",
			len(p.Queues), len(p.Links), len(before.Queues), len(before.Links))
	}
	for i := range p.Links {
		if p.Links[i].Name != before.Links[i].Name {
			return fmt.Errorf("the plan has link %q instead of %q: reload it", p.Links[i].Name,
				before.Links[i].Name)
		}
		link, was := p.Links[i].TreeLink, before.Links[i].TreeLink
		link.Rate, link.Guarantee, link.Priority, link.Weight = was.Rate, was.Guarantee, was.Priority, was.Weight
		if link != was || p.Links[i].Above != before.Links[i].Above {
			return fmt.Errorf("link %q differs in more than its rate, guarantee, priority and weight: reload the plan",
				p.Links[i].Name)
		}
	}
	for i := range p.Queues {
		q, was := &p.Queues[i], &before.Queues[i]
		same := was.LinkQueue
		if q.Link >= 0 {
			same.Bytes, same.WRED = q.Bytes, q.WRED
			same.Guarantee, same.Priority, same.Weight = q.Guarantee, q.Priority, q.Weight
		}
		sameConfig := sameButTimes(q.Config, same.Config)
		same.Config = q.Config
		sameFlows := q.LinkQueue == same && q.FlowKeys == was.FlowKeys
		if q.QueueOutline != was.QueueOutline || !sameConfig || !sameFlows {
			return fmt.Errorf(
				"queue %q differs in more than its rate and the times of codel: reload the plan", q.Name)
		}
	}
	return nil
}

// sameButTimes reports whether queues differ in nothing but the rate and the times of CoDel, or not at all.
func sameButTimes(a, b queue.Config) bool {
	a.Rate = b.Rate
	if a.CoDel.Target > 0 && b.CoDel.Target > 0 {
		a.CoDel = b.CoDel
	}
	return a == b
}
