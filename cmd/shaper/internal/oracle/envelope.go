package oracle

import (
	"errors"
	"fmt"
	"math/big"
	"slices"

	"go.yaml.in/yaml/v3"
)

// envelope is the bandwidth shared by ranked flows, MEF 10.3 §12. All flows are refilled together.
// The overflow of a flow goes to the next lower rank.
type envelope struct {
	cirmax, eirmax *big.Rat  // limits of flows without their own; nil: none
	coupling       bool      // CF0: green overflow of the lowest rank becomes yellow of the highest
	unit           string    // bytes or packets; "" if not yet known
	flows          []*member // highest rank first

	last *big.Rat // nil before the first packet
}

// member is one flow of an envelope. It decides as RFC 4115.
type member struct {
	*envelope
	cirmax, eirmax *big.Rat // nil: those of the envelope

	rank uint64
	unit string
	flow *buckets
}

func (m *member) decide(now, cost *big.Rat, in color) color {
	m.refill(now)
	return m.flow.committedOrExcess(cost, in)
}

// refill adds the tokens for the time since the last packet of any flow.
func (e *envelope) refill(now *big.Rat) {
	if e.last == nil {
		e.last = now
	}
	dt := new(big.Rat).Sub(now, e.last)
	e.last = now

	// Green, from the highest rank to the lowest. The overflow of a flow is lost unless the
	// next rank or an excess bucket gets it.
	fallen := new(big.Rat)
	excess := make([]*big.Rat, len(e.flows)) // tokens for each excess bucket in addition to its rate
	for i, m := range e.flows {
		excess[i] = new(big.Rat)
		in := new(big.Rat).Mul(m.flow.c.rate, dt)
		in.Add(in, fallen)
		fallen = m.flow.c.add(capped(in, limitOf(m.cirmax, e.cirmax), dt))
		if m.flow.coupling {
			excess[i], fallen = fallen, new(big.Rat)
		}
	}
	if e.coupling {
		excess[0].Add(excess[0], fallen)
	}
	// Yellow, from the highest rank to the lowest.
	fallen = new(big.Rat)
	for i, m := range e.flows {
		in := new(big.Rat).Mul(m.flow.e.rate, dt)
		in.Add(in, fallen)
		in.Add(in, excess[i])
		fallen = m.flow.e.add(capped(in, limitOf(m.eirmax, e.eirmax), dt))
	}
}

// limitOf returns the limit of a flow, or else of its envelope.
func limitOf(own, shared *big.Rat) *big.Rat {
	if own != nil {
		return own
	}
	return shared
}

// capped limits tokens to those of a rate in dt. A nil rate is no limit.
func capped(tokens, rate, dt *big.Rat) *big.Rat {
	if rate == nil {
		return tokens
	}
	return least(tokens, new(big.Rat).Mul(rate, dt))
}

// join adds the flow to the envelope. Meters that no class uses do not take part.
func (m *member) join() error {
	if slices.Contains(m.flows, m) {
		return nil // two classes use the flow
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

// counts sets the unit of the envelope. All of its rates and flows must have the same.
func (e *envelope) counts(unit string) error {
	if e.unit == "" {
		e.unit = unit
	}
	if e.unit != unit {
		return errors.New("bytes and packets in one envelope")
	}
	return nil
}

// flags checks the coupling by MEF 10.3: a flow of a coupled envelope must not be coupled
// itself ([R150]).
func (e *envelope) flags() error {
	for _, m := range e.flows {
		if e.coupling && m.flow.coupling {
			return errors.New("coupling of an envelope, and of a flow in it")
		}
	}
	return nil
}

func parseEnvelope(n *yaml.Node) (*envelope, error) {
	entries, err := mapping(n, "cirmax", "eirmax", "coupling")
	if err != nil {
		return nil, err
	}
	coupling, err := optional(entries, "coupling", "false")
	if err != nil || coupling != "true" && coupling != "false" {
		return nil, at(n, errors.New("coupling: not true or false"))
	}
	e := &envelope{coupling: coupling == "true"}
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
	if o.has("cirmax") {
		m.cirmax = o.rate("cirmax")
	}
	if o.has("eirmax") {
		m.eirmax = o.rate("eirmax")
	}
	return func() state {
		m.flow = build()
		return m
	}
}
