package walk

import (
	"math/big"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// hammered is a meter that two CPUs use at once.
type hammered struct {
	name   string
	params meter.Params
	input  [2]meter.Color // by CPU
	whole  bool           // no bucket overflows, so no byte may be lost
}

// plenty is a burst in bytes that takes two hours to fill at 1 Gbit/s: a busy machine may
// suspend a test for seconds.
const plenty = 1 << 40

var (
	// The period is a prime of about 2^48 ns. Its fractions of a byte are so fine that a
	// state has to be rewritten every few µs.
	fine = meter.Rate{Bytes: 85_000_000_000_007, Period: 281_474_976_710_597}
	slow = meter.Rate{Bytes: 9_000_000_000_011, Period: fine.Period}

	bothYellow = [2]meter.Color{meter.Yellow, meter.Yellow}
	oneYellow  = [2]meter.Color{meter.Green, meter.Yellow}
	bothGreen  = [2]meter.Color{}
)

var hammeredMeters = []hammered{
	{"token bucket 1G", meter.TokenBucket{Rate: meter.BitRate(1e9), Burst: plenty}, bothGreen, true},
	{"token bucket 123457", meter.TokenBucket{Rate: meter.BitRate(123457), Burst: 72e6}, bothGreen, true},
	{"token bucket 30G", meter.TokenBucket{Rate: meter.BitRate(30e9), Burst: 30_000}, bothGreen, false},
	{"token bucket fine", meter.TokenBucket{Rate: fine, Burst: 2000}, bothGreen, false},
	{"srtcm 1G", meter.SRTCM{CIR: meter.BitRate(1e9), CBS: 500e6, EBS: plenty}, bothGreen, true},
	{"srtcm 1G yellow", meter.SRTCM{CIR: meter.BitRate(1e9), CBS: 20_000, EBS: plenty}, bothYellow, true},
	{"srtcm 10G one yellow", meter.SRTCM{CIR: meter.BitRate(10e9), CBS: 20_000, EBS: plenty}, oneYellow, true},
	{"srtcm fine", meter.SRTCM{CIR: fine, CBS: 2000, EBS: 2000}, bothGreen, false},
	{"srtcm fine yellow", meter.SRTCM{CIR: fine, CBS: 2000, EBS: 2000}, bothYellow, false},
	{"trtcm 1G 2G", meter.TRTCM{CIR: meter.BitRate(1e9), CBS: plenty, PIR: meter.BitRate(2e9), PBS: 2 * plenty}, bothGreen, true},
	{"trtcm 999999937 one yellow", meter.TRTCM{CIR: meter.BitRate(999_999_937), CBS: 3e6, PIR: meter.BitRate(2_000_000_011), PBS: 60e6}, oneYellow, false},
	{"trtcm finest", meter.TRTCM{CIR: meter.Rate{Bytes: 600_001, Period: period1}, CBS: 9000, PIR: meter.Rate{Bytes: 150_000_001, Period: period2}, PBS: 12_000}, bothGreen, false},
	{"4115 1G 100M", meter.TRTCM4115{CIR: meter.BitRate(1e9), CBS: plenty, EIR: meter.BitRate(1e8 + 8), EBS: 576e6}, bothGreen, true},
	{"4115 fine", meter.TRTCM4115{CIR: slow, CBS: 1900, EIR: fine, EBS: 1800}, bothGreen, false},
	{"4115 coupled yellow", meter.TRTCM4115{CIR: meter.BitRate(1e9), CBS: 20_000, EIR: meter.BitRate(1e9), EBS: plenty, Coupling: true}, bothYellow, true},
	{"4115 coupled fine", meter.TRTCM4115{CIR: fine, CBS: 2000, EIR: fine, EBS: 1900, Coupling: true}, oneYellow, false},
}

// TestConcurrent meters on two CPUs by one meter, with the kernel's clock. The granted bytes
// never exceed the limit of the RFC for the elapsed time, and no tokens are lost.
func TestConcurrent(t *testing.T) { // not parallel: it needs both CPUs
	kerneltest.NeedRoot(t)
	cpus := allowedCPUs(t)
	if len(cpus) < 2 {
		t.Skip("needs two CPUs")
	}
	for i, test := range hammeredMeters {
		if kerneltest.InVM && i%4 != 3 { // loading a program takes seconds
			continue
		}
		t.Run(test.name, func(t *testing.T) { test.run(t, cpus) })
	}
}

func (c *hammered) run(t *testing.T, cpus []int) {
	const length = 1500
	share := dataplane.Fraction{Num: 0, Den: 1} // a full bucket would overflow before both CPUs start
	m := &dataplane.Meter{Params: c.params, Aware: true, PreColor: dscpColors, Initial: share}
	policy := &dataplane.Policy{Classes: []dataplane.Class{{Name: "all", Meter: m}}}
	h := newHooked(t, policy, image.EgressEntry, func(c *bpf.ShaperConstants) { c.Handed = 0 })
	frame := func(color meter.Color) []byte {
		b := ipv4(kerneltest.Be16(ethernet(), 0x800), 0, byte(color)<<2, 6, length-20, 0, from4, to4)
		return append(b, make([]byte, length-20)...)
	}
	// A packet starts the meter's clock.
	first := engine.Now()
	if _, _, err := h.program.Benchmark(frame(meter.Green), 1, nil); err != nil {
		t.Fatal(err)
	}
	one, _ := c.hammer(t, h.program, cpus[:1], frame, 10*time.Millisecond) // for the log
	two, busy := c.hammer(t, h.program, cpus, frame, 300*time.Millisecond)

	var state bpf.ShaperState
	stage := &h.image.Stages[0]
	if err := h.maps.States.LookupWithFlags(stage.Slot, &state, ebpf.LookupLock); err != nil {
		t.Fatal(err)
	}
	end := engine.Now()
	holds := engine.LevelsAt(&state, &stage.Profile, uint64(end))
	all, err := h.Stats()
	if err != nil {
		t.Fatal(err)
	}
	var granted [3]int64
	for color := range granted {
		granted[color] = all[0].Colors[color].Bytes
	}
	model := newExact(c.params, share)
	model.Burst = model.Tokens // the initial tokens
	limits := model.limits(end - first)
	if problem := excess(c.params, limits, granted); problem != "" {
		t.Error(problem)
	}
	// Granted bytes and remaining tokens add up to the tokens that arrived. The stamp of a
	// state that was never rewritten is the time of the first packet.
	if c.whole {
		limits = model.limits(end - int64(state.Stamp))
	}
	for i, left := range [2]int64{holds[0], holds[1]} {
		limits[i].Sub(limits[i], new(big.Rat).SetFrac64(left, int64(stage.Profile.Buckets[i].Den)))
	}
	if problem := excess(c.params, limits, granted); problem != "" {
		t.Errorf("with the remaining tokens: %s", problem)
	}
	lost := missing(c.params, limits, granted)
	if c.whole && lost.Sign() != 0 {
		t.Errorf("lost %s bytes, want 0", lost.FloatString(3))
	}
	part := share64(granted[meter.Green]+granted[meter.Yellow], lost)
	t.Logf("horizon %v, granted %.4f of the tokens; ns per packet: one CPU %d, two CPUs %d and %d",
		time.Duration(min(stage.Profile.Horizon, 1<<62)), part, one[0].Nanoseconds(), two[0].Nanoseconds(),
		two[1].Nanoseconds())
	// While no CPU meters, a bucket keeps at most its burst.
	if least := 0.01 * busy.Seconds() / time.Duration(end-first).Seconds(); part < least {
		t.Errorf("granted %.4f of the tokens, want at least %.4f: a CPU metered for %v of %v", part, least,
			busy, time.Duration(end-first))
	}
}

// share64 returns n as a share of n and the lost bytes.
func share64(n int64, lost *big.Rat) float64 {
	f, _ := lost.Float64()
	return float64(n) / (float64(n) + f)
}
