package changes

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"
)

// Kind is the kind of a part of a policy that can be changed.
type Kind string

const (
	Customer Kind = "customer"
	Link     Kind = "link"
	Queue    Kind = "queue"
)

// Target is a part of a policy that can be changed.
type Target struct {
	Kind Kind   `json:"kind"`
	Name string `json:"name"`
}

func (t Target) String() string { return fmt.Sprintf("%s %q", t.Kind, t.Name) }

// Terms are what changes have set. The zero value changes nothing.
type Terms struct {
	Plan       string            `json:"plan,omitempty"`       // name of a customer's plan; "" means that of the policy
	Parameters map[string]string `json:"parameters,omitempty"` // in the syntax of policies, such as rate: 50mbit
	Off        *bool             `json:"off,omitempty"`        // all packets of the customer are dropped
}

func (t *Terms) empty() bool { return t.Plan == "" && len(t.Parameters) == 0 && t.Off == nil }

// with returns the terms after others were set. Another plan discards parameters, which
// belonged to the previous one.
func (t Terms) with(next Terms) Terms {
	if next.Plan != "" {
		t.Plan, t.Parameters = next.Plan, nil
	}
	if len(next.Parameters) > 0 {
		t.Parameters = maps.Clone(t.Parameters)
		if t.Parameters == nil {
			t.Parameters = map[string]string{}
		}
		maps.Copy(t.Parameters, next.Parameters)
	}
	t.Off = cmp.Or(next.Off, t.Off)
	return t
}

// IsOff reports whether all packets of a customer are dropped.
func (t *Terms) IsOff() bool { return t.Off != nil && *t.Off }

// Change is one change of a target.
type Change struct {
	Target
	Terms
	Reset bool      `json:"reset,omitempty"` // discards all changes of the target; with ByQuota those of its quota
	Until time.Time `json:"until,omitzero"`  // the end of the change; zero means that it has none
	By    Cause     `json:"by,omitempty"`    // what made the change
}

// Cause is what made a change. Changes of a later cause hide those of an earlier one.
type Cause uint8

const (
	ByUser      Cause = iota
	ByQuota           // the customer has used its quota
	temporarily       // by a user, with an end
	causes
)

// Check returns an error if a change cannot be meant.
func (c *Change) Check() error {
	switch {
	case c.Kind != Customer && c.Kind != Link && c.Kind != Queue:
		return fmt.Errorf("%q: want customer, link or queue", c.Kind)
	case c.Name == "":
		return fmt.Errorf("%s: the name is missing", c.Kind)
	case c.By > ByQuota:
		return errors.New("the cause is unknown")
	case c.Reset && (!c.empty() || !c.Until.IsZero()):
		return fmt.Errorf("%v: reset cannot be combined with other changes", c.Target)
	case c.empty() && !c.Reset:
		return fmt.Errorf("%v: nothing to change", c.Target)
	}
	if c.Kind == Customer {
		return nil
	}
	for name := range c.Parameters {
		if name != "rate" {
			return fmt.Errorf("%v: %s cannot be changed, only the rate", c.Target, name)
		}
	}
	if c.Plan != "" || c.Off != nil {
		return fmt.Errorf("%v: want a rate, such as rate=35mbit", c.Target)
	}
	return nil
}

// Book has the changes in force. A copy by maps.Clone does not change with it.
type Book map[Target]*layers

// layers are the changes of a target, by cause. Those in a book are never modified: copies of it
// share them.
type layers [causes]layer

func (l *layers) empty() bool {
	return !slices.ContainsFunc(l[:], func(one layer) bool { return !one.Terms.empty() })
}

// layer are the changes of a target by one cause.
type layer struct {
	Terms
	until time.Time
}

// Apply adds a change. It must not have an error of Check.
func (b Book) Apply(c Change) {
	var next layers
	if at := b[c.Target]; at != nil {
		next = *at
	}
	switch {
	case c.Reset && c.By == ByQuota:
		next[ByQuota] = layer{}
	case c.Reset:
		next = layers{}
	case c.By == ByQuota:
		next[ByQuota] = layer{c.Terms, c.Until}
	case !c.Until.IsZero():
		next[temporarily] = layer{c.Terms, c.Until}
	default:
		next[ByUser].Terms = next[ByUser].with(c.Terms)
		next[temporarily] = layer{}
		if c.Plan != "" {
			next[ByQuota] = layer{}
		}
	}
	b.put(c.Target, &next)
}

// put replaces the changes of a target; nil means none.
func (b Book) put(t Target, next *layers) {
	if next == nil || next.empty() {
		delete(b, t)
	} else {
		b[t] = next
	}
}

// Terms returns the terms of a target that are in force at a time.
func (b Book) Terms(t Target, now time.Time) (out Terms) {
	at := b[t]
	if at == nil {
		return out
	}
	for i := range at {
		if l := &at[i]; l.until.IsZero() || now.Before(l.until) {
			out = out.with(l.Terms)
		}
	}
	return out
}

// Planned returns the targets whose plan a cause has set, also if their time is over, in no order.
func (b Book) Planned(by Cause) (out []Target) {
	for t := range b {
		if b.Plan(t, by) != "" {
			out = append(out, t)
		}
	}
	return out
}

// Plan returns the plan that a cause has set, also if its time is over; "" for none. ByUser is
// without changes that end.
func (b Book) Plan(t Target, by Cause) string {
	if at := b[t]; at != nil {
		return at[by].Plan
	}
	return ""
}

// Next returns the time at which the next change ends; zero if none does.
func (b Book) Next() (next time.Time) {
	for _, at := range b {
		for i := range at {
			if end := at[i].until; !end.IsZero() && (next.IsZero() || end.Before(next)) {
				next = end
			}
		}
	}
	return next
}

// Expire removes the changes that end by now, and returns their targets.
func (b Book) Expire(now time.Time) (out []Target) {
	ended := func(l layer) bool { return !l.until.IsZero() && !now.Before(l.until) }
	for t, at := range b {
		if !slices.ContainsFunc(at[:], ended) {
			continue
		}
		out = append(out, t)
		next := *at
		for i := range next {
			if ended(next[i]) {
				next[i] = layer{}
			}
		}
		b.put(t, &next)
	}
	slices.SortFunc(out, Target.Compare)
	return out
}

// Compare orders targets by kind and name.
func (t Target) Compare(u Target) int {
	return cmp.Or(cmp.Compare(t.Kind, u.Kind), cmp.Compare(t.Name, u.Name))
}

// Targets returns all targets, sorted.
func (b Book) Targets() []Target { return slices.SortedFunc(maps.Keys(b), Target.Compare) }

// All yields changes that make an empty book equal to this one, by target.
func (b Book) All() iter.Seq[Change] {
	return func(yield func(Change) bool) {
		for _, t := range b.Targets() {
			for _, c := range b.Of(t) {
				if !yield(c) {
					return
				}
			}
		}
	}
}

// Of returns changes that make an empty book equal to this one for one target.
func (b Book) Of(t Target) (out []Change) {
	if b[t] == nil {
		return nil
	}
	for cause, l := range b[t] {
		c := Change{Target: t, Terms: l.Terms, Until: l.until, By: Cause(cause)}
		if cause == int(temporarily) {
			c.By = ByUser
		}
		if !c.empty() {
			out = append(out, c)
		}
	}
	return out
}

// apply applies changes and returns a function that undoes them.
func (b Book) apply(list []Change) (undo func()) {
	before := map[Target]*layers{}
	for _, c := range list {
		if _, known := before[c.Target]; !known {
			before[c.Target] = b[c.Target]
		}
		b.Apply(c)
	}
	return func() {
		for t, l := range before {
			b.put(t, l)
		}
	}
}

// Words returns the terms in words.
func (t *Terms) Words() (out []string) {
	if t.Plan != "" {
		out = append(out, "plan "+t.Plan)
	}
	for _, name := range slices.Sorted(maps.Keys(t.Parameters)) {
		out = append(out, name+" "+t.Parameters[name])
	}
	if t.Off != nil {
		out = append(out, map[bool]string{true: "off", false: "on"}[*t.Off])
	}
	return out
}
