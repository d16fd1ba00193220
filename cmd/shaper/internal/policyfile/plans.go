package policyfile

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// planTypes are the names of the meter types that plans can have: those whose state has a
// fixed size.
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
	what string     // the plan in words
	node *yaml.Node // mapping with the parameters
	own  []string   // names of the parameters that a customer may replace
}

// plan reads an entry of plans. packets means that its meter counts packets.
func (l *loader) plan(name string, n *yaml.Node, packets bool) {
	p := &plan{ServicePlan: &dataplane.ServicePlan{Name: name}, node: n}
	l.plans = append(l.plans, p)
	l.keepPlaces(p.ServicePlan, n)
	if n.Kind != yaml.MappingNode {
		l.fail(n, "a plan must be a mapping, not %s", kindName(n))
		return
	}
	actions := keys{
		{"green", func(n *yaml.Node) { p.Green = l.action(n) }},
		{"yellow", func(n *yaml.Node) { p.Yellow = l.action(n) }},
		{"red", func(n *yaml.Node) { p.Red = l.action(n) }},
	}
	switch paced := target(lookup(n, "queue")); {
	case paced != nil && lookup(n, "type") != nil:
		l.fail(paced, "plan %q has both a meter and a queue: remove one", name)
	case paced != nil:
		p.what, p.node, p.own = "a queue", paced, []string{"rate", "limit"}
		l.mapping(n, "a plan with a queue", append(actions, entry{"queue", func(n *yaml.Node) {
			l.keepInner(p.ServicePlan, n)
			p.Queue = l.pacing(n)
		}}))
	case lookup(n, "type") == nil:
		l.fail(n, "plan %q needs a meter type, such as type: trtcm, or a queue, such as queue: {rate: 20mbit, limit: 50ms}", name)
	default:
		l.planMeter(p, n, actions, packets)
	}
}

// planMeter reads a plan with a meter.
func (l *loader) planMeter(p *plan, n *yaml.Node, actions keys, packets bool) {
	kind, ok := l.meterType(n)
	if !ok {
		return
	}
	if !slices.Contains(planTypes, kind.Name) {
		l.fail(target(lookup(n, "type")), "a plan cannot have type %s: want one of %s", kind.Name, strings.Join(planTypes, ", "))
		return
	}
	p.what, p.own = "a meter of type "+kind.Name, kind.Required
	names := slices.Concat(kind.Required, kind.Optional)
	names = slices.DeleteFunc(names, func(name string) bool { return name == "warmup" })
	what := "a plan of type " + kind.Name
	l.entries(n, what, func(key, value *yaml.Node) {
		switch {
		case slices.Contains(names, key.Value), key.Value == "type":
		case slices.Contains([]string{"count", "color", "precolor", "then"}, key.Value):
			l.fail(key, "%s is an option of the class: write it there, as meter: {type: plan, %[1]s: ...}", key.Value)
		default:
			l.knownKey(key, value, what, actions, append(names, "type")...)
		}
	})
	p.Params = l.planParameters(n, packets)
}

// planParameters reads the parameters of a plan's meter, whose type is valid.
func (l *loader) planParameters(n *yaml.Node, packets bool) dataplane.Params {
	kind := meterTypes[target(lookup(n, "type")).Value]
	kind.Optional = slices.DeleteFunc(slices.Clone(kind.Optional), func(name string) bool { return name == "warmup" })
	d := draft{KindInfo: kind, params: kind.Defaults, packets: packets, node: n}
	l.parameters(&d)
	return d.params
}

// pacing reads the queue of a plan.
func (l *loader) pacing(n *yaml.Node) *queue.Config {
	c := &queue.Config{}
	var codel *yaml.Node
	rate, limit := false, false
	if !l.mapping(n, "the queue of a plan", keys{
		{"rate", func(n *yaml.Node) { rate = true; c.Rate, _ = parsed(l, n, "rate", ParseRate) }},
		{"limit", func(n *yaml.Node) {
			limit = true
			var ok bool
			if c.Time, ok = parsed(l, n, "limit", ParseDuration); ok && c.Time == 0 {
				l.fail(n, "limit must be above zero")
			}
		}},
		{"codel", func(n *yaml.Node) { codel = n }},
		{"ecn", func(n *yaml.Node) { c.ECN, _ = l.boolean(n, "ecn") }},
	}) {
		return c
	}
	if codel != nil {
		l.codel(&c.CoDel, codel)
	}
	if !rate {
		l.fail(n, "the queue of a plan needs a rate, such as rate: 20mbit")
	}
	if !limit {
		l.fail(n, "the queue of a plan needs a limit in time, such as limit: 50ms")
	}
	return c
}

// variant returns the plan with own parameters of a customer. names and cells have the same
// length; an empty cell keeps the plan's parameter. l is a loader for errors of the row.
func (l *loader) variant(p *plan, names, cells []string, packets bool) *dataplane.ServicePlan {
	n := *p.node
	n.Content = slices.Clone(n.Content)
	for i, name := range names {
		if cells[i] == "" {
			continue
		}
		if !slices.Contains(p.own, name) {
			l.fail(p.node, "%s: plan %q has no such parameter: %s has %s", name, p.Name, p.what, strings.Join(p.own, ", "))
			continue
		}
		for k := 0; k < len(n.Content); k += 2 {
			if n.Content[k].Value == name {
				n.Content[k+1] = scalar(cells[i], n.Line, n.Column)
			}
		}
	}
	own := *p.ServicePlan
	if own.Queue != nil {
		own.Queue = l.pacing(&n)
	} else {
		own.Params = l.planParameters(&n, packets)
	}
	return &own
}
