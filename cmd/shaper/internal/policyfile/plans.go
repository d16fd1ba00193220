package policyfile

import (
	"slices"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
	"go.yaml.in/yaml/v3"
)

// planTypes are the names of the meter types for plans: those with a state of fixed size.
var planTypes = func() (names []string) {
	for name, kind := range meterTypes {
		if kind.State == meter.StateBuckets || kind.State == meter.StateCounts {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}()

// plan is a plan while customers are read.
type plan struct {
	*dataplane.ServicePlan
	what  string     // the plan in words
	own   []string   // names of the parameters open to a customer's own values
	draft draft      // of the meter
	up    draft      // of the meter for packets from the customer
	codel *yaml.Node // of the queue; nil: none
	rules QuotaRules

	rate, guarantee rates // of the queue
}

// plan reads an entry of plans. With packets its meter counts packets.
func (l *loader) plan(name string, n *yaml.Node, packets bool) {
	p := &plan{ServicePlan: &dataplane.ServicePlan{Name: name}}
	l.plans = append(l.plans, p)
	l.keepPlaces(p.ServicePlan, n)
	if n.Kind != yaml.MappingNode {
		l.fail(n, "a plan must be a mapping, not %s", kindName(n))
		return
	}
	options := append(l.ruleKeys(p), keys{
		{"green", func(n *yaml.Node) { p.Green = l.action(n) }},
		{"yellow", func(n *yaml.Node) { p.Yellow = l.action(n) }},
		{"red", func(n *yaml.Node) { p.Red = l.action(n) }},
	}...)
	switch paced := target(lookup(n, "queue")); {
	case paced != nil && lookup(n, "type") != nil:
		l.fail(paced, "plan %q has both a meter and a queue: remove one", name)
	case paced != nil:
		p.what, p.own = "a queue", []string{
			"rate", "down", "up", "limit", "link", "guarantee", "down-guarantee", "up-guarantee", "weight",
		}
		l.mapping(n, "a plan with a queue", append(options, entry{"queue", func(n *yaml.Node) {
			l.keepInner(p.ServicePlan, n)
			l.pacing(p, n)
		}}))
	case lookup(n, "type") == nil:
		l.fail(n,
			"plan %q needs a meter type, such as type: trtcm, or a queue, such as queue: {rate: 20mbit, limit: 50ms}",
			name)
	default:
		l.planMeter(p, n, options, packets)
	}
}

// planMeter reads a plan with a meter. options are the keys of all plans.
func (l *loader) planMeter(p *plan, n *yaml.Node, options keys, packets bool) {
	kind, ok := l.meterType(n)
	if !ok {
		return
	}
	if !slices.Contains(planTypes, kind.Name) {
		l.fail(target(lookup(n, "type")), "a plan cannot have type %s: want one of %s", kind.Name,
			strings.Join(planTypes, ", "))
		return
	}
	kind.Optional = slices.DeleteFunc(slices.Clone(kind.Optional),
		func(name string) bool { return name == "warmup" })
	names := slices.Concat(kind.Required, kind.Optional)
	what := "a plan of type " + kind.Name
	l.entries(n, what, func(key, value *yaml.Node) {
		switch {
		case slices.Contains(names, key.Value), key.Value == "type":
		case slices.Contains([]string{"count", "color", "precolor", "then"}, key.Value):
			l.fail(key, "%s is an option of the class: write it there, as meter: {type: plan, %[1]s: ...}",
				key.Value)
		default:
			l.knownKey(key, value, what, options, append(names, "type")...)
		}
	})
	p.what, p.own = "a meter of type "+kind.Name, kind.Required
	if slices.Contains(p.own, "rate") {
		p.own = append(slices.Clone(p.own), "down", "up")
	}
	p.draft = draft{KindInfo: kind, params: kind.Defaults, packets: packets, node: n}
	if !l.planPairs(&p.draft, names) {
		return
	}
	p.up = p.draft
	p.up.side = 1
	errors := len(l.errs)
	l.parameters(&p.draft)
	p.Params, p.up.params = p.draft.params, p.draft.params
	if p.up.pairs != nil && len(l.errs) == errors {
		l.parameters(&p.up)
	}
	meterUp(p.ServicePlan, p.up.params)
}

// pacing reads the queue of a plan. Its rate may be that of a link, which rows of customers may name.
func (l *loader) pacing(p *plan, n *yaml.Node) {
	c := &queue.Config{}
	p.Queue = c
	rate, limit := false, false
	var share *yaml.Node
	if !l.mapping(n, "the queue of a plan", append(keys{
		{"rate", func(n *yaml.Node) { rate = true; p.rate = l.rates(n, "rate") }},
		{"link", func(n *yaml.Node) { p.Link = l.linkNamed(n) }},
		{"limit", func(n *yaml.Node) { limit = true; c.Time = l.timeLimit(n) }},
		{"codel", func(n *yaml.Node) { p.codel = n }},
		{"fair", func(n *yaml.Node) { p.Hosts, p.Fair = l.fair(n) }},
		{"ecn", func(n *yaml.Node) { c.ECN, _ = l.boolean(n, "ecn") }},
	}, l.shareKeys(&share, &p.guarantee, &p.Priority, &p.Weight)...)) {
		return
	}
	c.Rate, p.Guarantee = p.rate.down, p.guarantee.down
	l.planCoDel(p.ServicePlan, p.codel)
	l.planUp(p.ServicePlan, p.rate.up, p.guarantee.up, p.codel)
	if !rate && p.Link == nil {
		l.fail(n, "the queue of a plan needs a rate, such as rate: 20mbit, or a link")
	}
	if !limit {
		l.fail(n, "the queue of a plan needs a limit in time, such as limit: 50ms")
	}
}

// planCoDel sets the CoDel of a plan's queue, whose default depends on its rate. A fair queue has one
// unless it says otherwise.
func (l *loader) planCoDel(p *dataplane.ServicePlan, n *yaml.Node) {
	if n != nil || p.Fair.By != dataplane.NoKey {
		l.codel(&p.Queue.CoDel, n, p.Drain())
	}
}

// timeLimit reads the limit of a plan's queue.
func (l *loader) timeLimit(n *yaml.Node) time.Duration {
	t, ok := parsed(l, n, "limit", ParseDuration)
	if ok && t == 0 {
		l.fail(n, "limit must be above zero")
	}
	return t
}

// variant returns the plan with own parameters of a customer. names and cells have the same
// length; an empty cell keeps the plan's parameter. l is a loader for errors of the row.
func (l *loader) variant(p *plan, names, cells []string) *dataplane.ServicePlan {
	cell := map[string]*yaml.Node{}
	for i, name := range names {
		switch {
		case cells[i] == "":
		case slices.Contains(p.own, name):
			cell[name] = scalar(cells[i], 0, 0)
		default:
			l.failAt(position{}, "%s: plan %q has no such parameter: %s has %s", name, p.Name, p.what,
				strings.Join(p.own, ", "))
		}
	}
	own := *p.ServicePlan
	if own.Queue != nil {
		l.ownQueue(&own, p, cell)
		return &own
	}
	own.Params = l.ownParameters(p.draft, cell)
	if l.errs == nil { // a second error says nothing new
		meterUp(&own, l.ownParameters(p.up, cell))
	}
	return &own
}

// ownQueue replaces the parameters of a plan that cell contains. Its codel may depend on the rate.
func (l *loader) ownQueue(own *dataplane.ServicePlan, p *plan, cell map[string]*yaml.Node) {
	c := *own.Queue
	own.Queue, own.Up = &c, nil
	if n := cell["link"]; n != nil {
		if own.Link != nil {
			l.fail(n, "link: plan %q has link %s already: remove one", own.Name, own.Link.Name)
		}
		own.Link = l.linkNamed(n)
	}
	rate, guarantee := l.ownRates(p.rate, cell, "rate"), l.ownRates(p.guarantee, cell, "guarantee")
	c.Rate, own.Guarantee = rate.down, guarantee.down
	if n := cell["limit"]; n != nil {
		c.Time = l.timeLimit(n)
	}
	if n := cell["weight"]; n != nil {
		own.Weight = l.atLeast(n, "weight", 1)
	}
	if rate != p.rate || cell["link"] != nil {
		l.planCoDel(own, p.codel)
	}
	l.planUp(own, rate.up, guarantee.up, p.codel)
}

// ownRates replaces a rate by those that cell contains: for both directions, or for one of them.
func (l *loader) ownRates(r rates, cell map[string]*yaml.Node, name string) rates {
	if n := cell[name]; n != nil {
		r.down, _ = parsed(l, n, name, ParseRate)
		r.up = r.down
	}
	if n := cell[downOf[name]]; n != nil {
		r.down, _ = parsed(l, n, downOf[name], ParseRate)
	}
	if n := cell[upOf[name]]; n != nil {
		r.up, _ = parsed(l, n, upOf[name], ParseRate)
	}
	return r
}

// ownParameters replaces parameters. If the plan gives a burst as a time, it depends on the rate,
// which is before it.
func (l *loader) ownParameters(d draft, cell map[string]*yaml.Node) meter.Params {
	for _, name := range d.Required {
		n := side(cell, name, d.side == 1)
		if n == nil {
			n = d.value(name)
			if !isDuration(n.Value) {
				continue
			}
		}
		if v, ok := l.parameter(&d, name, n); ok {
			d.params = meter.WithField(d.params, name, v)
		}
	}
	return d.params
}
