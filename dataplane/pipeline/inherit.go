package pipeline

import (
	"errors"
	"math"

	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
)

// Inherit moves the counters, tokens and backlogs of another pipeline into a new one, which takes
// its place. Plan.Succeed defines which part continues which. First settle all packets queued in
// links of the old pipeline: call Settle(math.MaxInt64, v) until it returns false. A link, or a queue with a rate,
// sends nothing before they have departed, if it continues a link, a queue or a customer on their way: packets of
// a flow stay in order. Afterwards the old pipeline must not process packets.
func (l *Pipeline) Inherit(before *Pipeline) []compiled.ClassChange {
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
	if l.customers != nil && before.customers != nil && l.now > math.MinInt64 {
		l.customers.inherit(before.customers, l.now)
	}
	for i, was := range s.Queues {
		if was >= 0 {
			l.queues[i].inherit(&before.queues[was])
		}
	}
	l.followTrees(before, &s)
	return s.Changes
}

// inherit makes the queue free at the time at which its predecessor would have been. If it differs in
// nothing but the rate and the times of CoDel, it also keeps the backlog, CoDel and random numbers.
func (q *pacedQueue) inherit(was *pacedQueue) {
	switch {
	case q.leaky == nil || was.leaky == nil: // see followTrees
	case sameButTimes(q.plan.Config, was.plan.Config):
		q.leaky = was.leaky
		q.setRate()
	default:
		q.leaky.Follow(was.leaky)
	}
}

// setRate gives a queue with a rate of its own the rate and CoDel of its plan.
func (q *pacedQueue) setRate() {
	// Compile or WithRates checked them
	_ = errors.Join(q.leaky.SetRate(q.plan.Rate), q.leaky.SetCoDel(q.plan.CoDel))
}
