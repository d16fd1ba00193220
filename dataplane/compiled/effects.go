package compiled

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// Effects are the effects that a plan can have on the packets of a class, by color after the meters.
// Changes of customers, and drops of a qdisc, are not among them.
type Effects struct {
	Colors [3]bool                   // packets can have the color
	Drops  [3][dataplane.Causes]bool // they can be dropped, by cause
	Marked [3]bool
	CE     [3]bool
	Queued [3]bool
}

// Effects returns the effects on a class. linkQdisc means that the kernel's qdisc has the queues of links:
// then it decides about their drops, and marks their packets.
func (p *Plan) Effects(class int, linkQdisc bool) Effects {
	var e Effects
	c := &p.Classes[class]
	e.Colors = p.colors(c, nil)
	for color := range c.Actions {
		if e.Colors[color] {
			e.add(p, color, &c.Actions[color], linkQdisc)
		}
	}
	if !c.Customers {
		return e
	}
	for i := range p.Customers.Plans {
		s := &p.Customers.Plans[i]
		for color, a := range s.Actions {
			if a != nil && e.Colors[color] {
				e.add(p, color, a, linkQdisc)
			}
		}
		if s.Profile == nil { // its packets are green, unless a later meter of the chain colors them
			for color, can := range e.Colors {
				if can {
					e.queue(color, &s.Queue, linkQdisc && s.Tree >= 0)
				}
			}
		}
	}
	return e
}

// ColorsOf returns the colors that packets of the customers of a plan can have.
func (p *Plan) ColorsOf(s *Service) (can [3]bool) {
	for i := range p.Classes {
		if c := &p.Classes[i]; c.Customers {
			for color, is := range p.colors(c, s) {
				can[color] = can[color] || is
			}
		}
	}
	return can
}

// colors returns the colors that the meter of a plan of customers gives.
func (s *Service) colors() [3]bool {
	if s.Profile == nil {
		return [3]bool{meter.Green: true}
	}
	return [3]bool{true, threeColors(s.Kind), true}
}

// threeColors reports whether meters of a kind make green packets yellow.
func threeColors(k meter.Kind) bool { return len(k.Info().Defaults.Buckets()) > 1 }

// colors returns the possible colors of a class, for customers of one plan. nil means those of all plans.
func (p *Plan) colors(c *Class, of *Service) (can [3]bool) {
	can[meter.Green] = true
	if c.Stage < 0 {
		return can
	}
	if first := &p.Stages[c.Stage]; first.Aware {
		for _, color := range first.Input.Low {
			can[color] = true
		}
		for _, color := range first.Input.High {
			can[color] = true
		}
	}
	for i := c.Stage; i >= 0; i = p.Stages[i].Then {
		s := &p.Stages[i]
		if !s.Customers {
			can[meter.Yellow] = can[meter.Yellow] || threeColors(s.Kind)
			can[meter.Red] = true
			continue
		}
		plans := p.Customers.Plans
		if of != nil {
			plans = []Service{*of}
		}
		for i := range plans {
			for color, is := range plans[i].colors() {
				can[color] = can[color] || is
			}
		}
	}
	return can
}

// add adds the effects of an action.
func (e *Effects) add(p *Plan, color int, a *Action, linkQdisc bool) {
	if a.Drop {
		e.Drops[color][dataplane.CauseColor] = true
		return
	}
	e.CE[color] = e.CE[color] || a.ECN != dataplane.NoECN
	if a.ECN == dataplane.CEOrDrop {
		e.Drops[color][dataplane.CauseECN] = true
	}
	e.Marked[color] = e.Marked[color] || len(a.Marks) > 0
	if a.Queue >= 0 {
		q := &p.Queues[a.Queue]
		e.queue(color, &q.Config, linkQdisc && q.Link >= 0)
	}
}

// queue adds the effects of a queue.
func (e *Effects) queue(color int, q *queue.Config, inQdisc bool) {
	e.Queued[color] = true
	if inQdisc {
		return
	}
	early, codel := q.WRED[color] != queue.Early{}, q.CoDel != queue.CoDel{}
	drops := &e.Drops[color]
	drops[dataplane.CauseQueue] = true
	drops[dataplane.CauseWRED] = drops[dataplane.CauseWRED] || early
	drops[dataplane.CauseCoDel] = drops[dataplane.CauseCoDel] || codel
	e.CE[color] = e.CE[color] || q.ECN && (early || codel)
}
