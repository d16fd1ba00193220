package dataplane

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// New compiles a policy. The error joins all that is wrong with it, as
// FieldErrors.
func New(policy *Policy) (*Pipeline, error) {
	c := compiler{
		Pipeline: &Pipeline{policy: policy, length: policy.Length, now: math.MinInt64, stageOf: map[*Meter]int32{}},
		paced:    map[*Queue]int32{},
		shares:   map[*Link][]queue.Share{},
		checked:  map[*Action]bool{},
		open:     map[*Meter]bool{},
		flows:    map[*Envelope][]int32{},
		budgets:  map[string]bool{},
	}
	switch n := len(policy.Classes); {
	case n == 0:
		c.add(policy, "classes", "a policy needs at least one class")
	case n > MaxClasses:
		c.add(policy, "classes", fmt.Sprintf("%d are more than %d", n, MaxClasses))
	}
	policy.Length.check(&c.faults)
	names := map[string]bool{}
	matches := make([]Match, len(policy.Classes))
	for i := range policy.Classes {
		cl := &policy.Classes[i]
		switch {
		case cl.Name == "" || cl.Name == "-":
			c.add(cl, "name", fmt.Sprintf("%q cannot name a class", cl.Name))
		case names[cl.Name]:
			c.add(cl, "name", fmt.Sprintf("%q names an earlier class too", cl.Name))
		}
		names[cl.Name] = true
		c.match(&cl.Match)
		matches[i] = cl.Match
		c.class(cl)
	}
	c.link()
	c.envelope()
	if c.faults != nil {
		return nil, errors.Join(c.faults...)
	}
	c.classifier = NewClassifier(matches)
	c.stats = make([]ClassStats, len(c.classes)+1)
	return c.Pipeline, nil
}

// compiler fills a Pipeline and collects faults.
type compiler struct {
	*Pipeline
	faults
	paced   map[*Queue]int32
	links   []*Link // in the order of their first queue
	shares  map[*Link][]queue.Share
	checked map[*Action]bool
	open    map[*Meter]bool // whose chain is being compiled

	envelopes []*Envelope           // in the order of their first flow
	flows     map[*Envelope][]int32 // stages
	budgets   map[string]bool       // by name
}

func (c *compiler) class(cl *Class) {
	out := class{stage: -1}
	if cl.Meter != nil {
		out.stage = c.meter(cl.Meter)
	}
	for _, a := range [3]*Action{cl.Green, cl.Yellow, cl.Red} {
		if a != nil && !c.checked[a] {
			c.checked[a] = true
			c.action(a)
		}
	}
	for color, a := range cl.actions() {
		out.actions[color] = action{a.Drop, a.ECN, a.Marks, -1}
		if a.Queue != nil {
			out.actions[color].queue = c.queue(a.Queue)
		}
	}
	c.classes = append(c.classes, out)
}

// meter compiles a meter once, however many point to it.
func (c *compiler) meter(m *Meter) int32 {
	if i, ok := c.stageOf[m]; ok {
		return i
	}
	i := int32(len(c.stages))
	c.stageOf[m] = i
	c.stages = append(c.stages, stage{of: m, packets: m.Packets, aware: m.Aware, from: m.PreColor.From, then: -1})
	s := &c.stages[i]
	if !m.Initial.valid() {
		c.add(m, "initial", "must be between nothing and all of the burst")
	}
	c.preColor(s, m)
	if m.Params == nil {
		c.add(m, "type", "is missing: a meter needs parameters")
	} else if p, err := m.Params.Profile(); err != nil {
		c.join(m, "type", err)
	} else {
		s.kind = p.Kind()
		c.budget(m, s.kind)
		c.state(s, m, p)
	}
	if m.Then != nil {
		then := c.then(m) // which moves the stages
		c.stages[i].then = then
	}
	return i
}

// budget checks the budget of a meter, if it has one.
func (c *compiler) budget(m *Meter, kind meter.Kind) {
	b := m.Budget
	if b == nil {
		return
	}
	b.check(&c.faults, m, kind)
	if c.budgets[b.Name] {
		c.add(b, "budget", fmt.Sprintf("%q is that of another meter of this policy: let both classes name one meter under meters:", b.Name))
	}
	c.budgets[b.Name] = true
}

// state gives a stage its meter, its table of keys, or its place in an envelope.
func (c *compiler) state(s *stage, m *Meter, p *meter.Profile) {
	given := m.Initial.valid() && m.Initial.Den != 0
	if given && s.kind == meter.KindTSWTCM && m.Per.By == NoKey {
		c.add(m, "initial", "needs tokens, and RFC 2859 has an average")
	}
	switch {
	case m.Envelope != nil:
		if _, ok := m.Params.(meter.TRTCM4115); !ok {
			c.add(m, "envelope", "takes meters of type trtcm4115, not "+s.kind.String())
		}
		if m.Per.By != NoKey {
			c.add(m, "per", "does not go with an envelope")
		}
		if m.Rank < 1 || m.Rank > maxRank {
			c.add(m, "rank", fmt.Sprintf("%d is not between 1 and %d, the highest", m.Rank, maxRank))
		}
		if c.flows[m.Envelope] == nil {
			c.envelopes = append(c.envelopes, m.Envelope)
		}
		c.flows[m.Envelope] = append(c.flows[m.Envelope], c.stageOf[m])
	case m.CIRMax != nil || m.EIRMax != nil:
		c.add(m, "envelope", "is missing: cirmax and eirmax are of a flow in an envelope")
	case m.Per.By != NoKey:
		if s.kind == meter.KindTSWTCM {
			c.add(m, "per", "does not go with tswtcm: an average has no end, and so no key could be forgotten")
			return
		}
		if given && m.Initial.Num != 0 {
			c.add(m, "new", "must be full or empty")
		}
		var err error
		if s.keyed, err = newKeyed(m, p); err != nil {
			c.join(m, "per", err)
		}
	case m.Budget != nil && !m.Budget.OnHost():
		s.leased = new(leased)
	case given:
		cb, eb := p.Bursts()
		s.Meter = meter.NewWithTokens(p, m.Initial.Of(cb), m.Initial.Of(eb))
	default:
		s.Meter = meter.New(p)
	}
}

// envelope makes the envelopes, after all their flows are known.
func (c *compiler) envelope() {
	for _, envelope := range c.envelopes {
		flows := c.flows[envelope]
		slices.SortStableFunc(flows, func(a, b int32) int { return c.stages[b].of.Rank - c.stages[a].of.Rank })
		params := meter.EnvelopeParams{Coupling: envelope.Coupling}
		for i, at := range flows {
			m := c.stages[at].of
			flow, ok := m.Params.(meter.TRTCM4115)
			if !ok || m.Initial.Den != 0 && !m.Initial.valid() {
				return // state has said why
			}
			cirmax, eirmax := m.Limits()
			params.Flows = append(params.Flows, meter.EnvelopeFlow{Buckets: flow, CIRMax: cirmax, EIRMax: eirmax})
			if i > 0 && m.Rank == c.stages[flows[i-1]].of.Rank {
				c.add(m, "rank", fmt.Sprintf("%d is that of another flow in envelope %q", m.Rank, envelope.Name))
			}
			if m.Packets != c.stages[flows[0]].of.Packets {
				c.add(m, "count", fmt.Sprintf("differs from that of another flow in envelope %q", envelope.Name))
			}
			if capped := envelope.CIRMax.Bytes > 0 || envelope.EIRMax.Bytes > 0; capped && m.Packets != envelope.Packets {
				c.add(m, "count", fmt.Sprintf("differs from what the limits of envelope %q count", envelope.Name))
			}
		}
		e, err := meter.NewEnvelope(params)
		if err != nil {
			c.join(envelope, "cirmax", err)
			return
		}
		for i, at := range flows {
			s := &c.stages[at]
			s.envelope, s.flow = e, i
			f := params.Flows[i].Buckets
			e.SetTokens(i, s.of.Initial.Of(f.CBS), s.of.Initial.Of(f.EBS))
		}
	}
}

// then compiles what follows a meter.
func (c *compiler) then(m *Meter) int32 {
	c.open[m] = true
	defer delete(c.open, m)
	if c.open[m.Then] {
		c.add(m, "then", fmt.Sprintf("leads back to meter %q: a chain must end", m.Then.Name))
		return -1
	}
	if !m.Then.Aware {
		c.add(m, "then", fmt.Sprintf("leads to meter %q, which is color-blind and would forget the color before: give it color: aware", m.Then.Name))
	}
	return c.meter(m.Then)
}

// preColor compiles where a stage finds the color before.
func (c *compiler) preColor(s *stage, m *Meter) {
	if !s.from.known() {
		c.add(m, "precolor", fmt.Sprintf("%v is not known", s.from))
		return
	}
	table := m.PreColor.Table()
	for _, v := range slices.Sorted(maps.Keys(table)) {
		color := table[v]
		switch {
		case v > fieldMax[s.from]:
			c.add(m, "precolor", fmt.Sprintf("%d is above %d", v, fieldMax[s.from]))
		case color > meter.Red:
			c.add(m, "precolor", fmt.Sprintf("%v is not a color", color))
		case v < uint32(len(s.low)):
			s.low[v] = color
		default:
			if s.high == nil {
				s.high = map[uint32]meter.Color{}
			}
			s.high[v] = color
		}
	}
}

// queue compiles a queue once, however many point to it. Those of links are
// joined by link.
func (c *compiler) queue(q *Queue) int32 {
	if i, ok := c.paced[q]; ok {
		return i
	}
	i := int32(len(c.Pipeline.queues))
	c.paced[q] = i
	out := paced{Queue: q, link: -1}
	if q.Link == nil {
		var err error
		if out.leaky, err = queue.New(q.Config); err != nil {
			c.join(q, "rate", err)
		}
		if q.Priority != 0 || q.Weight < 0 || q.Weight > 1 {
			c.add(q, "rate", "goes with no priority and no weight: they are a link's")
		}
		if q.Fair.By != NoKey {
			c.add(q, "fair", "is for queues of a link: flows have no departure time before their turn comes")
		}
	} else {
		out.link, out.share = c.share(q)
		if reason := q.Fair.fault(); reason != "" {
			c.add(q, "fair", reason)
		} else if q.Fair.By != NoKey {
			out.fair = q.Fair.keyed()
		}
	}
	c.Pipeline.queues = append(c.Pipeline.queues, out)
	return i
}

// share notes a queue of a link.
func (c *compiler) share(q *Queue) (link, share int) {
	link = slices.Index(c.links, q.Link)
	if link < 0 {
		link = len(c.links)
		c.links = append(c.links, q.Link)
	}
	share = len(c.shares[q.Link])
	s := q.Share()
	c.shares[q.Link] = append(c.shares[q.Link], s)
	if _, _, err := queue.Pace(q.Link.Rate); err == nil {
		if _, err := s.Resolve(q.Link.Rate); err != nil {
			c.join(q, "limit", err)
		}
	}
	return link, share
}

// link makes the links, after all their queues are known.
func (c *compiler) link() {
	for _, link := range c.links {
		if _, _, err := queue.Pace(link.Rate); err != nil {
			c.join(link, "rate", err)
			continue
		}
		l, _ := queue.NewLink[Verdict](link.Rate, c.shares[link]) // share has said what is wrong
		c.Pipeline.links = append(c.Pipeline.links, l)
	}
}

// class is a compiled Class.
type class struct {
	stage   int32 // first meter, -1 for none
	actions [3]action
}

// paced is a compiled Queue: a leaky bucket, or a share of a link.
type paced struct {
	*Queue
	leaky       *queue.Leaky
	link, share int
	fair        *keyed // of a fair queue
}

// action is a compiled Action.
type action struct {
	drop  bool
	ecn   ECN
	marks []Mark
	queue int32 // -1 for none
}

// stage is a meter with what stands around it in a policy.
type stage struct {
	meter.Meter                 // unless one of the next three is there
	keyed       *keyed          // a meter for each key
	shared      Shared          // what meters packets in its place
	envelope    *meter.Envelope // of which it is a flow
	flow        int
	leased      *leased // of a budget on a server

	of      *Meter
	kind    meter.Kind
	packets bool
	aware   bool
	from    Field
	low     [64]meter.Color        // the color before, by values below 64
	high    map[uint32]meter.Color // by other values; nil where none is named
	then    int32                  // -1 for none
}
