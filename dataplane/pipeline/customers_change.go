package pipeline

import (
	"math"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
)

// ChangeCustomers adds, replaces and removes customers at now (ns, on the clock of the packets). All other
// customers are untouched. A replaced customer keeps its tokens and counters, as with SetCustomerPlans. A
// new one is full, even if a customer of its name was removed before. Customers with queues in trees of links
// are left out: they need a reload.
//
// The plan of the pipeline then has the customers in an order of its own, with nameless ones among them.
func (l *Pipeline) ChangeCustomers(now int64, list []compiled.CustomerChange) {
	if l.customers == nil {
		return
	}
	if l.advance(now); l.now > math.MinInt64 {
		l.now++ // packets of removed customers arrived before those of new ones
	}
	if l.customers.roster == nil {
		l.OwnCustomers(compiled.NewRoster(l.plan))
	}
	r := l.customers.roster
	for i := range list {
		l.customers.change(r, &list[i], l.now)
	}
}

// NeedsRoster returns the plan for a roster of OwnCustomers, or nil if the pipeline has one, or no customers.
func (l *Pipeline) NeedsRoster() *compiled.Plan {
	if l.customers == nil || l.customers.roster != nil {
		return nil
	}
	return l.plan
}

// OwnCustomers gives the pipeline a roster of NeedsRoster's plan, which takes long to make.
func (l *Pipeline) OwnCustomers(r *compiled.Roster) {
	l.customers.roster = r
	plan := *l.plan
	plan.Customers = r.Customers()
	l.plan, l.customers.plan = &plan, plan.Customers
	l.customers.list = slices.Grow(l.customers.list, len(l.customers.list)/8)
}

// change makes one change at a time.
func (c *customers) change(r *compiled.Roster, change *compiled.CustomerChange, now int64) {
	was := r.Customers().Number(change.Name)
	switch {
	case change.After == nil && was == 0, was != 0 && c.customer(was).inTree():
	case change.After == nil:
		r.Remove(change.Name)
		*c.customer(was) = customer{}
	case change.Plan.Tree >= 0:
	default:
		number, added := r.Put(change.After, change.Plan)
		if int(number) > len(c.list) {
			c.list = append(c.list, customer{})
		}
		if added {
			c.customer(number).start(change.Plan)
			c.customer(number).since = now
		} else if c.customer(number).service != change.Plan {
			c.customer(number).change(change.Plan, now)
		}
	}
}

// at returns the customer of a number as of the arrival of a packet (ns); nil if the number belonged to
// another customer then.
func (c *customers) at(number uint32, arrival int64) *customer {
	if now := c.customer(number); arrival >= now.since && now.service != nil {
		return now
	}
	return nil
}

// CustomersOf returns the counters of the customers of a plan, in its order. Those unknown to the pipeline
// have none.
func (l *Pipeline) CustomersOf(plan *compiled.Customers, from int, to []dataplane.CustomerStats) {
	if l.customers == nil {
		return
	}
	own := l.customers.plan
	for i := range to {
		name, number := plan.Source.List[from+i].Name, uint32(from+i+1)
		// Most tables have the same order. A look-up takes much longer.
		if list := own.Source.List; int(number) > len(list) || list[number-1].Name != name {
			number = own.Number(name)
		}
		if number != 0 {
			to[i] = l.customers.customer(number).stats
		}
	}
}

// CustomerNamed returns the counters of a customer; zeros if the pipeline does not have it.
func (l *Pipeline) CustomerNamed(name string) (out dataplane.CustomerStats) {
	if l.customers == nil {
		return out
	}
	if number := l.customers.plan.Number(name); number != 0 {
		return l.customers.customer(number).stats
	}
	return out
}
