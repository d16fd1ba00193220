package diff

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/calendar"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// part is a part of a policy with a name, such as a class or a queue.
type part struct {
	kind, name string
	properties []property
}

// property is a property of a part. Two properties are equal if their exact values are: the text of
// a burst also gives a time, which depends on the rate.
type property struct {
	key   string
	text  string
	exact string
	list  []string // entries of a list in any order; nil for other properties
	of    string   // key of the property to which this detail belongs: compared only if that is equal
	meter bool     // of a meter: compared only if both parts have a meter of their own
}

func (p *part) add(key, text string, exact any) {
	p.properties = append(p.properties, property{key: key, text: text, exact: fmt.Sprint(exact)})
}

// addRest adds the fields of a part that are set and not in known.
func (p *part) addRest(of any, known ...string) {
	for _, rest := range say.Rest(of, known...) {
		p.add(rest.Key, rest.Text, rest.Text)
	}
}

// addList adds an unordered list. none is the text of an empty list.
func (p *part) addList(key, none string, list []string) {
	slices.Sort(list)
	list = slices.Compact(list)
	text := cmp.Or(strings.Join(list[:min(len(list), mostEntries)], ","), none)
	if more := len(list) - mostEntries; more > 0 {
		text += fmt.Sprintf(" and %s more", say.Grouped(int64(more)))
	}
	p.properties = append(p.properties,
		property{key: key, text: text, exact: strings.Join(list, ","), list: list})
}

// mostEntries is the maximum number of entries of a list printed.
const mostEntries = 16

// parts returns the parts of a policy, except for its customers.
func parts(file *policyfile.File) []part {
	p := file.Policy
	whole := part{kind: "policy"}
	whole.add("length", say.Length(p.Length), p.Length)
	whole.add("unclassified packets", map[bool]string{true: "drop", false: "pass"}[p.DropUnclassified],
		p.DropUnclassified)
	whole.addRest(p, "Length", "DropUnclassified", "Classes", "Meters", "Queues", "Links", "Envelopes",
		"Customers")
	out := []part{whole}
	for i := range p.Classes {
		out = append(out, classPart(p, &p.Classes[i]))
	}
	for _, m := range p.Meters {
		named := part{kind: "meter", name: m.Name}
		named.addMeter(m)
		out = append(out, named)
	}
	for _, q := range p.Queues {
		named := part{kind: "queue", name: q.Name}
		named.addQueue(q, say.QueueParts(q, p.Queues))
		out = append(out, named)
	}
	for _, l := range say.SharedLinks(p) {
		named := part{kind: "link", name: l.Name}
		for _, v := range say.LinkParts(l) {
			named.add(v.Key, v.Text, v.Text) // rates are written exactly
		}
		out = append(out, named)
	}
	for _, e := range p.Envelopes {
		out = append(out, envelopePart(e))
	}
	if c := p.Customers; c != nil {
		table := part{kind: "customers"}
		table.add("key", c.Key.String(), c.Key)
		table.add("nested", fmt.Sprint(c.Nested), c.Nested)
		table.addRest(c, "Key", "Nested", "Cgroups", "Plans", "List")
		out = append(out, table)
		packets := countsPackets(p)
		for _, plan := range c.Plans {
			out = append(out, planPart(plan, packets, file.Rules(plan.Name)))
		}
	}
	return out
}

func classPart(p *dataplane.Policy, c *dataplane.Class) part {
	out := part{kind: "class", name: c.Name}
	out.addMatch(&c.Match)
	switch {
	case c.Meter == nil:
		out.add("meter", "none: every packet is green", "none")
	case slices.Contains(p.Meters, c.Meter):
		out.add("meter", "the shared meter "+c.Meter.Name, "meter "+c.Meter.Name)
	default:
		out.addMeter(c.Meter)
	}
	out.addActions([3]*dataplane.Action{
		new(c.Action(meter.Green)), new(c.Action(meter.Yellow)), new(c.Action(meter.Red)),
	})
	out.addRest(c, "Name", "Match", "Meter", "Green", "Yellow", "Red")
	return out
}

func (p *part) addMatch(m *dataplane.Match) {
	if m.Customer {
		p.add("match customer", "only packets of customers", true)
	}
	p.addList("match src", "any", texts(m.Src, netip.Prefix.String))
	p.addList("match dst", "any", texts(m.Dst, netip.Prefix.String))
	rest := *m
	for _, f := range dataplane.MatchFields {
		p.addList("match "+f.Name, "any", append([]string{}, say.Ranges(f.Name, *f.List(m))...))
		*f.List(&rest) = nil
	}
	p.addList("match cgroup", "any", append([]string{}, m.Cgroups...))
	for _, other := range say.Rest(&rest, "Src", "Dst", "Cgroups", "Customer") {
		p.add("match "+other.Key, other.Text, other.Text)
	}
}

func texts[T any](list []T, text func(T) string) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = text(v)
	}
	return out
}

// ofClass is the text of an action missing in a plan.
const ofClass = "that of the class"

// addActions adds actions by color.
func (p *part) addActions(actions [3]*dataplane.Action) {
	for color, a := range actions {
		if a == nil {
			p.add(meter.Color(color).String(), ofClass, ofClass)
			continue
		}
		words := strings.Fields(say.Action(*a))
		slices.Sort(words) // marks act in any order
		p.add(meter.Color(color).String(), say.Action(*a), words)
	}
}

// addMeter adds a meter. If its type differs, its parameters are not compared.
func (p *part) addMeter(m *dataplane.Meter) {
	if m.Params == nil {
		p.add("meter", "the one of the customer's plan", "plan")
	} else {
		p.addParameters(m.Params, m.Packets)
	}
	before := len(p.properties)
	p.add("color", strings.TrimPrefix(say.Mode(m), "color-"), []any{m.Aware, m.PreColor.From})
	if m.Aware {
		var colors []string
		for value, color := range m.PreColor.Table() {
			if color != meter.Green { // as every value without a color
				colors = append(colors, say.Value(m.PreColor.From.String(), value)+" "+color.String())
			}
		}
		p.addList("precolor", "all green", colors)
		p.properties[len(p.properties)-1].of = "color"
		p.addRest(m.PreColor, "From", "Map")
	}
	p.add("count", map[bool]string{true: "packets", false: "bytes"}[m.Packets], m.Packets)
	p.add("initial", initialText(m.Initial), initialText(m.Initial))
	if m.Per.By != dataplane.NoKey {
		p.add("per", m.Per.String(), exactKey(m.Per))
		p.add("keys", say.Grouped(int64(policyfile.Keys(m))), policyfile.Keys(m))
		p.add("evict", map[bool]string{true: "idle", false: "lru"}[m.Idle], m.Idle)
	}
	if m.Envelope != nil {
		p.add("envelope", m.Envelope.Name, m.Envelope.Name)
		p.add("rank", fmt.Sprint(m.Rank), m.Rank)
		p.addLimits(m.CIRMax, m.EIRMax, m.Packets, "that of the envelope")
	}
	if m.Budget != nil {
		p.add("budget", say.Budget(m.Budget), m.Budget.Resolved())
	}
	if m.Then != nil {
		p.add("then", m.Then.Name, m.Then.Name)
	}
	p.addRest(m,
		"Name", "Params", "Aware", "PreColor", "Initial", "Packets", "Then", "Per", "Keys", "Idle",
		"Envelope", "Rank", "CIRMax", "EIRMax", "Budget")
	for i := range p.properties[before:] {
		p.properties[before+i].meter = true
	}
}

// exactKey returns the values by which keys are compared. A length of 0 counts as that of the whole
// address.
func exactKey(k dataplane.Key) []any {
	return []any{k.By, k.Mask4(), k.Mask6(), say.Rest(k, "By", "V4", "V6")}
}

// addParameters adds the parameters of a meter.
func (p *part) addParameters(params meter.Params, packets bool) {
	const key = "meter"
	all := say.Parameters(params, packets)
	var words []string
	for _, v := range all {
		if v.Text != "" {
			words = append(words, v.Name+" "+v.Text)
		}
	}
	kind := params.Kind().String()
	p.add(key, kind+" "+strings.Join(words, ", "), kind)
	for _, v := range all {
		text := v.Text
		if flag, ok := v.Value.(bool); ok {
			text = fmt.Sprint(flag)
		}
		p.properties = append(p.properties,
			property{key: v.Name, text: cmp.Or(text, "none"), exact: fmt.Sprintf("%#v", v.Value), of: key})
	}
}

func initialText(f dataplane.Fraction) string {
	switch {
	case f.Den == 0 || f.Num == f.Den:
		return "full"
	case f.Num == 0:
		return "empty"
	}
	return fmt.Sprintf("%d/%d", f.Num, f.Den)
}

// addLimits adds cirmax and eirmax. none is the text of nil.
func (p *part) addLimits(cirmax, eirmax *meter.Rate, packets bool, none string) {
	for _, limit := range []struct {
		key  string
		rate *meter.Rate
	}{{"cirmax", cirmax}, {"eirmax", eirmax}} {
		text := none
		if limit.rate != nil {
			text = say.Rate(*limit.rate, packets)
		}
		p.add(limit.key, text, text) // rates are written exactly
	}
}

func envelopePart(e *dataplane.Envelope) part {
	out := part{kind: "envelope", name: e.Name}
	cirmax, eirmax := e.Limits()
	out.addLimits(cirmax, eirmax, e.Packets, "no limit")
	out.add("count", map[bool]string{true: "packets", false: "bytes"}[e.Packets], e.Packets)
	out.add("coupling", fmt.Sprint(e.Coupling), e.Coupling)
	out.addRest(e, "Name", "CIRMax", "EIRMax", "Packets", "Coupling")
	return out
}

// addQueue adds the properties of a queue with its description.
func (p *part) addQueue(q *dataplane.Queue, description []say.Part) {
	for _, v := range description {
		key, text := v.Key, v.Text
		exact := any(text)
		switch key {
		case "link":
			exact = []any{q.Link.Name, q.Priority, q.LinkQueue().Weight} // without the links above
		case "limit":
			exact = [...]int64{int64(q.Time), q.Bytes, q.Packets}
		case "fair":
			exact = append(exactKey(q.Hosts), exactKey(q.Fair)...)
		case "wred":
			color, thresholds, _ := strings.Cut(text, " ")
			key, text, exact = key+" "+color, thresholds, earlyOf(q, color)
		case "codel":
			exact = []any{q.CoDel, q.TargetAtRate, q.IntervalAtRate}
			switch {
			case q.TargetAtRate && q.IntervalAtRate:
				text += " (defaults)"
			case q.TargetAtRate:
				text += " (default target)"
			}
		}
		p.add(key, text, exact)
	}
}

// earlyOf returns the thresholds of WRED for the name of a color.
func earlyOf(q *dataplane.Queue, name string) queue.Early {
	for color, e := range q.WRED {
		if meter.Color(color).String() == name {
			return e
		}
	}
	return queue.Early{}
}

// countsPackets reports whether the meters of plans count packets.
func countsPackets(p *dataplane.Policy) bool {
	return slices.ContainsFunc(p.Classes,
		func(c dataplane.Class) bool { return c.Match.Customer && c.Meter != nil && c.Meter.Packets })
}

func planPart(plan *dataplane.ServicePlan, packets bool, rules policyfile.QuotaRules) part {
	out := part{kind: "plan", name: plan.Name}
	out.addService(plan, packets)
	out.addActions([3]*dataplane.Action{plan.Green, plan.Yellow, plan.Red})
	if q := rules.Quota; q != nil {
		text := fmt.Sprintf("%s B every %v (%s), then plan %s", say.Grouped(q.Limit), q.Every,
			calendar.ZoneName(q.Zone), q.Then)
		out.add("quota", text, text)
	}
	var when []string // in order: the first to contain the moment applies
	for _, w := range rules.When {
		when = append(when,
			fmt.Sprintf("%v (%s): plan %s", w.Schedule, calendar.ZoneName(w.Schedule.Zone()), w.Plan))
	}
	if when != nil {
		out.add("when", strings.Join(when, "; "), when)
	}
	return out
}

// addUp adds the parameters of a meter for packets from the customer that differ.
func (p *part) addUp(up *dataplane.ServicePlan, packets bool) {
	if up == nil {
		return
	}
	other := part{}
	other.addParameters(up.Params, packets)
	for _, q := range other.properties {
		if q.exact == p.property(q.key).exact {
			continue
		}
		q.key += say.Up
		if q.of != "" {
			q.of += say.Up
		}
		p.properties = append(p.properties, q)
	}
}

// addService adds the meter or the queue of a plan.
func (p *part) addService(plan *dataplane.ServicePlan, packets bool) {
	known := []string{"Name", "Params", "Queue", "Up", "Green", "Yellow", "Red"}
	if plan.Params != nil {
		p.addParameters(plan.Params, packets)
		p.addUp(plan.Upward(), packets)
	} else {
		p.add("meter", "none: a queue for each customer", "queue")
		p.addQueue(plan.CustomerQueue(), say.PlanParts(plan))
		known = append(known, "Link", "Guarantee", "Priority", "Weight", "Fair", "Hosts")
	}
	p.addRest(plan, known...)
}
