package routers

import (
	"errors"
	"slices"
	"strings"
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
	cos      []Line                   // class of service
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
	from, then []Line // without the words before them
}

// Import reads filters, and policers that no filter uses.
func (junos) Import(src Source) (*Import, error) {
	paths, err := junosPaths(src.Text)
	if err != nil {
		return nil, err
	}
	c := &junosConfig{
		Options: src.Options, in: &Import{}, prefixes: map[string][]string{},
		byName: map[string]*junosPolicer{}, byFamily: map[string]*junosFilter{},
	}
	for _, p := range paths {
		c.path(p)
	}
	c.drafts()
	return c.in, nil
}

// path sorts a statement into the parts.
func (c *junosConfig) path(l Line) {
	a := &args{l.Words}
	if a.take("logical-systems", "tenants") != "" {
		a.next()
	}
	switch {
	case a.take("policy-options") != "" && a.take("prefix-list") != "":
		name := a.next()
		if prefix := a.next(); prefix != "" {
			c.prefixes[name] = append(c.prefixes[name], prefix)
		}
		return
	case a.take("class-of-service") != "":
		c.cos = append(c.cos, Line{Number: l.Number, Words: l.Words})
		return
	case a.take("firewall") == "" &&
		!slices.Contains([]string{"policer", "three-color-policer", "family", "filter"}, a.peek()):
		c.in.Skip(l)
		return
	}
	family := "inet"
	switch kind := a.take("policer", "three-color-policer", "family", "filter"); kind {
	case "policer", "three-color-policer":
		p := c.policer(kind == "three-color-policer", a.next(), l)
		p.lines = append(p.lines, Line{Number: l.Number, Words: a.words})
		return
	case "family":
		if family = a.next(); a.take("filter") == "" {
			break
		}
		fallthrough
	case "filter":
		if name := a.next(); name != "" {
			c.filter(family, name, l).add(l, a)
			return
		}
	}
	c.in.Skip(l)
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
		if !slices.Contains(filterOptions, a.peek()) {
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
	kind := a.take("from", "then")
	if a.done() {
		return
	}
	rest := Line{Number: l.Number, Words: a.words}
	if kind == "then" {
		t.then = append(t.then, rest)
	} else {
		t.from = append(t.from, rest)
	}
}

// hasPolicer reports whether some term of the filter uses a policer.
func (f *junosFilter) hasPolicer() bool {
	return slices.ContainsFunc(f.terms, func(t *junosTerm) bool {
		return slices.ContainsFunc(t.then,
			func(l Line) bool { return l.Has("policer") || l.Has("three-color-policer") })
	})
}

// drafts makes a draft of each filter. Filters of IPv4 and IPv6 with the same name are one policy
// if their policers count both.
func (c *junosConfig) drafts() {
	metered := slices.ContainsFunc(c.filters, (*junosFilter).hasPolicer)
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
		d.Part = metered && !slices.ContainsFunc(group, (*junosFilter).hasPolicer)
		c.filterDraft(d, group, terms)
	}
	whole := slices.ContainsFunc(c.in.Drafts, func(d *Draft) bool { return !d.Part })
	for _, p := range c.policers {
		if p.used {
			continue
		}
		name := p.name
		if c.in.byName[name] != nil {
			name = p.line.Text()
		}
		d := c.in.Draft(name, p.line.Number)
		d.Part = whole
		d.Remark("Policer %s is not used by a filter: it meters all packets.", p.name)
		class := NewEntry(p.name, p.line.Number, "%s", p.line.Text())
		if err := p.apply(c, d, class); err != nil {
			d.Cannot(p.line, "%v", err)
		}
		d.Class(class, []Conditions{{}})
	}
	if c.cos != nil {
		d := c.in.Draft("class-of-service", c.cos[0].Number)
		d.Part = len(c.in.Drafts) > 1
		for _, l := range c.cos {
			d.Cannot(l, "schedulers and shaping rates of class-of-service are not imported")
		}
	}
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
	if !slices.Equal(words(a), words(b)) {
		return false
	}
	for _, l := range a.then {
		if l.Has("policer") || l.Has("three-color-policer") {
			if p := c.named(l); p == nil || !p.has("logical-interface-policer") {
				return false
			}
		}
	}
	return true
}

// named returns the policer of a statement, or nil.
func (c *junosConfig) named(l Line) *junosPolicer {
	return c.byName[l.Words[0]+" "+l.Words[len(l.Words)-1]]
}

// filterDraft adds the classes of a filter, or of one for each IP version.
func (c *junosConfig) filterDraft(d *Draft, group []*junosFilter, terms [][]*junosTerm) {
	d.Remark("The router counts IP packets in filters of inet and inet6. With l2 filters, import with --length l2.")
	for _, f := range group {
		for _, l := range f.unknown {
			d.Cannot(l, "it is not understood")
		}
	}
	users := map[*junosPolicer]int{}
	for _, side := range terms {
		for _, p := range c.policersOf(side) {
			users[p]++
		}
	}
	open := make([]bool, len(group)) // no term takes all packets of the family
	for i := range open {
		open[i] = true
	}
	for _, side := range terms {
		var when []Conditions
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
			open[i] = open[i] && len(t.from) > 0
		}
		if fail != nil {
			d.Omit(first.line, 0, fail)
			continue
		}
		if first.name == unclassifiedTerm && len(first.from) == 0 && len(first.then) == 1 &&
			first.then[0].Has("accept") {
			continue
		}
		class := NewEntry(first.name, first.line.Number, "term %s", first.name)
		c.actions(d, class, first, users)
		d.Class(class, when)
	}
	var rest []Conditions
	for i, isOpen := range open {
		if isOpen {
			rest = append(rest, familyMatch(Line{}, group[i].family)...)
		}
	}
	if rest != nil {
		class := NewEntry("implicit-discard", 0, "a filter discards packets that no term matches")
		class.Set("green", "drop", 0, "")
		d.Class(class, rest)
	}
}

// unclassifiedTerm is the term of exported filters for unclassified packets.
const unclassifiedTerm = "shaper-unclassified"

// policersOf returns the policers of a term.
func (c *junosConfig) policersOf(side []*junosTerm) (list []*junosPolicer) {
	for _, t := range side {
		if t == nil {
			continue
		}
		for _, l := range t.then {
			if l.Has("policer") || l.Has("three-color-policer") {
				if p := c.named(l); p != nil && !slices.Contains(list, p) {
					list = append(list, p)
				}
			}
		}
	}
	return list
}

// actions adds the actions of a term to a class.
func (c *junosConfig) actions(d *Draft, class *Entry, t *junosTerm, users map[*junosPolicer]int) {
	var metered, accepts bool
	for _, l := range t.then {
		var err error
		switch strings.ToLower(l.Words[0]) {
		case "accept":
			accepts = true
		case "count", "log", "syslog", "sample":
		case "discard", "reject":
			class.Set("green", "drop", l.Number, "%s", l.Text())
		case "policer", "three-color-policer":
			p := c.named(l)
			switch {
			case p == nil:
				err = errors.New("there is no such policer")
			case metered:
				err = errors.New("a term with two policers")
			default:
				metered, p.used = true, true
				err = p.join(c, d, class, users[p] > 1)
			}
		case "dscp", "traffic-class":
			var v string
			if v, err = markValue("dscp", l.Word(1)); err == nil {
				class.Set("green", "{dscp: "+v+"}", l.Number, "%s", l.Text())
			}
		case "loss-priority":
			if l.Word(1) != "low" {
				err = errors.New("the loss priority is internal to the router")
			}
		case "forwarding-class":
			err = errors.New(
				"the forwarding class selects a queue of class-of-service, which is not imported")
		case "next":
			err = errors.New(
				"a packet belongs to one class: the later terms would have to be part of this one")
		default:
			err = errors.New("it is not understood")
		}
		if err != nil {
			d.Cannot(l, "%v", err)
		}
	}
	if green := class.Get("green"); metered && green != nil && green.Value != "pass" {
		d.Cannot(t.line, "a term with a policer and another action on its packets")
		green.Value = "pass"
	} else if accepts && green == nil && !metered {
		class.Set("green", "pass", t.line.Number, "accept")
	}
}
