package kernel

import (
	"errors"
	"math/big"
	"sync/atomic"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

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
	share := dataplane.Fraction{Num: 0, Den: 1}
	m := &dataplane.Meter{Params: params[0], Initial: share}
	h := newBudgeted(t, m, egressEntry, maps, 0)
	j, err := openMemberMaps(maps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.close)
	change, err := loadBudgetProgram(bpf.BudgetProgShaperChange, budgetMapsByName(maps))
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
	user := j.newBudgetMeter(budgetSlot, 0)
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
