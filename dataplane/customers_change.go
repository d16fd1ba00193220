package dataplane

import (
	"errors"
	"maps"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// CustomerPlan is a customer, by name, with its plan.
type CustomerPlan struct {
	Name string
	Plan *PlanService
}

// Variant returns the plan with other parameters: those of p, whose kind of treatment must be
// the same. off means that it drops all packets. The error joins FieldErrors.
func (s *PlanService) Variant(p *ServicePlan, off bool) (*PlanService, error) {
	c := newCompiler()
	limits := *p
	limits.Green, limits.Yellow, limits.Red = nil, nil, nil // they may name parts of the policy
	out := c.compileService(&limits)
	if c.errorList != nil {
		return nil, errors.Join(c.errorList...)
	}
	out.Actions, out.Source = s.Actions, p
	if off {
		drop := &PlanAction{Drop: true, Queue: -1}
		out.Actions = [3]*PlanAction{drop, drop, drop}
	}
	return &out, nil
}

// WithServices returns a plan whose customers, by number, have other plans. It shares
// everything else with p.
func (p *Plan) WithServices(of map[uint32]*PlanService) *Plan {
	if len(of) == 0 {
		return p
	}
	next, customers := *p, *p.Customers
	customers.Plans, customers.Of = slices.Clone(customers.Plans), slices.Clone(customers.Of)
	indexes := map[*PlanService]uint32{}
	for i := range p.Customers.Plans {
		indexes[&p.Customers.Plans[i]] = uint32(i)
	}
	for _, number := range slices.Sorted(maps.Keys(of)) {
		service := of[number]
		i, known := indexes[service]
		if !known {
			i = uint32(len(customers.Plans))
			indexes[service] = i
			customers.Plans = append(customers.Plans, *service)
		}
		customers.Of[number-1] = i
	}
	next.Customers = &customers
	return &next
}

// SetCustomerPlans gives customers other plans. Their tokens, backlogs and counters continue as
// Inherit defines. Customers that the pipeline does not have are left out.
func (l *Pipeline) SetCustomerPlans(list []CustomerPlan) {
	if l.customers == nil {
		return
	}
	for _, next := range list {
		if number := l.plan.Customers.Number(next.Name); number != 0 {
			l.customers.customer(number).change(next.Plan, l.now)
		}
	}
}

// change gives the customer another plan at a time.
func (c *customer) change(service *PlanService, now int64) {
	was := customer{service: c.service, leaky: c.leaky, stats: c.stats, restored: c.restored}
	if !c.paced() {
		was.Meter = c.Clone()
	}
	c.Meter, c.leaky, c.stats = meter.Meter{}, nil, CustomerStats{}
	c.start(service)
	c.inherit(&was, now, true)
}
