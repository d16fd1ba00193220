package lint

import (
	"fmt"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// mostColumns is the maximum number of ignored columns named in a finding.
const mostColumns = 10

// metered is a part of the policy with the parameters of a meter.
type metered struct {
	object  any // *dataplane.Meter or *dataplane.ServicePlan
	name    string
	params  meter.Params
	packets bool
}

// metered returns the meters used by classes, and the customer plans with a meter.
func (l *linter) metered() (out []metered) {
	for _, m := range l.plan.Meters() {
		if m.Params != nil {
			out = append(out, metered{m, m.Name, m.Params, m.Packets})
		}
	}
	c := l.perCustomer()
	if c == nil || l.Policy.Customers == nil {
		return out
	}
	for _, p := range l.Policy.Customers.Plans {
		if p.Params != nil {
			out = append(out, metered{p, p.Name, p.Params, c.Meter.Packets})
		}
	}
	return out
}

// perCustomer returns the first class of customers, or nil.
func (l *linter) perCustomer() *dataplane.Class {
	for i := range l.Policy.Classes {
		if c := &l.Policy.Classes[i]; c.Match.Customer {
			return c
		}
	}
	return nil
}

// customers finds ignored columns, and a table unused by all classes.
func (l *linter) customers() {
	if l.Policy.Customers == nil {
		return
	}
	if l.perCustomer() == nil {
		l.add(Warning, l.Policy.Customers, "",
			"no class has per: customer, so customers are treated like all others")
	}
	l.schedules()
	l.ownLimits()
	place, columns := l.Ignored()
	if len(columns) == 0 {
		return
	}
	var names []string
	for _, name := range columns[:min(len(columns), mostColumns)] {
		text := fmt.Sprintf("%q", name)
		if near := l.NearColumn(name); near != "" {
			text += fmt.Sprintf(" (did you mean %q?)", near)
		}
		names = append(names, text)
	}
	more := ""
	if n := len(columns) - len(names); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	l.found = append(l.found, Finding{
		place, Warning,
		fmt.Sprintf("%s ignored: %s%s", say.Count(len(columns), "column"), strings.Join(names, ", "), more),
	})
}

// schedules finds entries of when covering all time.
func (l *linter) schedules() {
	for _, p := range l.Policy.Customers.Plans {
		when := l.Rules(p.Name).When
		switch i := slices.IndexFunc(when, func(w policyfile.When) bool { return w.Schedule.Always() }); {
		case i < 0:
		case i < len(when)-1:
			l.add(Warning, p, "when", "plan %s: %q is all the time, so the entries after it never apply",
				p.Name, when[i].Schedule)
		case i == 0:
			l.add(Warning, p, "when", "plan %s: %q is all the time, so plan %s always applies instead",
				p.Name, when[i].Schedule, when[i].Plan)
		}
	}
}

// planQueues checks the queues of plans.
func (l *linter) planQueues() {
	if l.Policy.Customers == nil {
		return
	}
	for _, p := range l.Policy.Customers.Plans {
		if p.Queue == nil {
			continue
		}
		l.ecnAlone(p, "plan "+p.Name, p.Queue)
		rate := p.Drain()
		if rate == (meter.Rate{}) {
			continue // each customer has its own, or that of its link
		}
		if text := l.planLimit(p); text != "" {
			l.add(Warning, p, "limit", "%s", text)
		}
		if text := l.longBacklog(p.Queue, rate); text != "" {
			l.add(Warning, p, "limit", "plan %s: %s", p.Name, text)
		}
		l.codelTarget(p, p.Queue, rate)
	}
}

// planLimit describes a limit that is too small for packets of the MTU; "" for others.
func (l *linter) planLimit(p *dataplane.ServicePlan) string {
	switch rate := p.Drain(); {
	case rate == meter.Rate{}:
		return "" // each customer has its own, or that of its link
	case p.InTree():
		return l.neverEnters(p.Queue, rate, "the queue of a customer")
	}
	return l.onePacket(p.Queue)
}

// ownLimits finds customers whose own parameters make a burst or a limit too small for packets of
// the MTU, or many seconds long. If the plan gives a burst as a time, it is small at a low rate; if
// in bytes, long.
func (l *linter) ownLimits() {
	class := l.perCustomer()
	if class == nil {
		return
	}
	packets := class.Meter.Packets
	l.ownFindings(func(p *dataplane.ServicePlan) string {
		if p.Queue != nil {
			return l.longBacklog(p.Queue, p.Drain())
		}
		text, _ := l.longBurst(p.Params, packets)
		return text
	})
	if !packets {
		l.ownFindings(l.tooSmall)
	}
}

// ownFindings warns about customers with own parameters for which describe returns a text.
func (l *linter) ownFindings(describe func(*dataplane.ServicePlan) string) {
	found := map[*dataplane.ServicePlan]string{} // by plan; "": none
	for _, p := range l.Policy.Customers.Plans {
		found[p] = "" // found by other lints
	}
	var first *dataplane.Customer
	more := 0
	for i := range l.Policy.Customers.List {
		c := &l.Policy.Customers.List[i]
		text, known := found[c.Plan]
		if !known {
			text = describe(c.Plan)
			found[c.Plan] = text
		}
		switch {
		case text == "":
		case first == nil:
			first = c
		default:
			more++
		}
	}
	if first == nil {
		return
	}
	others := ""
	if more > 0 {
		others = fmt.Sprintf(" and %s more", say.Grouped(int64(more)))
	}
	l.add(Warning, first, "", "customer %q%s: %s", first.Name, others, found[first.Plan])
}

// tooSmall describes a plan's burst or limit if it is too small for packets of the MTU; otherwise
// it returns "".
func (l *linter) tooSmall(p *dataplane.ServicePlan) string {
	if p.Queue != nil {
		return l.planLimit(p)
	}
	for _, b := range p.Params.Buckets() {
		if b.Burst > 0 && b.Burst < l.MTU {
			return l.neverFits(b)
		}
	}
	return ""
}
