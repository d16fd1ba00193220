package dataplane

import (
	"errors"
	"slices"
	"strings"
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
		p := newPipeline(t, enveloped(&test.e, Meter{Params: flow, EIRMax: test.own}, Meter{Params: flow}))
		high := &p.stages[p.plan.Classes[0].Stage]
		high.envelope.SetTokens(high.plan.Flow, 1000, 0)
		process(p, 0, ipPacket(0, 1001)) // red; starts the clock
		if _, te := high.tokens(5e8); te != int64(test.excess) {
			t.Errorf("%s: got %d bytes of excess, want %d", test.name, te, test.excess)
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

// TestEnvelopeOrder checks that flows are ordered by rank, whatever the order of the classes.
func TestEnvelopeOrder(t *testing.T) {
	flow := meter.TRTCM4115{CIR: meter.ByteRate(1000), CBS: 1000}
	for _, ranks := range [][]int{{1, 2, 3}, {3, 2, 1}, {2, 64, 1}, {64, 1, 63}} {
		e := &Envelope{Name: "e"}
		list := classes("a", "b", "c")
		for i, rank := range ranks {
			list[i].Meter = &Meter{Params: flow, Envelope: e, Rank: rank}
		}
		plan := compiled(t, &Policy{Classes: list})
		var got []int
		for i, stage := range plan.Envelopes[0].Stages {
			if plan.Stages[stage].Flow != i || plan.Stages[stage].Envelope != 0 {
				t.Errorf("stage %d is flow %d of envelope %d, want flow %d of envelope 0", stage, plan.Stages[stage].Flow, plan.Stages[stage].Envelope, i)
			}
			got = append(got, plan.Stages[stage].Source.Rank)
		}
		if want := slices.Sorted(slices.Values(ranks)); !slices.Equal(got, []int{want[2], want[1], want[0]}) {
			t.Errorf("ranks %v: got order %v, want descending", ranks, got)
		}
	}
}

// TestEnvelopeFields has rows at and next to the bounds of rank, and for each rule about the
// fields of a flow, with the fields that have an error.
func TestEnvelopeFields(t *testing.T) {
	flow := meter.TRTCM4115{CIR: meter.ByteRate(1000), CBS: 1000}
	policy := func(e Envelope, edit func(high, low *Meter)) *Policy {
		high, low := &Meter{Params: flow, Envelope: &e, Rank: 2}, &Meter{Params: flow, Envelope: &e, Rank: 1}
		edit(high, low)
		list := classes("high", "low")
		list[0].Meter, list[1].Meter = high, low
		return &Policy{Classes: list}
	}
	packets := func(high, low *Meter) { high.Packets, low.Packets = true, true }
	one := func(*Meter, *Meter) {}
	for name, test := range map[string]struct {
		policy *Policy
		want   string
	}{
		"rank 0":                {policy(Envelope{}, func(high, _ *Meter) { high.Rank = 0 }), "rank"},
		"rank 64":               {policy(Envelope{}, func(high, _ *Meter) { high.Rank = 64 }), ""},
		"rank 65":               {policy(Envelope{}, func(high, _ *Meter) { high.Rank = 65 }), "rank"},
		"equal ranks":           {policy(Envelope{}, func(high, _ *Meter) { high.Rank = 1 }), "rank"},
		"bytes":                 {policy(Envelope{}, one), ""},
		"packets":               {policy(Envelope{}, packets), ""},
		"both units":            {policy(Envelope{}, func(high, _ *Meter) { high.Packets = true }), "count"},
		"packets, CIRMax":       {policy(Envelope{CIRMax: mega}, packets), "count count"},
		"packets, EIRMax":       {policy(Envelope{EIRMax: mega}, packets), "count count"},
		"bytes, both limits":    {policy(Envelope{CIRMax: mega, EIRMax: mega}, one), ""},
		"packets, both limits":  {policy(Envelope{CIRMax: mega, EIRMax: mega, Packets: true}, packets), ""},
		"bytes, CIRMax packets": {policy(Envelope{CIRMax: mega, Packets: true}, one), "count count"},
		"another type":          {policy(Envelope{}, func(high, _ *Meter) { high.Params = meter.SRTCM{CIR: mega, CBS: 1} }), "envelope"},
		"keys":                  {policy(Envelope{}, func(high, _ *Meter) { high.Per = Key{By: BySrc} }), "per"},
		"CIRMax, no envelope":   {policy(Envelope{}, func(high, _ *Meter) { high.Envelope, high.CIRMax = nil, &mega }), "envelope"},
		"EIRMax, no envelope":   {policy(Envelope{}, func(high, _ *Meter) { high.Envelope, high.EIRMax = nil, &mega }), "envelope"},
	} {
		_, err := Compile(test.policy)
		var fields []string
		if err != nil {
			for _, e := range fieldErrors(t, err) {
				fields = append(fields, e.Field)
			}
		}
		if !slices.Equal(fields, strings.Fields(test.want)) {
			t.Errorf("%s: errors of %q, want %q: %v", name, fields, test.want, err)
		}
	}
}
