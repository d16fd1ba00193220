package pipeline

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// Links returns the states of the plan's links by now, in ns, as far as they have decided: nothing that the
// pipeline did may be later.
func (l *Pipeline) Links(now int64) []dataplane.LinkState {
	out := make([]dataplane.LinkState, len(l.plan.Links))
	for i, s := range l.linkStates(now) {
		link := &l.plan.Links[i]
		out[i] = dataplane.LinkState{
			Name: link.Name, Above: link.Above,
			Rate: link.Rate, Guaranteed: s.Guaranteed, Reach: l.plan.Reach(i),
			Sent: dataplane.Count(s.Sent), Backlog: dataplane.Count(s.Backlog),
			Held: s.Held, HeldKnown: true,
		}
	}
	return out
}

// linkStates returns the states of links by the plan's numbers.
func (l *Pipeline) linkStates(now int64) []queue.LinkState {
	out := make([]queue.LinkState, len(l.plan.Links))
	for i := range l.plan.Trees {
		states := l.trees[i].States(now)
		for k, link := range l.plan.Trees[i].Links {
			out[link] = states[k]
		}
	}
	return out
}

// continueLinks lets links continue the counters of those of the pipeline before, by their numbers there; -1
// for none.
func (l *Pipeline) continueLinks(from []int, before *Pipeline) {
	states := before.linkStates(before.now)
	for i := range l.plan.Trees {
		for k, link := range l.plan.Trees[i].Links {
			if was := from[link]; was >= 0 {
				l.trees[i].Continue(k, states[was])
			}
		}
	}
}

// Held returns how long the own rate of a queue on a link held its packets, as queue.Link.Held does.
// customer is the number of the customer whose queue it is; 0 for the queue of the plan with this index.
func (l *Pipeline) Held(customer uint32, index int, now int64) (ns int64) {
	if customer != 0 {
		c := l.customers.customer(customer)
		if !c.inTree() {
			return 0
		}
		return int64(l.trees[c.service.Tree].Held(int(c.place), now))
	}
	q := &l.queues[index]
	if q.leaky != nil {
		return 0
	}
	return int64(l.trees[q.tree].Held(q.treeIndex, now))
}
