package walk

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/cilium/ebpf"
)

// TestWindows compares the kernel's windows with package meter and with a model in integers of any
// size, at the bounds of windows and limits, for every input color.
func TestWindows(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	r := kerneltest.Seeded(t)
	meters := make([]*dataplane.Meter, kerneltest.Rounds(500))
	for i := range meters {
		m := &dataplane.Meter{Params: anyWindow(r, i%2 == 1), Aware: r.IntN(4) > 0, PreColor: dscpColors}
		limit, _ := m.Params.Profile()
		most, _ := limit.Bursts()
		switch r.IntN(3) {
		case 0: // few enough tokens that packets can reach the limit
			m.Initial = dataplane.Fraction{Num: min(most, r.Int64N(1<<33)), Den: most}
		case 1:
			m.Initial = dataplane.Fraction{Num: r.Int64N(4), Den: 3}
		}
		meters[i] = m
	}
	w, err := newWalker(metersByMark(meters), 32)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	var seen [2][3]int
	for i, m := range meters {
		// Positive and negative times.
		now := kerneltest.Pick(r, 0, 1, r.Int64N(1<<61), r.Int64N(1<<61), -r.Int64N(1<<50), -r.Int64N(1<<61))
		colors := windowStream(t, r, w, uint32(i), m, now, 150)
		for c, n := range colors {
			seen[i%2][c] += n
		}
		if t.Failed() {
			t.Fatalf("meter %T%+v aware %v initial %v, first packet at %d", m.Params, m.Params, m.Aware,
				m.Initial, now)
		}
	}
	t.Logf("packets by kind and color %v", seen)
	for kind, colors := range seen {
		for c, n := range colors {
			if n < len(meters) {
				t.Errorf("kind %d: %d packets are %v, want at least %d", kind, n, meter.Color(c), len(meters))
			}
		}
	}
}

// windowStream meters n random packets by a window of a walker and counts them by color.
func windowStream(
	t *testing.T, r *rand.Rand, w *Walker, mark uint32, m *dataplane.Meter, now int64, n int,
) (colors [3]int) {
	stage := &w.image.Stages[w.image.Plan.Stage(m)]
	model := newCounting(m.Params, m.Initial)
	profile, _ := m.Params.Profile()
	ours := meter.NewWithTokens(profile, m.Initial.Of(model.limit), 0)
	w.now = math.MinInt64
	packets, verdicts := make([]dataplane.Packet, 1), make([]dataplane.Verdict, 1)
	for range n {
		if now < 1<<62 {
			border := model.window - new(big.Int).Mod(big.NewInt(now), big.NewInt(model.window)).Int64()
			now += max(0, kerneltest.Pick(r, 0, 0, 0, 1, r.Int64N(1000), r.Int64N(model.window),
				r.Int64N(model.window)/20, border-1, border, border+1,
				border+model.window-1, border+model.window, border+2*model.window, r.Int64N(3*model.window)))
		}
		late := now
		if r.IntN(8) == 0 { // a packet with an earlier time, as of a slow CPU
			w.now = math.MinInt64
			late -= min(kerneltest.Pick(r, 1, r.Int64N(model.window), 3*model.window), 1<<61)
		}
		probe := *model // calls of tokensLeft do not change model
		left := probe.tokensLeft(late)
		size := min(max(0, kerneltest.Pick(r, left, left, left+1, left-1, left/2, left/3, 0, 1, 64, 1500,
			r.Int64N(65536))), 1<<31)
		in := kerneltest.Pick(r, meter.Green, meter.Green, meter.Green, meter.Yellow, meter.Red)
		packets[0] = bare(mark, in, int(size), late)
		if err := w.Process(packets, verdicts); err != nil {
			t.Fatal(err)
		}
		if !m.Aware {
			in = meter.Green
		}
		want := model.color(late, size, in)
		if got, other := verdicts[0].Color, ours.Color(late, int(size), in); got != want || other != want {
			t.Errorf("%d bytes, input color %v, at %d with %d tokens: got %v by the kernel and %v by package meter, want %v",
				size, in, late, left, got, other, want)
			return colors
		}
		colors[want]++
		var state bpf.ShaperState
		if err := w.maps.States.LookupWithFlags(stage.Slot, &state, ebpf.LookupLock); err != nil {
			t.Fatal(err)
		}
		for _, at := range []int64{late, now, now + r.Int64N(3*model.window)} {
			probe := *model
			if got, want := engine.LevelsAt(&state, &stage.Profile, uint64(at))[0],
				probe.tokensLeft(at); got != want {
				t.Errorf("at %d, state of %d: got %d tokens, want %d", at, late, got, want)
				return colors
			}
		}
	}
	return colors
}

// TestWindowRows checks hand-computed colors at the bounds of fixed and sliding windows.
func TestWindowRows(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	const w = 1000
	fixed, sliding := meter.FixedWindow{Limit: 1000, Window: w}, meter.SlidingCounter{Limit: 1000, Window: w}
	largest := meter.SlidingCounter{Limit: maximal, Window: year}
	half, none := dataplane.Fraction{Num: 1, Den: 2}, dataplane.Fraction{Num: 0, Den: 1}
	G, Y, R := meter.Green, meter.Yellow, meter.Red
	type row struct {
		at, n    int64
		in, want meter.Color
	}
	var meters []*dataplane.Meter
	var all [][]row
	add := func(params meter.Params, initial dataplane.Fraction, rows ...row) {
		meters = append(meters,
			&dataplane.Meter{Params: params, Initial: initial, Aware: true, PreColor: dscpColors})
		all = append(all, rows)
	}
	full := dataplane.Fraction{}
	add(fixed, full, row{5000, 1000, G, G}, row{5000, 1, G, R}, row{5999, 1, G, R}, row{6000, 1000, G, G},
		row{6999, 1, Y, R}, row{7000, 1, Y, Y}, row{7000, 999, R, R}, row{7000, 1000, G, R},
		row{7000, 999, G, G})
	add(fixed, full, row{5999, 1001, G, R}, row{5999, 1000, Y, Y}, row{5999, 0, G, G}, row{5999, 1, G, R},
		row{6000, 0, R, R}, row{6000, 1000, G, G})
	add(fixed, half, row{5000, 501, G, R}, row{5000, 500, G, G}, row{5999, 1, G, R}, row{6000, 1000, G, G})
	add(fixed, none, row{5500, 9, R, R}, row{5500, 1, G, R}, row{5999, 1, G, R}, row{6000, 1000, G, G})
	add(fixed, none, row{5500, 9, R, R}, row{6000, 1000, G, G}) // a red packet starts the clock too
	add(sliding, full, row{5000, 1000, G, G}, row{6000, 1, G, R}, row{6001, 2, G, R}, row{6001, 1, G, G},
		row{6001, 1, G, R}, row{6002, 1, Y, Y}, row{6999, 997, G, G}, row{6999, 1, G, R}, row{7000, 1, G, G},
		row{9000, 1000, G, G})
	add(sliding, full, row{5999, 1000, G, G}, row{7999, 1000, G, G}, row{8000, 1, G, R},
		row{9000, 1000, G, G})
	add(sliding, full, row{5999, 999, G, G}, row{6000, 1, G, G}, row{6000, 1, G, R}, row{6001, 1, G, R},
		row{6002, 1, G, G})
	add(sliding, half, row{5000, 501, G, R}, row{5000, 500, G, G}, row{6500, 501, G, R}, row{6500, 500, G, G})
	add(sliding, none, row{5000, 1, G, R}, row{6000, 1, G, R}, row{6999, 999, G, G}, row{7000, 1, G, G})
	y := int64(year)
	add(largest, none, row{5 * y, 1, G, R}, row{6 * y, 1, G, R}, row{6*y + y/maximal, 1, G, R},
		row{6*y + y/maximal + 1, 1, G, G}, row{6*y + y/maximal + 1, 1, G, R}, row{7*y - 1, 1 << 31, G, G})
	add(fixed, full, row{-1, 1000, G, G}, row{-1, 1, G, R}, row{0, 1000, G, G}, row{999, 1, G, R})
	add(fixed, full, row{-1000, 1000, G, G}, row{-1, 1, G, R}, row{0, 1, G, G})
	add(sliding, full, row{-1000, 1000, G, G}, row{-1, 1, G, R}, row{0, 1, G, R}, row{1, 1, G, G})
	walker, err := newWalker(metersByMark(meters), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(walker.Close)
	for i, rows := range all {
		model := newCounting(meters[i].Params, meters[i].Initial)
		walker.now = math.MinInt64
		for k, row := range rows {
			verdict := make([]dataplane.Verdict, 1)
			if err := walker.Process([]dataplane.Packet{bare(uint32(i), row.in, int(row.n), row.at)},
				verdict); err != nil {
				t.Fatal(err)
			}
			if modeled := model.color(row.at, row.n, row.in); verdict[0].Color != row.want ||
				modeled != row.want {
				t.Errorf("%T%+v initial %v, row %d %+v: got %v, and %v by the model", meters[i].Params,
					meters[i].Params, meters[i].Initial, k, row, verdict[0].Color, modeled)
				break
			}
		}
	}
}

// TestWindowStates starts from random states and meters one packet of just the tokens left, or of
// a byte more or less. Products of 102 bits must not overflow.
func TestWindowStates(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	r := kerneltest.Seeded(t)
	meters := make([]*dataplane.Meter, kerneltest.Rounds(300))
	for i := range meters {
		meters[i] = &dataplane.Meter{Params: anyWindow(r, i%4 > 0)}
	}
	w, err := newWalker(metersByMark(meters), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	for i, m := range meters {
		stage := &w.image.Stages[w.image.Plan.Stage(m)]
		for range 20 {
			model := newCounting(m.Params, dataplane.Fraction{})
			model.begun, model.current = true, 3+r.Int64N(1<<61/model.window)
			bytes := func() int64 {
				return min(model.limit,
					kerneltest.Pick(r, 0, 1, model.limit, model.limit-1, r.Int64N(model.limit+1)))
			}
			before, count := bytes(), bytes()
			model.taken[model.current-1], model.taken[model.current] = before, count
			start := model.current * model.window
			state := bpf.ShaperState{Word: [2]uint64{uint64(count), uint64(before)}, Stamp: uint64(start)}
			if !model.sliding {
				state.Word[1] = 0
			}
			if err := w.maps.States.Put(stage.Slot, state); err != nil {
				t.Fatal(err)
			}
			now := start + kerneltest.Pick(r, -1, 0, 1, model.window-1, model.window, model.window+1,
				2*model.window-1, 2*model.window, r.Int64N(2*model.window))
			probe := *model
			left := probe.tokensLeft(now)
			if got := engine.LevelsAt(&state, &stage.Profile, uint64(now))[0]; got != left {
				t.Fatalf("%T%+v: %d and %d bytes in the windows, at %d: got %d tokens, want %d", m.Params,
					m.Params, count, before, now-start, got, left)
			}
			size := max(min(left, 1<<31)+r.Int64N(3)-1, 0)
			want := model.color(now, size, meter.Green)
			w.now = math.MinInt64
			verdict := make([]dataplane.Verdict, 1)
			if err := w.Process([]dataplane.Packet{bare(uint32(i), 0, int(size), now)}, verdict); err != nil {
				t.Fatal(err)
			}
			if verdict[0].Color != want {
				t.Fatalf("%T%+v: %d and %d bytes in the windows, at %d: %d bytes: got %v, want %v", m.Params,
					m.Params, count, before, now-start, size, verdict[0].Color, want)
			}
		}
	}
}
