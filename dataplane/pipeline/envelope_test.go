package pipeline

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// enveloped returns a policy with two flows in an envelope. Packets of DSCP 10 belong to
// the one of higher rank.
func enveloped(e *dataplane.Envelope, high, low dataplane.Meter) *dataplane.Policy {
	high.Envelope, high.Rank, low.Envelope, low.Rank = e, 2, e, 1
	return &dataplane.Policy{Classes: []dataplane.Class{
		{Name: "high", Match: dataplane.Match{DSCP: []dataplane.Range{{First: 10, Last: 10}}}, Meter: &high},
		{Name: "low", Meter: &low},
	}}
}

// TestEnvelopeCoupling is computed by hand: unused CIR of both flows becomes excess of the
// flow of higher rank, up to EIRMax.
func TestEnvelopeCoupling(t *testing.T) {
	flow := meter.TRTCM4115{CIR: meter.ByteRate(1000), CBS: 1000, EBS: 1000}
	for _, test := range []struct {
		name   string
		e      dataplane.Envelope
		own    *meter.Rate // EIRMax of the higher flow
		excess int         // bytes after half a second
	}{
		{"no coupling", dataplane.Envelope{}, nil, 0},
		{"coupling", dataplane.Envelope{Coupling: true}, nil, 1000},
		{"EIRMax of the envelope", dataplane.Envelope{Coupling: true, EIRMax: meter.ByteRate(600)}, nil, 300},
		{"EIRMax of the flow", dataplane.Envelope{Coupling: true, EIRMax: meter.ByteRate(600)}, new(meter.ByteRate(800)), 400},
		{"EIRMax 0 of the flow", dataplane.Envelope{Coupling: true}, new(meter.Rate{}), 0},
	} {
		p := newPipeline(t, enveloped(&test.e, dataplane.Meter{Params: flow, EIRMax: test.own},
			dataplane.Meter{Params: flow}))
		high := &p.stages[p.plan.Classes[0].Stage]
		high.envelope.SetTokens(high.plan.Flow, 1000, 0)
		process(p, 0, ipPacket(0, 1001)) // red; starts the clock
		if _, te := high.tokens(5e8); te != int64(test.excess) {
			t.Errorf("%s: got %d bytes of excess, want %d", test.name, te, test.excess)
		}
	}
}

func TestEnvelopeErrors(t *testing.T) {
	flow, coupled := meter.TRTCM4115{CIR: meter.ByteRate(1000), CBS: 1000},
		meter.TRTCM4115{CIR: meter.ByteRate(1000), CBS: 1000, Coupling: true}
	e := &dataplane.Envelope{Name: "e", Coupling: true}
	alone := &dataplane.Meter{Params: flow, EIRMax: &meter.Rate{}}
	for _, test := range []struct {
		policy *dataplane.Policy
		object any
		field  string
	}{
		{enveloped(e, dataplane.Meter{Params: flow}, dataplane.Meter{Params: coupled}), e, "coupling"},
		{enveloped(e, dataplane.Meter{Params: flow, CIRMax: &meter.Rate{Bytes: -1, Period: 1}}, dataplane.Meter{Params: flow}), e, "cirmax"},
		{enveloped(e, dataplane.Meter{Params: flow}, dataplane.Meter{Params: flow, EIRMax: &meter.Rate{Bytes: 1}}), e, "eirmax"},
		{&dataplane.Policy{Classes: []dataplane.Class{{Name: "a", Meter: alone}}}, alone, "envelope"},
	} {
		_, err := New(test.policy)
		var f *dataplane.FieldError
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
		e := &dataplane.Envelope{Name: "e"}
		list := classes("a", "b", "c")
		for i, rank := range ranks {
			list[i].Meter = &dataplane.Meter{Params: flow, Envelope: e, Rank: rank}
		}
		plan := compiledPlan(t, &dataplane.Policy{Classes: list})
		var got []int
		for i, stage := range plan.Envelopes[0].Stages {
			if plan.Stages[stage].Flow != i || plan.Stages[stage].Envelope != 0 {
				t.Errorf("stage %d is flow %d of envelope %d, want flow %d of envelope 0", stage,
					plan.Stages[stage].Flow, plan.Stages[stage].Envelope, i)
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
	policy := func(e dataplane.Envelope, edit func(high, low *dataplane.Meter)) *dataplane.Policy {
		high, low := &dataplane.Meter{Params: flow, Envelope: &e, Rank: 2},
			&dataplane.Meter{Params: flow, Envelope: &e, Rank: 1}
		edit(high, low)
		list := classes("high", "low")
		list[0].Meter, list[1].Meter = high, low
		return &dataplane.Policy{Classes: list}
	}
	packets := func(high, low *dataplane.Meter) { high.Packets, low.Packets = true, true }
	one := func(*dataplane.Meter, *dataplane.Meter) {}
	for name, test := range map[string]struct {
		policy *dataplane.Policy
		want   string
	}{
		"rank 0":                {policy(dataplane.Envelope{}, func(high, _ *dataplane.Meter) { high.Rank = 0 }), "rank"},
		"rank 64":               {policy(dataplane.Envelope{}, func(high, _ *dataplane.Meter) { high.Rank = 64 }), ""},
		"rank 65":               {policy(dataplane.Envelope{}, func(high, _ *dataplane.Meter) { high.Rank = 65 }), "rank"},
		"equal ranks":           {policy(dataplane.Envelope{}, func(high, _ *dataplane.Meter) { high.Rank = 1 }), "rank"},
		"bytes":                 {policy(dataplane.Envelope{}, one), ""},
		"packets":               {policy(dataplane.Envelope{}, packets), ""},
		"both units":            {policy(dataplane.Envelope{}, func(high, _ *dataplane.Meter) { high.Packets = true }), "count"},
		"packets, CIRMax":       {policy(dataplane.Envelope{CIRMax: frametest.Mega}, packets), "count count"},
		"packets, EIRMax":       {policy(dataplane.Envelope{EIRMax: frametest.Mega}, packets), "count count"},
		"bytes, both limits":    {policy(dataplane.Envelope{CIRMax: frametest.Mega, EIRMax: frametest.Mega}, one), ""},
		"packets, both limits":  {policy(dataplane.Envelope{CIRMax: frametest.Mega, EIRMax: frametest.Mega, Packets: true}, packets), ""},
		"bytes, CIRMax packets": {policy(dataplane.Envelope{CIRMax: frametest.Mega, Packets: true}, one), "count count"},
		"another type":          {policy(dataplane.Envelope{}, func(high, _ *dataplane.Meter) { high.Params = meter.SRTCM{CIR: frametest.Mega, CBS: 1} }), "envelope"},
		"keys":                  {policy(dataplane.Envelope{}, func(high, _ *dataplane.Meter) { high.Per = dataplane.Key{By: dataplane.BySrc} }), "per"},
		"CIRMax, no envelope":   {policy(dataplane.Envelope{}, func(high, _ *dataplane.Meter) { high.Envelope, high.CIRMax = nil, &frametest.Mega }), "envelope"},
		"EIRMax, no envelope":   {policy(dataplane.Envelope{}, func(high, _ *dataplane.Meter) { high.Envelope, high.EIRMax = nil, &frametest.Mega }), "envelope"},
	} {
		_, err := compiled.Compile(test.policy)
		var fields []string
		if err != nil {
			for _, e := range frametest.FieldErrors(t, err) {
				fields = append(fields, e.Field)
			}
		}
		if !slices.Equal(fields, strings.Fields(test.want)) {
			t.Errorf("%s: errors of %q, want %q: %v", name, fields, test.want, err)
		}
	}
}
