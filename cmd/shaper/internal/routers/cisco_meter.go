package routers

import (
	"fmt"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// police adds the meter and the actions of a police statement to a class.
func (b *ciscoBuilder) police(class *Entry, p *ciscoParts, queue string) {
	s := p.police
	if err := s.defaults(); err != nil {
		b.draft.Cannot(s.line, "%v", err)
		return
	}
	m := class.Map("meter")
	set := func(key, value, format string, args ...any) { m.Set(key, value, s.line.Number, format, args...) }
	rate := func(a amount) string {
		if s.packets {
			return fmt.Sprintf("%dp/1s", a.value)
		}
		return BitRate(a.value)
	}
	two := false
	switch {
	case s.pir.given:
		set("type", "trtcm", "%s; two rates (RFC 2698)", s.line.Text())
		set("cir", rate(s.cir), "cir %s", s.cir.text)
		set("cbs", fmt.Sprint(s.bc.value), "bc %s", s.bc.text)
		set("pir", rate(s.pir), "pir %s", s.pir.text)
		set("pbs", fmt.Sprint(s.be.value), "be %s", s.be.text)
	case s.threeColors():
		set("type", "srtcm", "%s; a violate-action, so three colors (RFC 2697)", s.line.Text())
		set("cir", rate(s.cir), "cir %s", s.cir.text)
		set("cbs", fmt.Sprint(s.bc.value), "bc %s", s.bc.text)
		set("ebs", fmt.Sprint(s.be.value), "be %s", s.be.text)
	default:
		two = true
		set("type", "token-bucket", "%s; no violate-action, so two colors", s.line.Text())
		set("rate", rate(s.cir), "cir %s", s.cir.text)
		set("burst", fmt.Sprint(s.bc.value), "bc %s", s.bc.text)
	}
	if s.packets {
		set("count", "packets", "pps")
	}
	for color := meter.Green; color <= meter.Red; color++ {
		if two && color == meter.Yellow {
			continue
		}
		lines, what := s.actions[color], [...]string{"conform", "exceed", "violate"}[color]
		if two && color == meter.Red && !s.plain {
			lines, what = s.actions[meter.Yellow], "exceed"
		}
		comment := what + "-action"
		if lines == nil {
			comment = fmt.Sprintf("default: %s-action drop", what)
			lines = []Line{{Words: []string{"drop"}}}
			if color == meter.Green {
				comment, lines = "default: conform-action transmit", []Line{{Words: []string{"transmit"}}}
			}
		} else {
			for _, l := range lines {
				comment += " " + l.Text()
			}
		}
		drop, marks, err := policeAction(lines, p.marks)
		if err != nil {
			l := lines[0]
			l.Words = strings.Fields(comment)
			b.draft.Cannot(l, "%v", err)
			marks = p.marks
		}
		class.Set(color.String(), actionText(drop, marks, queue), lines[0].Number, "%s", comment)
	}
}

// threeColors reports whether a single-rate police statement colors in three colors.
func (p *ciscoPolice) threeColors() bool {
	return p.violate && !(p.plain && p.actions[meter.Yellow] == nil)
}

// leastBurst is the least default of a burst, in bytes.
const leastBurst = 1500

// defaults sets missing bursts: CIR/32 and PIR/32 bytes, the bytes of 250 ms, but at least 1500
// (Cisco IOS Quality of Service Solutions Command Reference, police).
func (p *ciscoPolice) defaults() error {
	if p.packets && (!p.bc.given || p.pir.given && !p.be.given) {
		return fmt.Errorf(
			"the default burst of a rate in packets differs between platforms: write burst N packets")
	}
	byDefault := func(rate amount, name string) amount {
		if n := rate.value / 32; n >= leastBurst {
			return amount{n, fmt.Sprintf("left out; default: %s/32 bytes (250 ms)", name), true}
		}
		return amount{
			leastBurst, fmt.Sprintf("left out; default: 1500 bytes, because %s/32 (250 ms) is less", name),
			true,
		}
	}
	if !p.bc.given {
		p.bc = byDefault(p.cir, "CIR")
	}
	switch {
	case p.be.given:
	case p.pir.given:
		p.be = byDefault(p.pir, "PIR")
	default:
		p.be = amount{p.bc.value, "left out; default: bc", true}
	}
	return nil
}
