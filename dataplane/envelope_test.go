package dataplane

import (
	"errors"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// enveloped returns a policy with two flows in an envelope. Packets of DSCP 10 belong to
// the one of higher rank.
func enveloped(e *Envelope, high, low Meter) *Policy {
	high.Envelope, high.Rank, low.Envelope, low.Rank = e, 2, e, 1
	return &Policy{Classes: []Class{{Name: "high", Match: Match{DSCP: []Range{{10, 10}}}, Meter: &high}, {Name: "low", Meter: &low}}}
}

// TestEnvelopeCoupling is computed by hand: unused CIR of both flows becomes excess of the
// flow of higher rank, up to EIRMax.
func TestEnvelopeCoupling(t *testing.T) {
	flow := meter.TRTCM4115{CIR: meter.ByteRate(1000), CBS: 1000, EBS: 1000}
	for _, test := range []struct {
		name   string
		e      Envelope
		own    *meter.Rate // EIRMax of the higher flow
		excess int         // bytes after half a second
	}{
		{"no coupling", Envelope{}, nil, 0},
		{"coupling", Envelope{Coupling: true}, nil, 1000},
		{"EIRMax of the envelope", Envelope{Coupling: true, EIRMax: meter.ByteRate(600)}, nil, 300},
		{"EIRMax of the flow", Envelope{Coupling: true, EIRMax: meter.ByteRate(600)}, new(meter.ByteRate(800)), 400},
		{"EIRMax 0 of the flow", Envelope{Coupling: true}, new(meter.Rate{}), 0},
	} {
		p := build(t, enveloped(&test.e, Meter{Params: flow, EIRMax: test.own}, Meter{Params: flow}))
		high := &p.stages[p.plan.Classes[0].Stage]
		high.envelope.SetTokens(high.plan.Flow, 1000, 0)
		process(p, 0, ip(0, 1001)) // red; starts the clock
		if _, te := high.tokens(5e8); te != int64(test.excess) {
			t.Errorf("%s: %d bytes of excess, want %d", test.name, te, test.excess)
		}
	}
}

func TestEnvelopeErrors(t *testing.T) {
	flow, coupled := meter.TRTCM4115{CIR: meter.ByteRate(1000), CBS: 1000}, meter.TRTCM4115{CIR: meter.ByteRate(1000), CBS: 1000, Coupling: true}
	e := &Envelope{Name: "e", Coupling: true}
	alone := &Meter{Params: flow, EIRMax: &meter.Rate{}}
	for _, test := range []struct {
		policy *Policy
		object any
		field  string
	}{
		{enveloped(e, Meter{Params: flow}, Meter{Params: coupled}), e, "coupling"},
		{enveloped(e, Meter{Params: flow, CIRMax: &meter.Rate{Bytes: -1, Period: 1}}, Meter{Params: flow}), e, "cirmax"},
		{enveloped(e, Meter{Params: flow}, Meter{Params: flow, EIRMax: &meter.Rate{Bytes: 1}}), e, "eirmax"},
		{&Policy{Classes: []Class{{Name: "a", Meter: alone}}}, alone, "envelope"},
	} {
		_, err := New(test.policy)
		var f *FieldError
		if !errors.As(err, &f) || f.Object != test.object || f.Field != test.field {
			t.Errorf("want an error of %s: %v", test.field, err)
		}
	}
	if cirmax, eirmax := alone.Limits(); cirmax != nil || eirmax != alone.EIRMax {
		t.Errorf("limits %v and %v, want none and 0", cirmax, eirmax)
	}
}
