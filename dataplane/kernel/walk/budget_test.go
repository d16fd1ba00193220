package walk

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/registry"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// budgetSlot is a slot in the middle of the maps.
const budgetSlot = 1234

// hostMaps creates the maps of budgets as the first shaper of a host does. No other process
// sees them.
func hostMaps(t testing.TB) (maps [2]*ebpf.Map) {
	t.Helper()
	spec, err := engine.ShaperSpec()
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range engine.BudgetMaps {
		spec.Maps[name].MaxEntries = registry.MaxBudgets
		if maps[i], err = ebpf.NewMap(spec.Maps[name]); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { maps[i].Close() })
	}
	return maps
}

// newBudgeted loads the program of a hook. Its first meter is the budget in budgetSlot.
func newBudgeted(
	t testing.TB, m *dataplane.Meter, hook image.Entry, maps [2]*ebpf.Map, handed uint8,
) *hooked {
	t.Helper()
	return newBudgetedBy(t, m, hook, maps, handed, func(*image.Image) {})
}

// newBudgetedBy is newBudgeted for a chain of meters, all of which are the budget. change changes the image.
func newBudgetedBy(
	t testing.TB, m *dataplane.Meter, hook image.Entry, maps [2]*ebpf.Map, handed uint8,
	change func(*image.Image),
) *hooked {
	t.Helper()
	policy := &dataplane.Policy{
		Length: dataplane.LengthRule{Overhead: -20}, Classes: []dataplane.Class{{Name: "all", Meter: m}},
	}
	g, err := encodePolicy(policy, hook, "")
	if err != nil {
		t.Fatal(err)
	}
	h := &hooked{
		Walker: Walker{image: g, batch: 1, now: math.MinInt64}, hook: hook, room: make([]byte, 1<<17),
	}
	t.Cleanup(h.Close)
	h.image.Constants.Handed, h.image.Constants.Link, h.image.Constants.Elsewhere = handed,
		uint8(dataplane.LinkEthernet), 1
	for i := range h.image.Stages {
		h.image.Stages[i].Table, h.image.Stages[i].Slot = record.StoreShared, budgetSlot
	}
	change(h.image)
	h.maps, err = image.NewMaps()
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range [2]**ebpf.Map{&h.maps.Budgets, &h.maps.Locks} {
		(*m).Close()
		if *m, err = maps[i].Clone(); err != nil {
			t.Fatal(err)
		}
	}
	h.image.Inherit(&record.About{}, nil)
	if err := h.image.Initialize(h.maps); err != nil {
		t.Fatal(err)
	}
	spec, err := engine.ShaperSpec()
	if err != nil {
		t.Fatal(err)
	}
	if h.loaded, err = h.image.LoadProgram(spec, image.Programs[hook], h.maps.ByName()); err != nil {
		t.Fatal(err)
	}
	h.program = h.loaded.Programs[image.Programs[hook]]
	return h
}

// beginBudget gives the budget a new meter.
func beginBudget(t testing.TB, maps [2]*ebpf.Map, m *dataplane.Meter) *bpf.ShaperProfile {
	t.Helper()
	s := onlyStage(t, m)
	p, err := engine.ProfileOf(s)
	if err != nil {
		t.Fatal(err)
	}
	g := &registry.Claim{
		Request: &registry.Request{Budget: registry.Budget{Profile: p}},
		Record:  &registry.Budget{Slot: budgetSlot},
	}
	if err := (&registry.Claims{
		Locked: &registry.Locked{Opened: maps},
	}).WriteInitialState(g, 0, engine.InitialLevels(s, &p).UnstartedState(&p)); err != nil {
		t.Fatal(err)
	}
	return &p
}

// TestBudgetOneTruth meters packets by one budget at egress, at XDP and in user space, in
// random order, and compares every color with one meter in exact arithmetic.
func TestBudgetOneTruth(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	r := kerneltest.Seeded(t)
	maps := hostMaps(t)
	aware := &dataplane.Meter{
		Params: meter.TokenBucket{Rate: meter.BitRate(8), Burst: 1}, Aware: true, PreColor: dscpColors,
	}
	hooks := []*hooked{newBudgeted(t, aware, image.EgressEntry, maps, 1)}
	if !kerneltest.InVM { // loading a program takes seconds
		hooks = append(hooks, newBudgeted(t, aware, image.XdpEntry, maps, 1))
	}
	j, err := engine.OpenBudgets(maps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.Close)
	user := j.Meter(budgetSlot, 0)
	ways := []func(now int64, n int, in meter.Color) meter.Color{
		user.Color,
		func(now int64, n int, in meter.Color) meter.Color {
			return user.ColorByProgram(uint64(now), uint32(n), in)
		},
	}
	for _, h := range hooks {
		ways = append(ways, func(now int64, n int, in meter.Color) meter.Color {
			var v dataplane.Verdict
			p := framed(in, n, now)
			if err := h.run(&p, &v, skb{}); err != nil {
				t.Fatal(err)
			}
			return v.Color
		})
	}
	var seen [7][3]int
	complete := func() bool {
		for kind, colors := range seen {
			for c, n := range colors {
				if n < kerneltest.Rounds(100) && (c != int(meter.Yellow) || kind < 5) {
					return false
				}
			}
		}
		return true
	}
	for k := 0; k < kerneltest.Rounds(700) || !complete(); k++ {
		if k == kerneltest.Rounds(70_000) {
			t.Fatalf("packets by kind and color %v, want at least %d of each", seen, kerneltest.Rounds(100))
		}
		kind := k % 7
		m := anyMeter(r, min(kind, 4))
		if kind >= 5 {
			m.Params = anyWindow(r, kind == 5)
		}
		p := beginBudget(t, maps, m)
		for _, h := range hooks {
			h.now = math.MinInt64
		}
		budgetStream(t, r, m, p, user, ways, &seen[kind])
		if t.Failed() {
			t.Fatalf("meter %T%+v initial %v", m.Params, m.Params, m.Initial)
		}
	}
	t.Logf("packets by kind and color %v", seen)
}

// budgetStream meters packets by a budget, each in a random one of the ways.
func budgetStream(
	t *testing.T, r *rand.Rand, m *dataplane.Meter, p *bpf.ShaperProfile, user *engine.BudgetMeter,
	ways []func(int64, int, meter.Color) meter.Color, seen *[3]int,
) {
	profile, err := m.Params.Profile()
	if err != nil {
		t.Fatal(err)
	}
	cb, eb := profile.Bursts()
	ours := meter.New(profile)
	if m.Initial.Den != 0 {
		ours = meter.NewWithTokens(profile, m.Initial.Of(cb), m.Initial.Of(eb))
	}
	var model *exact
	if p.Window == 0 {
		model = newExact(m.Params, m.Initial)
	}
	now := r.Int64N(1<<62) - 1<<61
	for i := range 30 {
		n := min(kerneltest.Pick(r, 1, 64, 1500, 65_535, r.Int64N(65_536), cb, eb, cb+1, eb+1, cb/2, eb/3,
			cb-min(cb, 1)), 1<<31)
		gap := r.Int64N(int64(2*p.Window) + 1)
		if p.Window == 0 {
			gap = anyGap(r, p, n)
		}
		if gap < math.MaxInt64-now {
			now += gap
		}
		in := kerneltest.Pick(r, meter.Green, meter.Green, meter.Green, meter.Yellow, meter.Red)
		if i == 0 { // a red packet does not start a budget
			in = meter.Green
		}
		got := ways[r.IntN(len(ways))](now, int(n), in)
		want := ours.Color(now, int(n), in)
		if model != nil {
			if c := model.color(now, n, in); c != want {
				t.Fatalf("package meter returns %v, the model %v", want, c)
			}
		}
		if got != want {
			t.Errorf("packet %d: %d bytes, input color %v, at %d: got %v, want %v", i, n, in, now, got, want)
			return
		}
		seen[got]++
		tc, te := user.Tokens(now)
		if wantC, wantE := ours.Tokens(now); tc != wantC || te != wantE {
			t.Errorf("packet %d: %d bytes, input color %v, at %d: got %d and %d tokens, want %d and %d", i, n,
				in, now, tc, te, wantC, wantE)
			return
		}
	}
}

// TestBudgetSwaps checks that user space meters a packet without a program run, unless the
// packet needs the lock, and never allocates.
func TestBudgetSwaps(t *testing.T) {
	kerneltest.NeedRoot(t)
	maps := hostMaps(t)
	j, err := engine.OpenBudgets(maps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.Close)
	for _, params := range []meter.Params{
		meter.TokenBucket{Rate: meter.BitRate(1e9), Burst: 1e6},
		meter.SRTCM{CIR: meter.BitRate(1e9), CBS: 1e5, EBS: 1e5},
		meter.TRTCM{CIR: meter.BitRate(1e8), CBS: 1e4, PIR: meter.BitRate(1e9), PBS: 1e6},
		meter.TRTCM4115{CIR: meter.BitRate(1e8), CBS: 1e4, EIR: meter.BitRate(1e8), EBS: 1e4},
	} {
		beginBudget(t, maps, &dataplane.Meter{Params: params})
		now := int64(1e18)
		j.Meter(budgetSlot, 0).Color(now, 1, meter.Green) // starts its clock, under the lock
		m := j.Meter(budgetSlot, 0)
		m.Budgets = nil // a run would panic
		var seen [3]int
		allocs := testing.AllocsPerRun(20_000, func() {
			now += 100
			seen[m.Color(now, 64, meter.Green)]++
		})
		if allocs != 0 || seen[meter.Green] == 0 {
			t.Errorf("%T: got %v allocations per packet, colors %v, want none and some green", params, allocs,
				seen)
		}
	}
	// A program run allocates nothing either.
	beginBudget(t, maps, &dataplane.Meter{Params: meter.FixedWindow{Limit: 1e6, Window: 1e9}})
	m := j.Meter(budgetSlot, 0)
	if allocs := testing.AllocsPerRun(1000, func() { m.Color(1e18, 64, meter.Green) }); allocs != 0 {
		t.Errorf("a window: got %v allocations per packet, want none", allocs)
	}
}

// TestBudgetChange checks that a change of parameters keeps the tokens of each bucket, capped
// at the new burst. If both rates are whole bit/s, parts of a byte are kept too.
func TestBudgetChange(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	r := kerneltest.Seeded(t)
	maps := hostMaps(t)
	change, err := engine.LoadBudgetProgram(bpf.BudgetProgShaperChange, engine.BudgetMapsByName(maps))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(change.Close)
	j, err := engine.OpenBudgets(maps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.Close)
	user := j.Meter(budgetSlot, 0)
	for k := range kerneltest.Rounds(2000) {
		kind := k % 5
		m := anyMeter(r, kind)
		p := beginBudget(t, maps, m)
		model := newExact(m.Params, m.Initial)
		now := r.Int64N(1 << 61)
		for i := range 40 {
			n := kerneltest.Pick(r, 1, 64, 1500, r.Int64N(65_536))
			if gap := anyGap(r, p, n); gap < math.MaxInt64/2-now {
				now += gap
			}
			if r.IntN(8) == 0 {
				next := anyMeter(r, kind)
				to, err := engine.ProfileOf(onlyStage(t, next))
				if err != nil {
					t.Fatal(err)
				}
				if !registry.SameStateFormat(p, &to) {
					continue
				}
				if err := engine.RunChange(change, budgetSlot, &to, uint64(now)); err != nil {
					t.Fatal(err)
				}
				if model.Begun {
					model.Refill(now)
				}
				after := newExact(next.Params, dataplane.Fraction{})
				for i, holds := range model.Tokens {
					unit := int64(1) // units per byte
					if is, becomes := int64(p.Buckets[i].Den), int64(to.Buckets[i].Den); 16e9%is == 0 &&
						16e9%becomes == 0 {
						unit = becomes / engine.Halves
					}
					units := new(big.Rat).Mul(holds, new(big.Rat).SetInt64(unit))
					after.Tokens[i].SetFrac(new(big.Int).Quo(units.Num(), units.Denom()), big.NewInt(unit))
					if after.Tokens[i].Cmp(after.Burst[i]) > 0 {
						after.Tokens[i].Set(after.Burst[i])
					}
				}
				after.Begun, after.Now = model.Begun, model.Now
				model, p = after, &to
			}
			in := kerneltest.Pick(r, meter.Green, meter.Green, meter.Yellow)
			got, want := user.Color(now, int(n), in), model.color(now, n, in)
			if got != want {
				t.Fatalf("kind %d, packet %d: %d bytes, input color %v, at %d: got %v, want %v; buckets %v",
					kind, i, n, in, now, got, want, model.Tokens)
			}
		}
	}
	// A window keeps its count of bytes, and is used up after a change of its length.
	window := func(limit int64, length int64) *dataplane.Meter {
		return &dataplane.Meter{Params: meter.FixedWindow{Limit: limit, Window: time.Duration(length)}}
	}
	for _, test := range []struct {
		to   *dataplane.Meter
		left int64
	}{{window(1000, 1e9), 700}, {window(5000, 1e9), 4700}, {window(100, 1e9), 0}, {window(5000, 2e9), 0}} {
		beginBudget(t, maps, window(1000, 1e9))
		user.Color(5e9, 300, meter.Green)
		to, err := engine.ProfileOf(onlyStage(t, test.to))
		if err != nil {
			t.Fatal(err)
		}
		if err := engine.RunChange(change, budgetSlot, &to, 5e9+5e8); err != nil {
			t.Fatal(err)
		}
		if left, _ := user.Tokens(5e9 + 6e8); left != test.left {
			t.Errorf("after 300 of 1000 bytes and a change to %+v: got %d tokens, want %d", test.to.Params,
				left, test.left)
		}
		if c := user.Color(7e9, int(to.Buckets[0].Size), meter.Green); c != meter.Green {
			t.Errorf("first packet of the next window of %+v: got %v, want green", test.to.Params, c)
		}
	}
}
