package routers

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/form"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// vrpList is an access list.
type vrpList struct {
	v6, basic bool
	lines     []Line
}

// beginsList reads the head of an access list: acl number 3000, acl ipv6 advanced name x. The
// name of an IPv6 list begins with "ipv6 ".
func (r *vrpReader) beginsList(head Line, a *args) *vrpList {
	l := &vrpList{}
	name := ""
	refuse := func(word string) { r.outside(head, fmt.Sprintf("%q is not understood", word)) }
	for !a.done() {
		switch w := a.next(); strings.ToLower(w) {
		case "ipv6":
			l.v6 = true
		case "number", "advanced", "advance":
		case "name": // acl number 3000 name x also has a number
			if w = a.next(); name == "" {
				name = w
			}
		case "basic":
			l.basic = true
		case "match-order":
			if order := a.next(); order != "config" {
				refuse("match-order " + order)
			}
		default:
			if n, err := strconv.Atoi(w); err == nil && 2000 <= n && n < 3000 {
				l.basic = true
			}
			if name != "" {
				refuse(w)
				continue
			}
			name = w
		}
	}
	if name == "" {
		return nil
	}
	if l.v6 {
		name = "ipv6 " + name
	}
	if r.lists[name] == nil {
		r.lists[name] = l
	}
	return r.lists[name]
}

// classMatch returns the conditions of a classifier.
func (c *vrpConfig) classMatch(name string) ([]Condition, error) {
	m := c.classifiers[name]
	if m == nil {
		if name == "default-class" {
			return all, nil
		}
		return nil, fmt.Errorf("there is no traffic classifier %s", name)
	}
	return combined(m.lines, m.or, "classifier "+name, func(l Line) ([]Condition, error) {
		one := &vrpMatch{vrpConfig: c}
		err := vrpConditions.read(one, l)
		return one.out, err
	})
}

// vrpMatch is an if-match statement that is read.
type vrpMatch struct {
	*vrpConfig
	out []Condition
}

// vrpConditions are the conditions of classifiers.
var vrpConditions = newReader(vrpKinds,
	statement[*vrpMatch]{"if-match any", func(m *vrpMatch, _ Line, _ form.Values) error { m.out = all; return nil }},
	statement[*vrpMatch]{"if-match [ipv6:v6] acl [ipv6:v6] [name | number] <word:list>", (*vrpMatch).list},
	statement[*vrpMatch]{"if-match [ipv6:v6] (dscp <dscps:dscp>... | ip-precedence <precedence:dscp>...)", (*vrpMatch).values},
	statement[*vrpMatch]{"if-match (8021p | dot1p | service-dot1p) <pcps:pcp>...", (*vrpMatch).values},
	statement[*vrpMatch]{"if-match (vlan-id | service-vlan-id) <vlan>...", (*vrpMatch).values},
	statement[*vrpMatch]{"if-match (cvlan-id | customer-vlan-id) <vlan:inner-vlan>...", (*vrpMatch).values},
	statement[*vrpMatch]{"if-match (protocol | l2-protocol) <ethertype>", (*vrpMatch).values},
	refused[*vrpMatch]("if-match not <word>...", "a policy has no negation"),
)

func (m *vrpMatch) values(l Line, v form.Values) error {
	match := matchOf(v)
	if v.Has("v6") {
		match.EtherType = familyOf(true).EtherType
	}
	m.out = []Condition{ConditionOf(l, match)}
	return nil
}

func (m *vrpMatch) list(_ Line, v form.Values) (err error) {
	name := v.Get("list").(string)
	if v.Has("v6") {
		name = "ipv6 " + name
	}
	list := m.lists[name]
	if list == nil {
		return errNoList
	}
	m.out, err = list.match()
	return err
}

// Rules of access lists.
const (
	vrpRule = "rule [<number>] (permit:action | deny:action) [ip | ipv6 | <PROTO:proto>]" +
		" {source <ADDRESS:src> | destination <ADDRESS:dst> | source-port <ports:sport> | destination-port <ports:dport>" +
		" | dscp <dscps:dscp> | precedence <precedence:dscp> | logging | counting}"
	vrpBasicRule = "rule [<number>] (permit:action | deny:action) {source <ADDRESS:src> | logging | counting}"
)

var (
	vrpRules4 = listReader(vrpKinds, vrpRule, "address4", "proto")
	vrpRules6 = listReader(vrpKinds, vrpRule, "address6", "proto6")
	vrpBasic4 = listReader(vrpKinds, vrpBasicRule, "address4", "")
	vrpBasic6 = listReader(vrpKinds, vrpBasicRule, "address6", "")
)

// match returns the conditions of the permitted packets.
func (list *vrpList) match() ([]Condition, error) {
	read := map[[2]bool]*reader[*listEntry]{
		{false, false}: vrpRules4, {false, true}: vrpRules6,
		{true, false}: vrpBasic4, {true, true}: vrpBasic6,
	}[[2]bool{list.basic, list.v6}]
	return permitted(list.lines, "rules", func(l Line) (*listEntry, error) {
		e := &listEntry{v6: list.v6}
		return e, read.read(e, l)
	})
}

// errPorts is the error of ports without a protocol that has them.
var errPorts = errors.New("only tcp, udp and sctp have ports")

// hasPorts reports whether the protocols of a match have ports.
func hasPorts(m *dataplane.Match) bool {
	for _, r := range m.Proto {
		if r.First != r.Last || r.First != 6 && r.First != 17 && r.First != 132 {
			return false
		}
	}
	return len(m.Proto) > 0
}
