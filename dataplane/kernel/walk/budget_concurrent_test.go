package walk

import (
	"errors"
	"math/big"
	"sync/atomic"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestBudgetConcurrent meters by one budget on two CPUs, in a program and in user space, while
// its parameters change. The granted bytes never exceed the tokens that the rates bring, and
// each change loses at most a part of a byte of each bucket.
func TestBudgetConcurrent(t *testing.T) { // not parallel: it needs both CPUs
	kerneltest.NeedRoot(t)
	cpus := allowedCPUs(t)
	if len(cpus) < 2 {
		t.Skip("needs two CPUs")
	}
	for _, test := range []struct {
		name   string
		params [2]meter.Params
	}{
		{"token bucket", [2]meter.Params{meter.TokenBucket{Rate: meter.BitRate(1e9), Burst: plenty}, meter.TokenBucket{Rate: meter.BitRate(123_456_789), Burst: 70e6}}},
		{"burst alone", [2]meter.Params{meter.TokenBucket{Rate: meter.BitRate(1e9), Burst: 1e9}, meter.TokenBucket{Rate: meter.BitRate(1e9), Burst: 2e9}}},
		{"srtcm", [2]meter.Params{meter.SRTCM{CIR: meter.BitRate(1e9), CBS: 20_000, EBS: plenty}, meter.SRTCM{CIR: meter.BitRate(3e9), CBS: 40_000, EBS: plenty}}},
		{"trtcm", [2]meter.Params{meter.TRTCM{CIR: meter.BitRate(1e9), CBS: plenty, PIR: meter.BitRate(2e9), PBS: plenty}, meter.TRTCM{CIR: meter.BitRate(3e8), CBS: plenty, PIR: meter.BitRate(4e8), PBS: plenty}}},
	} {
		if kerneltest.InVM && test.name != "trtcm" { // loading a program takes seconds
			continue
		}
		t.Run(test.name, func(t *testing.T) { changeUnderLoad(t, test.params, cpus) })
	}
}

// changeUnderLoad alternates between two sets of parameters while two CPUs meter packets.
func changeUnderLoad(t *testing.T, params [2]meter.Params, cpus []int) {
	const length = 1500
	maps := hostMaps(t)
	share := dataplane.Fraction{Num: 0, Den: 1}
	m := &dataplane.Meter{Params: params[0], Initial: share}
	h := newBudgeted(t, m, image.EgressEntry, maps, 0)
	j, err := engine.OpenBudgets(maps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.Close)
	change, err := engine.LoadBudgetProgram(bpf.BudgetProgShaperChange, engine.BudgetMapsByName(maps))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(change.Close)
	var profiles [2]bpf.ShaperProfile
	for i := range profiles {
		if profiles[i], err = engine.ProfileOf(
			onlyStage(t, &dataplane.Meter{Params: params[i]})); err != nil {
			t.Fatal(err)
		}
	}
	beginBudget(t, maps, m)
	user := j.Meter(budgetSlot, 0)
	first := engine.Now()
	user.Color(first, 1, meter.Green) // starts its clock
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
	var green atomic.Bool // user space was granted a packet
	here := onCPU(cpus[1], func() error {
		for !stop.Load() {
			for range 100 {
				mine[user.Color(engine.Now(), length, meter.Green)] += length
			}
			green.Store(mine[meter.Green] > 0)
		}
		return nil
	})
	// Tokens that the rates bring, bytes by bucket.
	var most [2]*big.Rat
	for i := range most {
		most[i] = new(big.Rat)
	}
	// shorter than the time to fill a bucket
	for begin := time.Now(); !green.Load() && time.Since(begin) < 5*time.Second; {
		time.Sleep(time.Millisecond)
	}
	at, changes := first, 0
	for begin := time.Now(); time.Since(begin) < 300*time.Millisecond; changes++ {
		model := newExact(params[changes%2], share)
		now := engine.Now()
		for i := range most {
			most[i].Add(most[i], new(big.Rat).Mul(model.Rate[i], new(big.Rat).SetInt64(now-at)))
		}
		at = now
		if err := engine.RunChange(change, budgetSlot, &profiles[(changes+1)%2], uint64(now)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Microsecond)
	}
	stop.Store(true)
	if err := errors.Join(<-inKernel, <-here); err != nil {
		t.Fatal(err)
	}
	end := engine.Now()
	model := newExact(params[changes%2], share)
	for i := range most {
		most[i].Add(most[i], new(big.Rat).Mul(model.Rate[i], new(big.Rat).SetInt64(end-at)))
	}
	// If this goroutine was suspended between reading the clock and the change, packets took
	// tokens that the change then turned into a debt. A part of the debt may remain.
	state := bpf.ShaperState{Word: user.Budget.Word, Stamp: user.Budget.Stamp}
	for i, level := range engine.LevelsAt(&state, &profiles[changes%2], uint64(end)) {
		if level < 0 {
			most[i].Add(most[i], new(big.Rat).SetFrac(big.NewInt(-level),
				new(big.Int).SetUint64(profiles[changes%2].Buckets[i].Den)))
		}
	}
	all, err := h.Stats()
	if err != nil {
		t.Fatal(err)
	}
	for color := range granted {
		granted[color] += all[0].Colors[color].Bytes + mine[color]
		if mine[color] == 0 && all[0].Colors[color].Bytes > 0 && color == 0 {
			t.Errorf("no %v packets in user space, want some", meter.Color(color))
		}
	}
	if problem := excess(params[0], most, granted); problem != "" {
		t.Error(problem)
	}
	if _, two := params[0].(meter.TRTCM); two {
		return // P can hold tokens that C lacks
	}
	tc, te := user.Tokens(end)
	lost := missing(params[0], most, granted)
	lost.Sub(lost, new(big.Rat).SetInt64(tc+te+1)) // and the first packet's byte
	t.Logf("%d changes, granted %v, in user space %d, lost %s bytes", changes, granted, mine,
		lost.FloatString(3))
	// During a change the overflow of C does not reach E.
	if lost.Cmp(new(big.Rat).SetInt64(int64(2*changes+2))) > 0 && profiles[0].Coupled == 0 {
		t.Errorf("%d changes lost %s bytes, want at most %d", changes, lost.FloatString(3), 2*changes+2)
	}
}
