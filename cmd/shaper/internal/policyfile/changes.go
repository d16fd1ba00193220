package policyfile

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/spelling"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
)

// Amended returns the policy with the changes of a file in force at a time. stale lists the errors
// of changes that the policy cannot use, such as a change for a removed customer.
func (c *Compiled) Amended(path string, book changes.Book, now time.Time) (out *Compiled, stale []error) {
	book = maps.Clone(book)
	book.Expire(now) // a change whose time is over is not stale
	a := c.ChangeCompiler(book, now)
	services := map[uint32]*compiled.Service{}
	if a.base.Customers != nil {
		a.schedule(services)
	}
	for _, t := range book.Targets() {
		if t.Kind != changes.Customer {
			continue
		}
		number, service, err := a.Service(t.Name)
		if err != nil {
			stale = append(stale, err)
		}
		if service != nil {
			services[number] = service
		}
	}
	plan, errs := a.Rates()
	next := *c
	next.base, next.Changes = a.base, path
	next.Plan = plan.WithServices(services)
	return &next, append(stale, errs...)
}

// schedule adds the plans of customers whose plan another one replaces at this time.
func (a *ChangeCompiler) schedule(services map[uint32]*compiled.Service) {
	from := a.base.Customers
	by := map[uint32]*compiled.Service{} // by index of the replaced plan
	for i := range from.Plans {
		if row := &from.Plans[i]; a.Rules(row.Name).Plan(a.now, false) != "" {
			by[uint32(i)], _ = a.service(row, changes.Terms{}) // no error: the plan is one of the policy
		}
	}
	if len(by) == 0 {
		return
	}
	for i, at := range from.Of {
		if service := by[at]; service != nil {
			services[uint32(i+1)] = service
		}
	}
}

// Scheduled returns the customers whose plan depends on the time. state differs between two moments
// if any of these plans does.
func (a *ChangeCompiler) Scheduled() (state string, customers func() []changes.Target) {
	for _, p := range a.loader.plans {
		if rules := a.Rules(p.Name); rules.When != nil {
			state += fmt.Sprintf("%q ", cmp.Or(rules.Plan(a.now, false), p.Name))
		}
	}
	return state, func() (out []changes.Target) {
		for i := range a.base.Customers.Of {
			t := changes.Target{Kind: changes.Customer, Name: a.base.Customers.Source.List[i].Name}
			if a.Rules(a.OwnPlan(uint32(i+1), t)).When != nil {
				out = append(out, t)
			}
		}
		return out
	}
}

// ChangeCompiler computes the plans and rates of a policy with changes.
type ChangeCompiler struct {
	*Compiled
	base     *compiled.Plan
	book     changes.Book
	now      time.Time
	services map[string]*compiled.Service // by terms
	rates    *compiled.Plan               // result of Rates; nil: not called yet
	stale    []error
}

// ChangeCompiler returns a ChangeCompiler for the changes in force at a time. The zero time is without
// schedules, as in replays.
func (c *Compiled) ChangeCompiler(book changes.Book, now time.Time) *ChangeCompiler {
	a := &ChangeCompiler{
		Compiled: c, base: c.base, book: book, now: now, services: map[string]*compiled.Service{},
	}
	if a.base == nil {
		a.base = c.Plan
	}
	return a
}

// UnknownError means that the policy lacks the part.
type UnknownError struct {
	changes.Target
	names func() []string // of the parts of this kind that the policy has; nil: unknown
}

func (e *UnknownError) Error() string {
	text := fmt.Sprintf("no %v in the policy", e.Target)
	if e.names != nil {
		text += spelling.DidYouMean(e.Name, e.names())
	}
	return text
}

// unknown returns the error for a part that a plan lacks.
func unknown(plan *compiled.Plan, t changes.Target) error {
	return &UnknownError{t, func() []string { return PartNames(plan, t.Kind) }}
}

// PartNames returns the names of the parts of a kind, in the order of a plan.
func PartNames(plan *compiled.Plan, kind changes.TargetKind) (names []string) {
	switch kind {
	case changes.Customer:
		if plan.Customers != nil {
			return plan.Customers.Names()
		}
	case changes.Link:
		for i := range plan.Links {
			names = append(names, plan.Links[i].Name)
		}
	case changes.Queue:
		for i := range plan.Queues {
			names = append(names, plan.Queues[i].Source.Name)
		}
	}
	return names
}

// TermsError is the error for terms of a change that the policy does not allow.
type TermsError struct {
	changes.Target
	Err error
}

func (e *TermsError) Error() string { return fmt.Sprintf("%v: %v", e.Target, e.Err) }
func (e *TermsError) Unwrap() error { return e.Err }

// Service returns the number of a customer and its plan. Customers with equal terms have the same
// plan. With a *TermsError the plan follows the terms allowed by the policy. It is nil only with an
// *UnknownError.
func (a *ChangeCompiler) Service(name string) (uint32, *compiled.Service, error) {
	t := changes.Target{Kind: changes.Customer, Name: name}
	from := a.base.Customers
	if from == nil || from.Number(name) == 0 {
		return 0, nil, unknown(a.base, t)
	}
	number := from.Number(name)
	terms := a.book.Terms(t, a.now)
	service, err := a.service(from.Service(number), terms)
	if err != nil {
		return number, a.allowed(from.Service(number), terms), &TermsError{t, err}
	}
	return number, service, nil
}

// allowed returns the plan of a customer whose terms have an error: without the parameters, or else
// without the plan of the terms too.
func (a *ChangeCompiler) allowed(row *compiled.Service, t changes.Terms) *compiled.Service {
	for _, t := range []changes.Terms{{Plan: t.Plan, Off: t.Off}, {Off: t.Off}} {
		if service, err := a.service(row, t); err == nil {
			return service
		}
	}
	return row
}

// service returns the plan of a customer whose plan in the policy is row.
func (a *ChangeCompiler) service(row *compiled.Service, t changes.Terms) (*compiled.Service, error) {
	l := a.loader
	name := cmp.Or(t.Plan, row.Name)
	if by := a.Rules(name).Plan(a.now, false); by != "" && !a.now.IsZero() { // it applies as it is written
		name, t.Plan, t.Parameters = by, by, nil
	}
	i := slices.IndexFunc(l.plans, func(p *plan) bool { return p.Name == name })
	if i < 0 {
		return nil, l.noPlan(name)
	}
	named := &a.base.Customers.Plans[i]
	cells := l.rows.ownParameters(row.Source)
	if t.Plan != "" { // another plan, on the customer's link unless the plan has one
		place := l.plans[i].Queue != nil && l.plans[i].Link == nil
		maps.DeleteFunc(cells, func(name, _ string) bool { return name != "link" || !place })
	}
	switch {
	case len(t.Parameters) > 0 || t.IsOff() || t.Plan != "" && len(cells) > 0:
	case t.Plan == "":
		return row, nil
	default:
		return named, named.Replaces(row)
	}
	var key strings.Builder
	fmt.Fprintf(&key, "%d %t", i, t.IsOff())
	changes.Merge(cells, t.Parameters)
	names := slices.Sorted(maps.Keys(cells))
	values := make([]string, len(names))
	for i, name := range names {
		values[i] = cells[name]
		fmt.Fprintf(&key, " %q=%q", name, values[i])
	}
	if known := a.services[key.String()]; known != nil {
		return known, nil
	}
	errs := newLoader(func(position) string { return "" })
	errs.links = l.links
	v := errs.variant(l.plans[i], names, values)
	if errs.errs != nil {
		return nil, errors.New(errs.errs[0].Reason)
	}
	service, err := a.base.Variant(named, v, t.IsOff())
	if err == nil {
		err = service.Replaces(row)
	}
	if err != nil {
		return nil, withoutObject(err)
	}
	a.services[key.String()] = service
	return service, nil
}

// Own returns the terms of a target in the policy without changes: the plan of a customer, or the
// rate and the place of a link or a queue. The error is an *UnknownError if the policy lacks the part.
func (c *Compiled) Own(t changes.Target) (changes.Terms, error) {
	plan := c.ChangeCompiler(nil, time.Time{}).base
	up := cmp.Or(plan.Up, plan)
	share := func(rate, guarantee rates, priority, weight int) (changes.Terms, error) {
		own := map[string]string{}
		rate.write(own, "rate")
		if weight > 0 {
			own["priority"], own["weight"] = strconv.Itoa(priority), strconv.Itoa(weight)
		}
		if guarantee != (rates{}) {
			guarantee.write(own, "guarantee")
		}
		return changes.Terms{Parameters: own}, nil
	}
	switch t.Kind {
	case changes.Customer:
		if from := plan.Customers; from != nil && from.Number(t.Name) != 0 {
			return changes.Terms{Plan: from.Service(from.Number(t.Name)).Name}, nil
		}
	case changes.Link:
		if i := slices.IndexFunc(plan.Links,
			func(l compiled.Link) bool { return l.Name == t.Name }); i >= 0 {
			l := &plan.Links[i]
			reach, guarantee := rates{plan.Reach(i), up.Reach(i)}, rates{l.Guarantee, up.Links[i].Guarantee}
			return share(reach, guarantee, l.Priority, l.Weight)
		}
	case changes.Queue:
		if i := slices.IndexFunc(plan.Queues,
			func(q compiled.Queue) bool { return q.Source.Name == t.Name }); i >= 0 {
			q := &plan.Queues[i]
			other := &up.Queues[i]
			guarantee := rates{q.Guarantee, other.Guarantee}
			return share(rates{q.Drain, other.Drain}, guarantee, q.Priority, q.Weight)
		}
	}
	return changes.Terms{}, unknown(plan, t)
}

// OwnPlan returns the name of the plan of a customer, whatever quotas and schedules say.
func (a *ChangeCompiler) OwnPlan(number uint32, t changes.Target) string {
	return cmp.Or(a.book.Plan(t, changes.ByUser), a.base.Customers.Service(number).Name)
}

// Rate returns the error of the changed rate or place of a link or a queue, beside all other changes.
func (a *ChangeCompiler) Rate(t changes.Target) error {
	if _, stale := a.Rates(); len(stale) == 0 {
		return nil
	}
	_, stale := a.allRates(&t)
	for _, err := range stale {
		var unknown *UnknownError
		var terms *TermsError
		if errors.As(err, &unknown) && unknown.Target == t || errors.As(err, &terms) && terms.Target == t {
			return err
		}
	}
	return nil
}

// Rates returns the plan with the changed rates and places of links and queues, and without changes of
// customers. stale lists the errors of omitted changes.
func (a *ChangeCompiler) Rates() (plan *compiled.Plan, stale []error) {
	if a.rates == nil {
		a.rates, a.stale = a.allRates(nil)
	}
	return a.rates, a.stale
}

// allRates is Rates with one change after all others: if they do not fit together, it is omitted.
func (a *ChangeCompiler) allRates(last *changes.Target) (plan *compiled.Plan, stale []error) {
	var known []changes.Target
	add := func(t changes.Target) {
		if a.knows(t) {
			known = append(known, t)
		} else {
			stale = append(stale, unknown(a.base, t))
		}
	}
	for _, t := range a.book.Targets() {
		if t.Kind != changes.Customer && (last == nil || t != *last) {
			add(t)
		}
	}
	if last != nil {
		add(*last)
	}
	if plan, err := a.withRates(known...); err == nil {
		return plan, stale
	}
	plan = a.base
	var valid []changes.Target
	for _, t := range known {
		if next, err := a.withRates(append(valid, t)...); err != nil {
			stale = append(stale, err)
		} else {
			plan, valid = next, append(valid, t)
		}
	}
	return plan, stale
}

// knows reports whether the policy has a link or a queue.
func (a *ChangeCompiler) knows(t changes.Target) bool {
	if t.Kind == changes.Link {
		return a.loader.links[t.Name] != nil
	}
	return a.loader.queues[t.Name] != nil
}

// withRates returns the plan with the changes of some links and queues. An error is that of the last one.
func (a *ChangeCompiler) withRates(targets ...changes.Target) (*compiled.Plan, error) {
	if len(targets) == 0 {
		return a.base, nil
	}
	var both [2]compiled.Shares
	for direction := range both {
		shares := map[changes.TargetKind]map[string]compiled.Share{changes.Link: {}, changes.Queue: {}}
		for _, t := range targets {
			share, err := parsePlace(a.book.Terms(t, a.now).Parameters, direction == 1)
			if err != nil {
				return nil, &TermsError{t, err}
			}
			if share != (compiled.Share{}) {
				shares[t.Kind][t.Name] = share
			}
		}
		both[direction] = compiled.Shares{Queues: shares[changes.Queue], Links: shares[changes.Link]}
	}
	plan, err := a.base.WithSharesOf(both[0], both[1])
	if err != nil {
		err = &TermsError{targets[len(targets)-1], withoutObject(err)}
	}
	return plan, err
}

// parsePlace reads the changed parameters of a link or a queue for packets from the customers, or to them.
func parsePlace(parameters map[string]string, up bool) (s compiled.Share, err error) {
	own := downOf
	if up {
		own = upOf
	}
	for name, text := range parameters {
		var invalid error
		switch name {
		case "rate", own["rate"]:
			s.Rate, invalid = pointerTo(ParseRate(text))
		case "guarantee", own["guarantee"]:
			s.Guarantee, invalid = pointerTo(ParseRate(text))
		case "priority":
			s.Priority, invalid = pointerTo(strconv.Atoi(text))
		case "weight":
			s.Weight, invalid = pointerTo(strconv.Atoi(text))
		}
		if errors.Is(invalid, strconv.ErrSyntax) || errors.Is(invalid, strconv.ErrRange) {
			invalid = fmt.Errorf("%q is not a number", text)
		}
		if invalid != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", name, invalid))
		}
	}
	return s, err
}

func pointerTo[T any](v T, err error) (*T, error) { return &v, err }

// withoutObject returns the first error of several, with the field but not the part of the
// policy, which an error of a change names.
func withoutObject(err error) error {
	var e *dataplane.FieldError
	if errors.As(err, &e) {
		return errors.New(e.Field + " " + e.Reason)
	}
	return err
}
