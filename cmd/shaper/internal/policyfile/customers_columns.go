package policyfile

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// tableForm is what a policy says about the form of its file of customers.
type tableForm struct {
	named []namedColumn // nil: columns have the names of their contents
	unit  rateUnit
	plan  string // of customers whose row names none; "": none

	onePrefix bool // nested ranges of several prefixes are errors
}

// namedColumn holds the names of the columns for a content, such as address.
type namedColumn struct {
	content string
	names   []string
}

// names returns the names of all columns.
func (f *tableForm) names() (out []string) {
	for _, c := range f.named {
		out = append(out, c.names...)
	}
	return out
}

// ownNames are the columns of a customer's own parameters.
var ownNames = []string{
	"rate", "burst", "cir", "cbs", "pir", "pbs", "eir", "ebs", "limit", "window", "link", "guarantee", "weight",
	"down", "up", "down-guarantee", "up-guarantee",
}

// rateNames are those of ownNames whose values are rates.
var rateNames = []string{
	"rate", "cir", "pir", "eir", "guarantee", "down", "up", "down-guarantee", "up-guarantee",
}

// severalNames are the contents with any number of columns.
var severalNames = []string{"address", "vlan", "mac", "vni", "teid", "mark", "cgroup"}

// keyColumns returns the columns that identify the customer of a packet.
func keyColumns(k dataplane.CustomerKey) []string {
	switch k {
	case dataplane.ByOuterVLAN:
		return []string{"vlan"}
	case dataplane.ByTwoVLANs:
		return []string{"svlan", "cvlan"}
	case dataplane.CustomerByMAC:
		return []string{"mac"}
	case dataplane.CustomerByVLANMAC:
		return []string{"vlan", "mac"}
	case dataplane.CustomerByVNI:
		return []string{"vni"}
	case dataplane.CustomerByTEID:
		return []string{"teid"}
	case dataplane.CustomerByMark:
		return []string{"mark"}
	case dataplane.CustomerByCgroup:
		return []string{"cgroup"}
	}
	return []string{"address"}
}

// contents returns the contents of columns, those that a file must have first.
func contents(k dataplane.CustomerKey, plan string) (all []string, need int) {
	all = append(all, "customer")
	if plan == "" {
		all = append(all, "plan")
	}
	all = append(all, keyColumns(k)...)
	need = len(all)
	if plan != "" {
		all = append(all, "plan")
	}
	return append(append(all, "quota"), ownNames...), need
}

// contentOf returns the content that a name means.
func contentOf(name string) string {
	switch name {
	case "addresses":
		return "address"
	case "macs":
		return "mac"
	}
	return name
}

// columns reads the names of the columns of a file.
func (l *loader) columns(n *yaml.Node, key dataplane.CustomerKey, plan string) (out []namedColumn) {
	all, need := contents(key, plan)
	given := map[string]bool{}
	var known keys
	for _, name := range all {
		read := func(n *yaml.Node) {
			if given[name] {
				l.fail(n, "address and addresses are the same: write one of them, with a list of columns")
				return
			}
			given[name] = true
			out = append(out, namedColumn{name, l.columnNames(n, name)})
		}
		if known = append(known, entry{name, read}); name == "address" {
			known = append(known, entry{"addresses", read})
		}
	}
	if !l.mapping(n, "columns", known) {
		return nil
	}
	for _, name := range all[:need] {
		if !given[name] {
			l.fail(n, "columns needs %s, the name of its column in the file%s", name,
				map[bool]string{true: ", or customers a plan for all: plan: NAME"}[name == "plan"])
		}
	}
	return out
}

// columnNames reads the name of the column of a content, or a list of names.
func (l *loader) columnNames(n *yaml.Node, content string) (out []string) {
	list := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode && slices.Contains(severalNames, content) {
		if list = n.Content; len(list) == 0 {
			l.fail(n, "%s needs a column", content)
		}
	}
	for _, n := range list {
		n = target(n)
		s, ok := l.text(n, content)
		name := strings.TrimSpace(s)
		switch {
		case !ok:
		case name == "":
			l.fail(n, "%s: a column needs a name", content)
		case slices.ContainsFunc(out, func(other string) bool { return strings.EqualFold(name, other) }):
			l.fail(n, "%s: duplicate column %q", content, name)
		default:
			out = append(out, name)
		}
	}
	return out
}

// rateUnit is the unit of rates without one. The zero value is none.
type rateUnit struct {
	bare    string            // such as mbit
	letters map[string]string // units by letter, such as m
	after   []string          // texts after a letter
}

// parseRateUnit reads a unit such as mbit, Mbit/s or MB/s.
func parseRateUnit(s string) (u rateUnit, err error) {
	amount, perSecond := strings.CutSuffix(s, "/s")
	if bitUnits[amount] != 0 {
		return rateUnit{
			strings.ToLower(amount),
			map[string]string{"": "bit", "k": "kbit", "m": "mbit", "g": "gbit", "t": "tbit"},
			[]string{"", "b", "bps", "b/s"},
		}, nil
	}
	if perSecond && sizeUnits[amount] != 0 {
		return rateUnit{
			s,
			map[string]string{"": "B/s", "k": "kB/s", "m": "MB/s", "g": "GB/s", "t": "TB/s"},
			[]string{"", "B", "Bps"},
		}, nil
	}
	return u, fmt.Errorf("%q is not a unit of rate: write one of bit kbit mbit gbit tbit, or B/s kB/s MB/s GB/s TB/s", s)
}

// complete adds the unit to a number without one, and replaces a letter such as M, also with b or bps after
// it. Other texts stay.
func (u *rateUnit) complete(cell string) string {
	if u.bare == "" {
		return cell
	}
	number, unit, ok := cutQuantity(cell)
	switch {
	case !ok:
		return cell
	case unit == "":
		return number + u.bare
	}
	letter, after := "", unit
	if strings.ContainsRune("kKmMgGtT", rune(unit[0])) {
		letter, after = strings.ToLower(unit[:1]), unit[1:]
	}
	if !slices.Contains(u.after, after) {
		return cell
	}
	return number + u.letters[letter]
}
