package routers

import (
	"errors"
	"fmt"
	"math/big"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/form"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// junosPolicer is a policer or a three-color policer.
type junosPolicer struct {
	policer
	name     string
	three    bool
	kind     string   // single-rate or two-rate, of a three-color policer
	blind    bool     // color-blind
	lines    []Line   // its statements
	shared   bool     // by all terms of a filter, or by all filters of an interface
	families bool     // shared by the filters of several families
	users    []*Draft // filters
	in       []string // their families
	on       []string // families of interfaces
	link     meter.Rate
	parsed   bool
	problems []Problem
	meters   map[*Draft]*dataplane.Meter // shared ones
}

// policer returns a policer, which it adds if there is none.
func (c *junosConfig) policer(kind, name string, l Line) *junosPolicer {
	p := c.byName[kind+" "+name]
	if p == nil {
		p = &junosPolicer{name: name, three: kind == "three-color-policer", link: c.Link, meters: map[*Draft]*dataplane.Meter{}}
		p.line = Line{Number: l.Number, Words: []string{kind, name}}
		c.byName[kind+" "+name] = p
		c.policers = append(c.policers, p)
	}
	return p
}

// junosKinds are the kinds of values in policers and filters.
var junosKinds = form.Readers{
	"word": conditionKinds["word"],
	"rate": func(words []string) (any, int, error) {
		v, ok := suffixed(words[0])
		if !ok {
			return nil, 0, fmt.Errorf("%q is not a number, with k, m or g for 1000, 1000000 or 1000000000", words[0])
		}
		n, err := whole(v)
		if err == nil && !v.IsInt() {
			err = fmt.Errorf("%s is not a whole number", words[0])
		}
		return n, 1, err
	},
	"percent": func(words []string) (any, int, error) {
		v, ok := suffixed(words[0])
		if !ok {
			return nil, 0, fmt.Errorf("%q is not a percentage", words[0])
		}
		return v, 1, nil
	},
	"mark":       ciscoKinds["dscp"],
	"dscp":       conditionKinds["dscp"],
	"precedence": conditionKinds["precedence"],
	"proto":      conditionKinds["proto"],
	"vlan":       conditionKinds["vlan"],
	"0-7":        conditionKinds["0-7"],
	"length":     conditionKinds["length"],
	"ethertype":  one(readEtherType),
	"port":       one(readPortRange),
	"prefix":     addressReader(false, true),
	"except":     readExcept,
}

// junosKinds6 are those in filters for IPv6.
var junosKinds6 = replaced(junosKinds, form.Readers{
	"prefix": addressReader(true, true), "proto": one(readBehind),
})

// junosShared is the form of statements that tell which terms and interfaces share a policer.
const junosShared = "(filter-specific:filter | logical-interface-policer:families | physical-interface-policer:families)"

// The statements of policers.
var (
	junosTwoColors = &Reader[*junosPolicer]{Kinds: &junosKinds, Statements: []Statement[*junosPolicer]{
		{Form: junosShared, Do: (*junosPolicer).share},
		{Form: "if-exceeding {bandwidth-limit <rate:bandwidth-limit> | bandwidth-percent <percent> | burst-size-limit <rate:burst-size-limit>}", Do: (*junosPolicer).parameters},
		{Form: "if-exceeding-pps {pps-limit <rate:pps-limit> | packet-burst <rate:packet-burst>}", Do: (*junosPolicer).parameters},
		{Form: "then (discard:then | loss-priority:then <word>)...", Do: (*junosPolicer).then},
		{Form: "then [loss-priority <word>] forwarding-class <word>", Reason: internalReason},
	}}
	junosThreeColors = &Reader[*junosPolicer]{Kinds: &junosKinds, Statements: []Statement[*junosPolicer]{
		{Form: junosShared, Do: (*junosPolicer).share},
		{Form: "(single-rate:kind | two-rate:kind) {color-blind:blind | color-aware:aware" +
			" | committed-information-rate <rate:committed-information-rate>" +
			" | committed-burst-size <rate:committed-burst-size> | excess-burst-size <rate:excess-burst-size>" +
			" | peak-information-rate <rate:peak-information-rate> | peak-burst-size <rate:peak-burst-size>}", Do: (*junosPolicer).parameters},
		{Form: "action loss-priority high then discard", Do: (*junosPolicer).then},
	}}
)

// share reads which terms have one policer.
func (p *junosPolicer) share(_ Line, v form.Values) error {
	p.families = p.families || v.Has("families")
	p.shared = p.shared || p.families || v.Has("filter")
	return nil
}

// parameters reads rates and bursts.
func (p *junosPolicer) parameters(l Line, v form.Values) error {
	for _, x := range v {
		n, _ := x.Value.(int64)
		set := func(i int) {
			*[]*amount{&p.cir, &p.pir, &p.bc, &p.be}[i] = amount{n, x.Words[0], true}
			p.words[i], p.at[i] = x.Name, l.Number
		}
		switch x.Name {
		case "kind":
			if p.kind != "" && p.kind != x.Value.(string) {
				return errors.New("it is single-rate and two-rate")
			}
			p.kind = x.Value.(string)
		case "blind":
			p.blind = true
		case "aware":
			return errors.New("color-aware: the router takes the input color from its classifiers: a policy reads it from the packet, so write color: aware and precolor into the policy")
		case "percent":
			bits, err := percentOf(x.Value.(*big.Rat), p.link)
			if err != nil {
				return err
			}
			set(0)
			p.cir, p.words[0] = amount{bits, fmt.Sprintf("%s percent of %v", x.Words[0], p.link), true}, "bandwidth-percent"
		case "pps-limit":
			p.packets = true
			fallthrough
		case "bandwidth-limit", "committed-information-rate":
			set(0)
		case "peak-information-rate":
			set(1)
		case "burst-size-limit", "packet-burst", "committed-burst-size":
			set(2)
		case "excess-burst-size", "peak-burst-size":
			set(3)
		}
	}
	return nil
}

// then reads the action for red packets.
func (p *junosPolicer) then(l Line, v form.Values) error {
	was := p.actions[meter.Red]
	t := &treatment{line: l.Number, drop: true, text: l.Text()}
	if v != nil && !slices.ContainsFunc(v, func(x form.Value) bool { return x.Value == "discard" }) {
		t.drop, t.text = false, l.Text()+": forwarded; the loss priority is internal to the router"
	}
	if was == nil || t.drop {
		p.actions[meter.Red] = t
	}
	return nil
}

// parse reads the statements.
func (p *junosPolicer) parse() {
	if p.parsed {
		return
	}
	p.parsed = true
	read := junosTwoColors
	if p.three {
		read = junosThreeColors
	}
	for _, l := range p.lines {
		if len(l.Words) == 0 {
			continue
		}
		if err := read.Read(p, l); err != nil {
			p.problems = append(p.problems, l.Problem("%s %s: %v", p.line.Words[0], p.name, err))
		}
	}
}

// apply gives a class a meter with the parameters and the actions of the policer. If several terms use it,
// they share it only if the policer says so; otherwise each term gets one of its own.
func (p *junosPolicer) apply(d *Draft, class *dataplane.Class, several bool) error {
	if len(p.lines) == 0 {
		return fmt.Errorf("policer %s is not in the configuration", p.name)
	}
	p.parse()
	if !slices.Contains(p.users, d) {
		p.users = append(p.users, d)
	}
	for _, problem := range p.problems {
		if !slices.Contains(d.Problems, problem) {
			d.Problems = append(d.Problems, problem)
		}
	}
	kind, err := p.complete()
	if err != nil && p.problems == nil {
		return err
	} else if err != nil {
		return nil
	}
	why := map[string]string{"": "two colors", "single-rate": "RFC 2697", "two-rate": "RFC 2698"}[p.kind]
	d.meter(class, &p.policer, kind, why)
	red := p.actions[meter.Red]
	switch {
	case red == nil && p.three:
		red = &treatment{line: p.line.Number, text: "forwarded: without action loss-priority high then discard, red packets only get a high loss priority"}
	case red == nil:
		return fmt.Errorf("policer %s has no action for packets above the limit", p.name)
	}
	green := "within the limit"
	if p.three {
		green = "low loss priority"
		d.setAction(class, meter.Yellow,
			treatment{line: p.line.Number, text: "medium-high loss priority, which is internal to the router"}, nil, nil)
	}
	d.setAction(class, meter.Green, treatment{line: p.line.Number, text: green}, nil, nil)
	d.setAction(class, meter.Red, *red, nil, nil)
	if several && p.shared {
		p.shareMeter(d, class)
	}
	return nil
}

// shareMeter makes the meter of a class the one that the policer has in a draft.
func (p *junosPolicer) shareMeter(d *Draft, class *dataplane.Class) {
	m := p.meters[d]
	if m == nil {
		m = class.Meter
		m.Name = p.name
		p.meters[d] = m
		d.Policy.Meters = append(d.Policy.Meters, m)
		d.From(m, "", p.line, "%s", p.line.Text())
	}
	class.Meter = m
	d.From(class, "meter", p.line, "shared by the terms of the filter")
}

// complete checks the policer for missing parameters.
func (p *junosPolicer) complete() (kind meter.Kind, err error) {
	names := []string{"rate", "", "burst", ""}
	kind = meter.TokenBucket{}.Kind()
	switch {
	case p.three && p.kind == "":
		return kind, fmt.Errorf("three-color-policer %s is neither single-rate nor two-rate", p.name)
	case p.three && !p.blind:
		return kind, fmt.Errorf("three-color-policer %s has no color-blind, so it is color-aware: the router takes the input color from its classifiers", p.name)
	case p.kind == "single-rate":
		kind, names = meter.SRTCM{}.Kind(), []string{"committed-information-rate", "", "committed-burst-size", "excess-burst-size"}
	case p.kind == "two-rate":
		kind = meter.TRTCM{}.Kind()
		names = []string{"committed-information-rate", "peak-information-rate", "committed-burst-size", "peak-burst-size"}
	}
	for i, a := range []amount{p.cir, p.pir, p.bc, p.be} {
		switch {
		case names[i] != "" && !a.given:
			return kind, fmt.Errorf("policer %s has no %s", p.name, names[i])
		case a.given && (names[i] == "" || p.three && p.words[i] != names[i]):
			return kind, fmt.Errorf("policer %s: %s is not a parameter of %s", p.name, p.words[i], p.kind)
		}
	}
	if p.packets != (p.words[2] == "packet-burst") {
		return kind, fmt.Errorf("policer %s counts bytes and packets", p.name)
	}
	return kind, nil
}
