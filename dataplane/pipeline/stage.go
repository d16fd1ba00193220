package pipeline

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// source is the holder of a stage's tokens.
type source uint8

const (
	ownMeter    source = iota // stage.Meter
	perKey                    // keyed: a meter for each key
	replaced                  // shared: a meter of ReplaceMeter
	inEnvelope                // envelope: of this flow
	onServer                  // leased: the lease of a budget on a server
	perCustomer               // customers: the meters of customers
)

// stage is the state of a stage of the plan. source tells which field holds the tokens; the other
// holders are zero.
type stage struct {
	meter.Meter
	source    source
	keyed     *keyTable
	shared    Shared
	envelope  *meter.Envelope
	leased    *leased
	customers *customers
	plan      *compiled.Stage
}

// initialize sets the initial state. The caller sets the envelope of a flow, and the customers.
func (s *stage) initialize(p *compiled.Stage) {
	s.plan = p
	switch {
	case p.Envelope >= 0:
		s.source = inEnvelope
	case p.Keyed():
		s.source, s.keyed = perKey, newKeyTable(p)
	case p.Leased:
		s.source, s.leased = onServer, new(leased)
	case p.Customers:
		s.source = perCustomer
	case p.Initial.Den != 0:
		cb, eb := p.Profile.Bursts()
		s.Meter = meter.NewWithTokens(p.Profile, p.Initial.Of(cb), p.Initial.Of(eb))
	default:
		s.Meter = meter.New(p.Profile)
	}
}

// color meters n bytes or packets of a packet with input color in, and returns the color.
func (s *stage) color(p *dataplane.Packet, now int64, n int, in meter.Color) meter.Color {
	switch s.source {
	case perKey:
		return s.keyed.color(p, now, n, in)
	case replaced:
		return s.shared.Color(now, n, in)
	case inEnvelope:
		return s.envelope.Color(s.plan.Flow, now, n, in)
	case onServer:
		return s.leased.color(now, n, in)
	case perCustomer:
		return s.customers.customer(p.Customer).Color(now, n, in)
	}
	return s.Color(now, n, in)
}

// kind returns the kind of the meter for a packet, or false for a customer with a queue instead of
// a meter.
func (s *stage) kind(p *dataplane.Packet) (k meter.Kind, metered bool) {
	if s.source != perCustomer {
		return s.plan.Kind, true
	}
	c := s.customers.customer(p.Customer)
	return c.service.Kind, !c.paced()
}

// Step is the decision of one meter about a packet.
type Step struct {
	Stage int    // index in Plan.Stages
	Key   string // the packet's key, for people; "" for a meter or a packet without keys
	meter.Explanation
}

// explain is color with an explanation.
func (s *stage) explain(p *dataplane.Packet, now int64, n int, in meter.Color) (step Step) {
	switch s.source {
	case perKey:
		step.Key, step.Explanation = s.keyed.explain(p, now, n, in)
	case replaced:
		step.Length, step.In, step.Color = n, in, s.shared.Color(now, n, in)
		step.Clause = s.plan.Kind.Clause(in, step.Color)
	case inEnvelope:
		step.Explanation = s.envelope.Explain(s.plan.Flow, now, n, in)
	case onServer:
		step.Explanation = s.leased.explain(now, n, in, s.plan.Kind)
	case perCustomer:
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
	switch s.source {
	case perKey:
		m = s.keyed.table().Rest()
	case replaced:
		return s.shared.Tokens(now)
	case inEnvelope:
		return s.envelope.Tokens(s.plan.Flow, now)
	case onServer:
		return s.leased.tokens(now)
	case perCustomer:
		return 0, 0
	}
	if !m.Begun() { // only a packet may start its clock
		look := m.Clone()
		m = &look
	}
	return m.Tokens(now)
}

// measureLack sets v.Lack after the packet was metered. The color took no tokens from the bucket
// lacking them.
func (s *stage) measureLack(runs *LackRuns, v *dataplane.Verdict, n int, in meter.Color) {
	if s.source == perKey || s.source == perCustomer {
		return
	}
	most := runs.most(v)
	if n <= most {
		return
	}
	if most >= 0 && s.source == ownMeter { // does it lack more than the run did?
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
	case s.source == perKey && was.source == perKey:
		p, q := s.plan, was.plan
		same := p.Key == q.Key && p.Keys == q.Keys && p.Idle == q.Idle && p.Initial == q.Initial
		if same && !was.keyed.moved && was.keyed.table().SetProfile(now, p.Profile) == nil {
			s.keyed.small, s.keyed.all, was.keyed.moved = was.keyed.small, was.keyed.all, true
		}
	case s.source == onServer && was.source == onServer && s.plan.BudgetName == was.plan.BudgetName:
		s.leased = was.leased // no other stage takes it: a policy contains each budget once
	case s.source != ownMeter && s.source != inEnvelope || was.source == perCustomer:
		// The table or lease is new, or others own the tokens.
	case s.source == ownMeter && was.source == ownMeter:
		s.Meter = was.Clone() // several stages may continue the same one
		s.SetProfile(now, s.plan.Profile)
	default:
		tc, te := was.tokens(now)
		if s.source == inEnvelope {
			s.envelope.SetTokens(s.plan.Flow, tc, te)
		} else {
			s.Meter = meter.NewWithTokens(s.plan.Profile, tc, te)
		}
		s.color(nil, now, 0, meter.Red) // starts its clock; a red packet takes no tokens
	}
}
