package policyfile

import (
	"go.yaml.in/yaml/v3"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// rates are the rates for packets to the customers and from them.
type rates struct{ down, up meter.Rate }

// split returns the rate for packets to the customers, and that for packets from them: zero if it is the
// same.
func (r rates) split() (down, up meter.Rate) {
	if r.up.Cmp(r.down) == 0 {
		return r.down, up
	}
	return r.down, r.up
}

// write sets the parameter of a name, or those of the two directions.
func (r rates) write(to map[string]string, name string) {
	if r.down.Cmp(r.up) == 0 {
		to[name] = r.down.String()
		return
	}
	to[downOf[name]], to[upOf[name]] = r.down.String(), r.up.String()
}

// rates reads a rate, or a mapping of two.
func (l *loader) rates(n *yaml.Node, what string) (r rates) {
	if n.Kind != yaml.MappingNode {
		r.down, _ = parsed(l, n, what, ParseRate)
		return rates{r.down, r.down}
	}
	if pair, ok := l.upwardPair(n, what); ok {
		r.down, _ = parsed(l, pair[0], "down", ParseRate)
		r.up, _ = parsed(l, pair[1], "up", ParseRate)
	}
	return r
}

// upwardPair returns the values of a mapping with down and up.
func (l *loader) upwardPair(n *yaml.Node, what string) (pair [2]*yaml.Node, ok bool) {
	return l.ratePair(n, what, "down", "up", what+": {down: 100mbit, up: 10mbit}")
}

// ratePair returns the values of a mapping with two keys, one for each direction, such as example.
func (l *loader) ratePair(
	n *yaml.Node, what, first, second, example string,
) (pair [2]*yaml.Node, ok bool) {
	ok = l.mapping(n, what, keys{
		{first, func(n *yaml.Node) { pair[0] = n }},
		{second, func(n *yaml.Node) { pair[1] = n }},
	})
	if ok && (pair[0] == nil || pair[1] == nil) {
		l.fail(n, "%s needs both directions, such as %s", what, example)
	}
	return pair, ok && pair[0] != nil && pair[1] != nil
}

// planPairs reads the pairs among the rates of a plan's meter. ok is false if one is incomplete.
func (l *loader) planPairs(d *draft, names []string) (ok bool) {
	ok = true
	for _, name := range names {
		_, rate := meter.Field(d.params, name).(meter.Rate)
		n := d.value(name)
		if !rate || n == nil || n.Kind != yaml.MappingNode {
			continue
		}
		if d.pairs == nil {
			d.pairs = map[string][2]*yaml.Node{}
		}
		pair, complete := l.upwardPair(n, name)
		d.pairs[name], ok = pair, ok && complete
	}
	return ok
}

// planUp sets the values of a plan with a queue for packets from the customer. Its CoDel may depend on the
// rate there.
func (l *loader) planUp(p *dataplane.ServicePlan, rate, guarantee meter.Rate, codel *yaml.Node) {
	c := *p.Queue
	c.Rate = rate
	p.Up = &dataplane.UpwardPlan{Queue: &c, Guarantee: guarantee}
	if up := p.Upward(); up != nil && l.errs == nil { // a second error of codel says nothing new
		up.Queue = &c
		l.planCoDel(up, codel)
	}
	if c == *p.Queue && guarantee == p.Guarantee {
		p.Up = nil
	}
}

// meterUp sets the parameters of a plan with a meter for packets from the customer.
func meterUp(p *dataplane.ServicePlan, params meter.Params) {
	p.Up = nil
	if params != p.Params {
		p.Up = &dataplane.UpwardPlan{Params: params}
	}
}

// side returns the cell of a rate for one direction: of its own, or for both.
func side(cell map[string]*yaml.Node, name string, up bool) *yaml.Node {
	own := downOf[name]
	if up {
		own = upOf[name]
	}
	if n := cell[own]; n != nil && own != "" {
		return n
	}
	return cell[name]
}

// downOf and upOf are the names of rates for one direction, in changes and in columns of customers.
var (
	downOf = map[string]string{"rate": "down", "guarantee": "down-guarantee"}
	upOf   = map[string]string{"rate": "up", "guarantee": "up-guarantee"}
)
