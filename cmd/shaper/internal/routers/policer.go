package routers

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// amount is a rate in bit/s or packets per second, or a burst in bytes or packets.
type amount struct {
	value int64
	text  string // as in the statement, or the default that applies
	given bool
}

// policer is a statement that meters packets, whatever it is called.
type policer struct {
	line     Line
	packets  bool // rates and bursts count packets
	cir, pir amount
	bc, be   amount
	words    [4]string // the statement's words for these four
	at       [4]int    // their lines; 0: that of the policer
	actions  [3]*treatment
}

// treatment is what happens to the packets of a color.
type treatment struct {
	line  int
	drop  bool
	marks []dataplane.Mark
	text  string // of the statement
}

// rate returns a rate of the policer.
func (p *policer) rate(a amount) meter.Rate {
	if p.packets {
		return meter.Rate{Bytes: a.value, Period: time.Second}
	}
	return meter.BitRate(a.value)
}

// meter gives a class the meter of a policer. why tells why it is of this kind.
func (d *Draft) meter(class *dataplane.Class, p *policer, kind meter.Kind, why string) {
	m := &dataplane.Meter{Packets: p.packets}
	class.Meter = m
	keys := [4]string{"cir", "pir", "cbs", "ebs"}
	switch kind {
	case meter.TokenBucket{}.Kind():
		m.Params = meter.TokenBucket{Rate: p.rate(p.cir), Burst: p.bc.value}
		keys = [4]string{"rate", "", "burst", ""}
	case meter.SRTCM{}.Kind():
		m.Params = meter.SRTCM{CIR: p.rate(p.cir), CBS: p.bc.value, EBS: p.be.value}
		keys[1] = ""
	default:
		m.Params = meter.TRTCM{CIR: p.rate(p.cir), CBS: p.bc.value, PIR: p.rate(p.pir), PBS: p.be.value}
		keys[3] = "pbs"
	}
	d.From(m, "type", p.line, "%s; %s", p.line.Text(), why)
	for i, a := range []amount{p.cir, p.pir, p.bc, p.be} {
		if keys[i] != "" {
			d.From(m, keys[i], Line{Number: cmp.Or(p.at[i], p.line.Number)}, "%s %s", p.words[i], a.text)
		}
	}
	if p.packets {
		d.From(m, "count", p.line, "pps")
	}
}

// setAction sets the action of a class for a color. marks apply before those of the treatment.
func (d *Draft) setAction(
	class *dataplane.Class, color meter.Color, t treatment, marks []dataplane.Mark, queue *dataplane.Queue,
) {
	a := &dataplane.Action{Drop: t.drop}
	if !t.drop {
		a.Marks, a.Queue = slices.Clone(marks), queue
		for _, m := range t.marks {
			a.Marks = setMark(a.Marks, m)
		}
	}
	*[]**dataplane.Action{&class.Green, &class.Yellow, &class.Red}[color] = a
	d.From(class, color.String(), Line{Number: t.line}, "%s", t.text)
}

// setMark adds a mark, in the order of fields. It replaces one of the same field.
func setMark(marks []dataplane.Mark, m dataplane.Mark) (out []dataplane.Mark) {
	for _, other := range marks {
		if other.Field < m.Field {
			out = append(out, other)
		}
	}
	out = append(out, m)
	for _, other := range marks {
		if other.Field > m.Field {
			out = append(out, other)
		}
	}
	return out
}

const maxNumber = 1e18

// suffixed is the value of a number with a decimal point and one of the suffixes k, m and g.
func suffixed(s string) (*big.Rat, bool) {
	factor := int64(1)
	if n := len(s); n > 0 {
		switch s[n-1] {
		case 'k', 'K':
			factor = 1e3
		case 'm', 'M':
			factor = 1e6
		case 'g', 'G':
			factor = 1e9
		}
		if factor > 1 {
			s = s[:n-1]
		}
	}
	if s == "" || len(s) > 18 || strings.Trim(s, "0123456789.") != "" || s[0] == '.' {
		return nil, false
	}
	v, ok := new(big.Rat).SetString(s)
	if !ok {
		return nil, false
	}
	return v.Mul(v, big.NewRat(factor, 1)), true
}

// whole rounds a number down to a whole one. It returns an error beyond maxNumber.
func whole(r *big.Rat) (int64, error) {
	n := new(big.Int).Quo(r.Num(), r.Denom())
	if !n.IsInt64() || n.Int64() > maxNumber {
		return 0, fmt.Errorf("%s is above %d", n, int64(maxNumber))
	}
	return n.Int64(), nil
}

// act adds an action to those of a color.
func (p *policer) act(color meter.Color, t treatment, l Line) {
	if was := p.actions[color]; was != nil { // several actions, one by one
		t.drop, t.text = t.drop || was.drop, was.text+" "+t.text
		for _, m := range t.marks {
			was.marks = setMark(was.marks, m)
		}
		t.marks = was.marks
	}
	t.line = l.Number
	p.actions[color] = &t
}
