package routers

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// junosPolicer is a policer or a three-color policer.
type junosPolicer struct {
	name  string
	three bool
	line  Line
	lines []Line // its statements
	used  bool   // by a filter
}

// policer returns a policer, which it adds if there is none.
func (c *junosConfig) policer(three bool, name string, l Line) *junosPolicer {
	kind := map[bool]string{false: "policer", true: "three-color-policer"}[three]
	p := c.byName[kind+" "+name]
	if p == nil {
		p = &junosPolicer{name: name, three: three, line: Line{Number: l.Number, Words: []string{kind, name}}}
		c.byName[kind+" "+name] = p
		c.policers = append(c.policers, p)
	}
	return p
}

func (p *junosPolicer) has(words ...string) bool {
	return slices.ContainsFunc(p.lines,
		func(l Line) bool { return len(l.Words) >= len(words) && l.Has(words...) })
}

// join gives a class the meter of the policer. If several terms use it, they share it only with
// filter-specific or logical-interface-policer; otherwise each term gets one of its own.
func (p *junosPolicer) join(c *junosConfig, d *Draft, class *Entry, several bool) error {
	if err := p.apply(c, d, class); err != nil {
		return err
	}
	if several && (p.has("filter-specific") || p.has("logical-interface-policer")) {
		m := class.Get("meter")
		if !slices.ContainsFunc(d.Meters, func(e *Entry) bool { return e.Key == Quote(p.name) }) {
			d.Meters = append(d.Meters,
				&Entry{Key: Quote(p.name), Line: p.line.Number, Comment: p.line.Text(), Entries: m.Entries})
		}
		m.Value, m.Entries, m.Line, m.Comment = Quote(p.name), nil, p.line.Number,
			"shared by the terms of the filter"
	}
	return nil
}

// apply gives a class a meter with the parameters and the actions of the policer.
func (p *junosPolicer) apply(c *junosConfig, d *Draft, class *Entry) error {
	if p.three {
		return p.threeColors(c, d, class)
	}
	return p.twoColors(c, d, class)
}

func (p *junosPolicer) twoColors(c *junosConfig, d *Draft, class *Entry) error {
	m := class.Map("meter")
	m.Set("type", "token-bucket", p.line.Number, "%s", p.line.Text())
	class.Set("green", "pass", p.line.Number, "within the limit")
	var discard, lossPriority bool
	for _, l := range p.lines {
		a := &args{l.Words}
		var err error
		switch a.take("if-exceeding", "if-exceeding-pps", "then", "filter-specific",
			"logical-interface-policer", "physical-interface-policer") {
		case "if-exceeding", "if-exceeding-pps":
			err = p.parameter(c, m, l, a, map[string]string{
				"bandwidth-limit": "rate", "bandwidth-percent": "rate", "burst-size-limit": "burst",
				"pps-limit": "rate", "packet-burst": "burst",
			})
		case "then":
			switch a.next() {
			case "discard":
				discard = true
				class.Set("red", "drop", l.Number, "%s", l.Text())
			case "loss-priority":
				lossPriority = true
				class.Set("red", "pass", l.Number,
					"%s: forwarded; the loss priority is internal to the router", l.Text())
			default:
				err = errors.New("it is internal to the router")
			}
		case "":
			if len(l.Words) > 0 {
				err = errors.New("it is not understood")
			}
		}
		if err != nil {
			d.Cannot(l, "policer %s: %v", p.name, err)
		}
	}
	if discard && lossPriority {
		class.Set("red", "drop", p.line.Number, "then discard")
	}
	if class.Get("red") == nil {
		class.Set("red", "pass", p.line.Number,
			"the policer has no action for the excess that a policy can express")
	}
	return p.complete(m, "rate", "burst")
}

// parameter reads a rate or a burst. keys holds the keys of the policy by parameter.
func (p *junosPolicer) parameter(c *junosConfig, m *Entry, l Line, a *args, keys map[string]string) error {
	name := a.peek()
	a.next()
	key, known := keys[name]
	if !known {
		return errors.New("it is not understood")
	}
	word := a.next()
	v, ok := suffixed(word)
	if !ok {
		return fmt.Errorf("%q is not a number, with k, m or g for 1000, 1000000 or 1000000000", word)
	}
	n, err := whole(v)
	if err != nil {
		return err
	}
	switch name {
	case "bandwidth-percent":
		if n, err = percentOf(v, c.Link); err != nil {
			return err
		}
		m.Set(key, BitRate(n), l.Number, "%s percent of %v", word, c.Link)
	case "pps-limit":
		m.Set(key, fmt.Sprintf("%dp/1s", n), l.Number, "%s", l.Text())
		m.Set("count", "packets", l.Number, "if-exceeding-pps")
	case "packet-burst":
		m.Set(key, fmt.Sprint(n), l.Number, "%s", l.Text())
	default:
		if strings.HasSuffix(name, "-rate") || strings.HasSuffix(name, "-limit") && key != "burst" {
			m.Set(key, BitRate(n), l.Number, "%s bit/s", l.Text())
		} else {
			m.Set(key, fmt.Sprint(n), l.Number, "%s bytes", l.Text())
		}
	}
	return nil
}

// complete checks a meter for missing parameters.
func (p *junosPolicer) complete(m *Entry, keys ...string) error {
	for _, key := range keys {
		if m.Get(key) == nil {
			return fmt.Errorf("policer %s has no %s", p.name, key)
		}
	}
	return nil
}

func (p *junosPolicer) threeColors(c *junosConfig, d *Draft, class *Entry) error {
	m := class.Map("meter")
	red, redLine := "pass", p.line
	comment := "forwarded: without action loss-priority high then discard, red packets only get a high loss priority"
	two := p.has("two-rate")
	kind := map[bool]string{false: "srtcm", true: "trtcm"}[two]
	m.Set("type", kind, p.line.Number, "%s", p.line.Text())
	keys := map[string]string{
		"committed-information-rate": "cir", "committed-burst-size": "cbs", "excess-burst-size": "ebs",
	}
	need := []string{"cir", "cbs", "ebs"}
	if two {
		keys = map[string]string{
			"committed-information-rate": "cir", "committed-burst-size": "cbs",
			"peak-information-rate": "pir", "peak-burst-size": "pbs",
		}
		need = []string{"cir", "cbs", "pir", "pbs"}
	}
	for _, l := range p.lines {
		a := &args{l.Words}
		var err error
		switch a.take("single-rate", "two-rate", "action", "filter-specific", "logical-interface-policer",
			"physical-interface-policer") {
		case "single-rate", "two-rate":
			switch a.peek() {
			case "color-blind":
			case "color-aware":
				err = errors.New("the router takes the input color from its classifiers: a policy reads it from the packet, so check precolor")
				m.Set("color", "aware", l.Number, "%s", l.Text())
			case "":
			default:
				err = p.parameter(c, m, l, a, keys)
			}
		case "action":
			if l.Has("action", "loss-priority", "high", "then", "discard") {
				red, redLine, comment = "drop", l, l.Text()
			} else {
				err = errors.New("it is not understood")
			}
		case "":
			if len(l.Words) > 0 {
				err = errors.New("it is not understood")
			}
		}
		if err != nil {
			d.Cannot(l, "three-color-policer %s: %v", p.name, err)
		}
	}
	class.Set("green", "pass", p.line.Number, "low loss priority")
	class.Set("yellow", "pass", p.line.Number, "medium-high loss priority, which is internal to the router")
	class.Set("red", red, redLine.Number, "%s", comment)
	return p.complete(m, need...)
}
