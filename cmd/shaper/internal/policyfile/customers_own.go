package policyfile

import (
	"maps"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// customerPlan returns the plan of the row, with the row's own parameters.
func (r *rowReader) customerPlan() *dataplane.ServicePlan {
	name := r.planName()
	p := r.plans[name]
	switch {
	case p != nil:
	case name == "" && r.plan < 0: // an error of the header
	case name == "":
		r.fail("plan is missing: each customer needs a plan of the policy")
	default:
		r.fail("no plan named %q%s: define it under plans:", name,
			r.own.didYouMean("plan", name, func() []string { return sorted(r.plans) }))
	}
	if p == nil {
		r.checkRates()
		return nil
	}
	own := false
	for i, at := range r.ownAt {
		r.ownCells[i] = r.cell(at)
		own = own || r.ownCells[i] != ""
	}
	if !own {
		return p.ServicePlan
	}
	r.key = append(r.key[:0], name...)
	for _, cell := range r.ownCells {
		r.key = append(append(r.key, 0), cell...)
	}
	v := r.variants[string(r.key)]
	if v == nil {
		if v = r.newVariant(p); v != nil {
			r.variants[string(r.key)] = v
		}
	}
	return v
}

// checkRates finds errors in the rates of a row without a valid plan.
func (r *rowReader) checkRates() {
	for i, at := range r.ownAt {
		cell := r.cell(at)
		if cell == "" || r.packets || !slices.Contains(rateNames, r.ownNames[i]) {
			continue
		}
		if _, err := ParseRate(r.form.unit.complete(cell)); err != nil {
			r.fail("%s: %v", r.ownNames[i], err)
		}
	}
}

// planName returns the name of the plan of the row.
func (r *rowReader) planName() string {
	if name := r.cell(r.plan); name != "" {
		return name
	}
	return r.form.plan
}

// ownQuota reads a customer's own limit, which replaces the limit of its plan's quota.
func (r *rowReader) ownQuota(customer string) {
	cell, p := r.cell(r.quota), r.plans[r.planName()]
	if cell == "" || p == nil { // customerPlan reports a wrong plan
		return
	}
	limit, err := parseQuota(cell)
	switch {
	case p.rules.Quota == nil:
		r.fail("quota: plan %q has no quota", p.Name)
	case err != nil:
		r.fail("quota: %v", err)
	default:
		r.quotas[customer] = limit
	}
}

// limits identify a plan with own parameters.
type limits struct {
	plan   *plan
	params meter.Params
	queue  queue.Config

	link      *dataplane.Link
	guarantee meter.Rate
	weight    int

	up       dataplane.UpwardPlan // without its queue
	upQueue  queue.Config
	directed bool // up is set
}

func limitsOf(p *plan, v *dataplane.ServicePlan) limits {
	l := limits{plan: p, params: v.Params}
	if v.Queue != nil {
		l.queue, l.link, l.guarantee, l.weight = *v.Queue, v.Link, v.Guarantee, v.Weight
	}
	if v.Up != nil {
		l.up, l.directed = *v.Up, true
		if v.Up.Queue != nil {
			l.up.Queue, l.upQueue = nil, *v.Up.Queue
		}
	}
	return l
}

// newVariant returns the plan with own parameters: an existing one with the same values, if any. It
// returns nil after an error.
func (r *rowReader) newVariant(p *plan) *dataplane.ServicePlan {
	l := r.own
	cells := r.ownCells
	if r.form.unit.bare != "" && !r.packets {
		cells = slices.Clone(cells)
		for i, name := range r.ownNames {
			if slices.Contains(rateNames, name) {
				cells[i] = r.form.unit.complete(cells[i])
			}
		}
	}
	v := l.variant(p, r.ownNames, cells)
	if l.errs != nil {
		for _, e := range l.errs {
			r.fail("%s", e.Reason)
		}
		l.errs = nil
		return nil
	}
	k := limitsOf(p, v)
	if k == limitsOf(p, p.ServicePlan) {
		return p.ServicePlan
	}
	if same := r.byLimits[k]; same != nil {
		return same
	}
	r.byLimits[k] = v
	r.rows.own[v] = p.Name + "\x00" + strings.Join(cells, "\x00")
	return v
}

// ownParameters returns the own parameters of a plan, by name.
func (r *rows) ownParameters(p *dataplane.ServicePlan) map[string]string {
	if cells, ok := r.cells[p]; ok {
		return maps.Clone(cells)
	}
	out := map[string]string{}
	if key, ok := r.own[p]; ok {
		for i, cell := range strings.Split(key, "\x00")[1:] {
			if cell != "" {
				out[r.ownNames[i]] = cell
			}
		}
	}
	return out
}
