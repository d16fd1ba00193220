package dataplane

import (
	"math"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Change says what became of a class when a policy took the place of another.
type Change struct {
	Class string `json:"class"`
	What  string `json:"change"` // kept, new or gone
}

// Inherit gives a new pipeline what another one has, whose place it takes:
// classes that keep their name keep their counters, and the tokens of their
// meters, cut to the new bursts; queues and links of the same name are free
// when they would have been. Packets that wait in links are to be settled
// before, by Settle(math.MaxInt64, v).
func (l *Pipeline) Inherit(before *Pipeline) []Change {
	l.now = before.now
	l.stats[len(l.classes)] = before.stats[len(before.classes)]
	old := map[string]int{}
	for i := range before.policy.Classes {
		old[before.policy.Classes[i].Name] = i
	}
	var changes []Change
	done := map[int32]bool{}
	for i := range l.policy.Classes {
		name := l.policy.Classes[i].Name
		was, ok := old[name]
		if !ok {
			changes = append(changes, Change{name, "new"})
			continue
		}
		delete(old, name)
		changes = append(changes, Change{name, "kept"})
		l.stats[i] = before.stats[was]
		l.chain(l.classes[i].stage, before, before.classes[was].stage, done)
	}
	for i := range before.policy.Classes {
		if _, gone := old[before.policy.Classes[i].Name]; gone {
			changes = append(changes, Change{before.policy.Classes[i].Name, "gone"})
		}
	}
	l.follow(before)
	return changes
}

// chain gives the meters of a chain, from stage at on, the tokens of another's.
func (l *Pipeline) chain(at int32, before *Pipeline, from int32, done map[int32]bool) {
	for ; at >= 0 && from >= 0; at, from = l.stages[at].then, before.stages[from].then {
		s, was := &l.stages[at], &before.stages[from]
		if !done[at] && s.packets == was.packets && l.now > math.MinInt64 {
			s.inherit(was, l.now)
			done[at] = true
		}
	}
}

// inherit gives a stage the tokens of another, whose place it takes. Keys stay
// where they are found and bounded in the same way.
func (s *stage) inherit(was *stage, now int64) {
	switch {
	case s.keyed != nil && was.keyed != nil:
		profile := s.keyed.table.Rest().Profile()
		same := s.of.Per == was.of.Per && s.of.Keys == was.of.Keys && s.of.Idle == was.of.Idle && s.of.Initial == was.of.Initial
		if same && !was.keyed.left && was.keyed.table.SetProfile(now, profile) == nil {
			s.keyed.table, was.keyed.left = was.keyed.table, true
		}
	case s.leased != nil && was.leased != nil && s.of.Budget.Name == was.of.Budget.Name:
		s.leased = was.leased // a policy names a budget once
	case s.keyed != nil || was.keyed != nil || s.leased != nil || was.leased != nil || s.shared != nil:
	case was.shared != nil:
		tc, te := was.tokens(now)
		s.Meter = meter.NewWithTokens(s.Profile(), tc, te)
		s.Color(now, 0, meter.Red) // its clock runs on
	case s.envelope != nil || was.envelope != nil:
		tc, te := was.tokens(now)
		if s.envelope != nil {
			s.envelope.SetTokens(s.flow, tc, te)
		} else {
			s.Meter = meter.NewWithTokens(s.Profile(), tc, te)
		}
		s.color(nil, now, 0, meter.Red) // its clock runs on
	default:
		profile := s.Profile()
		s.Meter = was.Clone() // more than one may be made of it
		s.SetProfile(now, profile)
	}
}

// follow joins queues and links to those of their names.
func (l *Pipeline) follow(before *Pipeline) {
	followed := map[int]bool{} // each by one: names need not differ
	for i := range l.queues {
		q := &l.queues[i]
		for j := range before.queues {
			was := &before.queues[j]
			if was.leaky == nil && q.leaky == nil && was.Link.Name == q.Link.Name {
				l.links[q.link].Follow(before.links[was.link])
			}
			if was.leaky == nil || q.leaky == nil || was.Name != q.Name || followed[j] {
				continue
			}
			followed[j] = true
			if was.Config == q.Config {
				q.leaky = was.leaky
			} else {
				q.leaky.Follow(was.leaky)
			}
			break
		}
	}
}
