package routers

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/form"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter/unsaid"
)

// vrpList is an access list.
type vrpList struct {
	v6, basic bool
	other     bool // a list of frames
	lines     []Line
}

// beginsList reads the head of an access list: acl number 3000, acl ipv6 advanced name x. The
// name of an IPv6 list begins with "ipv6 ".
func (r *vrpReader) beginsList(head Line, a *args) *vrpList {
	l := &vrpList{}
	var names []string // acl number 3000 name x has two
	named, explicit := false, false
	refuse := func(word string) { r.in.Cannot(head, "%q is not understood", word) }
	for !a.done() {
		switch w := a.next(); strings.ToLower(w) {
		case "ipv6":
			l.v6 = true
		case "number":
		case "advanced", "advance":
			explicit = true
		case "mac", "link", "ucl", "arp", "user", "mpls", "interface", "user-defined", "wlan", "client", "user-group":
			l.other = true
		case "name":
			names, named = append(names, a.next()), true
		case "basic":
			l.basic, explicit = true, true
		case "match-order":
			if order := a.next(); order != "config" {
				refuse("match-order " + order)
			}
		default:
			n, err := strconv.Atoi(w)
			l.basic = l.basic || err == nil && 2000 <= n && n < 3000
			l.other = l.other || err == nil && (n < 2000 || n >= 4000) && !explicit
			if names != nil && !(named && err == nil) {
				refuse(w)
			}
			names = append(names, w)
		}
	}
	if names == nil {
		return nil
	}
	family := ""
	if l.v6 {
		family = "ipv6 "
	}
	if known := r.lists[family+names[0]]; known != nil {
		return known
	}
	for _, name := range names {
		r.lists[family+name] = l
	}
	return l
}

// classMatch returns the conditions of a classifier.
func (c *vrpConfig) classMatch(name string) ([]Condition, error) {
	m := c.classifiers[name]
	if m == nil {
		return c.predefined(name)
	}
	if err := m.ambiguous(); err != nil {
		return nil, err
	}
	return combined(m.lines, m.or, "classifier "+name, func(l Line) ([]Condition, error) {
		one := &vrpMatch{vrpConfig: c}
		err := vrpConditions.Read(one, l)
		return one.out, err
	})
}

// predefined returns the conditions of a classifier that the router itself defines (HPE HSR6800 ACL and QoS
// configuration guide, Predefined classes).
func (c *vrpConfig) predefined(name string) ([]Condition, error) {
	line := Line{Words: []string{"classifier", name}}
	digit, precedence := strings.CutPrefix(name, "ip-prec")
	switch r, err := readPrecedence(digit); {
	case name == defaultClass:
		return all, nil
	case c.h3c && name == "ef":
		return []Condition{ConditionOf(line, dscpMatch(46))}, nil
	case c.h3c && precedence && err == nil:
		return []Condition{ConditionOf(line, dataplane.Match{DSCP: []dataplane.Range{r}})}, nil
	case c.h3c && slices.Contains([]string{"af1", "af2", "af3", "af4"}, name):
		return nil, errors.New("the router defines this classifier, and its guides do not say which codepoints it takes")
	}
	return nil, fmt.Errorf("there is no traffic classifier %s", name)
}

// ambiguous returns an error if all statements must match and several are of a kind, of which some
// platforms take any.
func (m *vrpClassifier) ambiguous() error {
	seen := map[string]bool{}
	for _, l := range m.lines {
		kind := strings.ToLower(l.Word(1))
		if slices.ContainsFunc(l.Words, func(w string) bool { return strings.EqualFold(w, "acl") }) {
			kind = "acl"
		}
		if seen[kind] && !m.or && (kind == "acl" || strings.HasSuffix(kind, "vlan-id")) {
			return fmt.Errorf("line %d: %s: of several %s with operator and, a packet must match all on some platforms, and one on others: write one statement",
				l.Number, l.Text(), kind)
		}
		seen[kind] = true
	}
	return nil
}

// vrpMatch is an if-match statement that is read.
type vrpMatch struct {
	*vrpConfig
	out []Condition
}

// vrpConditions are the conditions of classifiers.
var vrpConditions = &Reader[*vrpMatch]{Kinds: &vrpKinds, Statements: []Statement[*vrpMatch]{
	{Form: "if-match [ipv6:v6] any", Do: (*vrpMatch).values},
	{Form: "if-match [ipv6:v6] acl [ipv6:v6] [name | number] <word:list>", Do: (*vrpMatch).list},
	{Form: "if-match [ipv6:v6] (dscp <dscps:dscp>... | ip-precedence <precedence:dscp>...)", Do: (*vrpMatch).values},
	{Form: "if-match (8021p | dot1p | service-dot1p) <pcps:pcp>...", Do: (*vrpMatch).values},
	{Form: "if-match (vlan | vlan-id | service-vlan-id) <vlan>... [(inner-vlan | cvlan-id) <vlan:inner-vlan>...]", Do: (*vrpMatch).values},
	{Form: "if-match (cvlan-id | customer-vlan-id) <vlan:inner-vlan>... [vlan-id <vlan>...]", Do: (*vrpMatch).values},
	{Form: "if-match (protocol | l2-protocol) <ethertype>", Do: (*vrpMatch).values},
	{Form: "if-match not <word>...", Reason: "a policy has no negation"},
}}

func (m *vrpMatch) values(l Line, v form.Values) error {
	match := matchOf(v)
	platform, isDSCP := cmp.Or(m.Platform, m.platform), len(match.DSCP) > 0
	any := len(unsaid.Fields(&match)) == 0
	switch {
	case v.Has("v6"):
		match.EtherType = familyOf(true).EtherType
	case isDSCP && (platform == "ne" || platform == "ce"), any && platform == "ne":
		match.EtherType = familyOf(false).EtherType // (command references, if-match)
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
var (
	vrpRules = []Statement[*listEntry]{{
		Form: "rule [<number>] (permit:action | deny:action) [ip | ipv6 | <proto>] {source <address:src>" +
			" | destination <address:dst> | source-port <ports:sport> | destination-port <ports:dport>" +
			" | (dscp <dscps:dscp> | precedence <precedence:dscp>) | logging | counting}",
		Do: (*listEntry).take,
	}}
	vrpBasicRules = []Statement[*listEntry]{{
		Form: "rule [<number>] (permit:action | deny:action) {source <address:src> | logging | counting}",
		Do:   (*listEntry).take,
	}}
	vrpRules4 = &Reader[*listEntry]{Kinds: &vrpKinds, Statements: vrpRules}
	vrpRules6 = &Reader[*listEntry]{Kinds: &vrpKinds6, Statements: vrpRules}
	vrpBasic4 = &Reader[*listEntry]{Kinds: &vrpKinds, Statements: vrpBasicRules}
	vrpBasic6 = &Reader[*listEntry]{Kinds: &vrpKinds6, Statements: vrpBasicRules}
)

// match returns the conditions of the permitted packets.
func (list *vrpList) match() ([]Condition, error) {
	if list.other {
		return nil, errors.New("a list of frames cannot be expressed")
	}
	read := map[[2]bool]*Reader[*listEntry]{
		{false, false}: vrpRules4, {false, true}: vrpRules6,
		{true, false}: vrpBasic4, {true, true}: vrpBasic6,
	}[[2]bool{list.basic, list.v6}]
	numbers := map[string]int{} // lines by the numbers of rules
	return permitted(list.lines, "rules", func(l Line) (*listEntry, error) {
		e := &listEntry{v6: list.v6}
		err := read.Read(e, l)
		if before := numbers[l.Word(1)]; before > 0 && l.Word(1) != "permit" {
			err = cmp.Or(err, fmt.Errorf("it changes the rule with its number in line %d", before))
		}
		numbers[l.Word(1)] = l.Number
		if err == nil && !e.permit {
			err = errors.New("some platforms discard the packets of a deny rule, and others ignore it: write a class that drops them")
		}
		return e, err
	})
}
