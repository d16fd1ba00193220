package changes

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"sort"
	"strings"
	"time"
)

// MaxList is the maximum number of changes that users can make at once: more would delay other work
// of the process.
const MaxList = 100_000

// ErrEnded is the error for a change whose time is over before it is made.
var ErrEnded = errors.New("the change would end before it begins")

// TargetKind is the kind of a changeable part of a policy.
type TargetKind string

const (
	Customer TargetKind = "customer"
	Link     TargetKind = "link"
	Queue    TargetKind = "queue"
)

// Target is a changeable part of a policy.
type Target struct {
	Kind TargetKind `json:"kind"`
	Name string     `json:"name"`
}

func (t Target) String() string { return fmt.Sprintf("%s %q", t.Kind, t.Name) }

// Terms are the values set by changes. The zero value changes nothing.
type Terms struct {
	// name of a customer's plan; "" means the plan of the policy
	Plan string `json:"plan,omitempty"`
	// in the syntax of policies, such as rate: 50mbit
	Parameters map[string]string `json:"parameters,omitempty"`
	Off        *bool             `json:"off,omitempty"` // all packets of the customer are dropped
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
		Merge(t.Parameters, next.Parameters)
	}
	t.Off = cmp.Or(next.Off, t.Off)
	return t
}

// directions are parameters for both directions, with those for one.
var directions = map[string][]string{"rate": {"down", "up"}, "guarantee": {"down-guarantee", "up-guarantee"}}

// ForBoth returns the parameter for both directions that contains one for a single direction; "" for others.
func ForBoth(name string) string {
	for both, each := range directions {
		if slices.Contains(each, name) {
			return both
		}
	}
	return ""
}

// Merge sets parameters in others. One for a single direction leaves the other direction as it is.
func Merge(into, next map[string]string) {
	for both, each := range directions {
		for _, name := range each {
			_, one := next[name]
			if value, set := into[both]; set && one {
				delete(into, both)
				into[each[0]], into[each[1]] = value, value
			}
			if _, set := next[both]; set {
				delete(into, name)
			}
		}
	}
	maps.Copy(into, next)
}

// HiddenBy reports whether later changes leave nothing of the terms in force.
func (t *Terms) HiddenBy(later []Change) bool {
	var alone Terms
	both := *t
	for i := range later {
		alone, both = alone.with(later[i].Terms), both.with(later[i].Terms)
	}
	return reflect.DeepEqual(alone, both)
}

// IsOff reports whether all packets of a customer are dropped.
func (t *Terms) IsOff() bool { return t.Off != nil && *t.Off }

// Change is one change of a target.
type Change struct {
	Target
	Terms
	// discards all changes of the target; with ByQuota those of its quota
	Reset  bool        `json:"reset,omitempty"`
	Ended  bool        `json:"ended,omitempty"` // discards the terms of the target ended by Until
	Until  time.Time   `json:"until,omitzero"`  // the end of the change; zero for none
	By     ChangeCause `json:"by,omitempty"`    // cause of the change
	Since  time.Time   `json:"since,omitzero"`  // time of the change; zero means unknown
	Author Author      `json:"author,omitzero"`
}

// Author is who made a change; the zero value means unknown.
type Author struct {
	User string `json:"user,omitempty"` // name, or user ID
	With string `json:"with,omitempty"` // the tool: shaper set or the API
}

func (a Author) String() string {
	switch {
	case a.User == "":
		return a.With
	case a.With == "":
		return a.User
	}
	return a.User + " with " + a.With
}

// ChangeCause is the cause of a change. Changes of a later cause hide those of an earlier one.
type ChangeCause uint8

const (
	ByUser      ChangeCause = iota
	ByQuota                 // the customer used up its quota
	temporarily             // by a user, with an end
	causes
)

// shares are the parameters of a link or a queue that can be changed.
var shares = []string{
	"rate", "guarantee", "priority", "weight", "down", "up", "down-guarantee", "up-guarantee",
}

// ShareNames returns the names of the parameters of links and queues.
func ShareNames() []string { return slices.Clone(shares) }

// Check returns an error if a change cannot be meant.
func (c *Change) Check() error {
	switch {
	case c.Kind != Customer && c.Kind != Link && c.Kind != Queue:
		return fmt.Errorf("%q: want customer, link or queue", c.Kind)
	case c.Name == "":
		return fmt.Errorf("%s: the name is missing", c.Kind)
	case c.By > ByQuota:
		return errors.New("the cause is unknown")
	case c.Reset && (!c.empty() || c.Ended || !c.Until.IsZero()):
		return fmt.Errorf("%v: reset cannot be combined with other changes", c.Target)
	case c.Ended && (!c.empty() || c.Until.IsZero()):
		return fmt.Errorf("%v: an end needs a time, and nothing else", c.Target)
	case c.empty() && !c.Reset && !c.Ended:
		return fmt.Errorf("%v: nothing to change", c.Target)
	}
	for both, each := range directions {
		for _, name := range each {
			if c.Parameters[both] != "" && c.Parameters[name] != "" {
				return fmt.Errorf("%v: %s is for both directions, and %s for one: give one of them", c.Target, both, name)
			}
		}
	}
	if c.Kind == Customer {
		return nil
	}
	for name := range c.Parameters {
		if !slices.Contains(shares, name) {
			return fmt.Errorf("%v: %s cannot be changed, only %s", c.Target, name, strings.Join(shares, ", "))
		}
	}
	if c.Plan != "" || c.Off != nil {
		return fmt.Errorf("%v: want a rate, such as rate=35mbit", c.Target)
	}
	return nil
}

// Book holds the changes in force. A copy by maps.Clone does not change with it.
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
	until  time.Time
	since  time.Time // of the latest of them
	author Author    // of the latest of them
}

func (l *layer) endedBy(now time.Time) bool { return !l.until.IsZero() && !now.Before(l.until) }

// layerOf returns the layer of a change alone.
func layerOf(c *Change) layer { return layer{c.Terms, c.Until, c.Since, c.Author} }

// Apply adds a change. It must not have an error of Check.
func (b Book) Apply(c Change) {
	var next layers
	if at := b[c.Target]; at != nil {
		next = *at
	}
	switch {
	case c.Ended:
		for i := range next {
			if next[i].endedBy(c.Until) {
				next[i] = layer{}
			}
		}
	case c.Reset && c.By == ByQuota:
		next[ByQuota] = layer{}
	case c.Reset:
		next = layers{}
	case c.By == ByQuota:
		next[ByQuota] = layerOf(&c)
	case !c.Until.IsZero():
		next[temporarily] = layerOf(&c)
	default:
		terms := next[ByUser].with(c.Terms)
		next[ByUser] = layerOf(&c)
		next[ByUser].Terms, next[temporarily] = terms, layer{}
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

// Terms returns the terms of a target in force at a time.
func (b Book) Terms(t Target, now time.Time) (out Terms) {
	at := b[t]
	if at == nil {
		return out
	}
	for i := range at {
		if l := &at[i]; !l.endedBy(now) {
			out = out.with(l.Terms)
		}
	}
	return out
}

// Planned returns the targets with a plan set by a cause, even if the time of that change is over,
// in no order.
func (b Book) Planned(by ChangeCause) (out []Target) {
	for t := range b {
		if b.Plan(t, by) != "" {
			out = append(out, t)
		}
	}
	return out
}

// Plan returns the plan that a cause has set, also if its time is over; "" for none. ByUser is
// without changes that end.
func (b Book) Plan(t Target, by ChangeCause) string {
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

// Ends returns changes to discard the terms ending by now, by target.
func (b Book) Ends(now time.Time) (out []Change) {
	for t, at := range b {
		if slices.ContainsFunc(at[:], func(l layer) bool { return l.endedBy(now) }) {
			out = append(out, Change{Target: t, Ended: true, Until: now})
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Compare(out[j].Target) < 0 })
	return out
}

// Expire discards the terms ending by now.
func (b Book) Expire(now time.Time) {
	for _, c := range b.Ends(now) {
		b.Apply(c)
	}
}

// Compare orders targets by kind and name.
func (t Target) Compare(u Target) int {
	return cmp.Or(cmp.Compare(t.Kind, u.Kind), cmp.Compare(t.Name, u.Name))
}

// Targets returns all targets, sorted.
func (b Book) Targets() []Target {
	all := slices.Collect(maps.Keys(b))
	sort.Slice(all, func(i, j int) bool { return all[i].Compare(all[j]) < 0 })
	return all
}

// All yields the changes, by target, to make an empty book equal to this one.
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

// Of returns the changes to make an empty book equal to this one for one target.
func (b Book) Of(t Target) (out []Change) {
	if b[t] == nil {
		return nil
	}
	for cause, l := range b[t] {
		c := Change{
			Target: t, Terms: l.Terms, Until: l.until, By: ChangeCause(cause), Since: l.since,
			Author: l.author,
		}
		if cause == int(temporarily) {
			c.By = ByUser
		}
		if !c.empty() {
			out = append(out, c)
		}
	}
	return out
}

// apply applies changes and returns a function to undo them.
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
