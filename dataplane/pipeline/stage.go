package pipeline

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// stage is the state of a stage of the plan. Its tokens are in Meter, unless one of the
// next five fields is set.
type stage struct {
	meter.Meter
	keyed     *keyTable       // a meter for each key
	shared    Shared          // set by Pipeline.Share
	envelope  *meter.Envelope // the envelope of this flow
	leased    *leased         // the lease of a budget on a server
	customers *customers      // the meters of customers
	plan      *compiled.Stage
}

// initialize sets the initial state. The caller sets the envelope of a flow.
func (s *stage) initialize(p *compiled.Stage) {
	s.plan = p
	switch {
	case p.Envelope >= 0:
	case p.Keyed():
		s.keyed = newKeyTable(p)
	case p.Leased:
		s.leased = new(leased)
	case p.Customers: // NewPipeline sets them
	case p.Initial.Den != 0:
		cb, eb := p.Profile.Bursts()
		s.Meter = meter.NewWithTokens(p.Profile, p.Initial.Of(cb), p.Initial.Of(eb))
	default:
		s.Meter = meter.New(p.Profile)
	}
}

// color meters n bytes or packets of a packet with input color in, and returns the color.
func (s *stage) color(p *dataplane.Packet, now int64, n int, in meter.Color) meter.Color {
	switch {
	case s.keyed != nil:
		return s.keyed.color(p, now, n, in)
	case s.shared != nil:
		return s.shared.Color(now, n, in)
	case s.envelope != nil:
		return s.envelope.Color(s.plan.Flow, now, n, in)
	case s.leased != nil:
		return s.leased.color(now, n, in)
	case s.customers != nil:
		return s.customers.customer(p.Customer).Color(now, n, in)
	}
	return s.Color(now, n, in)
}

// kind returns the kind of the meter for a packet, or false if its customer has a queue
// instead of a meter.
func (s *stage) kind(p *dataplane.Packet) (k meter.Kind, metered bool) {
	if s.customers == nil {
		return s.plan.Kind, true
	}
	c := s.customers.customer(p.Customer)
	return c.service.Kind, !c.paced()
}

// Step is the decision of one meter about a packet.
type Step struct {
	Stage int    // index in Plan.Stages
	Key   string // the packet's key, for people; "" if the meter has no keys, or the packet has no key
	meter.Explanation
}

// explain is color with an explanation.
func (s *stage) explain(p *dataplane.Packet, now int64, n int, in meter.Color) (step Step) {
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
	case s.customers != nil:
		step.Key = s.customers.plan.Source.List[p.Customer-1].Name
		step.Explanation = s.customers.customer(p.Customer).Explain(now, n, in)
	default:
		step.Explanation = s.Explain(now, n, in)
	}
	return step
}

// tokens returns the tokens of the meter at a time, ns. For a meter per key they are those
// of the meter for packets without a key.
func (s *stage) tokens(now int64) (tc, te int64) {
	m := &s.Meter
	switch {
	case s.keyed != nil:
		m = s.keyed.table().Rest()
	case s.shared != nil:
		return s.shared.Tokens(now)
	case s.envelope != nil:
		return s.envelope.Tokens(s.plan.Flow, now)
	case s.leased != nil:
		return s.leased.tokens(now)
	case s.customers != nil:
		return 0, 0
	}
	if !m.Begun() { // only a packet may start its clock
		look := m.Clone()
		m = &look
	}
	return m.Tokens(now)
}

// measureLack sets v.Lack after the packet was metered. The color took no tokens from the bucket that
// lacked them.
func (s *stage) measureLack(runs *LackRuns, v *dataplane.Verdict, n int, in meter.Color) {
	if s.keyed != nil || s.customers != nil {
		return
	}
	most := runs.most(v)
	if n <= most {
		return
	}
	if most >= 0 && s.ownMeter() { // does it lack more than the run did?
		c, e := s.Holds(v.Now, n-most)
		if useC, useE := s.plan.Better(in, v.Color); useC && c || useE && e {
			return
		}
	}
	tc, te := s.tokens(v.Now)
	runs.Set(v, s.plan.Lack(n, in, v.Color, tc, te))
}

// inherit takes over the tokens of the stage's predecessor. A table of keys is taken over
// if neither the key nor the bounds of the table have changed.
func (s *stage) inherit(was *stage, now int64) {
	switch {
	case s.keyed != nil && was.keyed != nil:
		p, q := s.plan, was.plan
		same := p.Key == q.Key && p.Keys == q.Keys && p.Idle == q.Idle && p.Initial == q.Initial
		if same && !was.keyed.moved && was.keyed.table().SetProfile(now, p.Profile) == nil {
			s.keyed.small, s.keyed.all, was.keyed.moved = was.keyed.small, was.keyed.all, true
		}
	case s.leased != nil && was.leased != nil && s.plan.BudgetName == was.plan.BudgetName:
		s.leased = was.leased // no other stage takes it: a policy contains each budget once
	case s.keyed != nil || s.leased != nil || s.shared != nil || s.customers != nil || was.customers != nil:
		// A new table or lease, or tokens that are not the stage's.
	case s.envelope == nil && was.ownMeter():
		s.Meter = was.Clone() // several stages may continue the same one
		s.SetProfile(now, s.plan.Profile)
	default:
		tc, te := was.tokens(now)
		if s.envelope != nil {
			s.envelope.SetTokens(s.plan.Flow, tc, te)
		} else {
			s.Meter = meter.NewWithTokens(s.plan.Profile, tc, te)
		}
		s.color(nil, now, 0, meter.Red) // starts its clock; a red packet takes no tokens
	}
}

// ownMeter reports whether the tokens of the stage are in its Meter.
func (s *stage) ownMeter() bool {
	return s.keyed == nil && s.shared == nil && s.envelope == nil && s.leased == nil && s.customers == nil
}
