package dataplane

import "github.com/a-seed-32e5a53f/shaper/meter"

// stage is the state of a stage of the plan.
type stage struct {
	meter.Meter                 // unless one of the next four is there
	keyed       *keyTable       // a meter for each key
	shared      Shared          // meters packets in its place
	envelope    *meter.Envelope // of which it is a flow
	leased      *leased         // of a budget on a server
	plan        *PlanStage
}

// begin makes the meter of a stage, unless it is a flow of an envelope.
func (s *stage) begin(p *PlanStage) {
	s.plan = p
	switch {
	case p.Envelope >= 0:
	case p.Keyed():
		s.keyed = &keyTable{keyReader: newKeyReader(p.Key)}
		s.keyed.table, _ = meter.NewTable[packetKey](p.Profile, p.table()) // it has compiled
	case p.Leased:
		s.leased = new(leased)
	case p.Initial.Den != 0:
		cb, eb := p.Profile.Bursts()
		s.Meter = meter.NewWithTokens(p.Profile, p.Initial.Of(cb), p.Initial.Of(eb))
	default:
		s.Meter = meter.New(p.Profile)
	}
}

// color meters a packet.
func (s *stage) color(p *Packet, now int64, n int, in meter.Color) meter.Color {
	switch {
	case s.keyed != nil:
		return s.keyed.color(p, now, n, in)
	case s.shared != nil:
		return s.shared.Color(now, n, in)
	case s.envelope != nil:
		return s.envelope.Color(s.plan.Flow, now, n, in)
	case s.leased != nil:
		return s.leased.color(now, n, in)
	}
	return s.Color(now, n, in)
}

// Step is one meter's part in a verdict.
type Step struct {
	Stage int    // index in the plan
	Key   string // as people read it; "" if the meter has none, or the packet
	meter.Explanation
}

func (s *stage) explain(p *Packet, now int64, n int, in meter.Color) (step Step) {
	switch {
	case s.keyed != nil:
		step.Key, step.Explanation = s.keyed.explain(p, now, n, in)
	case s.shared != nil:
		step.Length, step.In, step.Color = n, in, s.shared.Color(now, n, in)
		step.Clause = s.plan.Kind.Clause(in, step.Color)
	case s.envelope != nil:
		step.Explanation = s.envelope.Explain(s.plan.Flow, now, n, in)
	case s.leased != nil:
		step.Explanation = s.leased.explain(now, n, in, s.plan.Kind)
	default:
		step.Explanation = s.Explain(now, n, in)
	}
	return step
}

func (s *stage) tokens(now int64) (tc, te int64) {
	m := &s.Meter
	switch {
	case s.keyed != nil:
		m = s.keyed.table.Rest()
	case s.shared != nil:
		return s.shared.Tokens(now)
	case s.envelope != nil:
		return s.envelope.Tokens(s.plan.Flow, now)
	case s.leased != nil:
		return s.leased.tokens(now)
	}
	if !m.Begun() { // packets begin its clock, not who looks at it
		look := m.Clone()
		m = &look
	}
	return m.Tokens(now)
}

// inherit gives a stage the tokens of another, whose place it takes. Keys stay if they
// are found and bounded in the same way.
func (s *stage) inherit(was *stage, now int64) {
	switch {
	case s.keyed != nil && was.keyed != nil:
		p, q := s.plan, was.plan
		same := p.Key == q.Key && p.Keys == q.Keys && p.Idle == q.Idle && p.Initial == q.Initial
		if same && !was.keyed.moved && was.keyed.table.SetProfile(now, p.Profile) == nil {
			s.keyed.table, was.keyed.moved = was.keyed.table, true
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
