package oracle

import (
	"errors"
	"fmt"
	"math/big"
	"slices"

	"go.yaml.in/yaml/v3"
)

// envelope is the bandwidth that ranked flows share, MEF 10.3 §12. All of them are
// refilled together: what one has no room for goes to the next lower rank.
type envelope struct {
	cirmax, eirmax *big.Rat  // nil is none
	unit           string    // bytes or packets; "" is not known yet
	flows          []*member // the highest rank first

	last *big.Rat // nil before the first packet
}

// member is one flow of an envelope, which decides as RFC 4115.
type member struct {
	*envelope
	rank uint64
	unit string
	flow *buckets
}

func (m *member) decide(now, cost *big.Rat, in color) color {
	m.refill(now)
	return m.flow.rfc4115(cost, in)
}

// refill gives all flows the tokens of the time since the last packet of any.
func (e *envelope) refill(now *big.Rat) {
	if e.last == nil {
		e.last = now
	}
	dt := new(big.Rat).Sub(now, e.last)
	e.last = now

	// What the higher ranks had no room for.
	restC, restE := new(big.Rat), new(big.Rat)
	for _, m := range e.flows {
		inC := new(big.Rat).Mul(m.flow.c.rate, dt)
		inC.Add(inC, restC)
		over := m.flow.c.add(capped(inC, e.cirmax, dt))

		inE := new(big.Rat).Mul(m.flow.e.rate, dt)
		inE.Add(inE, restE)
		restC = over
		if m.flow.coupling {
			inE.Add(inE, over)
			restC = new(big.Rat)
		}
		restE = m.flow.e.add(capped(inE, e.eirmax, dt))
	}
}

// capped is at most what a rate gives in dt. A rate of nil has no bound.
func capped(tokens, rate, dt *big.Rat) *big.Rat {
	if rate == nil {
		return tokens
	}
	return least(tokens, new(big.Rat).Mul(rate, dt))
}

// join makes the flow exist: meters that no class leads to have no part in the envelope.
func (m *member) join() error {
	if slices.Contains(m.flows, m) {
		return nil // two classes lead to it
	}
	for _, other := range m.flows {
		if other.rank == m.rank {
			return fmt.Errorf("rank %d twice in an envelope", m.rank)
		}
	}
	if err := m.counts(m.unit); err != nil {
		return err
	}
	m.flows = append(m.flows, m)
	slices.SortFunc(m.flows, func(a, b *member) int { return int(b.rank) - int(a.rank) })
	return nil
}

// counts says what the envelope is counted in: all its rates and flows have the same.
func (e *envelope) counts(unit string) error {
	if e.unit == "" {
		e.unit = unit
	}
	if e.unit != unit {
		return errors.New("bytes and packets in one envelope")
	}
	return nil
}

func parseEnvelope(n *yaml.Node) (*envelope, error) {
	entries, err := mapping(n, "cirmax", "eirmax")
	if err != nil {
		return nil, err
	}
	e := &envelope{}
	for key, into := range map[string]**big.Rat{"cirmax": &e.cirmax, "eirmax": &e.eirmax} {
		if entries[key] == nil {
			continue
		}
		unit := "bytes"
		if *into, err = parseRate(entries[key].Value, false); err != nil {
			unit = "packets"
			*into, err = parseRate(entries[key].Value, true)
		}
		if err == nil {
			err = e.counts(unit)
		}
		if err != nil {
			return nil, at(n, err)
		}
	}
	return e, nil
}

func parseMember(o *options, build func() *buckets) func() state {
	m := &member{rank: o.integer("rank", "", 1, 64), unit: o.choice("count", "bytes", "packets")}
	if m.envelope = o.envelopes[o.text("envelope", "")]; m.envelope == nil {
		o.fail("no envelope %q", o.text("envelope", ""))
	}
	return func() state {
		m.flow = build()
		return m
	}
}
