package diff

import (
	"fmt"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// order compares the order of classes: the first class to match a packet gets it.
type order struct {
	from, to []dataplane.Class
	inFrom   map[string]int // indices by name
	inTo     map[string]int
	work     int // comparisons of list entries so far
}

func newOrder(a, b *dataplane.Policy) *order {
	return &order{from: a.Classes, to: b.Classes, inFrom: indices(a.Classes), inTo: indices(b.Classes)}
}

func indices(classes []dataplane.Class) map[string]int {
	out := make(map[string]int, len(classes))
	for i := range classes {
		out[classes[i].Name] = i
	}
	return out
}

// moved returns the changes of a class moved before classes it was behind.
func (o *order) moved(name string) []Difference {
	i := o.inTo[name]
	var overtaken, takes []string
	for j := i + 1; j < len(o.to); j++ {
		other := &o.to[j]
		if at, common := o.inFrom[other.Name]; common && at < o.inFrom[name] {
			overtaken = append(overtaken, other.Name)
			if o.overlap(&o.to[i].Match, &other.Match) {
				takes = append(takes, other.Name)
			}
		}
	}
	if overtaken == nil {
		return nil
	}
	note := "no packet matches both"
	if takes != nil {
		note = "it takes packets that match both from " + names(takes)
	}
	before := names(overtaken)
	return []Difference{{
		What: "moved", Part: "class", Name: name, From: "after " + before, To: "before " + before,
		Note: "before " + before + ": " + note,
	}}
}

// added describes the place of a new class, and the classes it may take packets from.
func (o *order) added(p part) string {
	if p.kind != "class" {
		return ""
	}
	i := o.inTo[p.name]
	place := "at the end"
	if i+1 < len(o.to) {
		place = "before " + o.to[i+1].Name
	}
	if from := o.overlapping(&o.to[i].Match, o.to[i+1:], o.inFrom); from != nil {
		place += fmt.Sprintf(" (takes packets that match both from %s)", names(from))
	}
	return place
}

// removed describes the classes that can get the packets of a removed class.
func (o *order) removed(p part) string {
	if p.kind != "class" {
		return ""
	}
	i := o.inFrom[p.name]
	if to := o.overlapping(&o.from[i].Match, o.from[i+1:], o.inTo); to != nil {
		return fmt.Sprintf("(its packets can match %s)", names(to))
	}
	return "(no later class matches its packets)"
}

// overlapping returns the names of the classes that are also in the other policy, and match some
// packet of m.
func (o *order) overlapping(
	m *dataplane.Match, classes []dataplane.Class, other map[string]int,
) (out []string) {
	for i := range classes {
		c := &classes[i]
		if _, common := other[c.Name]; common && o.overlap(m, &c.Match) {
			out = append(out, c.Name)
		}
	}
	return out
}

// mostWork bounds the comparisons of list entries, to less than a second. With aliases, a short
// policy can define a thousand classes with a thousand entries each.
const mostWork = 1e8

// overlap reports whether packets can match both. Beyond mostWork it is true without a look.
func (o *order) overlap(a, b *dataplane.Match) bool {
	o.work += 10 + len(a.Src)*len(b.Src) + len(a.Dst)*len(b.Dst)
	for _, f := range dataplane.MatchFields {
		o.work += len(*f.List(a)) * len(*f.List(b))
	}
	return o.work > mostWork || a.Overlaps(b)
}

// names joins names, but not more than mostEntries.
func names(list []string) string {
	first := slices.Clone(list[:min(len(list), mostEntries)])
	if more := len(list) - len(first); more > 0 {
		return strings.Join(first, ", ") + fmt.Sprintf(" and %s more", say.Grouped(int64(more)))
	}
	return strings.Join(first, ", ")
}
