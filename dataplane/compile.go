package dataplane

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// Compile compiles a policy. The error joins all errors of the policy, as FieldErrors.
func Compile(policy *Policy) (*Plan, error) {
	c := newCompiler()
	c.plan.Source, c.plan.Length, c.plan.DropUnclassified = policy, policy.Length, policy.DropUnclassified
	switch n := len(policy.Classes); {
	case n == 0:
		c.add(policy, "classes", "a policy needs at least one class")
	case n > MaxClasses:
		c.add(policy, "classes", fmt.Sprintf("%d are more than %d", n, MaxClasses))
	}
	policy.Length.check(&c.errorList)
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
		cl.Match.check(&c.errorList)
		matches[i] = cl.Match
		c.class(cl)
	}
	c.finish()
	if c.errorList == nil {
		c.errorList = policy.unused(c)
	}
	if c.errorList != nil {
		return nil, errors.Join(c.errorList...)
	}
	c.plan.Classifier = NewClassifier(matches)
	return c.plan, nil
}

// unused returns the errors of the named parts of a policy that no class leads to: they
// are compiled apart.
func (p *Policy) unused(used *compiler) errorList {
	c := newCompiler()
	for _, m := range p.Meters {
		if _, ok := used.stages[m]; !ok {
			c.meter(m)
		}
	}
	for _, q := range p.Queues {
		if _, ok := used.queues[q]; !ok {
			c.queue(q)
		}
	}
	for _, l := range p.Links {
		if _, ok := used.links[l]; !ok {
			c.link(l)
		}
	}
	c.finish()
	return c.errorList
}

// compiler fills a Plan and collects errors. A part is compiled once, however many
// others point to it.
type compiler struct {
	errorList
	plan      *Plan
	stages    map[*Meter]int
	queues    map[*Queue]int
	links     map[*Link]int
	envelopes map[*Envelope]int
	budgets   map[string]bool // by name
	checked   map[*Action]bool
	open      map[*Meter]bool // whose chain is being compiled
}

func newCompiler() *compiler {
	return &compiler{
		plan:   &Plan{},
		stages: map[*Meter]int{}, queues: map[*Queue]int{}, links: map[*Link]int{}, envelopes: map[*Envelope]int{},
		budgets: map[string]bool{}, checked: map[*Action]bool{}, open: map[*Meter]bool{},
	}
}

// finish compiles what can be compiled only when all of its parts are known.
func (c *compiler) finish() {
	for i := range c.plan.Envelopes {
		c.flows(&c.plan.Envelopes[i])
	}
}

func (c *compiler) class(cl *Class) {
	out := PlanClass{Name: cl.Name, Stage: -1, Source: cl}
	if cl.Meter != nil {
		out.Stage = c.meter(cl.Meter)
	}
	sources := [3]*Action{cl.Green, cl.Yellow, cl.Red}
	for _, a := range sources {
		if a != nil && !c.checked[a] {
			c.checked[a] = true
			a.check(&c.errorList)
		}
	}
	for color, a := range cl.actions() {
		out.Actions[color] = PlanAction{a.Drop, a.ECN, a.Marks, -1, sources[color]}
		if a.Queue != nil {
			out.Actions[color].Queue = c.queue(a.Queue)
		}
	}
	c.plan.Classes = append(c.plan.Classes, out)
}

func (c *compiler) meter(m *Meter) int {
	if i, ok := c.stages[m]; ok {
		return i
	}
	i := len(c.plan.Stages)
	c.stages[m] = i
	s := PlanStage{
		StageOutline: StageOutline{Name: m.Name, Packets: m.Packets, Then: -1, Key: m.Per, Initial: m.Initial, Idle: m.Idle},
		Aware:        m.Aware, Input: InputColors{From: m.PreColor.From}, Envelope: -1, Source: m,
	}
	if !m.Initial.valid() {
		c.add(m, "initial", "must be between nothing and all of the burst")
	}
	c.inputColors(&s.Input, m)
	if m.Params == nil {
		c.add(m, "type", "is missing: a meter needs parameters")
	} else if p, err := m.Params.Profile(); err != nil {
		c.join(m, "type", err)
	} else {
		c.state(&s, m, p)
	}
	c.plan.Stages = append(c.plan.Stages, s)
	if s.Envelope >= 0 {
		e := &c.plan.Envelopes[s.Envelope]
		e.Stages = append(e.Stages, i)
	}
	if m.Then != nil {
		then := c.then(m) // which moves the stages
		c.plan.Stages[i].Then = then
	}
	return i
}

// state compiles what a stage has for its tokens.
func (c *compiler) state(s *PlanStage, m *Meter, p *meter.Profile) {
	s.Profile, s.Kind = p, p.Kind()
	for _, b := range m.Params.Buckets() {
		s.Buckets = append(s.Buckets, BucketOutline{b.TokensName, b.Burst})
	}
	if b := m.Budget; b != nil {
		b.check(&c.errorList, m, s.Kind)
		if c.budgets[b.Name] {
			c.add(b, "budget", fmt.Sprintf("%q is that of another meter of this policy: let both classes name one meter under meters:", b.Name))
		}
		c.budgets[b.Name] = true
		resolved := b.Resolved()
		s.Budget, s.BudgetName, s.Leased = &resolved, b.Name, !b.OnHost()
	}
	given := m.Initial.valid() && m.Initial.Den != 0
	if given && s.Kind.Info().State == meter.StateAverage && m.Per.By == NoKey {
		c.add(m, "initial", "needs tokens, and RFC 2859 has an average")
	}
	switch {
	case m.Envelope != nil:
		s.Envelope = c.envelope(m.Envelope)
		if _, ok := m.Params.(meter.TRTCM4115); !ok {
			c.add(m, "envelope", "takes meters of type trtcm4115, not "+s.Kind.String())
		}
		if m.Per.By != NoKey {
			c.add(m, "per", "does not go with an envelope")
		}
		if m.Rank < 1 || m.Rank > maxRank {
			c.add(m, "rank", fmt.Sprintf("%d is not between 1 and %d, the highest", m.Rank, maxRank))
		}
	case m.CIRMax != nil || m.EIRMax != nil:
		c.add(m, "envelope", "is missing: cirmax and eirmax are of a flow in an envelope")
	case m.Per.By != NoKey:
		c.keys(s, m, given)
	}
}

// keys compiles the table of a meter for each key.
func (c *compiler) keys(s *PlanStage, m *Meter, given bool) {
	s.Keys = cmp.Or(m.Keys, DefaultKeys)
	switch reason := m.Per.fault(); {
	case s.Kind.Info().State == meter.StateAverage:
		c.add(m, "per", "does not go with "+s.Kind.String()+": an average has no end, and so no key could be forgotten")
		return
	case reason != "":
		c.add(m, "per", reason)
	case m.Per.By == ByHosts:
		c.add(m, "per", "has no key hosts: only queues have, by fair")
	}
	if given && m.Initial.Num != 0 {
		c.add(m, "new", "must be full or empty")
	}
	if err := s.table().Validate(s.Profile); err != nil {
		c.join(m, "per", err)
	}
}

// table is how the stage keeps its keys.
func (s *PlanStage) table() meter.TableConfig {
	return meter.TableConfig{Keys: s.Keys, Empty: s.Initial.Den != 0, Idle: s.Idle}
}

func (c *compiler) envelope(e *Envelope) int {
	i, ok := c.envelopes[e]
	if !ok {
		i = len(c.plan.Envelopes)
		c.envelopes[e] = i
		c.plan.Envelopes = append(c.plan.Envelopes, PlanEnvelope{Source: e})
	}
	return i
}

// flows compiles an envelope when all its flows are known.
func (c *compiler) flows(out *PlanEnvelope) {
	envelope := out.Source
	source := func(i int) *Meter { return c.plan.Stages[out.Stages[i]].Source }
	slices.SortStableFunc(out.Stages, func(a, b int) int { return c.plan.Stages[b].Source.Rank - c.plan.Stages[a].Source.Rank })
	out.Coupling = envelope.Coupling
	for i, stage := range out.Stages {
		m := source(i)
		flow, ok := m.Params.(meter.TRTCM4115)
		if !ok || !m.Initial.valid() {
			return // state and meter have said why
		}
		c.plan.Stages[stage].Flow = i
		cirmax, eirmax := m.Limits()
		out.Flows = append(out.Flows, meter.EnvelopeFlow{Buckets: flow, CIRMax: cirmax, EIRMax: eirmax})
		if i > 0 && m.Rank == source(i-1).Rank {
			c.add(m, "rank", fmt.Sprintf("%d is that of another flow in envelope %q", m.Rank, envelope.Name))
		}
		if m.Packets != source(0).Packets {
			c.add(m, "count", fmt.Sprintf("differs from that of another flow in envelope %q", envelope.Name))
		}
		if capped := envelope.CIRMax.Bytes > 0 || envelope.EIRMax.Bytes > 0; capped && m.Packets != envelope.Packets {
			c.add(m, "count", fmt.Sprintf("differs from what the limits of envelope %q count", envelope.Name))
		}
	}
	if _, err := meter.NewEnvelope(out.EnvelopeParams); err != nil {
		c.join(envelope, "cirmax", err)
	}
}

// then compiles what follows a meter.
func (c *compiler) then(m *Meter) int {
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

// inputColors compiles the table of input colors.
func (c *compiler) inputColors(in *InputColors, m *Meter) {
	if !in.From.known() {
		c.add(m, "precolor", fmt.Sprintf("%v is not known", in.From))
		return
	}
	table := m.PreColor.Table()
	for _, v := range slices.Sorted(maps.Keys(table)) {
		color := table[v]
		switch {
		case v > fieldMax[in.From]:
			c.add(m, "precolor", fmt.Sprintf("%d is above %d", v, fieldMax[in.From]))
		case color > meter.Red:
			c.add(m, "precolor", fmt.Sprintf("%v is not a color", color))
		case v < uint32(len(in.Low)):
			in.Low[v] = color
		default:
			if in.High == nil {
				in.High = map[uint32]meter.Color{}
			}
			in.High[v] = color
		}
	}
}

func (c *compiler) queue(q *Queue) int {
	if i, ok := c.queues[q]; ok {
		return i
	}
	i := len(c.plan.Queues)
	c.queues[q] = i
	out := PlanQueue{QueueOutline: QueueOutline{q.Name, -1}, Drain: q.Drain(), Source: q}
	if q.Link == nil {
		out.Config = q.Config
		if _, err := queue.New(q.Config); err != nil {
			c.join(q, "rate", err)
		}
		if q.Priority != 0 || q.Weight < 0 || q.Weight > 1 {
			c.add(q, "rate", "goes with no priority and no weight: they are a link's")
		}
		if q.Fair.By != NoKey {
			c.add(q, "fair", "is for queues of a link: flows have no departure time before their turn comes")
		}
	} else {
		c.share(&out, i)
	}
	c.plan.Queues = append(c.plan.Queues, out)
	return i
}

// share compiles a queue as one of its link.
func (c *compiler) share(out *PlanQueue, i int) {
	q := out.Source
	out.Link, out.Key = c.link(q.Link), q.Fair
	link := &c.plan.Links[out.Link]
	link.Queues = append(link.Queues, i)
	if _, _, err := queue.Pace(link.Rate); err == nil {
		if out.Share, err = q.Resolve(); err != nil {
			c.join(q, "limit", err)
		}
	}
	if reason := q.Fair.fault(); reason != "" {
		c.add(q, "fair", reason)
	}
}

func (c *compiler) link(l *Link) int {
	if i, ok := c.links[l]; ok {
		return i
	}
	i := len(c.plan.Links)
	c.links[l] = i
	c.plan.Links = append(c.plan.Links, PlanLink{Name: l.Name, Rate: l.Rate, Source: l})
	if _, _, err := queue.Pace(l.Rate); err != nil {
		c.join(l, "rate", err)
	}
	return i
}
