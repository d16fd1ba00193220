package routers

import (
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/pattern"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/form"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

func init() { All["junos"] = junos{} }

// junos is the configuration of Junos, with braces or as set commands: firewall filters with
// policers.
type junos struct{}

// junosConfig holds the parts of a configuration.
type junosConfig struct {
	Options
	in       *Import
	policers []*junosPolicer
	filters  []*junosFilter
	byName   map[string]*junosPolicer // with a word for the kind
	byFamily map[string]*junosFilter  // with the family
	prefixes map[string][]string      // prefix lists
	named    map[string]bool          // parts among the problems
	listed   []string                 // names of filters in lists of interfaces
	system   *string                  // the logical system of filters and policers
	systems  bool                     // there are several
}

// junosFilter is a firewall filter of a family.
type junosFilter struct {
	family, name string
	line         Line
	terms        []*junosTerm
	byName       map[string]*junosTerm
	unknown      []Line
}

type junosTerm struct {
	name       string
	line       Line
	from, then []Line     // without the words before them
	unknown    bool       // it has another part
	read       *junosThen // the actions; nil: not read yet
}

// Import reads filters, and policers that no filter uses.
func (junos) Import(src Source) (*Import, error) {
	paths, err := junosPaths(src.Text)
	if err != nil {
		return nil, err
	}
	c := &junosConfig{
		Options: src.Options, in: &Import{}, prefixes: map[string][]string{},
		byName: map[string]*junosPolicer{}, byFamily: map[string]*junosFilter{}, named: map[string]bool{},
	}
	for _, p := range paths {
		c.path(p)
	}
	c.drafts()
	return c.in, nil
}

// junosLimits are statements that limit or queue packets, and are not imported.
var junosLimits = []struct {
	sign   func() *regexp.Regexp
	reason string
	part   bool // a policy may use it
}{
	{pattern.Lazy(`^class-of-service `), "schedulers and shaping rates of class-of-service are not imported", false},
	{pattern.Lazy(`^firewall (?:family \S+ )?hierarchical-policer \S+`), "hierarchical-policer is not supported: premium packets take tokens of both its policers", false},
	{pattern.Lazy(`^firewall (?:family \S+ )?(?:prefix-action|service-filter|simple-filter|atm-policer|load-balance-group) `), outsideReason, false},
	{pattern.Lazy(`^groups \S+ (?:(?:logical-systems|tenants) \S+ )?(?:firewall|class-of-service) |^groups \S+ interfaces .*\b(?:policer|shaping-rate)\b`), "groups are not expanded: paste what display inheritance shows", true},
	{pattern.Lazy(`^dynamic-profiles \S+ (?:.* )?(?:firewall|class-of-service) `), "dynamic profiles are not imported", false},
	{pattern.Lazy(`^interfaces .*\b(?:shaping-rate|storm-control|ethernet-policer-profile|layer2-policer|input-hierarchical-policer|traffic-control-profile)\b`), outsideReason, false},
	{pattern.Lazy(`^(?:forwarding-options|ethernet-switching-options|switch-options|bridge-domains|vlans) .*\b(?:storm-control|rate-limit|policer)`), outsideReason, false},
	{pattern.Lazy(`^interfaces .*\bpolicer arp `), outsideReason, false},
	{pattern.Lazy(`^system ddos-protection `), outsideReason, false},
	{pattern.Lazy(`^(?:system|groups|firewall interface-set) `), "", false},
	{pattern.Lazy(`^(?:[^f]\S*|f(?:[^i]\S*)?) (?:.* )?firewall `), "it is not understood", false},
}

// junosOthers are hierarchies without filters, in which the word firewall may stand.
var junosOthers = []string{
	"applications", "routing-instances", "snmp", "event-options", "security", "protocols", "routing-options",
}

// path sorts a statement into the parts.
func (c *junosConfig) path(l Line) {
	a := &args{l.Words}
	system := ""
	if a.take("logical-systems", "tenants") != "" {
		system = a.next()
	}
	if a.peek() == "firewall" || len(a.words) > 1 && a.peek() == "policy-options" && a.words[1] == "prefix-list" {
		if c.system == nil {
			c.system = &system
		} else if *c.system != system && !c.systems {
			c.systems = true
			c.in.Cannot(l, "it is of another logical system than the statements before it: paste those of one")
		}
	}
	if slices.Contains(junosOthers, a.peek()) || slices.Contains(a.words, "description") {
		c.in.Skip(l)
		return
	}
	text := strings.Join(a.words, " ") + " "
	for _, limit := range junosLimits {
		if at := limit.sign().FindString(text); at != "" {
			if !strings.HasSuffix(at, " ") && c.named[at] {
				return // one problem for each part
			}
			if limit.reason == "" {
				c.in.Skip(l)
				return
			}
			c.named[at] = true
			if limit.part {
				c.in.Cannot(l, "%s", limit.reason)
			} else {
				c.in.Outside(l, limit.reason)
			}
			return
		}
	}
	switch {
	case a.take("policy-options") != "" && a.take("prefix-list") != "":
		name := a.next()
		c.prefixes[name] = append(c.prefixes[name], a.words...)
		return
	case a.peek() == "interfaces", a.peek() == "unit":
		c.interfacePolicer(l)
		return
	case a.peek() == "term", a.peek() == "from", a.peek() == "then":
		c.in.Cannot(l, "it belongs to no filter: give the level, such as [edit firewall family inet filter F]")
		return
	case a.take("firewall") == "" &&
		!slices.Contains([]string{"policer", "three-color-policer", "family", "filter"}, a.peek()):
		c.in.Skip(l)
		return
	}
	family := "inet"
	unknown := func() { c.in.Cannot(l, "it is not understood") }
	if a.done() {
		return
	}
	switch kind := a.take("policer", "three-color-policer", "family", "filter"); kind {
	case "policer", "three-color-policer":
		if a.done() {
			unknown()
			return
		}
		p := c.policer(kind, a.next(), l)
		p.lines = append(p.lines, Line{Number: l.Number, Words: a.words})
		return
	case "family":
		if family = a.next(); a.take("filter") == "" {
			unknown()
			return
		}
		fallthrough
	case "filter":
		if name := a.next(); name != "" {
			c.filter(family, name, l).add(l, a)
			return
		}
		fallthrough
	default:
		unknown()
	}
}

// interfacePolicer reads which packets of an interface a policer meters.
func (c *junosConfig) interfacePolicer(l Line) {
	if slices.ContainsFunc(l.Words, func(w string) bool { return w == "input-list" || w == "output-list" }) {
		c.listed = append(c.listed, l.Words...)
	}
	i := slices.Index(l.Words, "policer")
	if i < 2 || l.Words[i-2] != "family" {
		c.in.Skip(l)
		return
	}
	direction, name := l.Word(i+1), l.Word(i+2)
	if len(l.Words) == i+3 && (direction == "input" || direction == "output") {
		p := c.policer("policer", name, l)
		p.on = append(p.on, l.Words[i-1])
		return
	}
	c.in.Cannot(l, "it is not understood")
}

// filter returns a filter, which it adds if there is none.
func (c *junosConfig) filter(family, name string, l Line) *junosFilter {
	key := family + " " + name
	f := c.byFamily[key]
	if f == nil {
		f = &junosFilter{family: family, name: name, line: l, byName: map[string]*junosTerm{}}
		c.byFamily[key] = f
		c.filters = append(c.filters, f)
	}
	return f
}

// filterOptions are statements of a filter without effect on packets. They tell where its counters and
// policers are, and how the box stores the filter.
var filterOptions = []string{
	"", "interface-specific", "interface-shared", "physical-interface-filter", "accounting-profile",
	"enhanced-mode", "promote",
}

// add adds a statement of a filter.
func (f *junosFilter) add(l Line, a *args) {
	if a.take("term") == "" || a.done() {
		if option := a.next(); !slices.Contains(filterOptions, option) || !a.done() && option != "accounting-profile" {
			f.unknown = append(f.unknown, l)
		}
		return
	}
	name := a.next()
	t := f.byName[name]
	if t == nil {
		t = &junosTerm{name: name, line: l}
		f.byName[name] = t
		f.terms = append(f.terms, t)
	}
	switch kind := a.take("from", "then"); {
	case a.done():
	case kind == "then":
		t.then = append(t.then, Line{Number: l.Number, Words: a.words})
	case kind == "from":
		t.from = append(t.from, Line{Number: l.Number, Words: a.words})
	default:
		f.unknown, t.unknown = append(f.unknown, l), true
	}
}

// policerOf returns the policer of a term, or nil.
func (c *junosConfig) policerOf(t *junosTerm) *junosPolicer {
	return c.byName[t.actions().policer]
}

// acts reports whether the filter does more than pass, drop and count packets.
func (f *junosFilter) acts() bool {
	return len(f.unknown) > 0 || slices.ContainsFunc(f.terms, func(t *junosTerm) bool {
		then := t.actions()
		return t.unknown || len(then.problems) > 0 || then.policer != "" || then.mark != nil
	})
}

// drafts makes a draft of each filter. Filters of IPv4 and IPv6 with the same name are one policy
// if their policers count both.
func (c *junosConfig) drafts() {
	acts := slices.ContainsFunc(c.filters, (*junosFilter).acts)
	byName := map[string][]*junosFilter{}
	for _, f := range c.filters {
		byName[f.name] = append(byName[f.name], f)
	}
	done := map[*junosFilter]bool{}
	for _, f := range c.filters {
		if done[f] {
			continue
		}
		group := byName[f.name]
		name := f.name
		terms, one := c.combine(group)
		if !one {
			if len(group) > 1 {
				name = f.family + "/" + f.name
			}
			group, terms = []*junosFilter{f}, nil
			for _, t := range f.terms {
				terms = append(terms, []*junosTerm{t})
			}
		}
		for _, g := range group {
			done[g] = true
		}
		d := c.in.Draft(name, f.line.Number)
		d.Part = acts && !slices.ContainsFunc(group, (*junosFilter).acts)
		c.filterDraft(d, group, terms)
	}
	for _, p := range c.policers {
		if len(p.users) > 1 && p.families && slices.Contains(p.in, "inet") && slices.Contains(p.in, "inet6") {
			for _, d := range p.users {
				d.Note(p.line, "on one interface, filters %s share the policer, and here each has one", names(p.users))
			}
		}
	}
	whole := slices.ContainsFunc(c.in.Drafts, func(d *Draft) bool { return !d.Part })
	for _, p := range c.policers {
		if p.users != nil && p.on == nil {
			continue
		}
		name := p.name
		if c.in.byName[name] != nil {
			name = p.line.Text()
		}
		d := c.in.Draft(name, p.line.Number)
		d.Part = whole && p.on == nil
		d.Remark("Policer %s meters all packets of its interfaces.", p.name)
		p.parse()
		slices.Sort(p.on)
		families := slices.Compact(p.on)
		if families == nil {
			families = []string{"any"}
		}
		for _, family := range families {
			name := p.name
			if len(families) > 1 {
				name += "-" + family
			}
			class := d.NewClass(name, p.line, "%s", p.line.Text())
			when, err := familyMatch(p.line, family)
			if err == nil {
				err = p.apply(d, class, p.families && len(families) > 1)
			}
			if err != nil {
				d.Cannot(p.line, "%v", err)
			}
			d.Class(class, when)
		}
	}
}

// names lists the names of drafts.
func names(drafts []*Draft) string {
	var list []string
	for _, d := range drafts {
		list = append(list, d.Name)
	}
	return strings.Join(list, " and ")
}

// combine returns the terms of filters side by side. It returns false if they are not for one
// policy: one filter of inet and one of inet6, the terms in one order, with common policers.
func (c *junosConfig) combine(group []*junosFilter) (terms [][]*junosTerm, ok bool) {
	if len(group) != 2 || group[0].family != "inet" || group[1].family != "inet6" {
		return nil, false
	}
	a, b := group[0].terms, group[1].terms
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(a) > 0 && len(b) > 0 && a[0].name == b[0].name:
			if !c.sameAction(a[0], b[0]) {
				return nil, false
			}
			terms = append(terms, []*junosTerm{a[0], b[0]})
			a, b = a[1:], b[1:]
		case len(a) > 0 && group[1].byName[a[0].name] == nil:
			terms = append(terms, []*junosTerm{a[0], nil})
			a = a[1:]
		case len(b) > 0 && group[0].byName[b[0].name] == nil:
			terms = append(terms, []*junosTerm{nil, b[0]})
			b = b[1:]
		default:
			return nil, false
		}
	}
	for _, p := range c.policers {
		uses := func(t *junosTerm) bool { return c.policerOf(t) == p }
		if p.parse(); p.shared && !p.families && // by the terms of each filter
			slices.ContainsFunc(group[0].terms, uses) && slices.ContainsFunc(group[1].terms, uses) {
			return nil, false
		}
	}
	return terms, true
}

// sameAction reports whether terms of two families do the same, with one policer for both.
func (c *junosConfig) sameAction(a, b *junosTerm) bool {
	words := func(t *junosTerm) (list []string) {
		for _, l := range t.then {
			list = append(list, strings.Replace(l.Text(), "traffic-class", "dscp", 1))
		}
		return list
	}
	p := c.policerOf(a)
	if p != nil {
		p.parse()
	}
	return slices.Equal(words(a), words(b)) && (p == nil || p.families)
}

// filterDraft adds the classes of a filter, or of one for each IP version.
func (c *junosConfig) filterDraft(d *Draft, group []*junosFilter, terms [][]*junosTerm) {
	d.Remark("The router counts IP packets in filters of inet and inet6. With l2 filters, import with --length l2.")
	users := map[*junosPolicer]int{}
	for _, side := range terms {
		for i, t := range side {
			if t == nil {
				continue
			}
			p := c.policerOf(t)
			if i == 0 || side[0] == nil {
				users[p]++
			}
			if p != nil {
				p.in = append(p.in, group[i].family)
			}
		}
	}
	var rest []Condition // no term takes all packets of the family
	for i, f := range group {
		for _, l := range f.unknown {
			d.Cannot(l, "it is not understood")
		}
		if slices.Contains(c.listed, f.name) {
			d.Cannot(f.line, "an interface has it in a list of filters, which are one filter: paste them as one")
		}
		if f.family != "inet" && f.family != "inet6" {
			d.Note(f.line, "a filter of family %s also takes packets that are not IP, and a class of a policy only with ethertype or length",
				f.family)
		}
		takesAll := func(side []*junosTerm) bool { return side[i] != nil && len(side[i].from) == 0 }
		open := !slices.ContainsFunc(terms, takesAll)
		if when, err := familyMatch(Line{}, f.family); open && err == nil {
			rest = append(rest, when...)
		}
	}
	for _, side := range terms {
		var when []Condition
		var first *junosTerm
		var fail error
		for i, t := range side {
			if t == nil {
				continue
			}
			if first == nil {
				first = t
			}
			m, err := c.match(t, group[i].family)
			if err != nil {
				fail = err
			}
			when = append(when, m...)
		}
		switch {
		case fail != nil:
		case first.unknown:
			fail = errors.New("a part of the term is not understood")
		case first.actions().next:
			fail = errors.New("next term: a packet belongs to one class, and the later terms would have to be part of this one")
		}
		if fail != nil {
			d.Omit(first.line, 0, fail)
			continue
		}
		bare := func(c Condition) bool { return len(c.SPort)+len(c.DPort) > 0 && len(c.Proto) == 0 }
		if slices.ContainsFunc(when, bare) {
			d.Note(first.line, "without protocol the router compares these bytes of any protocol, and the policy those of TCP and UDP")
		}
		if first.name == unclassifiedTerm && len(first.from) == 0 && len(first.then) == 1 &&
			first.then[0].is("accept") {
			continue
		}
		d.Class(c.class(d, first, users), when)
	}
	if rest != nil {
		class := d.NewClass("implicit-discard", Line{}, "a filter discards packets that no term matches")
		d.setAction(class, meter.Green, treatment{drop: true}, nil, nil)
		d.Class(class, rest)
	}
}

// unclassifiedTerm is the term of exported filters for unclassified packets.
const unclassifiedTerm = "shaper-unclassified"

// junosThen is the actions of a term that are read.
type junosThen struct {
	policer string // kind and name, or ""
	meters  Line   // its statement
	ends    string // accept, discard or reject; the last one counts
	end     Line
	mark    *treatment
	next    bool // the next terms see the packets, too

	problems []Problem
}

// junosActions are the actions of a term.
var junosActions = &Reader[*junosThen]{Kinds: &junosKinds, Statements: []Statement[*junosThen]{
	{Form: "(log | syslog | sample | loss-priority low)"},
	{Form: "count <word>"},
	{Form: "(accept:ends | discard:ends | reject:ends)", Do: (*junosThen).terminate},
	{Form: "reject:ends (administratively-prohibited | tcp-reset | network-unreachable | host-unreachable" +
		" | protocol-unreachable | port-unreachable | no-route | address-unreachable)", Do: (*junosThen).terminate},
	{Form: "policer:kind <word:name>", Do: (*junosThen).meter},
	{Form: "three-color-policer:kind (single-rate | two-rate) <word:name>", Do: (*junosThen).meter},
	{Form: "hierarchical-policer <word>", Reason: "hierarchical-policer is not supported"},
	{Form: "(dscp | traffic-class) <mark>", Do: func(t *junosThen, l Line, v form.Values) error {
		mark := dataplane.Mark{Field: dataplane.DSCP, Value: v[0].Value.(uint32)}
		t.mark = &treatment{line: l.Number, marks: []dataplane.Mark{mark}, text: l.Text()}
		return nil
	}},
	{Form: "loss-priority <word>", Reason: "the loss priority is internal to the router"},
	{Form: "forwarding-class <word>", Reason: "the forwarding class selects a queue of class-of-service, which is not imported"},
	{Form: "next term", Do: func(t *junosThen, _ Line, _ form.Values) error { t.next = true; return nil }},
}}

func (t *junosThen) terminate(l Line, v form.Values) error {
	t.ends, t.end = v.Get("ends").(string), l
	return nil
}

func (t *junosThen) meter(l Line, v form.Values) error {
	name := v.Get("kind").(string) + " " + v.Get("name").(string)
	if kind, _, _ := strings.Cut(t.policer, " "); kind != "" && kind != v.Get("kind") {
		return errors.New("a term with two policers")
	}
	t.policer, t.meters = name, l
	return nil
}

// actions returns the actions of a term, which it reads once.
func (t *junosTerm) actions() *junosThen {
	if t.read != nil {
		return t.read
	}
	t.read = &junosThen{}
	for _, l := range t.then {
		if err := junosActions.ReadEach(t.read, l); err != nil {
			t.read.problems = append(t.read.problems, l.Problem("%v", err))
		}
	}
	return t.read
}

// class returns the class of a term, with its actions.
func (c *junosConfig) class(d *Draft, term *junosTerm, users map[*junosPolicer]int) *dataplane.Class {
	class := d.NewClass(term.name, term.line, "term %s", term.name)
	t := term.actions()
	d.Problems = append(d.Problems, t.problems...)
	p := c.byName[t.policer]
	drops := t.ends == "discard" || t.ends == "reject"
	switch {
	case t.policer != "" && (t.mark != nil || drops):
		d.Cannot(term.line, "a term with a policer and another action on its packets")
	case t.policer != "" && p == nil:
		d.Cannot(t.meters, "there is no such policer")
	case t.policer != "":
		if err := p.apply(d, class, users[p] > 1); err != nil {
			d.Cannot(t.meters, "%v", err)
		}
	case drops:
		with := treatment{line: t.end.Number, drop: true, text: t.end.Text()}
		d.setAction(class, meter.Green, with, nil, nil)
	case t.mark != nil:
		d.setAction(class, meter.Green, *t.mark, nil, nil)
	case t.ends != "":
		d.setAction(class, meter.Green, treatment{line: term.line.Number, text: "accept"}, nil, nil)
	}
	return class
}
