package routers

import (
	"errors"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/form"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// ciscoCAR is a statement of Committed Access Rate on an interface.
type ciscoCAR struct {
	device string
	line   Line
}

// ciscoCARs are the forms of rate-limit.
var ciscoCARs = &Reader[*carReader]{Kinds: &ciscoKinds, Statements: []Statement[*carReader]{
	{Form: "rate-limit (input:way | output:way) {access-group <word:list> | dscp <dscp>} <number:cir> <number:bc> <number:be>" +
		" conform-action <action> exceed-action <action>", Do: (*carReader).take},
}}

// carReader reads a statement into a draft.
type carReader struct {
	*ciscoConfig
	*ciscoCAR
}

// importCARs makes a draft for each direction of the interfaces with CAR.
func (c *ciscoConfig) importCARs() {
	for _, car := range c.cars {
		if err := ciscoCARs.Read(&carReader{c, car}, car.line); err != nil {
			c.in.Cannot(car.line, "%v", err)
		}
	}
}

func (r *carReader) take(l Line, v form.Values) error {
	rate, bc, be := v.Get("cir").(int64), v.Get("bc").(int64), v.Get("be").(int64)
	if bc != be {
		return errors.New("CAR with an extended burst is another algorithm: it drops at random between the two bursts, and no meter of a policy does that")
	}
	if rate == 0 {
		return errNoRate
	}
	when := all
	if list := v.Get("list"); list != nil {
		var err error
		if when, err = r.listMatch(list.(string), "ip"); err != nil {
			return err
		}
	}
	if dscp := v.Get("dscp"); dscp != nil {
		var err error
		if when, err = Both(when, []Condition{ConditionOf(l, dscpMatch(dscp.(uint32)))}); err != nil {
			return err
		}
	}
	d := r.in.Draft(r.device+" "+v.Get("way").(string), l.Number)
	d.Remark("Read as a configuration of %s.", r.platformName())
	class := d.NewClass("rate-limit", l, "%s", l.Text())
	p := &policer{line: l, words: [4]string{"rate", "", "normal burst"}}
	p.cir = amount{rate, BitRate(rate), true}
	p.bc = amount{bc, "equal to the extended burst, so there is none", true}
	d.meter(class, p, meter.TokenBucket{}.Kind(), "one bucket, two colors")
	actions := []string{"conform-action ", "exceed-action "}
	for _, x := range v {
		if x.Name == "action" {
			t := x.Value.(treatment)
			t.text, t.line = actions[0]+t.text, l.Number
			color := meter.Green
			if len(actions) == 1 {
				color = meter.Red
			}
			d.setAction(class, color, t, nil, nil)
			actions = slices.Delete(actions, 0, 1)
		}
	}
	d.Class(class, when)
	return nil
}
