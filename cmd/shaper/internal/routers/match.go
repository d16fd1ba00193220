package routers

import (
	"fmt"
	"slices"
)

// Cond is a key of match with values, one of which must match.
type Cond struct {
	Key     string
	Values  []string
	Line    int
	Comment string
}

// Conditions is a condition: each Cond must match. Without a Cond it matches all IP packets.
type Conditions []Cond

// Keyed returns the conditions of one key.
func Keyed(line Line, key string, values ...string) []Conditions {
	return []Conditions{{{key, values, line.Number, line.Text()}}}
}

// get returns the Cond of a key, or nil.
func (m Conditions) get(key string) *Cond {
	for i := range m {
		if m[i].Key == key {
			return &m[i]
		}
	}
	return nil
}

// maxAlternatives is the maximum number of conditions of a class, which become a class each.
const maxAlternatives = 1024

// Both returns the conditions under which one of a and one of b match. It returns false if they
// restrict the same key differently, which a policy cannot express, if there are too many, or if
// nothing matches both.
func Both(a, b []Conditions) (out []Conditions, ok bool) {
	if len(a)*len(b) > maxAlternatives {
		return nil, false
	}
	for _, x := range a {
		for _, y := range b {
			both, possible := slices.Clone(x), true
			for _, c := range y {
				switch old := both.get(c.Key); {
				case old == nil:
					both = append(both, c)
				case c.Key == "ethertype": // its values are names
					old.Values = slices.DeleteFunc(slices.Clone(old.Values),
						func(v string) bool { return !slices.Contains(c.Values, v) })
					possible = possible && len(old.Values) > 0
				case !slices.Equal(old.Values, c.Values):
					return nil, false
				}
			}
			if possible {
				out = append(out, both)
			}
		}
	}
	return out, len(out) > 0
}

// Merge joins successive conditions with differences in the values of one key, in any number of
// steps. Otherwise equal conditions for IPv4 and for IPv6 become one for IP.
func Merge(list []Conditions) []Conditions {
	for changed := true; changed; {
		changed = false
		var out []Conditions
		for _, m := range list {
			m = m.plain()
			if n := len(out); n > 0 {
				if joined, ok := join(out[n-1], m); ok {
					out[n-1], changed = joined, true
					continue
				}
			}
			out = append(out, m)
		}
		list = out
	}
	return list
}

// join returns the condition under which a or b match, if they have the same keys and differ in
// one of them at most.
func join(a, b Conditions) (Conditions, bool) {
	if len(a) != len(b) {
		return nil, false
	}
	differs := -1
	for i, c := range a {
		other := b.get(c.Key)
		switch {
		case other == nil:
			return nil, false
		case slices.Equal(c.Values, other.Values):
		case differs >= 0:
			return nil, false
		default:
			differs = i
		}
	}
	if differs < 0 {
		return a, true
	}
	out := slices.Clone(a)
	c := &out[differs]
	other := b.get(c.Key)
	values := slices.Clone(c.Values)
	for _, v := range other.Values {
		if !slices.Contains(values, v) {
			values = append(values, v)
		}
	}
	c.Values = values
	if c.Comment != other.Comment && len(c.Comment) < maxComment {
		c.Comment += "; " + other.Comment
	}
	return out.plain(), true
}

// plain omits the EtherTypes of IP if other keys imply them.
func (m Conditions) plain() Conditions {
	i := slices.IndexFunc(m, func(c Cond) bool { return c.Key == "ethertype" && onlyIP(c.Values) })
	if i < 0 {
		return m
	}
	if rest := slices.Delete(slices.Clone(m), i, i+1); rest.isIP() {
		return rest
	}
	return m
}

// isIP reports whether the condition matches IP packets only.
func (m Conditions) isIP() bool {
	return len(m) == 0 || slices.ContainsFunc(m, func(c Cond) bool { return slices.Contains(ipKeys, c.Key) })
}

// ipKeys are keys of IP packets only.
var ipKeys = []string{"src", "dst", "proto", "sport", "dport", "dscp"}

// maxComment is the length from which a comment is not extended, in bytes.
const maxComment = 160

// onlyIP reports whether EtherTypes are those of IP.
func onlyIP(values []string) bool {
	return len(values) == 2 && slices.Contains(values, "ipv4") && slices.Contains(values, "ipv6")
}

// Class adds a class for each condition. They share one meter: the meter of the class is moved
// to Meters if there are several.
func (d *Draft) Class(class *Entry, when []Conditions) {
	when = Merge(when)
	if len(when) == 1 {
		d.Classes = append(d.Classes, withMatch(class, d.unused(class.Name()), when[0]))
		return
	}
	name := class.Name()
	if m := class.Get("meter"); m != nil && m.Value == "" {
		d.Meters = append(d.Meters,
			&Entry{Key: class.Key, Line: m.Line, Comment: m.Comment, Entries: m.Entries})
		m.Value, m.Entries = class.Key, nil
		m.Comment = fmt.Sprintf("shared by the classes %s-1 to %s-%d", name, name, len(when))
	}
	for i, m := range when {
		d.Classes = append(d.Classes, withMatch(class, d.unused(fmt.Sprintf("%s-%d", name, i+1)), m))
	}
}

// unused returns a name as a YAML key. It changes a name that is in use: the part of one class may
// be named like another class.
func (d *Draft) unused(name string) string {
	for d.used[name] {
		name += "-b"
	}
	if d.used == nil {
		d.used = map[string]bool{}
	}
	d.used[name] = true
	return Quote(name)
}

// withMatch returns a class with a name and a condition.
func withMatch(class *Entry, key string, m Conditions) *Entry {
	c := &Entry{Key: key, Line: class.Line, Comment: class.Comment}
	if len(m) > 0 {
		match := c.Map("match")
		for _, cond := range m {
			match.Set(cond.Key, List(cond.Values...), cond.Line, "%s", cond.Comment)
		}
	}
	c.Entries = append(c.Entries, class.Entries...)
	return c
}
