package dataplane

import "math"

// Inherit gives a new pipeline the counters, tokens and backlogs of another one, whose
// place it takes, as Plan.Succeed says. Packets in the queues of links are to be settled
// before, by Settle(math.MaxInt64, v).
func (l *Pipeline) Inherit(before *Pipeline) []Change {
	s := l.plan.Succeed(before.plan.Outline())
	l.now = before.now
	l.stats[len(l.stats)-1] = before.stats[len(before.stats)-1]
	for i, was := range s.Classes {
		if was >= 0 {
			l.stats[i] = before.stats[was]
		}
	}
	for i, was := range s.Stages {
		if was >= 0 && l.now > math.MinInt64 {
			l.stages[i].inherit(&before.stages[was], l.now)
		}
	}
	for i, was := range s.Queues {
		if was >= 0 {
			l.queues[i].inherit(&before.queues[was])
		}
	}
	for i, was := range s.Links {
		if was >= 0 {
			l.links[i].Follow(before.links[was])
		}
	}
	return s.Changes
}

// inherit makes a queue free when another would have been, whose place it takes.
func (q *paced) inherit(was *paced) {
	switch {
	case q.leaky == nil || was.leaky == nil:
	case q.plan.Config == was.plan.Config:
		q.leaky = was.leaky
	default:
		q.leaky.Follow(was.leaky)
	}
}
