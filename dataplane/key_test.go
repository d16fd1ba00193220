package dataplane

import (
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// shares is a policy of classes a and b, of DSCP 0 and 1, with a meter that is one
// or two.
func shares(apart bool, m Meter) *Policy {
	list := classes("a", "b")
	first, second := m, m
	list[0].Meter, list[1].Meter = &first, &second
	if !apart {
		list[1].Meter = &first
	}
	return &Policy{Classes: list}
}

// TestInheritApart holds that two meters which were one do not share what they
// keep of it: a log, or a table of keys.
func TestInheritApart(t *testing.T) {
	for name, m := range map[string]Meter{
		"log":    {Params: meter.SlidingLog{Limit: 1000, Window: time.Second, Entries: 100}},
		"slots":  {Params: meter.SlidingWindow{Limit: 1000, Window: time.Second, Slots: 10}},
		"keys":   {Params: meter.GCRA{Rate: meter.ByteRate(1), Burst: 1000}, Per: Key{By: BySrc}},
		"bucket": {Params: meter.GCRA{Rate: meter.ByteRate(1), Burst: 1000}},
	} {
		before := build(t, shares(false, m))
		process(before, 0, ip(0, 400)) // 600 are left to both
		l, _ := inherited(t, before, shares(true, m))
		for i, want := range []meter.Color{meter.Green, meter.Red} {
			if v, _ := process(l, 1, ip(0, 500)); v.Color != want {
				t.Errorf("%s: packet %d of a is %v: want %v", name, i, v.Color, want)
			}
		}
		v, _ := process(l, 2, ip(1, 300)) // b has its own 600, or with keys its own 1000
		if v.Color != meter.Green {
			t.Errorf("%s: b is %v", name, v.Color)
		}
		if name == "log" || name == "slots" {
			if v, _ := process(l, int64(2*time.Second), ip(0, 1000)); v.Color != meter.Green {
				t.Errorf("%s: nothing is in view, and a is %v", name, v.Color)
			}
		}
	}
}

// TestInheritKeys holds that keys stay where they are found and bounded as before,
// also at another rate.
func TestInheritKeys(t *testing.T) {
	policy := func(burst int64, keys int) *Policy {
		m := &Meter{Params: meter.GCRA{Rate: meter.ByteRate(1), Burst: burst}, Per: Key{By: BySrc}, Keys: keys}
		return &Policy{Classes: []Class{{Name: "a", Meter: m}}}
	}
	before := build(t, policy(1000, 5))
	process(before, 0, ip(0, 400))
	same, _ := inherited(t, before, policy(700, 5))
	if v, _ := process(same, 0, ip(0, 601)); v.Color != meter.Red {
		t.Errorf("601 bytes of 600 are %v", v.Color)
	}
	if v, _ := process(same, 0, ip(0, 600)); v.Color != meter.Green {
		t.Errorf("600 bytes of 600 are %v", v.Color)
	}
	if n := same.Keys(same.policy.Classes[0].Meter); n.Keys != 1 {
		t.Errorf("%+v", n)
	}
	other, _ := inherited(t, same, policy(700, 6))
	if v, _ := process(other, 0, ip(0, 700)); v.Color != meter.Green {
		t.Errorf("with other keys, 700 bytes of 700 are %v", v.Color)
	}
}

// TestInheritEnvelope holds that a flow keeps its tokens, and that its clock runs
// on: what comes from then on is counted.
func TestInheritEnvelope(t *testing.T) {
	flow := meter.TRTCM4115{CIR: meter.ByteRate(1000), CBS: 1000}
	alone := &Policy{Classes: []Class{{Name: "a", Meter: &Meter{Params: flow}}}}
	within := func() *Policy {
		return &Policy{Classes: []Class{{Name: "a", Meter: &Meter{Params: flow, Envelope: &Envelope{Name: "e"}, Rank: 1}}}}
	}
	for name, policies := range map[string][2]*Policy{
		"into": {alone, within()}, "out of": {within(), alone}, "within": {within(), within()},
	} {
		before := build(t, policies[0])
		process(before, 0, ip(0, 1000))
		l, _ := inherited(t, before, policies[1])
		if v, _ := process(l, int64(100*time.Millisecond), ip(0, 101)); v.Color != meter.Red {
			t.Errorf("%s an envelope: 101 bytes of 100 are %v", name, v.Color)
		}
		if v, _ := process(l, int64(100*time.Millisecond), ip(0, 100)); v.Color != meter.Green {
			t.Errorf("%s an envelope: 100 bytes of 100 are %v", name, v.Color)
		}
	}
}

// TestMetersOfOthers: a meter that no class leads to has no tokens and no keys, and
// not those of the policy's first.
func TestMetersOfOthers(t *testing.T) {
	params := meter.GCRA{Rate: meter.ByteRate(1), Burst: 1000}
	own := &Meter{Params: params, Per: Key{By: BySrc}}
	foreign := &Meter{Params: params}
	for name, policy := range map[string]*Policy{
		"keyed":    {Classes: []Class{{Name: "a", Meter: own}}},
		"unkeyed":  {Classes: []Class{{Name: "a", Meter: &Meter{Params: params}}}},
		"no meter": {Classes: []Class{{Name: "a"}}},
	} {
		l := build(t, policy)
		process(l, 0, ip(0, 400))
		for _, m := range []*Meter{foreign, nil} {
			if tc, te := l.Tokens(m); tc != 0 || te != 0 {
				t.Errorf("%s: %d and %d tokens", name, tc, te)
			}
			if n := l.Keys(m); n != (meter.TableStats{}) {
				t.Errorf("%s: %+v", name, n)
			}
		}
	}
	if n := build(t, &Policy{Classes: []Class{{Name: "a", Meter: own}}}).Keys(own); n != (meter.TableStats{}) {
		t.Errorf("%+v before the first packet", n)
	}
}
