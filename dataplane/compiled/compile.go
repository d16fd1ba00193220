package compiled

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Compile checks a policy and returns its plan. It reports all errors at once: the error
// joins a dataplane.FieldError for each (errors.Join). Compile keeps pointers into the policy, which
// must not change afterwards.
func Compile(policy *dataplane.Policy) (*Plan, error) {
	plan, err := compileDirection(policy, nil)
	if err == nil {
		err = plan.compileUp()
	}
	if err != nil {
		return nil, err
	}
	return plan, nil
}

// compileDirection compiles a policy for packets of one direction. table, if it is not nil, is the compiled
// table of customers of the other direction, to use again.
func compileDirection(policy *dataplane.Policy, table *Customers) (*Plan, error) {
	c := newCompiler()
	c.plan.Source, c.plan.Length, c.plan.DropUnclassified = policy, policy.Length, policy.DropUnclassified
	switch n := len(policy.Classes); {
	case n == 0:
		c.add(policy, "classes", "must contain at least one class")
	case n > MaxClasses:
		c.add(policy, "classes", fmt.Sprintf("must contain at most %d classes, not %d", MaxClasses, n))
	}
	c.checkLength(&policy.Length)
	c.plan.Classes = make([]Class, 0, len(policy.Classes))
	c.plan.Stages = make([]Stage, 0, len(policy.Classes)) // usually one meter for each class
	names := map[string]bool{}
	matches := make([]dataplane.Match, len(policy.Classes))
	for i := range policy.Classes {
		cl := &policy.Classes[i]
		switch {
		case cl.Name == "":
			c.add(cl, "name", "is empty: give the class a name")
		case cl.Name == "-":
			c.add(cl, "name", `"-" is reserved for unclassified packets`)
		case names[cl.Name]:
			c.add(cl, "name",
				fmt.Sprintf("%q is the name of an earlier class: class names must differ", cl.Name))
		}
		names[cl.Name] = true
		c.checkMatch(&cl.Match)
		matches[i] = cl.Match
		c.compileClass(cl)
	}
	c.compileCustomers(policy.Customers, table)
	c.compileEnvelopes()
	c.findQueues()
	c.plan.checkGuarantees(&c.errorList)
	if c.errorList == nil {
		c.errorList = c.checkUnused(policy)
	}
	if c.errorList != nil {
		return nil, errors.Join(c.errorList...)
	}
	c.plan.Classifier = NewClassifier(matches)
	return c.plan, nil
}

// checkUnused returns the errors of the named parts that no class uses. It compiles them
// into a plan that is discarded.
func (c *compiler) checkUnused(p *dataplane.Policy) errorList {
	all := newCompiler()
	for _, m := range p.Meters {
		if _, ok := c.stages[m]; !ok {
			all.compileMeter(m)
		}
	}
	for _, q := range p.Queues {
		if _, ok := c.queues[q]; !ok {
			all.compileQueue(q)
		}
	}
	for _, l := range p.Links {
		if _, ok := c.links[l]; !ok {
			all.compileLink(l)
		}
	}
	all.checkChildren(p, c.queues)
	all.compileEnvelopes()
	for _, e := range p.Envelopes {
		_, used := c.envelopes[e]
		if _, named := all.envelopes[e]; !used && !named {
			all.checkEnvelope(e)
		}
	}
	return all.errorList
}

// compiler fills a Plan and collects errors. Each part is compiled once, even if several
// others point to it. The maps from parts contain their indexes in the plan.
type compiler struct {
	errorList
	plan      *Plan
	stages    map[*dataplane.Meter]int
	queues    map[*dataplane.Queue]int
	links     map[*dataplane.Link]int
	envelopes map[*dataplane.Envelope]int
	budgets   map[string]bool                 // names of budgets so far
	twice     map[*dataplane.Budget]bool      // rejected by checkOnce
	checked   map[*dataplane.Action]bool      // actions checked so far
	chain     map[*dataplane.Meter]bool       // meters of the chain being compiled
	templates map[*dataplane.ServicePlan]bool // as of Service.Template
}

func newCompiler() *compiler {
	return &compiler{
		plan:   &Plan{},
		stages: map[*dataplane.Meter]int{}, queues: map[*dataplane.Queue]int{},
		links: map[*dataplane.Link]int{}, envelopes: map[*dataplane.Envelope]int{},
		budgets: map[string]bool{}, twice: map[*dataplane.Budget]bool{},
		checked: map[*dataplane.Action]bool{}, chain: map[*dataplane.Meter]bool{},
	}
}

// compileEnvelopes compiles the envelopes. All meters must have been compiled, because
// meters point to envelopes and not the other way round.
func (c *compiler) compileClass(cl *dataplane.Class) {
	out := Class{Name: cl.Name, Stage: -1, Source: cl}
	if cl.Match.Customer && c.plan.Source.Customers == nil {
		c.add(cl, "per", "customer needs the customers of the policy")
	}
	if m := cl.Meter; m != nil {
		out.Customers = m.Params == nil && cl.Match.Customer
		switch i, known := c.stages[m]; {
		case !known && out.Customers:
			out.Stage = c.compileCustomerMeter(m)
		case known && c.plan.Stages[i].Customers && !out.Customers:
			c.add(cl, "meter", "has no type, and the class takes packets that have no customer")
		default:
			out.Stage = c.compileMeter(m)
		}
		c.checkOnce(out.Stage)
	}
	sources := [3]*dataplane.Action{cl.Green, cl.Yellow, cl.Red}
	for color, source := range sources {
		out.Actions[color] = c.compileAction(cl.Action(meter.Color(color)), source)
	}
	c.plan.Classes = append(c.plan.Classes, out)
}

// compileAction compiles an action and its queue. source is nil for a default action.
func (c *compiler) compileAction(a dataplane.Action, source *dataplane.Action) Action {
	if source != nil && !c.checked[source] {
		c.checked[source] = true
		c.checkAction(source)
	}
	out := Action{a.Drop, a.ECN, a.Marks, -1, source}
	if a.Queue != nil {
		out.Queue = c.compileQueue(a.Queue)
	}
	return out
}

// compileCustomerMeter compiles a meter whose parameters are those of the customers' plans.
func (c *compiler) compileCustomerMeter(m *dataplane.Meter) int {
	switch {
	case m.Per.By != dataplane.NoKey:
		c.add(m, "per", "cannot be combined with the plans of customers")
	case m.Envelope != nil || m.CIRMax != nil || m.EIRMax != nil:
		c.add(m, "envelope", "cannot be combined with the plans of customers")
	case m.Budget != nil:
		c.add(m, "share", "cannot be combined with the plans of customers")
	case m.Initial != dataplane.Fraction{}:
		c.add(m, "initial", "cannot be combined with the plans of customers: their buckets start full")
	}
	for i := range c.plan.Stages {
		if s := &c.plan.Stages[i]; s.Customers && s.Packets != m.Packets {
			c.add(m, "count",
				"differs from that of another class of customers: they share the meters of customers")
		}
	}
	return c.addStage(m, true)
}

// compileMeter compiles a meter and the rest of its chain, and returns its stage.
func (c *compiler) compileMeter(m *dataplane.Meter) int {
	if i, ok := c.stages[m]; ok {
		return i
	}
	return c.addStage(m, false)
}

// addStage compiles a meter that has no stage yet. customers means that its parameters are those of
// the customers' plans.
func (c *compiler) addStage(m *dataplane.Meter, customers bool) int {
	i := len(c.plan.Stages)
	c.stages[m] = i
	s := Stage{
		StageOutline: StageOutline{
			Name: m.Name, Packets: m.Packets, Then: -1, Key: m.Per, Initial: m.Initial, Idle: m.Idle,
			Customers: customers,
		},
		Aware: m.Aware, Input: InputColors{From: m.PreColor.From}, Envelope: -1, Source: m,
	}
	if !validFraction(m.Initial) {
		c.add(m, "initial", "must be between 0 and 100 % of the burst")
	}
	c.checkLone(m)
	c.compileInputColors(&s.Input, m)
	if customers {
		// compileCustomers compiles the parameters.
	} else if m.Params == nil {
		c.add(m, "type", "is missing: give the meter a type and its parameters")
	} else if p, err := m.Params.Profile(); err != nil {
		c.addError(m, "type", err)
	} else {
		c.compileTokens(&s, m, p)
	}
	c.plan.Stages = append(c.plan.Stages, s)
	if s.Envelope >= 0 {
		e := &c.plan.Envelopes[s.Envelope]
		e.Stages = append(e.Stages, i)
	}
	if m.Then != nil {
		then := c.compileThen(m) // may reallocate Stages, so it comes first
		c.plan.Stages[i].Then = then
	}
	return i
}

// compileTokens compiles the buckets of a meter, and the budget, envelope or keys that they belong
// to.
func (c *compiler) compileTokens(s *Stage, m *dataplane.Meter, p *meter.Profile) {
	s.Profile, s.Kind, s.Buckets = p, p.Kind(), outlineBuckets(m.Params)
	s.peak = s.Kind.Info().Peak
	if b := m.Budget; b != nil {
		c.checkBudget(b, m, s.Kind)
		if c.budgets[b.Name] {
			c.add(b, "budget",
				fmt.Sprintf("%q belongs to another meter of this policy: define one meter under meters: and name it in both classes",
					b.Name))
		}
		c.budgets[b.Name] = true
		resolved := b.Resolved()
		s.Budget, s.BudgetName, s.Leased = &resolved, b.Name, !b.OnHost()
	}
	given := validFraction(m.Initial) && m.Initial.Den != 0
	if given && s.Kind.Info().State == meter.StateAverage && m.Per.By == dataplane.NoKey {
		c.add(m, "initial",
			"cannot be combined with type "+s.Kind.String()+
				": it has an average rate instead of tokens (RFC 2859)")
	}
	switch {
	case m.Envelope != nil:
		s.Envelope = c.envelopeIndex(m.Envelope)
		if _, ok := m.Params.(meter.TRTCM4115); !ok {
			c.add(m, "envelope", "needs a meter of type trtcm4115, not "+s.Kind.String())
		}
		if m.Per.By != dataplane.NoKey {
			c.add(m, "per", "cannot be combined with envelope")
		}
		if m.Rank < 1 || m.Rank > maxRank {
			c.add(m, "rank", fmt.Sprintf("%d is not between 1 and %d", m.Rank, maxRank))
		}
	case m.CIRMax != nil || m.EIRMax != nil:
		c.add(m, "envelope", "is missing: cirmax and eirmax limit a flow of an envelope")
	case m.Per.By != dataplane.NoKey:
		c.compileKeys(s, m, given)
	}
}

// outlineBuckets returns the buckets of a meter.
func outlineBuckets(p meter.Params) (out []BucketOutline) {
	for _, b := range p.Buckets() {
		out = append(out, BucketOutline{b.TokensName, b.Burst})
	}
	return out
}

// compileKeys compiles the table of a meter per key. given means that Initial is not the
// default.
func (c *compiler) compileKeys(s *Stage, m *dataplane.Meter, given bool) {
	s.Keys = cmp.Or(m.Keys, dataplane.DefaultKeys)
	switch reason := invalidKey(m.Per); {
	case s.Kind.Info().State == meter.StateAverage:
		c.add(m, "per",
			"cannot be combined with type "+s.Kind.String()+
				": an average never becomes idle, so no key could be evicted")
		return
	case reason != "":
		c.add(m, "per", reason)
	case m.Per.By == dataplane.ByHosts:
		c.add(m, "per", "hosts is for fair queues only: use src, dst or flow")
	}
	if given && m.Initial.Num != 0 {
		c.add(m, "new", "must be full or empty")
	}
	if err := s.TableConfig().Validate(s.Profile); err != nil {
		c.addError(m, "per", err)
	}
}

// TableConfig returns the configuration of the stage's key table.
func (s *Stage) TableConfig() meter.TableConfig {
	return meter.TableConfig{Keys: s.Keys, Empty: s.Initial.Den != 0, Idle: s.Idle}
}

// envelopeIndex returns the index of an envelope in the plan.
// compileFlows compiles an envelope and orders its flows by rank.
// checkEnvelope adds the errors of an envelope without flows: those with a flow of the smallest buckets.
// compileThen compiles the rest of the chain after a meter, and returns its stage.
func (c *compiler) compileThen(m *dataplane.Meter) int {
	c.chain[m] = true
	defer delete(c.chain, m)
	if c.chain[m.Then] {
		c.add(m, "then", fmt.Sprintf("leads back to meter %q: a chain must end", m.Then.Name))
		return -1
	}
	if !m.Then.Aware {
		c.add(m, "then",
			fmt.Sprintf("leads to meter %q, which is color-blind and would ignore the color from this meter: give it color: aware",
				m.Then.Name))
	}
	i := c.compileMeter(m.Then)
	if c.plan.Stages[i].Customers {
		c.add(m, "then", "leads to the plans of customers: they come first in a chain")
	}
	return i
}

// compileInputColors fills the table of input colors of a meter.
func (c *compiler) compileInputColors(in *InputColors, m *dataplane.Meter) {
	largest, known := in.From.Max()
	if !known {
		c.add(m, "precolor", fmt.Sprintf("%v is not a known field", in.From))
		return
	}
	table := m.PreColor.Table()
	if m.PreColor.Map == nil { // the default has no errors, so needs no order
		if m.Aware { // for other meters it takes time for nothing
			for v, color := range table {
				in.Low[v] = color
			}
		}
		return
	}
	for _, v := range slices.Sorted(maps.Keys(table)) {
		color := table[v]
		switch {
		case v > largest:
			c.add(m, "precolor", fmt.Sprintf("%d is above %d, the largest %v", v, largest, in.From))
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
