package routers

import (
	"errors"
	"fmt"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/form"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// ciscoPolice is a police statement. Its actions may follow on lines of their own.
type ciscoPolice struct {
	policer
	broken  bool // it was not understood
	violate bool // it has an action for red packets
	short   bool // NX-OS: conform and violate, without -action
}

// readPolice reads a police statement.
func (p *ciscoParts) readPolice(l Line, v form.Values) (err error) {
	if p.police != nil {
		p.draft.Cannot(p.police.line, "the police statement in line %d replaces it", l.Number)
	}
	s := &ciscoPolice{policer: policer{line: l, words: p.policeWords()}, broken: true}
	p.police = s
	percent := false
	rate := func(name string, to *amount) {
		if r, ok := v.Get(name).(ciscoRate); ok && err == nil {
			*to, err = r.of(p.Link)
			s.packets, percent = s.packets || r.packets, percent || r.percent
		}
	}
	rate("cir", &s.cir)
	rate("pir", &s.pir)
	burst := func(name string, to *amount, at amount) {
		if b, ok := v.Get(name).(ciscoBurst); ok && err == nil {
			if isKBytes(b.unit) {
				p.draft.Note(l, "%s", kbyteNote)
			}
			*to, err = b.of(at, s.packets, percent)
		}
	}
	burst("bc", &s.bc, s.cir)
	at := s.cir
	if s.pir.given {
		at = s.pir
	}
	burst("be", &s.be, at)
	if err == nil {
		err = s.takeActions(l, v)
	}
	s.broken = err != nil
	return err
}

// readActions reads a line of actions of the police statement before it.
func (p *ciscoParts) readActions(l Line, v form.Values) error {
	if p.police == nil {
		return errors.New("it belongs to no police statement")
	}
	return p.police.takeActions(l, v)
}

// takeActions adds the actions of a statement. Those without a color are of green packets.
func (s *ciscoPolice) takeActions(l Line, v form.Values) error {
	color := meter.Green
	for _, x := range v {
		switch x.Name {
		case "color":
			c := x.Value.(ciscoColor)
			color, s.short = c.Color, s.short || c.short
			s.violate = s.violate || color == meter.Red
		case "action":
			s.policer.act(color, x.Value.(treatment), l)
		}
	}
	return nil
}

// policeWords are the words of police for its rates and bursts.
func (c *ciscoConfig) policeWords() [4]string {
	switch {
	case c.isXR():
		return [4]string{"rate", "peak-rate", "burst", "peak-burst"}
	case c.platformOf() == "eos":
		return [4]string{"rate", "pir", "burst-size", "be"}
	}
	return [4]string{"cir", "pir", "bc", "be"}
}

// twoColors reports whether packets above the rate are red at once.
func (b *ciscoBuilder) twoColors(s *ciscoPolice) bool {
	yellow, red := s.actions[meter.Yellow], s.actions[meter.Red]
	switch {
	case s.pir.given:
		return false
	case b.isXR(): // a second bucket has no effect if packets outside of the first are dropped
		return !s.be.given && (red == nil || red.drop && (yellow == nil || yellow.drop))
	}
	return !s.violate || s.short && yellow == nil
}

// police adds the meter and the actions of a police statement to a class.
func (b *ciscoBuilder) police(class *dataplane.Class, p *ciscoParts, queue *dataplane.Queue) {
	s := p.police
	if err := b.defaults(s); err != nil {
		b.draft.Cannot(s.line, "%v", err)
		return
	}
	kind, why := meter.SRTCM{}.Kind(), "a violate-action, so three colors (RFC 2697)"
	switch {
	case s.pir.given:
		kind, why = meter.TRTCM{}.Kind(), "two rates (RFC 2698)"
	case b.twoColors(s):
		kind, why = meter.TokenBucket{}.Kind(), "no violate-action, so two colors"
		if s.violate {
			why = "no action between conform and violate, so two colors"
		}
	}
	two := kind == meter.TokenBucket{}.Kind()
	if two && s.be.given {
		b.draft.Note(s.line, "%s %s has no effect without an action for packets that violate", s.words[3], s.be.text)
	}
	b.draft.meter(class, &s.policer, kind, why)
	for color, word := range []string{"conform", "exceed", "violate"} {
		color := meter.Color(color)
		t := s.actions[color]
		if two && color == meter.Yellow {
			continue
		} else if two && color == meter.Red && !(s.short && s.violate) {
			t, word = s.actions[meter.Yellow], "exceed"
		}
		switch {
		case t != nil:
			with := *t
			with.text = word + "-action " + t.text
			t = &with
		case color == meter.Green:
			t = &treatment{text: "default: conform-action transmit"}
		default:
			t = &treatment{drop: true, text: fmt.Sprintf("default: %s-action drop", word)}
		}
		b.draft.setAction(class, color, *t, p.marks, queue)
	}
}

// defaults sets the bursts that are left out.
func (b *ciscoBuilder) defaults(s *ciscoPolice) (err error) {
	if s.packets && (!s.bc.given || s.pir.given && !s.be.given) {
		return errors.New(
			"the default burst of a rate in packets differs between platforms: write burst N packets")
	}
	statement := "police"
	if s.pir.given {
		statement += " with pir"
	}
	of := func(to *amount, parameter string, rate amount) {
		if !to.given && err == nil {
			*to, err = defaultOf("cisco", b.platformOf(), statement, parameter, rate.value, s.bc.value)
		}
	}
	of(&s.bc, s.words[2], s.cir)
	switch {
	case s.pir.given:
		of(&s.be, s.words[3], s.pir)
	case !b.twoColors(s):
		of(&s.be, s.words[3], s.cir)
	}
	return err
}
