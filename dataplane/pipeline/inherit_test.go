package pipeline

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// inherited returns a pipeline for a policy that inherits from another one.
func inherited(t *testing.T, before *Pipeline, policy *dataplane.Policy) (*Pipeline, []compiled.ClassChange) {
	t.Helper()
	l := newPipeline(t, policy)
	return l, l.Inherit(before)
}

// classes returns classes with names: the first for DSCP 0, the next for DSCP 1, and so on.
func classes(names ...string) (list []dataplane.Class) {
	for i, name := range names {
		list = append(list,
			dataplane.Class{Name: name, Match: dataplane.Match{DSCP: frametest.Values(uint32(i))}})
	}
	return list
}

// TestInheritClasses checks that classes keep their counters by name, at any position.
func TestInheritClasses(t *testing.T) {
	before := newPipeline(t, &dataplane.Policy{Classes: classes("a", "b", "c")})
	for i, n := range []int{100, 200, 300} {
		process(before, 5, ipPacket(uint8(i), n))
	}
	process(before, 7, ipPacket(9, 400))
	l, changes := inherited(t, before, &dataplane.Policy{Classes: classes("new", "c", "a")})
	want := []compiled.ClassChange{
		{Class: "new", Effect: "new"},
		{Class: "c", Effect: "kept"},
		{Class: "a", Effect: "kept"},
		{Class: "b", Effect: "gone"},
	}
	if !slices.Equal(changes, want) {
		t.Errorf("changes %v, want %v", changes, want)
	}
	var bytes []int64
	for _, s := range l.Stats() {
		bytes = append(bytes, s.Total().Bytes)
	}
	if !slices.Equal(bytes, []int64{0, 300, 100, 400}) {
		t.Errorf("bytes by class %v, want 0, 300, 100, 400", bytes)
	}
	if l.Now() != 7 {
		t.Errorf("the clock is %d, want 7", l.Now())
	}
	process(l, 8, ipPacket(1, 50))
	if got, was := l.Stats()[1].Total(), before.Stats()[2].Total(); got != (dataplane.Count{
		Packets: 2, Bytes: 350,
	}) || was != (dataplane.Count{Packets: 1, Bytes: 300}) {
		t.Errorf("counted %v, and %v in the old pipeline; want 350 and 300 bytes", got, was)
	}
	// A class that returns starts with zero counters.
	l, changes = inherited(t, l, &dataplane.Policy{Classes: classes("b")})
	if want := []compiled.ClassChange{
		{Class: "b", Effect: "new"},
		{Class: "new", Effect: "gone"},
		{Class: "c", Effect: "gone"},
		{Class: "a", Effect: "gone"},
	}; !slices.Equal(changes, want) ||
		l.Stats()[0].Total() != (dataplane.Count{}) {
		t.Errorf("changes %v, want %v; counters %v", changes, want, l.Stats()[0])
	}
}

// TestInheritAllCounters checks that a class keeps all of its counters.
func TestInheritAllCounters(t *testing.T) {
	r := frametest.Seeded(t)
	for range 50 {
		policy := frametest.RandomPolicy(r, false, frametest.AnyField(r))
		before := newPipeline(t, policy)
		for i := range 100 {
			process(before, int64(i)*100*µs, frametest.RandomFrame(r))
		}
		var v dataplane.Verdict
		for before.Settle(math.MaxInt64, &v) {
		}
		want := slices.Clone(before.Stats())
		l, _ := inherited(t, before, policy)
		if !slices.Equal(l.Stats(), want) {
			t.Fatalf("counters %+v, want %+v", l.Stats(), want)
		}
	}
}

// TestInheritTokens meters a packet of 400 bytes at 1 s, and checks the tokens of the new
// pipeline.
func TestInheritTokens(t *testing.T) {
	slow := meter.Rate{Bytes: 1, Period: time.Hour} // adds no token during the test
	bucket := func(burst int64) *dataplane.Meter {
		return &dataplane.Meter{Params: meter.TokenBucket{Rate: slow, Burst: burst}}
	}
	srtcm := func(cbs, ebs int64) *dataplane.Meter {
		return &dataplane.Meter{Params: meter.SRTCM{CIR: slow, CBS: cbs, EBS: ebs}}
	}
	trtcm := func(cbs, pbs int64) *dataplane.Meter {
		return &dataplane.Meter{Params: meter.TRTCM{CIR: slow, CBS: cbs, PIR: slow, PBS: pbs}}
	}
	with := func(m *dataplane.Meter, edit func(*dataplane.Meter)) *dataplane.Meter { edit(m); return m }
	then := func(m, next *dataplane.Meter) *dataplane.Meter {
		return with(m,
			func(m *dataplane.Meter) { m.Then = with(next, func(m *dataplane.Meter) { m.Aware = true }) })
	}
	packets := func(m *dataplane.Meter) *dataplane.Meter {
		return with(m, func(m *dataplane.Meter) { m.Packets = true })
	}
	none := [2]int64{}
	for name, test := range map[string]struct {
		before, after *dataplane.Meter
		want          [][2]int64 // along the chain
	}{
		"same meter":           {bucket(1000), bucket(1000), [][2]int64{{600}}},
		"larger burst":         {bucket(1000), bucket(5000), [][2]int64{{600}}},
		"burst of the tokens":  {bucket(1000), bucket(600), [][2]int64{{600}}},
		"smaller burst":        {bucket(1000), bucket(599), [][2]int64{{599}}},
		"both buckets":         {srtcm(1000, 2000), srtcm(500, 3000), [][2]int64{{500, 2000}}},
		"srTCM to trTCM":       {srtcm(1000, 2000), trtcm(1000, 3000), [][2]int64{{600, 2000}}},
		"trTCM to srTCM":       {trtcm(1000, 2000), srtcm(700, 700), [][2]int64{{600, 700}}},
		"two buckets to one":   {srtcm(1000, 2000), bucket(900), [][2]int64{{600}}},
		"one bucket to two":    {bucket(1000), srtcm(900, 900), [][2]int64{{600, 0}}},
		"bytes to packets":     {bucket(1000), packets(bucket(7)), [][2]int64{{7}}},
		"packets to bytes":     {packets(bucket(7)), bucket(1000), [][2]int64{{1000}}},
		"packets":              {packets(bucket(7)), packets(bucket(9)), [][2]int64{{6}}},
		"added meter":          {bucket(1000), then(bucket(1000), bucket(500)), [][2]int64{{600}, {500}}},
		"removed meter":        {then(bucket(1000), bucket(500)), bucket(1000), [][2]int64{{600}}},
		"chain":                {then(bucket(1000), bucket(500)), then(bucket(800), bucket(400)), [][2]int64{{600}, {100}}},
		"from empty":           {with(bucket(1000), func(m *dataplane.Meter) { m.Initial = dataplane.Fraction{Num: 0, Den: 1} }), bucket(1000), [][2]int64{{0}}},
		"to empty":             {bucket(1000), with(bucket(1000), func(m *dataplane.Meter) { m.Initial = dataplane.Fraction{Num: 0, Den: 1} }), [][2]int64{{600}}},
		"from no meter":        {nil, bucket(1000), [][2]int64{{1000}}},
		"to no meter":          {bucket(1000), nil, nil},
		"second of a chain":    {then(packets(bucket(5)), bucket(500)), then(bucket(1000), bucket(500)), [][2]int64{{1000}, {100}}},
		"burst below a packet": {bucket(1000), bucket(1), [][2]int64{{1}}},
	} {
		l := newPipeline(t, &dataplane.Policy{Classes: []dataplane.Class{{Name: "a", Meter: test.before}}})
		process(l, 1e9, ipPacket(0, 400))
		next, _ := inherited(t, l,
			&dataplane.Policy{Classes: []dataplane.Class{{Name: "a", Meter: test.after}}})
		m := test.after
		for i, want := range test.want {
			if tc, te := tokensOf(next, m); [2]int64{tc, te} != want {
				t.Errorf("%s: meter %d has %d and %d tokens, want %v", name, i, tc, te, want)
			}
			m = m.Then
		}
		if test.before != nil { // the new pipeline must not change the old one
			was := func() (w [2]int64) { w[0], w[1] = tokensOf(l, test.before); return w }
			before := was()
			process(next, 1e9, ipPacket(0, 100))
			if now := was(); now != before || now == none && test.before.Initial.Den == 0 {
				t.Errorf("%s: got %v tokens in the old pipeline, want %v, unchanged and known", name, now,
					before)
			}
		}
	}
}

// TestInheritRefills checks that tokens arrive at the old rate until the reload and at the
// new rate from then on, exactly.
func TestInheritRefills(t *testing.T) {
	m := func(bits int64) *dataplane.Meter {
		return &dataplane.Meter{Params: meter.TokenBucket{Rate: meter.BitRate(bits), Burst: 1000}}
	}
	l := newPipeline(t, &dataplane.Policy{Classes: []dataplane.Class{{Name: "a", Meter: m(8e6)}}})
	process(l, 0, ipPacket(0, 1000))
	process(l, 300*µs, ipPacket(0, 500)) // red, with 300 tokens
	fast := m(80e6)
	l, _ = inherited(t, l, &dataplane.Policy{Classes: []dataplane.Class{{Name: "a", Meter: fast}}})
	for _, step := range []struct {
		at     int64
		n      int
		color  meter.Color
		tokens int64
	}{
		{310*µs - 1, 400, meter.Red, 399}, {310 * µs, 400, meter.Green, 0}, {410*µs - 1, 1000, meter.Red, 999}, {410 * µs, 1000, meter.Green, 0},
	} {
		v, _ := process(l, step.at, ipPacket(0, step.n))
		if tc, _ := tokensOf(l, fast); v.Color != step.color || tc != step.tokens {
			t.Errorf("at %d: %v with %d tokens left, want %v with %d", step.at, v.Color, tc, step.color,
				step.tokens)
		}
	}
}

// TestInheritUnused checks that a pipeline without packets passes no tokens on.
func TestInheritUnused(t *testing.T) {
	policy := func(initial dataplane.Fraction) *dataplane.Policy {
		return &dataplane.Policy{Classes: []dataplane.Class{{Name: "a", Meter: &dataplane.Meter{
			Initial: initial, Params: meter.TokenBucket{Rate: frametest.Mega, Burst: 1000},
		}}}}
	}
	next := policy(dataplane.Fraction{Num: 1, Den: 2})
	l, changes := inherited(t, newPipeline(t, policy(dataplane.Fraction{Num: 0, Den: 1})), next)
	if tc, _ := tokensOf(l, next.Classes[0].Meter); tc != 500 || len(changes) != 1 ||
		changes[0].Effect != "kept" {
		t.Errorf("got %d tokens, changes %v; want 500 and a kept class", tc, changes)
	}
	if v, _ := process(l, 5, ipPacket(0, 500)); v.Color != meter.Green || l.Now() != 5 {
		t.Errorf("verdict %+v at %d, want green at 5", v, l.Now())
	}
}

// TestInheritShared checks meters that several classes share, before or after the reload.
func TestInheritShared(t *testing.T) {
	m := func() *dataplane.Meter {
		return &dataplane.Meter{
			Params: meter.TokenBucket{Rate: meter.Rate{Bytes: 1, Period: time.Hour}, Burst: 1000},
		}
	}
	policy := func(a, b *dataplane.Meter) *dataplane.Policy {
		list := classes("a", "b")
		list[0].Meter, list[1].Meter = a, b
		return &dataplane.Policy{Classes: list}
	}
	tokens := func(l *Pipeline, m *dataplane.Meter) int64 {
		tc, _ := tokensOf(l, m)
		return tc
	}
	one, other := m(), m()
	shared, separate := policy(one, one), policy(one, other)
	run := func(p *dataplane.Policy) *Pipeline {
		l := newPipeline(t, p)
		process(l, 0, ipPacket(0, 100))
		process(l, 0, ipPacket(1, 200))
		return l
	}
	l, _ := inherited(t, run(shared), shared)
	if got := tokens(l, one); got != 700 {
		t.Errorf("shared before and after: got %d tokens, want 700", got)
	}
	l, _ = inherited(t, run(shared), separate)
	if got := [2]int64{tokens(l, one), tokens(l, other)}; got != [2]int64{700, 700} {
		t.Errorf("shared before: got %d tokens, want 700 each", got)
	}
	process(l, 0, ipPacket(0, 300))
	if got := [2]int64{tokens(l, one), tokens(l, other)}; got != [2]int64{400, 700} {
		t.Errorf("shared before: got %d tokens, want 400 and 700", got)
	}
	l, _ = inherited(t, run(separate), shared)
	if got := tokens(l, one); got != 900 {
		t.Errorf("shared after: got %d tokens, want those of the first class, 900", got)
	}
	// A new class does not determine the tokens of a kept one.
	list := append(classes("new"), separate.Classes...)
	list[0].Match, list[0].Meter = dataplane.Match{DSCP: frametest.Values(9)}, other
	l, _ = inherited(t, run(separate), &dataplane.Policy{Classes: list})
	if got := tokens(l, other); got != 800 {
		t.Errorf("shared with a new class: got %d tokens, want 800", got)
	}
	// Nor does a class whose old meter has another unit.
	packets := &dataplane.Meter{Params: meter.TokenBucket{Rate: frametest.Mega, Burst: 5}, Packets: true}
	l, _ = inherited(t, run(policy(packets, one)), shared)
	if got := tokens(l, one); got != 800 {
		t.Errorf("shared with a class that counted packets: got %d tokens, want 800", got)
	}
	// The common end of two chains.
	total := chained(m(), true)
	a, b := m(), m()
	a.Then, b.Then = total, total
	l, _ = inherited(t, run(policy(a, b)), policy(a, b))
	if got := [3]int64{tokens(l, a), tokens(l, b), tokens(l, total)}; got != [3]int64{900, 800, 700} {
		t.Errorf("chains: got %d tokens, want 900, 800 and 700", got)
	}
}

// chained sets Aware.
func chained(m *dataplane.Meter, aware bool) *dataplane.Meter {
	m.Aware = aware
	return m
}

// TestTokensStartNoClock checks that the first packet starts the clock of a meter, not an
// earlier call of Tokens.
func TestTokensStartNoClock(t *testing.T) {
	for name, m := range map[string]*dataplane.Meter{
		"one":  {Params: meter.TokenBucket{Rate: frametest.Mega, Burst: 1000}, Initial: dataplane.Fraction{Num: 0, Den: 1}},
		"keys": {Params: meter.TokenBucket{Rate: frametest.Mega, Burst: 1000}, Initial: dataplane.Fraction{Num: 0, Den: 1}, Per: dataplane.Key{By: dataplane.ByVLAN}, Keys: 1},
		"wide": {Params: meter.SRTCM{CIR: frametest.Mega, CBS: 1000, EBS: 1 << 59}, Initial: dataplane.Fraction{Num: 0, Den: 1}},
	} {
		l := newPipeline(t, &dataplane.Policy{Classes: []dataplane.Class{
			{Name: "other", Match: dataplane.Match{DSCP: []dataplane.Range{{First: 46, Last: 46}}}},
			{Name: "a", Meter: m},
		}})
		for _, now := range []int64{-1, 1e9, 2e9} { // before any packet, then after packets of another class
			if now >= 0 {
				process(l, now, ipPacket(46, 100))
			}
			if tc, _ := tokensOf(l, m); tc != 0 {
				t.Errorf("%s: got %d tokens at %d, want none", name, tc, now)
			}
		}
		if v, _ := process(l, 3e9, ipPacket(0, 20)); v.Color == meter.Green {
			t.Errorf("%s: the first packet is %v, want yellow or red", name, v.Color)
		}
		if tc, _ := tokensOf(l, m); tc != 0 {
			t.Errorf("%s: got %d tokens after the first packet, want none", name, tc)
		}
		process(l, 3e9+500_000, ipPacket(46, 100))
		if tc, _ := tokensOf(l, m); tc != 500 {
			t.Errorf("%s: got %d tokens after 0.5 ms, want 500", name, tc)
		}
	}
}

// TestInheritBetweenKinds checks the tokens of a meter that continues one with another kind of
// state, and that a bucket of the same kind keeps fractions of a token.
func TestInheritBetweenKinds(t *testing.T) {
	bucket := meter.TokenBucket{Rate: frametest.Mega, Burst: 1000}
	profile, err := bucket.Profile()
	if err != nil {
		t.Fatal(err)
	}
	own := func() *dataplane.Meter { return &dataplane.Meter{Params: bucket} }
	shared := func() *dataplane.Meter {
		return &dataplane.Meter{Params: bucket, Budget: &dataplane.Budget{Name: "b"}}
	}
	keyed := func() *dataplane.Meter {
		return &dataplane.Meter{Params: bucket, Per: dataplane.Key{By: dataplane.ByVLAN}}
	}
	leased := func() *dataplane.Meter {
		return &dataplane.Meter{
			Params: bucket, Budget: &dataplane.Budget{Name: "b", Address: frametest.Server},
		}
	}
	share := func(l *Pipeline, m *dataplane.Meter) *outsideMeter {
		outside := &outsideMeter{meter.New(profile)}
		if m.Budget != nil && m.Budget.OnHost() {
			l.ReplaceMeter(0, outside)
		}
		return outside
	}
	for name, test := range map[string]struct {
		before, after *dataplane.Meter
		tokens        int64 // 1 µs after 400 bytes and half a microsecond more
		half          int64 // whole tokens at half a microsecond
	}{
		"own":            {own(), own(), 601, 600},
		"shared to own":  {shared(), own(), 600, 600}, // 600.5 tokens are read as 600
		"keyed to own":   {keyed(), own(), 600, 600},
		"own to keyed":   {own(), keyed(), 1000, 1000},
		"own to shared":  {own(), shared(), 1000, 1000},
		"own to leased":  {own(), leased(), 0, 0},
		"leased to own":  {leased(), own(), 0, 0},
		"keyed to keyed": {keyed(), keyed(), 601, 600},

		"shared to keyed": {shared(), keyed(), 1000, 1000},

		// Both budgets have the same name, and different stores.
		"shared to leased": {shared(), leased(), 0, 0},
		"leased to shared": {leased(), shared(), 1000, 1000},
	} {
		l := newPipeline(t, &dataplane.Policy{Classes: []dataplane.Class{{Name: "a", Meter: test.before}}})
		share(l, test.before)
		process(l, 0, ipPacket(0, 400))
		process(l, µs/2, ipPacket(9, 1001)) // red; moves the clock
		next := newPipeline(t, &dataplane.Policy{Classes: []dataplane.Class{{Name: "a", Meter: test.after}}})
		outside := share(next, test.after)
		unchanged := outside.Clone()
		next.Inherit(l)
		if outside.Meter != unchanged {
			t.Errorf("%s: the reload changed the state of the shared meter", name)
		}
		if tc, _ := next.Tokens(0); tc != test.half {
			t.Errorf("%s: got %d tokens after the reload, want %d", name, tc, test.half)
		}
		process(next, µs, ipPacket(0, 1001))
		if tc, _ := next.Tokens(0); tc != test.tokens {
			t.Errorf("%s: got %d tokens half a microsecond later, want %d", name, tc, test.tokens)
		}
	}
}
