package pipeline

import (
	"math"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
)

// followTrees makes trees, and queues that were in one, wait until the packets before have departed. The tree
// without links is many: each customer waits for its own.
func (l *Pipeline) followTrees(before *Pipeline, s *compiled.Succession) {
	free := slices.Repeat([]int64{math.MinInt64}, len(l.trees))
	for i, was := range s.Links {
		if was >= 0 {
			tree := &free[l.plan.Links[i].Tree]
			*tree = max(*tree, before.trees[before.plan.Links[was].Tree].Free())
		}
	}
	for i, was := range s.Queues {
		if was < 0 {
			continue
		}
		at := before.queues[was].free(before)
		switch q := &l.queues[i]; {
		case q.leaky == nil:
			free[q.tree] = max(free[q.tree], at)
		case before.queues[was].leaky == nil:
			notBefore(q.leaky, at)
		}
	}
	l.customers.each(before.customers, func(c, was *customer) {
		at, tree := was.free(before), c.service.Tree
		switch {
		case !c.inTree() && c.paced() && was.inTree():
			notBefore(c.queue(), at)
		case !c.inTree():
		case len(l.plan.Trees[tree].Links) > 0:
			free[tree] = max(free[tree], at)
		case at > math.MinInt64:
			l.trees[tree].QueueNotBefore(int(c.place), at)
		}
	})
	for i, tree := range l.trees {
		notBefore(tree, free[i])
	}
}

// notBefore makes a part free at a time, unless there is none.
func notBefore(part interface{ NotBefore(at int64) }, at int64) {
	if at > math.MinInt64 {
		part.NotBefore(at)
	}
}

// free returns the time from which a queue is free; math.MinInt64 if it always was.
func (q *pacedQueue) free(l *Pipeline) int64 {
	if q.leaky != nil {
		return q.leaky.Free()
	}
	return l.trees[q.tree].Free()
}

// free returns the time from which the queue of a customer is free; math.MinInt64 if it always was or if there is
// none.
func (c *customer) free(l *Pipeline) int64 {
	switch {
	case c.inTree() && len(l.plan.Trees[c.service.Tree].Links) == 0:
		return l.trees[c.service.Tree].QueueFree(int(c.place))
	case c.inTree():
		return l.trees[c.service.Tree].Free()
	case c.leaky != nil:
		return c.leaky.Free()
	}
	return math.MinInt64
}
