package dataplane

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// inherited is a new pipeline in the place of another one.
func inherited(t *testing.T, before *Pipeline, policy *Policy) (*Pipeline, []Change) {
	t.Helper()
	l := build(t, policy)
	return l, l.Inherit(before)
}

// classes are named, and pass IPv4 of a DSCP each.
func classes(names ...string) (list []Class) {
	for i, name := range names {
		list = append(list, Class{Name: name, Match: Match{DSCP: is(uint32(i))}})
	}
	return list
}

// TestInheritClasses holds that classes of a name keep their counters, wherever
// they stand.
func TestInheritClasses(t *testing.T) {
	before := build(t, &Policy{Classes: classes("a", "b", "c")})
	for i, n := range []int{100, 200, 300} {
		process(before, 5, ip(uint8(i), n))
	}
	process(before, 7, ip(9, 400))
	l, changes := inherited(t, before, &Policy{Classes: classes("new", "c", "a")})
	want := []Change{{"new", "new"}, {"c", "kept"}, {"a", "kept"}, {"b", "gone"}}
	if !slices.Equal(changes, want) {
		t.Errorf("%v, want %v", changes, want)
	}
	var bytes []int64
	for _, s := range l.Stats() {
		bytes = append(bytes, s.Total().Bytes)
	}
	if !slices.Equal(bytes, []int64{0, 300, 100, 400}) {
		t.Errorf("bytes %v", bytes)
	}
	if l.Now() != 7 {
		t.Errorf("it is %d", l.Now())
	}
	process(l, 8, ip(1, 50))
	if got, was := l.Stats()[1].Total(), before.Stats()[2].Total(); got != (Count{2, 350}) || was != (Count{1, 300}) {
		t.Errorf("counted %v, and before %v", got, was)
	}
	// The counters of what is gone are gone.
	l, changes = inherited(t, l, &Policy{Classes: classes("b")})
	if want := []Change{{"b", "new"}, {"new", "gone"}, {"c", "gone"}, {"a", "gone"}}; !slices.Equal(changes, want) || l.Stats()[0].Total() != (Count{}) {
		t.Errorf("%v, want %v; %v", changes, want, l.Stats()[0])
	}
}

// TestInheritAllCounters holds that a class keeps all that it counts.
func TestInheritAllCounters(t *testing.T) {
	r := seeded(t)
	for range 50 {
		policy := randomPolicy(r, false, anyField(r))
		before := build(t, policy)
		for i := range 100 {
			process(before, int64(i)*100*µs, randomFrame(r))
		}
		var v Verdict
		for before.Settle(math.MaxInt64, &v) {
		}
		want := slices.Clone(before.Stats())
		l, _ := inherited(t, before, policy)
		if !slices.Equal(l.Stats(), want) {
			t.Fatalf("%+v, want %+v", l.Stats(), want)
		}
	}
}

// TestInheritTokens has a packet of 400 bytes at 1 s come before, and asks for
// tokens after.
func TestInheritTokens(t *testing.T) {
	slow := meter.Rate{Bytes: 1, Period: time.Hour} // to fill nothing meanwhile
	bucket := func(burst int64) *Meter { return &Meter{Params: meter.TokenBucket{Rate: slow, Burst: burst}} }
	srtcm := func(cbs, ebs int64) *Meter { return &Meter{Params: meter.SRTCM{CIR: slow, CBS: cbs, EBS: ebs}} }
	trtcm := func(cbs, pbs int64) *Meter {
		return &Meter{Params: meter.TRTCM{CIR: slow, CBS: cbs, PIR: slow, PBS: pbs}}
	}
	with := func(m *Meter, edit func(*Meter)) *Meter { edit(m); return m }
	then := func(m, next *Meter) *Meter {
		return with(m, func(m *Meter) { m.Then = with(next, func(m *Meter) { m.Aware = true }) })
	}
	packets := func(m *Meter) *Meter { return with(m, func(m *Meter) { m.Packets = true }) }
	none := [2]int64{}
	for name, test := range map[string]struct {
		before, after *Meter
		want          [][2]int64 // along the chain
	}{
		"the same":               {bucket(1000), bucket(1000), [][2]int64{{600}}},
		"a larger burst":         {bucket(1000), bucket(5000), [][2]int64{{600}}},
		"a burst as large":       {bucket(1000), bucket(600), [][2]int64{{600}}},
		"a smaller burst":        {bucket(1000), bucket(599), [][2]int64{{599}}},
		"both buckets":           {srtcm(1000, 2000), srtcm(500, 3000), [][2]int64{{500, 2000}}},
		"srTCM to trTCM":         {srtcm(1000, 2000), trtcm(1000, 3000), [][2]int64{{600, 2000}}},
		"trTCM to srTCM":         {trtcm(1000, 2000), srtcm(700, 700), [][2]int64{{600, 700}}},
		"two buckets to one":     {srtcm(1000, 2000), bucket(900), [][2]int64{{600}}},
		"one bucket to two":      {bucket(1000), srtcm(900, 900), [][2]int64{{600, 0}}},
		"bytes to packets":       {bucket(1000), packets(bucket(7)), [][2]int64{{7}}},
		"packets to bytes":       {packets(bucket(7)), bucket(1000), [][2]int64{{1000}}},
		"packets":                {packets(bucket(7)), packets(bucket(9)), [][2]int64{{6}}},
		"a meter more":           {bucket(1000), then(bucket(1000), bucket(500)), [][2]int64{{600}, {500}}},
		"a meter less":           {then(bucket(1000), bucket(500)), bucket(1000), [][2]int64{{600}}},
		"a chain":                {then(bucket(1000), bucket(500)), then(bucket(800), bucket(400)), [][2]int64{{600}, {100}}},
		"from empty":             {with(bucket(1000), func(m *Meter) { m.Initial = Share{0, 1} }), bucket(1000), [][2]int64{{0}}},
		"to empty":               {bucket(1000), with(bucket(1000), func(m *Meter) { m.Initial = Share{0, 1} }), [][2]int64{{600}}},
		"from nothing":           {nil, bucket(1000), [][2]int64{{1000}}},
		"to nothing":             {bucket(1000), nil, nil},
		"the second of a chain":  {then(packets(bucket(5)), bucket(500)), then(bucket(1000), bucket(500)), [][2]int64{{1000}, {100}}},
		"a burst below a packet": {bucket(1000), bucket(1), [][2]int64{{1}}},
	} {
		l := build(t, &Policy{Classes: []Class{{Name: "a", Meter: test.before}}})
		process(l, 1e9, ip(0, 400))
		next, _ := inherited(t, l, &Policy{Classes: []Class{{Name: "a", Meter: test.after}}})
		m := test.after
		for i, want := range test.want {
			if tc, te := tokensOf(next, m); [2]int64{tc, te} != want {
				t.Errorf("%s: meter %d has %d and %d tokens, want %v", name, i, tc, te, want)
			}
			m = m.Then
		}
		if test.before != nil { // what was is as it was, however the new one is used
			was := func() (w [2]int64) { w[0], w[1] = tokensOf(l, test.before); return w }
			before := was()
			process(next, 1e9, ip(0, 100))
			if now := was(); now != before || now == none && test.before.Initial.Den == 0 {
				t.Errorf("%s: it takes the tokens of the one before: %v, %v", name, before, now)
			}
		}
	}
}

// TestInheritRefills holds that tokens come at the old rate until the reload,
// and at the new one from then on, to the byte.
func TestInheritRefills(t *testing.T) {
	m := func(bits int64) *Meter {
		return &Meter{Params: meter.TokenBucket{Rate: meter.BitRate(bits), Burst: 1000}}
	}
	l := build(t, &Policy{Classes: []Class{{Name: "a", Meter: m(8e6)}}})
	process(l, 0, ip(0, 1000))
	process(l, 300*µs, ip(0, 500)) // red: 300 tokens
	fast := m(80e6)
	l, _ = inherited(t, l, &Policy{Classes: []Class{{Name: "a", Meter: fast}}})
	for _, step := range []struct {
		at     int64
		n      int
		color  meter.Color
		tokens int64
	}{
		{310*µs - 1, 400, meter.Red, 399}, {310 * µs, 400, meter.Green, 0}, {410*µs - 1, 1000, meter.Red, 999}, {410 * µs, 1000, meter.Green, 0},
	} {
		v, _ := process(l, step.at, ip(0, step.n))
		if tc, _ := tokensOf(l, fast); v.Color != step.color || tc != step.tokens {
			t.Errorf("at %d: %v, %d tokens: want %v, %d", step.at, v.Color, tc, step.color, step.tokens)
		}
	}
}

// TestInheritUnused holds that a pipeline that has seen nothing leaves nothing.
func TestInheritUnused(t *testing.T) {
	policy := func(initial Share) *Policy {
		return &Policy{Classes: []Class{{Name: "a", Meter: &Meter{Initial: initial, Params: meter.TokenBucket{Rate: mega, Burst: 1000}}}}}
	}
	next := policy(Share{1, 2})
	l, changes := inherited(t, build(t, policy(Share{0, 1})), next)
	if tc, _ := tokensOf(l, next.Classes[0].Meter); tc != 500 || len(changes) != 1 || changes[0].What != "kept" {
		t.Errorf("%d tokens, %v", tc, changes)
	}
	if v, _ := process(l, 5, ip(0, 500)); v.Color != meter.Green || l.Now() != 5 {
		t.Errorf("%+v at %d", v, l.Now())
	}
}

// TestInheritShared holds what becomes of meters that classes share.
func TestInheritShared(t *testing.T) {
	m := func() *Meter {
		return &Meter{Params: meter.TokenBucket{Rate: meter.Rate{Bytes: 1, Period: time.Hour}, Burst: 1000}}
	}
	policy := func(a, b *Meter) *Policy {
		list := classes("a", "b")
		list[0].Meter, list[1].Meter = a, b
		return &Policy{Classes: list}
	}
	tokens := func(l *Pipeline, m *Meter) int64 {
		tc, _ := tokensOf(l, m)
		return tc
	}
	one, other := m(), m()
	shared, apart := policy(one, one), policy(one, other)
	run := func(p *Policy) *Pipeline {
		l := build(t, p)
		process(l, 0, ip(0, 100))
		process(l, 0, ip(1, 200))
		return l
	}
	l, _ := inherited(t, run(shared), shared)
	if got := tokens(l, one); got != 700 {
		t.Errorf("shared before and after: %d tokens, want 700", got)
	}
	l, _ = inherited(t, run(shared), apart)
	if got := [2]int64{tokens(l, one), tokens(l, other)}; got != [2]int64{700, 700} {
		t.Errorf("no more shared: %d tokens, want 700 each", got)
	}
	process(l, 0, ip(0, 300))
	if got := [2]int64{tokens(l, one), tokens(l, other)}; got != [2]int64{400, 700} {
		t.Errorf("no more shared: %d tokens, want 400 and 700", got)
	}
	l, _ = inherited(t, run(apart), shared)
	if got := tokens(l, one); got != 900 {
		t.Errorf("shared from now on: %d tokens, want those of the first class, 900", got)
	}
	// A class that is new does not decide for one that is kept.
	list := append(classes("new"), apart.Classes...)
	list[0].Match, list[0].Meter = Match{DSCP: is(9)}, other
	l, _ = inherited(t, run(apart), &Policy{Classes: list})
	if got := tokens(l, other); got != 800 {
		t.Errorf("shared with a new class: %d tokens, want 800", got)
	}
	// Nor does one whose meter cannot have it.
	packets := &Meter{Params: meter.TokenBucket{Rate: mega, Burst: 5}, Packets: true}
	l, _ = inherited(t, run(policy(packets, one)), shared)
	if got := tokens(l, one); got != 800 {
		t.Errorf("shared with a class that counted packets: %d tokens, want 800", got)
	}
	// The end of two chains.
	total := with(m(), true)
	a, b := m(), m()
	a.Then, b.Then = total, total
	l, _ = inherited(t, run(policy(a, b)), policy(a, b))
	if got := [3]int64{tokens(l, a), tokens(l, b), tokens(l, total)}; got != [3]int64{900, 800, 700} {
		t.Errorf("chains: %d tokens, want 900, 800 and 700", got)
	}
}

func with(m *Meter, aware bool) *Meter {
	m.Aware = aware
	return m
}

// TestInheritQueues holds that queues of a name are free when they would have
// been: what waits, waits, and those behind it leave in its wake.
func TestInheritQueues(t *testing.T) {
	config := queue.Config{Rate: mega, Bytes: 3000}
	policy := func(name string, edit func(*queue.Config)) *Policy {
		c := config
		edit(&c)
		to := &Action{Queue: &Queue{Name: name, Config: c}}
		return &Policy{Classes: []Class{{Name: "a", Green: to}}}
	}
	same := func(*queue.Config) {}
	for name, test := range map[string]struct {
		after *Policy
		// Of four packets of 1000 bytes, after two: departures, 0 for dropped.
		want [4]int64
	}{
		"the same":        {policy("q", same), [4]int64{2000 * µs, 3000 * µs, 0, 0}},
		"another name":    {policy("p", same), [4]int64{0, 1000 * µs, 2000 * µs, 3000 * µs}},
		"another rate":    {policy("q", func(c *queue.Config) { c.Rate = meter.BitRate(80e6) }), [4]int64{2000 * µs, 2100 * µs, 2200 * µs, 0}},
		"another limit":   {policy("q", func(c *queue.Config) { c.Bytes = 1000 }), [4]int64{2000 * µs, 0, 0, 0}},
		"a limit in time": {policy("q", func(c *queue.Config) { c.Bytes, c.Time = 0, 3*time.Millisecond }), [4]int64{2000 * µs, 3000 * µs, 0, 0}},
		"a shorter one":   {policy("q", func(c *queue.Config) { c.Bytes, c.Time = 0, time.Millisecond }), [4]int64{0, 0, 0, 0}},
		"early drop":      {policy("q", func(c *queue.Config) { c.WRED[meter.Green] = queue.Early{Min: 1, Max: 1500, Probability: 1} }), [4]int64{2000 * µs, 3000 * µs, 0, 0}},
	} {
		before := policy("q", same)
		l := build(t, before)
		for i, want := range []int64{0, 1000 * µs} {
			if v, _ := process(l, 0, ip(0, 1000)); v.Departure != want {
				t.Fatalf("packet %d leaves at %d, want %d", i, v.Departure, want)
			}
		}
		l, _ = inherited(t, l, test.after)
		for i, want := range test.want {
			v, _ := process(l, 0, ip(0, 1000))
			if v.Done.Dropped() != (want == 0 && (name != "another name" || i > 0)) || v.Departure != want {
				t.Errorf("%s: packet %d: %s, want it at %d", name, i, verdict(test.after, v), want)
			}
		}
	}
}

// TestInheritQueueState holds that a queue of the same configuration goes on
// with all that it knows: what waits, its random numbers, CoDel.
func TestInheritQueueState(t *testing.T) {
	r := seeded(t)
	for range 20 {
		c := queue.Config{
			Rate: mega, Bytes: 20_000, Packets: 30, Seed: r.Uint64(),
			WRED:  [3]queue.Early{{Min: 1000, Max: 15_000, Probability: queue.Certain / 4}},
			CoDel: queue.CoDel{Target: 2 * time.Millisecond, Interval: 10 * time.Millisecond},
		}
		policy := func() *Policy {
			return &Policy{Classes: []Class{{Name: "a", Green: &Action{Queue: &Queue{Name: "q", Config: c}}}}}
		}
		one, other := build(t, policy()), build(t, policy())
		at := int64(0)
		for i := range 500 {
			if r.IntN(20) == 0 {
				other, _ = inherited(t, other, policy())
			}
			frame := ip(0, 100+r.IntN(1400))
			at += r.Int64N(1400 * µs)
			want, _ := process(one, at, frame)
			if got, _ := process(other, at, frame); got != want {
				t.Fatalf("packet %d: %+v, want %+v", i, got, want)
			}
		}
	}
}

// TestInheritLinks holds that links of a name are free when they would have
// been, after all that waits has its departure.
func TestInheritLinks(t *testing.T) {
	policy := func(name string, rate meter.Rate, queues ...string) *Policy {
		link := &Link{Name: name, Rate: rate}
		list := classes(queues...)
		for i, q := range queues {
			list[i].Green = &Action{Queue: &Queue{Name: q, Config: queue.Config{Packets: 2}, Link: link, Priority: i}}
		}
		return &Policy{Classes: list}
	}
	for name, test := range map[string]struct {
		after *Policy
		// Of three packets of class b, then one of a, each of 1000 bytes.
		want string
	}{
		"the same":      {policy("wan", mega, "a", "b"), "3000000 3 4000000 0 5000000 1"},
		"another rate":  {policy("wan", meter.BitRate(80e6), "a", "b"), "3000000 3 3100000 0 3200000 1"},
		"another name":  {policy("lan", mega, "a", "b"), "0 0 1000000 3 2000000 1 3000000 2"},
		"other queues":  {policy("wan", mega, "x", "y"), "3000000 3 4000000 0 5000000 1"},
		"queues less":   {policy("wan", mega, "b"), "3000000 0 4000000 1"},
		"queues of own": {&Policy{Classes: []Class{{Name: "a", Green: &Action{Queue: &Queue{Name: "b", Config: queue.Config{Rate: mega, Time: time.Second}}}}}}, "0 0 1000000 1 2000000 2 3000000 3"},
	} {
		before := policy("wan", mega, "a", "b")
		l := build(t, before)
		for range 3 {
			process(l, 0, ip(1, 1000))
		}
		var v Verdict
		last := int64(0)
		for l.Settle(math.MaxInt64, &v) {
			last = v.Departure
		}
		if last != 2000*µs {
			t.Fatalf("the last leaves at %d", last)
		}
		next, _ := inherited(t, l, test.after)
		got := ""
		note := func(v Verdict) {
			if !v.Done.Dropped() {
				got += fmt.Sprintf(" %d %d", v.Departure, v.ID)
			}
		}
		for i, dscp := range []uint8{1, 1, 1, 0} {
			if len(test.after.Classes) == 1 {
				dscp = 0
			}
			p := Packet{Data: ip(dscp, 1000), Link: LinkEthernet, ID: int64(i)}
			if v := verdictOf(next, &p); v.Done&Waiting == 0 {
				note(v)
			}
		}
		for next.Settle(math.MaxInt64, &v) {
			note(v)
		}
		if got != " "+test.want {
			t.Errorf("%s: departures and packets%s, want %s", name, got, test.want)
		}
	}
}

// TestInheritUnnamed holds that queues and links that share a name, such as none
// at all, stay apart: only policy files see to it that names are different.
func TestInheritUnnamed(t *testing.T) {
	policy := func() *Policy {
		list := classes("a", "b", "c", "d")
		for i := range list[:2] {
			list[i].Green = &Action{Queue: &Queue{Config: queue.Config{Rate: mega, Time: time.Second}}}
		}
		for i := range list[2:] {
			list[2+i].Green = &Action{Queue: &Queue{Config: queue.Config{Packets: 9}, Link: &Link{Rate: mega}}}
		}
		return &Policy{Classes: list}
	}
	l, _ := inherited(t, build(t, policy()), policy())
	for dscp := range uint8(4) {
		v, _ := process(l, 0, ip(dscp, 1000))
		if v.Done&Waiting != 0 && !l.Settle(0, &v) {
			t.Errorf("queue %d: waits, want it to leave at once", dscp)
		}
		if v.Departure != 0 {
			t.Errorf("queue %d: %d, want it to leave at once", dscp, v.Departure)
		}
	}
}

// TestTokensBeginNoClock holds that a meter begins with its first packet, whoever
// looked at it before.
func TestTokensBeginNoClock(t *testing.T) {
	for name, m := range map[string]*Meter{
		"one":  {Params: meter.TokenBucket{Rate: mega, Burst: 1000}, Initial: Share{0, 1}},
		"keys": {Params: meter.TokenBucket{Rate: mega, Burst: 1000}, Initial: Share{0, 1}, Per: Key{By: ByVLAN}, Keys: 1},
		"wide": {Params: meter.SRTCM{CIR: mega, CBS: 1000, EBS: 1 << 59}, Initial: Share{0, 1}},
	} {
		l := build(t, &Policy{Classes: []Class{
			{Name: "other", Match: Match{DSCP: []Range{{46, 46}}}},
			{Name: "a", Meter: m},
		}})
		for _, now := range []int64{-1, 1e9, 2e9} { // none yet, then those of other packets
			if now >= 0 {
				process(l, now, ip(46, 100))
			}
			if tc, _ := tokensOf(l, m); tc != 0 {
				t.Errorf("%s: %d tokens at %d", name, tc, now)
			}
		}
		if v, _ := process(l, 3e9, ip(0, 20)); v.Color == meter.Green {
			t.Errorf("%s: its first packet is %v", name, v.Color)
		}
		if tc, _ := tokensOf(l, m); tc != 0 {
			t.Errorf("%s: %d tokens left", name, tc)
		}
		process(l, 3e9+500_000, ip(46, 100))
		if tc, _ := tokensOf(l, m); tc != 500 {
			t.Errorf("%s: %d tokens half a ms later", name, tc)
		}
	}
}
