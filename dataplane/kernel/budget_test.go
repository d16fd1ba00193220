package kernel

import (
	"errors"
	"math"
	"math/big"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// budgetSlot is a slot in the middle of the maps.
const budgetSlot = 1234

// hostMaps makes the maps of budgets as the first shaper of a host does, for the test
// alone.
func hostMaps(t testing.TB) (maps [2]*ebpf.Map) {
	t.Helper()
	spec, err := bpf.LoadShaper()
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range budgetMaps {
		spec.Maps[name].MaxEntries = maxBudgets
		if maps[i], err = ebpf.NewMap(spec.Maps[name]); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { maps[i].Close() })
	}
	return maps
}

// newBudgeted loads the program of a hook whose first meter is the budget in
// budgetSlot.
func newBudgeted(t testing.TB, m *dataplane.Meter, hook entry, maps [2]*ebpf.Map, handed uint8) *hooked {
	t.Helper()
	policy := &dataplane.Policy{Length: dataplane.LengthRule{Overhead: -20}, Classes: []dataplane.Class{{Name: "all", Meter: m}}}
	g, err := encodePolicy(policy, hook, "")
	if err != nil {
		t.Fatal(err)
	}
	h := &hooked{Walker: Walker{image: g, batch: 1, now: math.MinInt64}, hook: hook, room: make([]byte, 1<<17)}
	t.Cleanup(h.Close)
	h.constants.Handed, h.constants.Link, h.constants.Elsewhere = handed, uint8(dataplane.LinkEthernet), 1
	h.stages[0].Table, h.stages[0].Slot = storeShared, budgetSlot
	h.maps, err = newStateMaps()
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range [2]**ebpf.Map{&h.maps.budgets, &h.maps.locks} {
		(*m).Close()
		if *m, err = maps[i].Clone(); err != nil {
			t.Fatal(err)
		}
	}
	h.inherit(&About{})
	if err := h.initialize(h.maps); err != nil {
		t.Fatal(err)
	}
	spec, err := bpf.LoadShaper()
	if err != nil {
		t.Fatal(err)
	}
	if h.loaded, err = h.loadProgram(spec, programs[hook], h.maps.byName()); err != nil {
		t.Fatal(err)
	}
	h.program = h.loaded.Programs[programs[hook]]
	return h
}

// beginBudget gives the budget a meter that nobody has used.
func beginBudget(t testing.TB, maps [2]*ebpf.Map, m *dataplane.Meter) *bpf.ShaperProfile {
	t.Helper()
	s := planned(t, m)
	p, err := profileOf(s)
	if err != nil {
		t.Fatal(err)
	}
	g := &share{budgetRequest: &budgetRequest{budgetRecord: budgetRecord{Profile: p}}, record: &budgetRecord{Slot: budgetSlot}}
	if err := (&shares{lockedRegistry: &lockedRegistry{maps: maps}}).writeInitialState(g, 0, initialLevels(s, &p).unstartedState(&p)); err != nil {
		t.Fatal(err)
	}
	return &p
}

// framed is a packet of n metered bytes.
func framed(before meter.Color, n int, now int64) dataplane.Packet {
	b := ipv4(be16(ethernet(), 0x800), 0, byte(before)<<2, 6, min(n, 1000), 0, from4, to4) // what is short may be padded
	return dataplane.Packet{Data: b, WireLen: len(b) + n, Link: dataplane.LinkEthernet, Time: now}
}

// TestBudgetOneTruth meters packets by one budget at egress, at XDP and in user space,
// in any order, and holds all of them to one meter in exact arithmetic.
func TestBudgetOneTruth(t *testing.T) {
	needRoot(t)
	t.Parallel()
	r := seeded(t)
	maps := hostMaps(t)
	aware := &dataplane.Meter{Params: meter.TokenBucket{Rate: bps(8), Burst: 1}, Aware: true, PreColor: dscpColors}
	hooks := []*hooked{newBudgeted(t, aware, egressEntry, maps, 1)}
	if !inVM { // loading a program takes seconds
		hooks = append(hooks, newBudgeted(t, aware, xdpEntry, maps, 1))
	}
	j, err := openMemberMaps(maps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.close)
	user := j.meter(budgetSlot, 0)
	ways := []func(now int64, n int, in meter.Color) meter.Color{
		user.Color,
		func(now int64, n int, in meter.Color) meter.Color {
			return user.colorByProgram(uint64(now), uint32(n), in)
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
	for k := range rounds(700) {
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
	t.Logf("by kind and color %v", seen)
	for kind, colors := range seen {
		for c, n := range colors {
			if n < rounds(100) && (c != int(meter.Yellow) || kind < 5) {
				t.Errorf("kind %d: only %d packets are %v", kind, n, meter.Color(c))
			}
		}
	}
}

// budgetStream sends packets through a budget by any of the ways.
func budgetStream(t *testing.T, r *rand.Rand, m *dataplane.Meter, p *bpf.ShaperProfile, user *budgetMeter, ways []func(int64, int, meter.Color) meter.Color, seen *[3]int) {
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
		n := min(pick(r, 1, 64, 1500, 65_535, r.Int64N(65_536), cb, eb, cb+1, eb+1, cb/2, eb/3, cb-min(cb, 1)), 1<<31)
		gap := r.Int64N(int64(2*p.Window) + 1)
		if p.Window == 0 {
			gap = anyGap(r, p, n)
		}
		if gap < math.MaxInt64-now {
			now += gap
		}
		in := pick(r, meter.Green, meter.Green, meter.Green, meter.Yellow, meter.Red)
		if i == 0 { // a red packet begins no budget
			in = meter.Green
		}
		got := ways[r.IntN(len(ways))](now, int(n), in)
		want := ours.Color(now, int(n), in)
		if model != nil {
			model.at(now)
			if c := model.color(model, new(big.Rat).SetInt64(n), in); c != want {
				t.Fatalf("package meter says %v, the model %v", want, c)
			}
		}
		if got != want {
			t.Errorf("packet %d: %d bytes, %v before, at %d: %v, want %v", i, n, in, now, got, want)
			return
		}
		seen[got]++
		tc, te := user.Tokens(now)
		if wantC, wantE := ours.Tokens(now); tc != wantC || te != wantE {
			t.Errorf("packet %d: %d bytes, %v before, at %d: %d and %d tokens are left, want %d and %d", i, n, in, now, tc, te, wantC, wantE)
			return
		}
	}
}

// TestBudgetSwaps holds that packets in user space take no run of a program, and
// allocate nothing, unless a lock is needed.
func TestBudgetSwaps(t *testing.T) {
	needRoot(t)
	maps := hostMaps(t)
	j, err := openMemberMaps(maps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.close)
	for _, params := range []dataplane.Params{
		meter.TokenBucket{Rate: bps(1e9), Burst: 1e6},
		meter.SRTCM{CIR: bps(1e9), CBS: 1e5, EBS: 1e5},
		meter.TRTCM{CIR: bps(1e8), CBS: 1e4, PIR: bps(1e9), PBS: 1e6},
		meter.TRTCM4115{CIR: bps(1e8), CBS: 1e4, EIR: bps(1e8), EBS: 1e4},
	} {
		beginBudget(t, maps, &dataplane.Meter{Params: params})
		now := int64(1e18)
		j.meter(budgetSlot, 0).Color(now, 1, meter.Green) // begins its clock, under the lock
		m := j.meter(budgetSlot, 0)
		m.maps = nil // a run would panic
		var seen [3]int
		allocs := testing.AllocsPerRun(20_000, func() {
			now += 100
			seen[m.Color(now, 64, meter.Green)]++
		})
		if allocs != 0 || seen[meter.Green] == 0 {
			t.Errorf("%T: %v allocations a packet, colors %v", params, allocs, seen)
		}
	}
	// And a run of the program allocates nothing either.
	beginBudget(t, maps, &dataplane.Meter{Params: meter.FixedWindow{Limit: 1e6, Window: 1e9}})
	m := j.meter(budgetSlot, 0)
	if allocs := testing.AllocsPerRun(1000, func() { m.Color(1e18, 64, meter.Green) }); allocs != 0 {
		t.Errorf("a window: %v allocations a packet", allocs)
	}
}

// TestBudgetChange holds that a change of parameters keeps the tokens of each bucket, cut
// to the new burst, whoever meters before and after it: with parts of a byte, if both
// rates are whole bit/s.
func TestBudgetChange(t *testing.T) {
	needRoot(t)
	t.Parallel()
	r := seeded(t)
	maps := hostMaps(t)
	change, err := loadBudgetProgram(bpf.ShareProgShaperChange, budgetMapsByName(maps))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(change.Close)
	j, err := openMemberMaps(maps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.close)
	user := j.meter(budgetSlot, 0)
	for k := range rounds(2000) {
		kind := k % 5
		m := anyMeter(r, kind)
		p := beginBudget(t, maps, m)
		model := newExact(m.Params, m.Initial)
		now := r.Int64N(1 << 61)
		for i := range 40 {
			n := pick(r, 1, 64, 1500, r.Int64N(65_536))
			if gap := anyGap(r, p, n); gap < math.MaxInt64/2-now {
				now += gap
			}
			if r.IntN(8) == 0 {
				next := anyMeter(r, kind)
				to, err := profileOf(planned(t, next))
				if err != nil {
					t.Fatal(err)
				}
				if !sameStateFormat(p, &to) {
					continue
				}
				if err := runChange(change, budgetSlot, &to, uint64(now)); err != nil {
					t.Fatal(err)
				}
				if model.begun {
					model.at(now)
				}
				after := newExact(next.Params, dataplane.Share{})
				for i, holds := range model.holds {
					unit := int64(1) // of a byte
					if is, becomes := int64(p.Buckets[i].Den), int64(to.Buckets[i].Den); 16e9%is == 0 && 16e9%becomes == 0 {
						unit = becomes / halves
					}
					units := new(big.Rat).Mul(holds, new(big.Rat).SetInt64(unit))
					after.holds[i].SetFrac(new(big.Int).Quo(units.Num(), units.Denom()), big.NewInt(unit))
					if after.holds[i].Cmp(after.size[i]) > 0 {
						after.holds[i].Set(after.size[i])
					}
				}
				after.begun, after.last = model.begun, model.last
				model, p = after, &to
			}
			in := pick(r, meter.Green, meter.Green, meter.Yellow)
			model.at(now)
			got, want := user.Color(now, int(n), in), model.color(model, new(big.Rat).SetInt64(n), in)
			if got != want {
				t.Fatalf("kind %d, packet %d: %d bytes, %v before, at %d: %v, want %v of %v", kind, i, n, in, now, got, want, model.holds)
			}
		}
	}
	// A window keeps what was taken, and has nothing left after a change of its length.
	window := func(limit int64, length int64) *dataplane.Meter {
		return &dataplane.Meter{Params: meter.FixedWindow{Limit: limit, Window: time.Duration(length)}}
	}
	for _, test := range []struct {
		to   *dataplane.Meter
		left int64
	}{{window(1000, 1e9), 700}, {window(5000, 1e9), 4700}, {window(100, 1e9), 0}, {window(5000, 2e9), 0}} {
		beginBudget(t, maps, window(1000, 1e9))
		user.Color(5e9, 300, meter.Green)
		to, err := profileOf(planned(t, test.to))
		if err != nil {
			t.Fatal(err)
		}
		if err := runChange(change, budgetSlot, &to, 5e9+5e8); err != nil {
			t.Fatal(err)
		}
		if left, _ := user.Tokens(5e9 + 6e8); left != test.left {
			t.Errorf("300 of 1000 bytes were taken, then it is %+v: %d are left, want %d", test.to.Params, left, test.left)
		}
		if c := user.Color(7e9, int(to.Buckets[0].Size), meter.Green); c != meter.Green {
			t.Errorf("the next window of %+v begins %v", test.to.Params, c)
		}
	}
}

// TestBudgetConcurrent has two CPUs at one budget, by a program and in user space, while
// its parameters change: what is granted is never a byte above what the rates bring,
// and nothing is lost but a part of a byte of each bucket at each change.
func TestBudgetConcurrent(t *testing.T) { // not parallel: the CPUs are for this
	needRoot(t)
	cpus := allowedCPUs(t)
	if len(cpus) < 2 {
		t.Skip("there is but one CPU")
	}
	for _, test := range []struct {
		name   string
		params [2]dataplane.Params
	}{
		{"token bucket", [2]dataplane.Params{meter.TokenBucket{Rate: bps(1e9), Burst: plenty}, meter.TokenBucket{Rate: bps(123_456_789), Burst: 70e6}}},
		{"burst alone", [2]dataplane.Params{meter.TokenBucket{Rate: bps(1e9), Burst: 1e9}, meter.TokenBucket{Rate: bps(1e9), Burst: 2e9}}},
		{"srtcm", [2]dataplane.Params{meter.SRTCM{CIR: bps(1e9), CBS: 20_000, EBS: plenty}, meter.SRTCM{CIR: bps(3e9), CBS: 40_000, EBS: plenty}}},
		{"trtcm", [2]dataplane.Params{meter.TRTCM{CIR: bps(1e9), CBS: plenty, PIR: bps(2e9), PBS: plenty}, meter.TRTCM{CIR: bps(3e8), CBS: plenty, PIR: bps(4e8), PBS: plenty}}},
	} {
		if inVM && test.name != "trtcm" { // loading a program takes seconds
			continue
		}
		t.Run(test.name, func(t *testing.T) { changeUnderLoad(t, test.params, cpus) })
	}
}

func changeUnderLoad(t *testing.T, params [2]dataplane.Params, cpus []int) {
	const length = 1500
	maps := hostMaps(t)
	share := dataplane.Share{Num: 0, Den: 1}
	m := &dataplane.Meter{Params: params[0], Initial: share}
	h := newBudgeted(t, m, egressEntry, maps, 0)
	j, err := openMemberMaps(maps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.close)
	change, err := loadBudgetProgram(bpf.ShareProgShaperChange, budgetMapsByName(maps))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(change.Close)
	var profiles [2]bpf.ShaperProfile
	for i := range profiles {
		if profiles[i], err = profileOf(planned(t, &dataplane.Meter{Params: params[i]})); err != nil {
			t.Fatal(err)
		}
	}
	beginBudget(t, maps, m)
	user := j.meter(budgetSlot, 0)
	first := clock(t)
	user.Color(first, 1, meter.Green) // begins its clock
	var granted [3]int64

	var stop atomic.Bool
	frame := framed(meter.Green, length, 0)
	frame.Data = append(frame.Data, make([]byte, frame.WireLen-len(frame.Data))...)
	inKernel := onCPU(cpus[0], func() error {
		for !stop.Load() {
			if _, _, err := h.program.Benchmark(frame.Data, 1000, nil); err != nil {
				return err
			}
		}
		return nil
	})
	var mine [3]int64
	var got atomic.Bool // by user space, something green
	here := onCPU(cpus[1], func() error {
		for !stop.Load() {
			for range 100 {
				mine[user.Color(clock(t), length, meter.Green)] += length
			}
			got.Store(mine[meter.Green] > 0)
		}
		return nil
	})
	// What there was to be granted, in bytes, by bucket.
	var most [2]*big.Rat
	for i := range most {
		most[i] = new(big.Rat)
	}
	for begin := time.Now(); !got.Load() && time.Since(begin) < 5*time.Second; { // less than fills a bucket
		time.Sleep(time.Millisecond)
	}
	at, changes := first, 0
	for begin := time.Now(); time.Since(begin) < 300*time.Millisecond; changes++ {
		model := newExact(params[changes%2], share)
		now := clock(t)
		for i := range most {
			most[i].Add(most[i], new(big.Rat).Mul(model.rate[i], new(big.Rat).SetInt64(now-at)))
		}
		at = now
		if err := runChange(change, budgetSlot, &profiles[(changes+1)%2], uint64(now)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Microsecond)
	}
	stop.Store(true)
	if err := errors.Join(<-inKernel, <-here); err != nil {
		t.Fatal(err)
	}
	end := clock(t)
	model := newExact(params[changes%2], share)
	for i := range most {
		most[i].Add(most[i], new(big.Rat).Mul(model.rate[i], new(big.Rat).SetInt64(end-at)))
	}
	// If this goroutine stood still after it had read the clock, packets took what the change
	// then made a debt. Some of it may be left.
	state := bpf.ShaperState{Word: user.budget.Word, Stamp: user.budget.Stamp}
	for i, level := range levelsAt(&state, &profiles[changes%2], uint64(end)) {
		if level < 0 {
			most[i].Add(most[i], new(big.Rat).SetFrac(big.NewInt(-level), new(big.Int).SetUint64(profiles[changes%2].Buckets[i].Den)))
		}
	}
	all, err := h.Stats()
	if err != nil {
		t.Fatal(err)
	}
	for color := range granted {
		granted[color] += all[0].Colors[color].Bytes + mine[color]
		if mine[color] == 0 && all[0].Colors[color].Bytes > 0 && color == 0 {
			t.Errorf("nothing was %v in user space", meter.Color(color))
		}
	}
	if fault := excess(params[0], most, granted); fault != "" {
		t.Error(fault)
	}
	if _, two := params[0].(meter.TRTCM); two {
		return // what C lacks P may have
	}
	tc, te := user.Tokens(end)
	lost := missing(params[0], most, granted)
	lost.Sub(lost, new(big.Rat).SetInt64(tc+te+1)) // and the first packet
	t.Logf("%d changes, granted %v: %d in user space; %s bytes were lost", changes, granted, mine, lost.FloatString(3))
	// What overflows C while the parameters change does not reach E.
	if lost.Cmp(new(big.Rat).SetInt64(int64(2*changes+2))) > 0 && profiles[0].Coupled == 0 {
		t.Errorf("%s bytes were lost by %d changes", lost.FloatString(3), changes)
	}
}
