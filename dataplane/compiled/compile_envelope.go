package compiled

import (
	"fmt"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

func (c *compiler) compileEnvelopes() {
	for i := range c.plan.Envelopes {
		c.compileFlows(&c.plan.Envelopes[i])
	}
}

func (c *compiler) envelopeIndex(e *dataplane.Envelope) int {
	i, ok := c.envelopes[e]
	if !ok {
		i = len(c.plan.Envelopes)
		c.envelopes[e] = i
		c.plan.Envelopes = append(c.plan.Envelopes, Envelope{Source: e})
	}
	return i
}

func (c *compiler) compileFlows(out *Envelope) {
	envelope := out.Source
	source := func(i int) *dataplane.Meter { return c.plan.Stages[out.Stages[i]].Source }
	slices.SortStableFunc(out.Stages,
		func(a, b int) int { return c.plan.Stages[b].Source.Rank - c.plan.Stages[a].Source.Rank })
	out.Coupling = envelope.Coupling
	capped := envelope.CIRMax.Bytes > 0 || envelope.EIRMax.Bytes > 0
	for i, stage := range out.Stages {
		m := source(i)
		flow, ok := m.Params.(meter.TRTCM4115)
		if !ok || !validFraction(m.Initial) {
			return // compileMeter or compileTokens added the error
		}
		c.plan.Stages[stage].Flow = i
		cirmax, eirmax := m.Limits()
		out.Flows = append(out.Flows, meter.EnvelopeFlow{Buckets: flow, CIRMax: cirmax, EIRMax: eirmax})
		if i > 0 && m.Rank == source(i-1).Rank {
			c.add(m, "rank", fmt.Sprintf(
				"%d is also the rank of another flow of envelope %q: ranks must differ", m.Rank,
				envelope.Name))
		}
		if m.Packets != source(0).Packets {
			c.add(m, "count", fmt.Sprintf(
				"differs from that of another flow of envelope %q: count bytes in all, or packets in all",
				envelope.Name))
		}
		if capped && m.Packets != envelope.Packets {
			c.add(m, "count", fmt.Sprintf(
				"differs from the unit of the limits of envelope %q: use bytes for both, or packets for both",
				envelope.Name))
		}
	}
	if envelope.Packets && !capped {
		c.add(envelope, "packets", "needs cirmax or eirmax: it is their unit")
	}
	if _, err := meter.NewEnvelope(out.EnvelopeParams); err != nil {
		c.addError(envelope, "cirmax", err)
	}
}

func (c *compiler) checkEnvelope(e *dataplane.Envelope) {
	i := c.addStage(&dataplane.Meter{
		Params: meter.TRTCM4115{CIR: meter.Per(1, time.Second), CBS: 1}, Packets: e.Packets,
		Envelope: e, Rank: 1,
	}, false)
	c.compileFlows(&c.plan.Envelopes[c.plan.Stages[i].Envelope])
}
