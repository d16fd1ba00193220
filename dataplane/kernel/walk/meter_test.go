package walk

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestMeters compares the kernel's meters with package meter and with a model in exact
// arithmetic: every color, and the tokens to the last fraction.
func TestMeters(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	r := kerneltest.Seeded(t)
	var seen [5][3]int
	packets, shortest := 0, uint64(math.MaxUint64)
	complete := func() bool {
		for _, colors := range seen {
			if slices.Min(colors[:]) < packets/200 {
				return false
			}
		}
		return packets > 0
	}
	for n := 0; !complete(); n++ {
		if n == 100 {
			t.Fatalf("%d packets, by kind and color %v, want at least %d of each", packets, seen, packets/200)
		}
		var meters []*dataplane.Meter
		for i := range kerneltest.Rounds(1000) {
			meters = append(meters, anyMeter(r, i%5))
		}
		// Two rates without a common unit, for horizons of microseconds.
		for i := range 3 {
			params := meter.TRTCM{
				CIR: meter.Rate{Bytes: 600_001, Period: period1}, CBS: 9000,
				PIR: meter.Rate{Bytes: 150_000_001, Period: period2}, PBS: 12_000,
			}
			meters[i] = &dataplane.Meter{Params: params, Aware: true, PreColor: dscpColors}
		}
		w, err := newWalker(metersByMark(meters), 64)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Close)
		for i, m := range meters {
			shortest = min(shortest, w.image.Stages[w.image.Plan.Stage(m)].Profile.Horizon)
			colors := meterStream(t, r, w, uint32(i), m, 200)
			for c, n := range colors {
				seen[i%5][c] += n
				packets += n
			}
			if t.Failed() {
				t.Fatalf("meter %T%+v aware %v initial %v", m.Params, m.Params, m.Aware, m.Initial)
			}
		}
	}
	t.Logf("%d packets, by kind and color %v; shortest horizon %d ns", packets, seen, shortest)
	if shortest > 100_000 {
		t.Errorf("shortest horizon %d ns, want at most 100,000 ns so that states are rewritten", shortest)
	}
}

// meterStream meters n random packets by a meter of a walker and counts them by color.
func meterStream(
	t *testing.T, r *rand.Rand, w *Walker, mark uint32, m *dataplane.Meter, n int,
) (colors [3]int) {
	stage := &w.image.Stages[w.image.Plan.Stage(m)]
	profile, err := m.Params.Profile()
	if err != nil {
		t.Fatal(err)
	}
	model := newExact(m.Params, m.Initial)
	cb, eb := profile.Bursts()
	ours := meter.New(profile)
	if m.Initial.Den != 0 {
		ours = meter.NewWithTokens(profile, m.Initial.Of(cb), m.Initial.Of(eb))
	}
	sizes := func() int64 {
		return min(kerneltest.Pick(r, 0, 1, 64, 1500, 65_535, r.Int64N(65_536), cb, eb, cb+1, eb+1, cb/2,
			eb/3, cb-min(cb, 1)), 1<<31)
	}
	now := r.Int64N(1<<62) - 1<<61
	w.now = math.MinInt64 // each meter has its own time: the gaps would exceed 290 years in all
	packets := make([]dataplane.Packet, 0, w.batch)
	verdicts := make([]dataplane.Verdict, w.batch)
	inputs := make([]meter.Color, w.batch)
	for n > 0 {
		packets = packets[:0]
		for range min(n, 1+r.IntN(1+r.IntN(w.batch))) {
			size := sizes()
			if gap := anyGap(r, &stage.Profile, size); gap < math.MaxInt64-now {
				now += gap
			}
			in := kerneltest.Pick(r, meter.Green, meter.Green, meter.Green, meter.Yellow, meter.Red)
			inputs[len(packets)] = in
			packets = append(packets, bare(mark, in, int(size), now))
		}
		n -= len(packets)
		if err := w.Process(packets, verdicts); err != nil {
			t.Fatal(err)
		}
		for i := range packets {
			in := inputs[i]
			if !m.Aware {
				in = meter.Green
			}
			length := packets[i].WireLen - 20
			want := model.color(packets[i].Time, int64(length), in)
			got := verdicts[i].Color
			if other := ours.Color(packets[i].Time, length, in); got != want || other != want {
				t.Errorf("%d bytes, input color %v, at %d: got %v by the kernel and %v by package meter, want %v; buckets %v and %v",
					length, in, packets[i].Time, got, other, want, model.Tokens[0], model.Tokens[1])
				return colors
			}
			colors[got]++
		}
		var state bpf.ShaperState
		if err := w.maps.States.LookupWithFlags(stage.Slot, &state, ebpf.LookupLock); err != nil {
			t.Fatal(err)
		}
		l := engine.LevelsAt(&state, &stage.Profile, uint64(now))
		for i, holds := range model.Tokens {
			den := int64(stage.Profile.Buckets[i].Den)
			if want := new(big.Rat).Mul(holds,
				new(big.Rat).SetInt64(den)); want.Cmp(new(big.Rat).SetInt64(l[i])) != 0 {
				t.Errorf("at %d: bucket %d holds %d/%d bytes, want %v", now, i, l[i], den, holds)
				return colors
			}
		}
		tc, te, err := w.Tokens(w.image.Plan.Stage(m))
		if err != nil {
			t.Fatal(err)
		}
		if wantC, wantE := ours.Tokens(now); tc != wantC || te != wantE {
			t.Errorf("at %d: got %d and %d tokens, want %d and %d", now, tc, te, wantC, wantE)
			return colors
		}
	}
	return colors
}

// TestFirstPacket checks that a meter's clock starts with its first packet, of any input color.
func TestFirstPacket(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	var meters []*dataplane.Meter
	var packets []dataplane.Packet
	for _, in := range []meter.Color{meter.Green, meter.Yellow, meter.Red} {
		for _, params := range []meter.Params{
			meter.TokenBucket{Rate: meter.BitRate(8e3), Burst: 2000},
			meter.SRTCM{CIR: meter.BitRate(8e3), CBS: 2000, EBS: 2000},
			meter.TRTCM{CIR: meter.BitRate(8e3), CBS: 2000, PIR: meter.BitRate(9e3), PBS: 2000},
			meter.TRTCM4115{CIR: meter.BitRate(8e3), CBS: 2000, EIR: meter.BitRate(8e3), EBS: 2000},
		} {
			mark, now := uint32(len(meters)), int64(len(meters))*1e9
			meters = append(meters, &dataplane.Meter{
				Name:   fmt.Sprintf("%T, %v first", params, in),
				Params: params, Aware: true, PreColor: dscpColors,
				Initial: dataplane.Fraction{Num: 0, Den: 1},
			})
			packets = append(packets, bare(mark, in, 1000, now), bare(mark, meter.Green, 1000, now+1e9),
				bare(mark, meter.Green, 1, now+1e9))
		}
	}
	policy := metersByMark(meters)
	followPipeline(t, policy, walker(1)(t, policy), packets)
}

// TestLateClocks meters packets with times that go back, as when a CPU reads the clock and then
// reaches the meter late. The granted bytes never exceed the tokens up to the latest time.
func TestLateClocks(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	r := kerneltest.Seeded(t)
	var meters []*dataplane.Meter
	for i := range kerneltest.Rounds(300) {
		m := anyMeter(r, i%5)
		m.Aware = false
		meters = append(meters, m)
	}
	w, err := newWalker(metersByMark(meters), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	for i, m := range meters {
		stage := &w.image.Stages[w.image.Plan.Stage(m)]
		model := newExact(m.Params, m.Initial)
		var first, latest int64
		var granted [3]int64
		now := r.Int64N(1 << 61)
		for k := range 100 {
			size := min(kerneltest.Pick(r, 1, 64, 1500, 65_535, model.burst(0), model.burst(1)/3), 1<<31)
			if gap := anyGap(r, &stage.Profile, size) / (1 + r.Int64N(4)); gap < 1<<62-now {
				now += gap
			}
			at := now
			if r.IntN(2) == 0 {
				at -= min(anyGap(r, &stage.Profile, size), now)
			}
			if k == 0 {
				first, latest = at, at
			}
			latest = max(latest, at)
			w.now = math.MinInt64
			packet, verdict := []dataplane.Packet{bare(uint32(i), meter.Green, int(size), at)},
				make([]dataplane.Verdict, 1)
			if err := w.Process(packet, verdict); err != nil {
				t.Fatal(err)
			}
			granted[verdict[0].Color] += size
			if problem := excess(m.Params, model.limits(latest-first), granted); problem != "" {
				t.Fatalf("%T%+v after %d packets, %d ns: %s", m.Params, m.Params, k+1, latest-first, problem)
			}
		}
	}
}
