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

// TestFlowOfFragments holds that all fragments of a packet have one budget, which
// that of whole packets of the same addresses and protocol with ports is not.
func TestFlowOfFragments(t *testing.T) {
	inFragments := func(offsets ...uint16) [][]byte { // in units of 8 bytes; the last says that no more follow
		var out [][]byte
		for i, offset := range offsets {
			frag := offset | 0x2000
			if i == len(offsets)-1 {
				frag = offset
			}
			out = append(out, v4{proto: protoUDP, frag: frag}.packet(udp))
		}
		return out
	}
	behind := func(first []byte, next byte) [][]byte { // an IPv6 packet whose fragment header names next
		return [][]byte{
			v6{next: 44}.packet(fragment(next, 0), first),
			v6{next: 44}.packet(fragment(next, 7), udp),
			v6{next: 44}.packet(patch(fragment(next, 9), 3, 9<<3), udp),
		}
	}
	for name, packets := range map[string][][]byte{
		"IPv4":                          inFragments(0, 1, 185),
		"IPv4, in any order":            {inFragments(0, 1)[1], inFragments(0, 1)[0]},
		"IPv6":                          behind(udp, protoUDP),
		"IPv6, more extension headers":  behind(cat(extension(protoUDP, 8), udp), 60),
		"IPv6, extension headers apart": {v6{next: 0}.packet(extension(44, 8), fragment(60, 0), extension(protoUDP, 8), udp), behind(udp, 60)[1]},
	} {
		m := &Meter{Params: meter.TokenBucket{Rate: meter.ByteRate(1), Burst: 1}, Packets: true, Per: Key{By: ByFlow}}
		l := build(t, &Policy{Classes: []Class{{Name: "a", Meter: m}}})
		for i, data := range packets {
			var v Verdict
			l.Process(&Packet{Data: data, Link: LinkRaw}, &v)
			if want := i > 0; v.Done.Dropped() != want {
				t.Errorf("%s: fragment %d, dropped: %v", name, i, !want)
			}
		}
		var v Verdict
		whole := v4{proto: protoUDP}.packet(udp)
		if packets[0][0]>>4 == 6 {
			whole = v6{next: protoUDP}.packet(udp)
		}
		if l.Process(&Packet{Data: whole, Link: LinkRaw}, &v); v.Done.Dropped() {
			t.Errorf("%s: a whole packet of the ports is of the same flow", name)
		}
	}
	// A match by port takes the first fragment all the same.
	l := build(t, &Policy{Classes: []Class{{Name: "port", Match: Match{DPort: []Range{{2000, 2000}}}}, {Name: "rest"}}})
	for i, data := range inFragments(0, 1) {
		var v Verdict
		if l.Process(&Packet{Data: data, Link: LinkRaw}, &v); int(v.Class) != i {
			t.Errorf("fragment %d is taken by class %d", i, v.Class)
		}
	}
}

// TestInheritApart holds that two meters which were one do not share what they
// keep of it: a log, or a table of keys.
func TestInheritApart(t *testing.T) {
	for name, m := range map[string]Meter{
		"log":    {Params: meter.SlidingLog{Limit: 1000, Window: time.Second, Entries: 100}},
		"slots":  {Params: meter.SlidingWindow{Limit: 1000, Window: time.Second, Slots: 10}},
		"keys":   {Params: meter.TokenBucket{Rate: meter.ByteRate(1), Burst: 1000}, Per: Key{By: BySrc}},
		"bucket": {Params: meter.TokenBucket{Rate: meter.ByteRate(1), Burst: 1000}},
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
		m := &Meter{Params: meter.TokenBucket{Rate: meter.ByteRate(1), Burst: burst}, Per: Key{By: BySrc}, Keys: keys}
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
	if n := same.Keys(0); n.Keys != 1 {
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
	params := meter.TokenBucket{Rate: meter.ByteRate(1), Burst: 1000}
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
			if tc, te := tokensOf(l, m); tc != 0 || te != 0 {
				t.Errorf("%s: %d and %d tokens", name, tc, te)
			}
			if n := l.Keys(l.plan.Stage(m)); n != (meter.TableStats{}) {
				t.Errorf("%s: %+v", name, n)
			}
		}
	}
	if n := build(t, &Policy{Classes: []Class{{Name: "a", Meter: own}}}).Keys(0); n != (meter.TableStats{}) {
		t.Errorf("%+v before the first packet", n)
	}
}
