package routers

import (
	"cmp"
	"errors"
	"fmt"
	"math/big"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/form"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// vrpLimit is a car, gts or lr statement that is read.
type vrpLimit struct {
	policer
	*vrpConfig
	length  amount // queue-length of gts
	way     string // inbound, outbound or ""
	profile string // name of a car profile
	kbytes  bool   // a burst is in kbytes or mbytes
}

// vrpCar are the parameters of car. They can stand in any order.
const (
	vrpCar = "cir <rate:cir> | pir <rate:pir> | cbs <bytes:bc> | (pbs | ebs) <bytes:be>" +
		" | green <action:green>... | yellow <action:yellow>... | red <action:red>... | mode color-blind"
	vrpWay   = "(inbound:way | outbound:way)"
	vrpGTS   = "cir <rate:cir> | cbs <bytes:bc> | ebs <bytes:be> | queue-length <number:length>"
	vrpAware = "color-aware: the router takes the input color from its own classification"
	vrpShare = "the policers of several interfaces or classes share their tokens: define a meter under meters: and use it in each class"
)

// vrpLimits are the statements with a rate, without qos before them.
var vrpLimits = &Reader[*vrpLimit]{Kinds: &vrpKinds, Statements: []Statement[*vrpLimit]{
	{Form: "(car | qos car) {" + vrpCar + " | " + vrpWay + " | any}", Do: (*vrpLimit).take},
	{Form: "(car | qos car) " + vrpWay + " <word:profile>", Do: (*vrpLimit).take},
	{Form: "(gts | qos gts) {" + vrpGTS + " | " + vrpWay + " | any}", Do: (*vrpLimit).take},
	{Form: "qos lr {cir <rate:cir> | cbs <bytes:bc> | ebs <bytes:be> | " + vrpWay + "}", Do: (*vrpLimit).take},
	{Form: "qos lr " + vrpWay + " <rate:cir>", Do: (*vrpLimit).take},
	{Form: "(car | qos car) <word>... (color-aware | mode color-aware) [<word>...]", Reason: vrpAware},
	{Form: "(car | qos car) <word>... (share | aggregation) [<word>...]", Reason: vrpShare},
	{Form: "(qos car | qos gts) [<word>] (acl | carl | queue) <word>...", Reason: "a limit for an access list or a queue of the interface: use a classifier"},
}}

// take takes the values of a statement.
func (p *vrpLimit) take(l Line, v form.Values) (err error) {
	for _, x := range v {
		switch x.Name {
		case "cir", "pir":
			to := map[string]*amount{"cir": &p.cir, "pir": &p.pir}[x.Name]
			rate := x.Value.(vrpRate)
			if x.Name == "pir" && rate.value.Sign() == 0 { // of an NE: none
				continue
			}
			if *to, err = rate.of(p.Options); err != nil {
				return err
			}
		case "bc", "be":
			*map[string]*amount{"bc": &p.bc, "be": &p.be}[x.Name] = x.Value.(amount)
			p.kbytes = p.kbytes || isKBytes(strings.ToLower(x.Words[len(x.Words)-1]))
		case "length":
			p.length = amount{x.Value.(int64), x.Words[0], true}
		case "way":
			p.way = x.Value.(string)
		case "profile":
			p.profile = x.Value.(string)
		default:
			color, err := meter.ParseColor(x.Name)
			if err != nil {
				return err
			}
			p.act(color, x.Value.(treatment), l)
		}
	}
	switch cir, _ := v.Get("cir").(vrpRate); {
	case !p.cir.given && p.profile == "":
		return errors.New("it has no cir")
	case p.h3c && cir.percent: // the bursts are times at the CIR (HPE HSR6800 command reference, car percent)
		for _, to := range []*amount{&p.bc, &p.be} {
			if to.given {
				to.text = fmt.Sprintf("%s ms at %s", to.text, BitRate(p.cir.value))
				ms := big.NewRat(to.value, 8000)
				to.value, err = whole(ms.Mul(ms, big.NewRat(p.cir.value, 1)))
			}
		}
	}
	return err
}

// limit reads a car, gts or lr statement.
func (c *vrpConfig) limit(l Line) (*vrpLimit, error) {
	p := &vrpLimit{vrpConfig: c, policer: policer{line: l, words: [4]string{"cir", "pir", "cbs", "pbs"}}}
	if c.h3c {
		p.words[3] = "ebs"
	}
	return p, vrpLimits.Read(p, l)
}

// defaults sets the bursts that are left out.
func (p *vrpLimit) defaults() (err error) {
	with := ""
	if p.pir.given {
		with = " with pir"
	}
	for i, to := range []*amount{&p.bc, &p.be} {
		if to.given || err != nil {
			continue
		}
		rate := p.cir.value
		if i == 1 && p.pir.given {
			rate = p.pir.value
		}
		*to, err = p.fallback("car"+with, p.words[2+i], rate, p.bc.value)
	}
	return err
}

// meter adds the meter and the actions of a car statement to a class.
func (p *vrpLimit) meter(
	d *Draft, class *dataplane.Class, marks []dataplane.Mark, queue *dataplane.Queue,
) error {
	if err := p.defaults(); err != nil {
		return err
	}
	if err := p.peakRate(); err != nil {
		return err
	}
	kind, why := meter.SRTCM{}.Kind(), "one rate (RFC 2697)"
	switch same := p.pir.value == p.cir.value && p.bc.value == p.be.value; {
	case same && p.pir.given:
		kind, why = meter.TokenBucket{}.Kind(), "both buckets are the same, so two colors"
	case p.pir.given:
		kind, why = meter.TRTCM{}.Kind(), "two rates (RFC 2698)"
	case p.be.value == 0:
		kind, why = meter.TokenBucket{}.Kind(), p.words[3]+" is 0, so two colors"
	}
	p.notes(d)
	d.meter(class, &p.policer, kind, why)
	for color := range meter.Red + 1 {
		if color == meter.Yellow && kind == (meter.TokenBucket{}).Kind() {
			if t := p.actions[color]; t != nil && (t.drop || t.marks != nil) {
				d.Note(p.line, "yellow %s has no effect: %s", t.text, why)
			}
			continue
		}
		t := p.actions[color]
		switch {
		case t != nil:
			with := *t
			with.text = fmt.Sprintf("%v %s", color, t.text)
			t = &with
		case color == meter.Red:
			t = &treatment{drop: true, text: "default: red discard"}
		default:
			t = &treatment{text: fmt.Sprintf("default: %v pass", color)}
		}
		d.setAction(class, color, *t, marks, queue)
	}
	return nil
}

// peakRate sets a PIR that is left out. On Huawei's switches it is the CIR, so there are two buckets with one
// rate each; NE routers have none, and their second bucket gets what the first does not take.
func (p *vrpLimit) peakRate() error {
	platform := cmp.Or(p.Platform, p.platform)
	switch {
	case p.h3c || p.pir.given || p.be.value == 0 || platform == "ne":
	case platform == "":
		return fmt.Errorf("pir is left out, and the meaning of pbs then differs between platforms: write pir, or give --platform: %s",
			strings.Join(Platforms(p.language()), ", "))
	default:
		p.pir = amount{p.cir.value, "left out; default: cir", true}
	}
	return nil
}

// notes adds a note if the number of bytes in a kbyte is an assumption.
func (p *vrpLimit) notes(d *Draft) {
	if p.kbytes {
		d.Note(p.line, "%s", kbyteNote)
	}
}

// carClass adds the meter and the actions of a limit of an interface to a class: of lr, one bucket.
func (p *vrpLimit) carClass(d *Draft, class *dataplane.Class) error {
	if p.profile != "" {
		profile := p.profiles[p.profile]
		if profile == nil {
			return fmt.Errorf("there is no qos car %s", p.profile)
		}
		profile.used = true
		q, err := p.limit(profile.line)
		if err != nil {
			return err
		}
		return q.meter(d, class, nil, nil)
	}
	if !p.line.Has("qos", "lr") {
		return p.meter(d, class, nil, nil)
	}
	if p.be.value > 0 {
		return errors.New("ebs of lr: the guides do not say which packets take tokens of a second bucket")
	}
	if !p.bc.given {
		var err error
		if p.bc, err = p.fallback("lr", "cbs", p.cir.value, 0); err != nil {
			return err
		}
	}
	p.notes(d)
	d.meter(class, &p.policer, meter.TokenBucket{}.Kind(), "one bucket, two colors")
	d.setAction(class, meter.Green, treatment{text: "within the limit"}, nil, nil)
	d.setAction(class, meter.Red, treatment{drop: true, text: "above the limit"}, nil, nil)
	return nil
}

// shaper adds a queue for gts, or for lr of an outgoing interface.
func (p *vrpLimit) shaper(d *Draft, name string) *dataplane.Queue {
	q := &dataplane.Queue{Name: name}
	d.Queue(q, p.line, "%s", p.line.Text())
	q.Rate = meter.BitRate(p.cir.value)
	d.From(q, "rate", p.line, "cir %s; sent packet by packet, without burst", p.cir.text)
	if p.bc.given || p.be.given {
		d.Note(p.line, "burst %s: %s", strings.TrimSpace(p.bc.text+" "+p.be.text), burstReason)
	}
	switch {
	case p.length.given:
		q.Packets = p.length.value
		d.From(q, "limit", p.line, "queue-length %s", p.length.text)
	case p.line.Has("qos", "lr"):
		q.Time = AssumedLimit
		d.From(q, "limit", p.line, "assumed: the buffer of the interface is not in the configuration")
		d.Note(p.line, "the limit of the queue is assumed to be %v: the buffer of the interface is not in the configuration", AssumedLimit)
	default:
		a, _ := defaultOf(p.language(), "", "gts", "queue-length", 0, 0)
		q.Packets = a.value
		d.From(q, "limit", p.line, "queue-length %s", a.text)
	}
	return q
}

// fallback returns the value of a burst that is left out.
func (c *vrpConfig) fallback(statement, parameter string, rate, first int64) (amount, error) {
	platform := cmp.Or(c.Platform, c.platform)
	if platform == "" {
		return amount{}, fmt.Errorf("%s is left out, and its default differs between platforms: give --platform: %s",
			parameter, strings.Join(Platforms(c.language()), ", "))
	}
	return defaultOf(c.language(), platform, statement, parameter, rate, first)
}
