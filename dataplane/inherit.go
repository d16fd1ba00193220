package dataplane

import (
	"math"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

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

// inherit gives a stage the tokens of another, whose place it takes. Keys stay if they
// are found and bounded in the same way.
func (s *stage) inherit(was *stage, now int64) {
	switch {
	case s.keyed != nil && was.keyed != nil:
		p, q := s.plan, was.plan
		same := p.Key == q.Key && p.Keys == q.Keys && p.Idle == q.Idle && p.Initial == q.Initial
		if same && !was.keyed.left && was.keyed.table.SetProfile(now, p.Profile) == nil {
			s.keyed.table, was.keyed.left = was.keyed.table, true
		}
	case s.leased != nil && was.leased != nil && s.plan.BudgetName == was.plan.BudgetName:
		s.leased = was.leased // a policy names a budget once
	case s.keyed != nil || s.leased != nil || s.shared != nil: // they begin, or have tokens of others
	case s.envelope == nil && was.plain():
		s.Meter = was.Clone() // more than one may be made of it
		s.SetProfile(now, s.plan.Profile)
	default:
		tc, te := was.tokens(now)
		if s.envelope != nil {
			s.envelope.SetTokens(s.plan.Flow, tc, te)
		} else {
			s.Meter = meter.NewWithTokens(s.plan.Profile, tc, te)
		}
		s.color(nil, now, 0, meter.Red) // its clock runs on
	}
}

// plain reports whether the stage has one meter of its own.
func (s *stage) plain() bool {
	return s.keyed == nil && s.shared == nil && s.envelope == nil && s.leased == nil
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
