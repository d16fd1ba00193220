package policyfile

import (
	"errors"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/calendar"
)

// QuotaRules replace the plan of a customer for a time. The zero value changes nothing. Rules are
// not part of a dataplane.ServicePlan: a compiled policy treats customers by their own plans.
type QuotaRules struct {
	Quota *Quota // nil: none
	When  []When // the first one to contain the moment selects the plan
}

// Quota limits the bytes of each customer of a plan in each window of the calendar.
type Quota struct {
	Limit int64 // bytes, above 0
	Every calendar.Window
	Zone  *time.Location
	Then  string // plan of a customer that used up the limit, until the window ends
}

// When selects another plan at some times.
type When struct {
	Schedule calendar.Schedule
	Plan     string
}

// Any reports whether there are rules.
func (r QuotaRules) Any() bool { return r.Quota != nil || r.When != nil }

// Plan returns the name of the plan in force at t instead of the customer's own; "" for the own
// plan. used means a used-up quota: its plan precedes those of When.
func (r QuotaRules) Plan(t time.Time, used bool) string {
	if used && r.Quota != nil {
		return r.Quota.Then
	}
	for _, w := range r.When {
		if w.Schedule.Contains(t) {
			return w.Plan
		}
	}
	return ""
}

// Next returns the first moment after t at which the result of Plan can change with time, or
// the zero time if there is none: the end of the quota's window, or a change of a schedule.
func (r QuotaRules) Next(t time.Time) (next time.Time) {
	if r.Quota != nil {
		next = r.Quota.Every.End(t, r.Quota.Zone)
	}
	for _, w := range r.When {
		if at := w.Schedule.Next(t); !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

// Rules returns the rules of a plan; none for an unknown name.
func (f *File) Rules(plan string) QuotaRules { return f.loader.rules[plan] }

// HasRules reports whether the file contains a plan with a quota or a schedule.
func (f *File) HasRules() bool { return len(f.loader.rules) > 0 }

// HasQuotas reports whether the file contains a plan with a quota.
func (f *File) HasQuotas() bool {
	for _, r := range f.loader.rules {
		if r.Quota != nil {
			return true
		}
	}
	return false
}

// QuotaOf returns the quota of a customer with a plan: the plan's quota, with the customer's own
// limit, if any; nil for none.
func (f *File) QuotaOf(customer, plan string) *Quota {
	q := f.Rules(plan).Quota
	if limit, own := f.OwnQuota(customer); q != nil && own {
		q = &Quota{limit, q.Every, q.Zone, q.Then}
	}
	return q
}

// OwnQuota returns the own limit, in bytes, of a customer in the file, which replaces the limit of
// its plan.
func (f *File) OwnQuota(customer string) (limit int64, ok bool) {
	if r := f.loader.rows; r != nil {
		limit, ok = r.quotas[customer]
	}
	return limit, ok
}

// ruleKeys are the keys of a plan for its rules.
func (l *loader) ruleKeys(p *plan) keys {
	return keys{
		{"quota", func(n *yaml.Node) { p.rules.Quota = l.quota(p, n) }},
		{"when", func(n *yaml.Node) {
			if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
				l.fail(n, "when needs an entry, such as {at: \"22:00-06:00\", plan: night}")
			} else {
				l.list(n, func(n *yaml.Node) { l.when(p, n) })
			}
		}},
	}
}

// quota reads the quota of a plan.
func (l *loader) quota(p *plan, n *yaml.Node) *Quota {
	q := &Quota{Zone: time.UTC}
	limit, every := false, false
	if !l.mapping(n, "a quota", keys{
		{"limit", func(n *yaml.Node) { limit = true; q.Limit, _ = parsed(l, n, "limit", parseQuota) }},
		{
			"every",
			func(n *yaml.Node) { every = true; q.Every, _ = parsed(l, n, "every", calendar.ParseWindow) },
		},
		{"then", func(n *yaml.Node) { q.Then = l.ruledPlan(p, n, "then") }},
		{"zone", func(n *yaml.Node) { q.Zone = l.zone(n) }},
	}) {
		return q
	}
	switch {
	case !limit:
		l.fail(n, "a quota needs a limit, such as limit: 500GB")
	case !every:
		l.fail(n, "a quota needs a window: every: hour, day, week or month")
	case lookup(n, "then") == nil:
		l.fail(n, "a quota needs then, the plan of customers that have used it")
	}
	return q
}

// when reads an entry of the schedules of a plan.
func (l *loader) when(p *plan, n *yaml.Node) {
	var at *yaml.Node
	zone := time.UTC
	w := When{}
	if !l.mapping(n, "an entry of when", keys{
		{"at", func(n *yaml.Node) { at = n }},
		{"plan", func(n *yaml.Node) { w.Plan = l.ruledPlan(p, n, "plan") }},
		{"zone", func(n *yaml.Node) { zone = l.zone(n) }},
	}) {
		return
	}
	switch {
	case at == nil:
		l.fail(n, "an entry of when needs a time, such as at: \"mon-fri 08:00-18:00\"")
		return
	case lookup(n, "plan") == nil:
		l.fail(n, "an entry of when needs the plan that it selects")
		return
	}
	w.Schedule, _ = parsed(l, at, "at",
		func(s string) (calendar.Schedule, error) { return calendar.ParseSchedule(s, zone) })
	p.rules.When = append(p.rules.When, w)
}

// ruledPlan reads the name of the plan selected by a rule of p. checkRules checks it later, because
// the plan may follow.
func (l *loader) ruledPlan(p *plan, n *yaml.Node, key string) string {
	name, ok := l.text(n, key)
	if ok {
		l.ruled = append(l.ruled, ruled{p, key, name, n})
	}
	return name
}

// ruled is the name of a plan in a rule.
type ruled struct {
	by   *plan
	key  string // then or plan
	name string
	node *yaml.Node
}

// checkRules checks the plans selected by rules, and keeps the rules.
func (l *loader) checkRules() {
	byName := make(map[string]*plan, len(l.plans))
	for _, p := range l.plans {
		byName[p.Name] = p
		if p.rules.Any() {
			l.rules[p.Name] = p.rules
		}
	}
	for _, r := range l.ruled {
		switch p := byName[r.name]; {
		case p == nil:
			l.fail(r.node, "%s: no plan named %q%s: define it under plans:", r.key, r.name,
				l.didYouMean("plan", r.name, l.planNames))
		case p == r.by:
			l.fail(r.node, "%s: plan %q selects itself: name another plan", r.key, r.name)
		case p.rules.Any():
			l.fail(r.node,
				"%s: plan %q has a quota or when itself: the plan that a quota or when selects can have neither",
				r.key, r.name)
		}
	}
	l.ruled = nil // to free its nodes early
}

// zone reads a time zone. Many plans have the same, and each is a file.
func (l *loader) zone(n *yaml.Node) *time.Location {
	zone := l.zones[n.Value]
	if zone == nil {
		var ok bool
		if zone, ok = parsed(l, n, "zone", calendar.Zone); !ok {
			return time.UTC
		}
		l.zones[n.Value] = zone
	}
	return zone
}

// parseQuota reads the limit of a quota in bytes.
func parseQuota(s string) (int64, error) {
	v, err := parseBytes(s, "a number of bytes, such as 500GB")
	if err == nil && v == 0 {
		err = errors.New("a quota must be above zero")
	}
	return v, err
}
