package diff

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
)

// Difference is a difference between two policies.
type Difference struct {
	What     string `json:"what"`     // added, removed, moved or changed
	Part     string `json:"part"`     // such as class or queue; policy for the policy itself
	Name     string `json:"name"`     // of the part, "" for a nameless one
	Property string `json:"property"` // changed property of the part, "" for other changes
	From     string `json:"from"`     // "" for an added part
	To       string `json:"to"`       // "" for a removed part
	// Entries of a list without an order, such as the prefixes of a match.
	Added   []string `json:"added,omitempty"`
	Removed []string `json:"removed,omitempty"`
	Note    string   `json:"note,omitempty"` // effect of the order of classes
}

// Policies returns the differences between two policies: those of parts, of the order of classes,
// and of customers.
func Policies(a, b *policyfile.File) []Difference {
	out := []Difference{}
	from, to := parts(a), parts(b)
	order := newOrder(a.Policy, b.Policy)
	for _, p := range from {
		if find(to, p) == nil {
			out = append(out,
				Difference{
					What: "removed", Part: p.kind, Name: p.name, From: p.text(), Note: order.removed(p),
				})
		}
	}
	for _, p := range to {
		old := find(from, p)
		if old == nil {
			out = append(out,
				Difference{What: "added", Part: p.kind, Name: p.name, To: p.text(), Note: order.added(p)})
			continue
		}
		if p.kind == "class" {
			out = append(out, order.moved(p.name)...)
		}
		out = append(out, compare(old, &p)...)
	}
	return append(out, customers(a, b)...)
}

// find returns the part of the same kind and name, or nil.
func find(list []part, p part) *part {
	i := slices.IndexFunc(list, func(q part) bool { return q.kind == p.kind && q.name == p.name })
	if i < 0 {
		return nil
	}
	return &list[i]
}

// compare returns the different properties.
func compare(a, b *part) (out []Difference) {
	differ := map[string]bool{}
	metered := a.property("color").meter && b.property("color").meter
	for _, key := range keys(a, b) {
		p, q := a.property(key), b.property(key)
		if p.exact == q.exact || differ[cmp.Or(p.of, q.of)] || (p.meter || q.meter) && !metered {
			continue
		}
		differ[key] = true
		c := Difference{What: "changed", Part: b.kind, Name: b.name, Property: key, From: p.text, To: q.text}
		if c.From == c.To { // such as the passwords of two stores
			c.To += " (differs in a part that is not shown)"
		}
		if len(p.list)+len(q.list) > 0 {
			c.Added, c.Removed = without(q.list, p.list), without(p.list, q.list)
		}
		out = append(out, c)
	}
	return out
}

// keys returns the keys of the properties of both, in the order of b.
func keys(a, b *part) (out []string) {
	for _, p := range slices.Concat(b.properties, a.properties) {
		if !slices.Contains(out, p.key) {
			out = append(out, p.key)
		}
	}
	return out
}

// property returns the property of a key, or none for a part without it. The one for packets from the
// customers is by default the one for packets to them.
func (p *part) property(key string) property {
	for _, q := range p.properties {
		if q.key == key {
			return q
		}
	}
	if both, up := strings.CutSuffix(key, say.Up); up {
		return p.property(both)
	}
	return property{text: "none"}
}

// without returns the entries of list missing in other. Both are sorted.
func without(list, other []string) (out []string) {
	for _, v := range list {
		if _, found := slices.BinarySearch(other, v); !found {
			out = append(out, v)
		}
	}
	return out
}

// usual are properties of most parts, which are not written.
var usual = []string{"color blind", "count bytes", "initial full"}

// text writes a part on one line.
func (p *part) text() string {
	var words []string
	for _, q := range p.properties {
		empty := q.list != nil && len(q.list) == 0
		if word := q.key + " " + q.text; q.of == "" && !empty && q.text != ofClass &&
			!slices.Contains(usual, word) {
			words = append(words, word)
		}
	}
	return strings.Join(words, "; ")
}

// String writes the change on one line.
func (c Difference) String() string {
	text := c.Part
	if c.Name != "" {
		text += " " + c.Name
	}
	text += ": "
	switch {
	case c.What == "changed" && len(c.Added)+len(c.Removed) > mostEntries:
		text += fmt.Sprintf("%s: %s added, %s removed: %s -> %s", c.Property,
			say.Grouped(int64(len(c.Added))), say.Grouped(int64(len(c.Removed))), c.From, c.To)
	case c.What == "changed":
		text += fmt.Sprintf("%s: %s -> %s", c.Property, c.From, c.To)
	default:
		text += c.What
	}
	if c.Note != "" {
		text += " " + c.Note
	}
	if c.What == "added" || c.What == "removed" {
		text += ": " + c.From + c.To
	}
	return say.Printable(text)
}
