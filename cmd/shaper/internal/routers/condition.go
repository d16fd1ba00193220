package routers

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sort"
	"sync"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policywriter"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter/unsaid"
)

// Condition is a condition of a class, with the statements from which it was made.
type Condition struct {
	dataplane.Match
	from map[string]policywriter.Comment // by key of the match
}

// all matches all packets.
var all = []Condition{{}}

// ConditionOf returns a condition made from a statement.
func ConditionOf(line Line, m dataplane.Match) Condition {
	c := Condition{Match: m, from: map[string]policywriter.Comment{}}
	for _, f := range lists() {
		if f.len(&m) > 0 {
			c.from[f.name] = policywriter.Comment{Line: line.Number, Text: line.Text()}
		}
	}
	return c
}

// list is a list of a match that a packet must match if it is not empty.
type list struct {
	name  string
	len   func(*dataplane.Match) int
	equal func(a, b *dataplane.Match) bool
	both  func(to, a, b *dataplane.Match) // entries of both
	union func(to, a, b *dataplane.Match)
	copy  func(to, from *dataplane.Match)
}

// listOf returns a list from its place, and the intersection and the union of two.
func listOf[T comparable](
	name string, at func(*dataplane.Match) *[]T, both func(a, b T) (T, bool), union func(a, b []T) []T,
) list {
	return list{
		name:  name,
		len:   func(m *dataplane.Match) int { return len(*at(m)) },
		equal: func(a, b *dataplane.Match) bool { return slices.Equal(*at(a), *at(b)) },
		copy:  func(to, from *dataplane.Match) { *at(to) = *at(from) },
		union: func(to, a, b *dataplane.Match) { *at(to) = union(*at(a), *at(b)) },
		both: func(to, a, b *dataplane.Match) {
			var out []T
			for _, x := range *at(a) {
				for _, y := range *at(b) {
					if v, ok := both(x, y); ok && !slices.Contains(out, v) {
						out = append(out, v)
					}
				}
			}
			*at(to) = out
		},
	}
}

// lists are the lists of a match. A condition of a router has no others.
var lists = sync.OnceValue(func() []list {
	prefixes := func(a, b netip.Prefix) (netip.Prefix, bool) {
		if a.Bits() > b.Bits() {
			return a, a.Overlaps(b)
		}
		return b, a.Overlaps(b)
	}
	out := []list{
		listOf("src", func(m *dataplane.Match) *[]netip.Prefix { return &m.Src }, prefixes, distinct),
		listOf("dst", func(m *dataplane.Match) *[]netip.Prefix { return &m.Dst }, prefixes, distinct),
	}
	for _, f := range dataplane.MatchFields {
		out = append(out, listOf(f.Name, f.List, func(a, b dataplane.Range) (dataplane.Range, bool) {
			r := dataplane.Range{First: max(a.First, b.First), Last: min(a.Last, b.Last)}
			return r, r.First <= r.Last
		}, func(a, b []dataplane.Range) []dataplane.Range { return JoinRanges(slices.Concat(a, b)) }))
	}
	return out
})

// distinct returns the prefixes of a, and those of b that are not in a.
func distinct(a, b []netip.Prefix) []netip.Prefix {
	out := slices.Clone(a)
	for _, p := range b {
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// JoinRanges sorts ranges and joins touching ones.
func JoinRanges(list []dataplane.Range) (out []dataplane.Range) {
	sort.Slice(list, func(i, j int) bool { return list[i].First < list[j].First })
	for _, r := range list {
		if n := len(out); n > 0 && r.First <= out[n-1].Last+1 {
			out[n-1].Last = max(out[n-1].Last, r.Last)
			continue
		}
		out = append(out, r)
	}
	return out
}

// maxAlternatives is the maximum number of conditions of a class, which become a class each.
const maxAlternatives = 1024

// Both returns the conditions under which one of a and one of b match.
func Both(a, b []Condition) (out []Condition, err error) {
	if len(a)*len(b) > maxAlternatives {
		return nil, errTooMany
	}
	for _, x := range a {
		for _, y := range b {
			if c, ok := x.and(y); ok {
				out = append(out, c)
			}
		}
	}
	if out == nil {
		return nil, errors.New("no packet matches it and the other conditions")
	}
	return out, nil
}

var errTooMany = errors.New("there are too many combinations of its conditions")

// and returns the condition under which both match, or false if some field shows that nothing does.
func (c Condition) and(d Condition) (Condition, bool) {
	out := Condition{from: maps.Clone(c.from)}
	if out.from == nil {
		out.from = map[string]policywriter.Comment{}
	}
	for _, l := range lists() {
		switch {
		case l.len(&d.Match) == 0:
			l.copy(&out.Match, &c.Match)
		case l.len(&c.Match) == 0:
			l.copy(&out.Match, &d.Match)
			out.from[l.name] = d.from[l.name]
		default:
			l.both(&out.Match, &c.Match, &d.Match)
			out.addComment(l.name, d)
			if l.len(&out.Match) == 0 {
				return out, false
			}
		}
	}
	return out, !disjointFamilies(&c.Match, &d.Match)
}

// with returns the condition for the values of both. A list that is empty in one of them is empty.
func (c Condition) with(d Condition) Condition {
	if c.from == nil {
		return d
	}
	out := Condition{from: maps.Clone(c.from)}
	for _, l := range lists() {
		if l.len(&c.Match) > 0 && l.len(&d.Match) > 0 {
			l.union(&out.Match, &c.Match, &d.Match)
			out.addComment(l.name, d)
		}
	}
	return out
}

// maxComment is the length from which a comment is not extended, in bytes.
const maxComment = 160

// addComment adds the comment of another condition to a key.
func (c *Condition) addComment(key string, other Condition) {
	mine, more := c.from[key], other.from[key]
	if more.Text != "" && more.Text != mine.Text && len(mine.Text) < maxComment {
		mine.Text += "; " + more.Text
		c.from[key] = mine
	}
}

// Merge joins successive conditions with differences in one list, in any number of steps. Otherwise equal
// conditions for IPv4 and for IPv6 become one for IP.
func Merge(conditions []Condition) []Condition {
	for changed := true; changed; {
		changed = false
		var out []Condition
		for _, c := range conditions {
			Plain(&c.Match)
			if n := len(out); n > 0 {
				if joined, ok := out[n-1].or(c); ok {
					out[n-1], changed = joined, true
					continue
				}
			}
			out = append(out, c)
		}
		conditions = out
	}
	return conditions
}

// or returns the condition under which c or d match, if one list suffices.
func (c Condition) or(d Condition) (Condition, bool) {
	m, ok := Unite(c.Match, d.Match, true)
	if !ok {
		return c, false
	}
	out := Condition{Match: m, from: maps.Clone(c.from)}
	for _, l := range lists() {
		if !l.equal(&c.Match, &d.Match) {
			out.addComment(l.name, d)
		}
	}
	return out, true
}

// Unite returns the match of packets that match a or b, if one list suffices. With mixed they may be of
// different families.
func Unite(a, b dataplane.Match, mixed bool) (m dataplane.Match, ok bool) {
	m = a
	x, y := Family(&a), Family(&b)
	families := mixed && len(x) > 0 && len(y) > 0 && !slices.Equal(x, y) // then addresses may differ as well
	differ := 0
	if families {
		differ++
		m.EtherType = JoinRanges(slices.Concat(x, y))
	} else if !slices.Equal(x, y) {
		return m, false
	}
	for _, l := range lists() {
		address := l.name == "src" || l.name == "dst"
		switch {
		case l.name == "ethertype" || l.equal(&a, &b):
		case l.len(&a) == 0 || l.len(&b) == 0:
			return m, false
		default:
			if !families || !address {
				differ++
			}
			l.union(&m, &a, &b)
		}
	}
	Plain(&m)
	return m, differ <= 1
}

// EtherTypes of IP.
const (
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
)

// isFamily reports whether a match restricts packets to IP or to one version of it at most.
func isFamily(m *dataplane.Match) bool {
	return len(unsaid.Fields(m, "EtherType")) == 0
}

func single(v uint64) []dataplane.Range { return []dataplane.Range{{First: v, Last: v}} }

var bothFamilies = slices.Concat(single(etherIPv4), single(etherIPv6))

// Family returns the EtherTypes of a match, or nil if they are not restricted to one family.
func Family(m *dataplane.Match) []dataplane.Range {
	addresses := slices.Concat(m.Src, m.Dst)
	is6 := func(p netip.Prefix) bool { return p.Addr().Is6() }
	switch {
	case len(addresses) == 0:
		return m.EtherType
	case !slices.ContainsFunc(addresses, is6):
		return single(etherIPv4)
	case slices.ContainsFunc(addresses, func(p netip.Prefix) bool { return !is6(p) }):
		return nil
	}
	return single(etherIPv6)
}

// disjointFamilies reports whether two matches are for different IP versions.
func disjointFamilies(a, b *dataplane.Match) bool {
	x, y := Family(a), Family(b)
	return len(x) > 0 && len(y) > 0 && !Overlap(x, y)
}

// Overlap reports whether two lists have a common value.
func Overlap(a, b []dataplane.Range) bool {
	return slices.ContainsFunc(a, func(x dataplane.Range) bool {
		return slices.ContainsFunc(b,
			func(y dataplane.Range) bool { return x.First <= y.Last && y.First <= x.Last })
	})
}

// Disjoint reports whether some list shows that no packet matches both a and b.
func Disjoint(a, b *dataplane.Match) bool {
	_, ok := Condition{Match: *a}.and(Condition{Match: *b})
	return !ok
}

// Plain removes conditions implied by others.
func Plain(m *dataplane.Match) {
	ip := len(m.Src)+len(m.Dst)+len(m.Proto)+len(m.SPort)+len(m.DPort)+len(m.DSCP) > 0
	families := slices.Equal(m.EtherType, bothFamilies) && (ip || len(m.VLAN)+len(m.PCP)+len(m.Length) == 0)
	if len(m.Src)+len(m.Dst) > 0 || families {
		m.EtherType = nil
	}
	if len(m.SPort)+len(m.DPort) > 0 && slices.Equal(m.Proto, slices.Concat(single(6), single(17))) {
		m.Proto = nil // the default of ports
	}
}

// Say sets the comment of a key of the condition.
func (c *Condition) Say(key string, line Line, text string) {
	c.from[key] = policywriter.Comment{Line: line.Number, Text: text}
}
