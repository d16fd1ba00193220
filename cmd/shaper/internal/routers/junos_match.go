package routers

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/form"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// familyMatch returns the condition for packets of a family.
func familyMatch(l Line, family string) ([]Condition, error) {
	switch family {
	case "inet":
		return []Condition{ConditionOf(l, familyOf(false))}, nil
	case "inet6":
		return []Condition{ConditionOf(l, familyOf(true))}, nil
	case "any", "ethernet-switching", "bridge", "vpls", "ccc":
		return all, nil
	}
	return nil, fmt.Errorf("filters of family %s are not supported", family)
}

// junosFrom is the condition of a term that is read: the values of one field are alternatives, and each
// field must match.
type junosFrom struct {
	*junosConfig
	v6     bool
	fields []string
	when   map[string][]Condition
}

// Statements of from. The names of values are those of the fields of a match; address and port are those of
// either side.
var junosConditions = []Statement[*junosFrom]{
	{Form: "(source-address | destination-address | address | source-prefix-list | destination-prefix-list" +
		" | prefix-list) <word> except", Reason: "a policy has no negation"},
	{Form: "<except> <word>", Reason: "a policy has no negation"},
	{Form: "source-address <prefix:src>", Do: (*junosFrom).values},
	{Form: "destination-address <prefix:dst>", Do: (*junosFrom).values},
	{Form: "address <prefix:address>", Do: (*junosFrom).values},
	{Form: "source-prefix-list <word:src>", Do: (*junosFrom).list},
	{Form: "destination-prefix-list <word:dst>", Do: (*junosFrom).list},
	{Form: "prefix-list <word:address>", Do: (*junosFrom).list},
	{Form: "(protocol | next-header | payload-protocol) <proto:proto>", Do: (*junosFrom).values},
	{Form: "source-port <port:sport>", Do: (*junosFrom).values},
	{Form: "destination-port <port:dport>", Do: (*junosFrom).values},
	{Form: "port <port:port>", Do: (*junosFrom).values},
	{Form: "(dscp | traffic-class) <dscp>", Do: (*junosFrom).values},
	{Form: "(precedence | ip-precedence) <precedence:dscp>", Do: (*junosFrom).values},
	{Form: "packet-length <length>", Do: (*junosFrom).values},
	{Form: "(vlan | vlan-id | learn-vlan-id | dot1q-tag) <vlan>", Do: (*junosFrom).values},
	{Form: "learn-vlan-1p-priority <0-7:pcp>", Do: (*junosFrom).values},
	{Form: "(user-vlan-id | user-vlan-1p-priority) <word>", Reason: "which tag of the packet it is depends on the interface of the router"},
	{Form: "ether-type <ethertype>", Do: (*junosFrom).values},
}

var (
	junosFrom4 = &Reader[*junosFrom]{Kinds: &junosKinds, Statements: junosConditions}
	junosFrom6 = &Reader[*junosFrom]{Kinds: &junosKinds6, Statements: junosConditions}
)

// readExcept reads a condition that is negated by its name.
func readExcept(words []string) (any, int, error) {
	if !strings.HasSuffix(words[0], "-except") {
		return nil, 0, fmt.Errorf("%q is not understood", words[0])
	}
	return words[0], 1, nil
}

// readPortRange reads ssh, 22 or 5000-5999.
func readPortRange(word string) (r dataplane.Range, err error) {
	if n, err := readPort(word); err == nil {
		return dataplane.Range{First: n, Last: n}, nil
	}
	first, last, _ := strings.Cut(word, "-")
	if r.First, err = readPort(first); err == nil {
		r.Last, err = readPort(last)
	}
	if err != nil || r.First > r.Last {
		return r, fmt.Errorf("%q is not a port", word)
	}
	return r, nil
}

// etherTypes are EtherTypes by their names in configurations.
var etherTypes = map[string]uint64{"ip": etherIPv4, "ipv4": etherIPv4, "ipv6": etherIPv6, "arp": 0x0806}

func readEtherType(word string) (dataplane.Range, error) {
	v, ok := etherTypes[strings.ToLower(word)]
	if !ok {
		return dataplane.Range{}, fmt.Errorf("%q is not one of ipv4, ipv6 and arp", word)
	}
	return dataplane.Range{First: v, Last: v}, nil
}

// values adds the value of a statement.
func (f *junosFrom) values(l Line, v form.Values) error {
	key := v[0].Name
	if strings.HasSuffix(l.Words[0], "precedence") {
		key = "precedence" // and dscp must match both
	}
	f.add(l, key, v[0].Name, v[0].Value)
	return nil
}

// add adds a value of a field: a prefix or ranges. Those with one key are alternatives.
func (f *junosFrom) add(l Line, key, field string, value any) {
	sides := map[string][]string{"address": {"src", "dst"}, "port": {"sport", "dport"}}[field]
	if sides == nil {
		sides = []string{field}
	}
	if f.when[key] == nil {
		f.fields = append(f.fields, key)
		f.when[key] = make([]Condition, len(sides))
	}
	for i, side := range sides {
		c := ConditionOf(l, matchOf(form.Values{{Name: side, Value: value}}))
		if p, ok := value.(netip.Prefix); ok && p.Bits() == 0 { // any address, of this family
			c = ConditionOf(l, dataplane.Match{EtherType: familyOf(f.v6).EtherType})
		}
		f.when[key][i] = f.when[key][i].with(c)
	}
}

// list adds the prefixes of a list that are of the family.
func (f *junosFrom) list(l Line, v form.Values) error {
	found := false
	words, known := f.prefixes[v[0].Value.(string)]
	if !known {
		return errors.New("there is no such prefix list")
	}
	for _, word := range words {
		p, err := readPrefix(word, strings.Contains(word, ":"))
		if err != nil {
			return err
		}
		if p.Addr().Is6() == f.v6 { // a list can have both
			f.add(l, v[0].Name, v[0].Name, p)
			found = true
		}
	}
	if !found {
		return errors.New("the prefix list has no prefix of this family")
	}
	return nil
}

// match returns the conditions of a term.
func (c *junosConfig) match(t *junosTerm, family string) ([]Condition, error) {
	f := &junosFrom{junosConfig: c, v6: family == "inet6", when: map[string][]Condition{}}
	read := junosFrom4
	if f.v6 {
		read = junosFrom6
	}
	for _, l := range t.from {
		if err := read.ReadEach(f, l); err != nil {
			return nil, fmt.Errorf("line %d: from %s: %w", l.Number, l.Text(), err)
		}
	}
	out := all
	var err error
	for _, field := range f.fields {
		if out, err = Both(out, f.when[field]); err != nil {
			return nil, err
		}
	}
	families, err := familyMatch(Line{Number: t.line.Number, Words: []string{"family", family}}, family)
	if err != nil {
		return nil, err
	}
	return Both(out, families)
}
