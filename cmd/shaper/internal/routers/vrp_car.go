package routers

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// vrpCar is a car statement.
type vrpCar struct {
	line     Line
	cir, pir amount // kbit/s as written, value in bit/s
	cbs, ebs amount // ebs is pbs of Huawei
	length   amount // queue-length of gts
	actions  [3]*vrpCarAction
}

type vrpCarAction struct {
	drop  bool
	marks map[string]string
	text  string
}

// car reads the parameters of car, gts and lr.
func (c *vrpConfig) car(l Line, a *args) (*vrpCar, error) {
	p := &vrpCar{line: l}
	for !a.done() {
		var err error
		switch w := a.peek(); w {
		case "cir", "pir":
			a.next()
			to := map[string]*amount{"cir": &p.cir, "pir": &p.pir}[w]
			*to, err = c.kbits(a)
		case "cbs", "pbs", "ebs", "queue-length":
			a.next()
			to := map[string]*amount{
				"cbs": &p.cbs, "pbs": &p.ebs, "ebs": &p.ebs, "queue-length": &p.length,
			}[w]
			n, ok := a.number()
			if !ok {
				return p, fmt.Errorf("%s: %q is not a number", w, a.next())
			}
			*to = amount{n, fmt.Sprint(n), true}
		case "green", "yellow", "red":
			a.next()
			color, _ := meter.ParseColor(w)
			p.actions[color], err = c.carAction(a)
		case "mode":
			a.next()
			if mode := a.next(); mode != "color-blind" {
				err = errors.New("color-aware: the router takes the input color from its own classification")
			}
		case "color-aware":
			return p, errors.New("color-aware: the router takes the input color from its own classification")
		case "inbound", "outbound", "summary", "any", "kbps":
			a.next()
		case "share", "aggregation":
			return p,
				errors.New("the policers of several interfaces or classes share their tokens: define a meter under meters: and use it in each class")
		default:
			return p, fmt.Errorf("%q is not understood", a.next())
		}
		if err != nil {
			return p, err
		}
	}
	if !p.cir.given {
		return p, errors.New("it has no cir")
	}
	return p, nil
}

// kbits reads a rate in kbit/s, or in percent.
func (c *vrpConfig) kbits(a *args) (amount, error) {
	percent := a.take("percent", "cir-percentage", "percentage") != ""
	word := a.peek()
	n, ok := a.number()
	switch {
	case !ok || n > maxNumber/1000:
		return amount{}, fmt.Errorf("%q is not a rate in kbit/s", word)
	case percent:
		v, _ := suffixed(word)
		bits, err := percentOf(v, c.Link)
		return amount{bits, fmt.Sprintf("%s percent of %v", word, c.Link), true}, err
	}
	return amount{n * 1000, word + " kbit/s", true}, nil
}

// carAction reads the action of a color.
func (c *vrpConfig) carAction(a *args) (*vrpCarAction, error) {
	action := &vrpCarAction{marks: map[string]string{}}
	var words []string
	for !a.done() {
		w := a.peek()
		if w == "green" || w == "yellow" || w == "red" || words != nil &&
			(w == "mode" || w == "summary" || w == "share" || w == "color-aware") {
			break
		}
		words = append(words, a.next())
		if w == "remark" {
			w += "-" + a.peek()
			words = append(words, a.next())
		}
		switch w {
		case "pass":
		case "discard":
			action.drop = true
		case "remark-dscp", "remark-8021p", "remark-dscp-pass", "remark-dot1p-pass":
			field := "pcp"
			if strings.Contains(w, "dscp") {
				field = "dscp"
			}
			value := a.next()
			words = append(words, value)
			var err error
			if action.marks[field], err = markValue(field, value); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("%s: %s", w, noSuchAction(w))
		}
	}
	if words == nil {
		return nil, errors.New("an action is missing")
	}
	action.text = strings.Join(words, " ")
	return action, nil
}

// Limits of bursts (command references of Huawei AR and S, and of H3C S6812).
const (
	mostHuaweiBurst = 1<<32 - 1
	mostH3CBurst    = 256_000_000
)

// defaults sets missing bursts. cir and pir are in kbit/s there.
//
// Huawei (AR and S, car and qos car): CBS is 188 x CIR and PBS 313 x CIR, or with PIR 125 x CIR
// and 125 x PIR. H3C (S6812, car): CBS is 62.5 x CIR, EBS is 0, or with PIR 62.5 x PIR; both
// rounded up to a multiple of 512.
func (c *vrpConfig) defaults(p *vrpCar) {
	set := func(to *amount, rate amount, name string, factor float64) {
		if to.given {
			return
		}
		n := min(rate.value/1000*int64(factor*2)/2, mostHuaweiBurst)
		text := fmt.Sprintf("left out; default: %g x %s", factor, name)
		if c.h3c {
			n = min((rate.value/1000*int64(factor*2)+1)/2, mostH3CBurst)
			n = min((n+511)/512*512, mostH3CBurst)
			text += ", rounded up to a multiple of 512"
		}
		*to = amount{n, text, true}
	}
	switch {
	case c.h3c && p.pir.given:
		set(&p.cbs, p.cir, "CIR", 62.5)
		set(&p.ebs, p.pir, "PIR", 62.5)
	case c.h3c:
		set(&p.cbs, p.cir, "CIR", 62.5)
		if !p.ebs.given {
			p.ebs = amount{0, "left out; default: 0", true}
		}
	case p.pir.given:
		set(&p.cbs, p.cir, "CIR", 125)
		set(&p.ebs, p.pir, "PIR", 125)
	default:
		set(&p.cbs, p.cir, "CIR", 188)
		set(&p.ebs, p.cir, "CIR", 313)
	}
}

// meter adds the meter and the actions of a car statement to a class.
func (c *vrpConfig) meter(class *Entry, p *vrpCar, marks map[string]string, queue string) error {
	c.defaults(p)
	m := class.Map("meter")
	set := func(key, value, format string, args ...any) { m.Set(key, value, p.line.Number, format, args...) }
	second := map[bool]string{false: "pbs", true: "ebs"}[c.h3c]
	colors := []meter.Color{meter.Green, meter.Yellow, meter.Red}
	switch one := p.pir == p.cir && p.cbs.value == p.ebs.value; {
	case one && p.pir.given || c.h3c && !p.pir.given && p.ebs.value == 0:
		why := "both buckets are the same, so two colors"
		if c.h3c {
			why = "ebs is 0, so two colors"
		}
		set("type", "token-bucket", "%s; %s", p.line.Text(), why)
		set("rate", BitRate(p.cir.value), "cir %s", p.cir.text)
		set("burst", fmt.Sprint(p.cbs.value), "cbs %s", p.cbs.text)
		colors = []meter.Color{meter.Green, meter.Red}
	case p.pir.given:
		set("type", "trtcm", "%s; two rates (RFC 2698)", p.line.Text())
		set("cir", BitRate(p.cir.value), "cir %s", p.cir.text)
		set("cbs", fmt.Sprint(p.cbs.value), "cbs %s", p.cbs.text)
		set("pir", BitRate(p.pir.value), "pir %s", p.pir.text)
		set("pbs", fmt.Sprint(p.ebs.value), "%s %s", second, p.ebs.text)
	default:
		set("type", "srtcm", "%s; one rate (RFC 2697)", p.line.Text())
		set("cir", BitRate(p.cir.value), "cir %s", p.cir.text)
		set("cbs", fmt.Sprint(p.cbs.value), "cbs %s", p.cbs.text)
		set("ebs", fmt.Sprint(p.ebs.value), "%s %s", second, p.ebs.text)
	}
	for _, color := range colors {
		action, text := p.actions[color], ""
		switch {
		case action != nil:
			text = fmt.Sprintf("%v %s", color, action.text)
		case color == meter.Red:
			action, text = &vrpCarAction{drop: true}, "default: red discard"
		default:
			action, text = &vrpCarAction{}, fmt.Sprintf("default: %v pass", color)
		}
		all := maps.Clone(action.marks)
		for field, v := range marks {
			if all == nil {
				all = map[string]string{}
			}
			if _, ok := all[field]; !ok {
				all[field] = v
			}
		}
		class.Set(color.String(), actionText(action.drop, all, queue), p.line.Number, "%s", text)
	}
	return nil
}
