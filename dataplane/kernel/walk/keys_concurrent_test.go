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

// contended is a meter that two CPUs use at once, for one key or without keys.
type contended struct {
	name   string
	params meter.Params
	input  [2]meter.Color // by CPU
	keyed  bool
	whole  bool // no bucket overflows and no window ends: every byte is accounted for
}

var (
	wide  = meter.FixedWindow{Limit: maximal, Window: year} // the kernel's clock started less than a year ago
	slide = meter.SlidingCounter{Limit: maximal, Window: year}
)

var contendedMeters = []contended{
	{"fixed-window", wide, bothGreen, false, true},
	{"sliding-counter", slide, oneYellow, false, true},
	{"fixed-window 1ms", meter.FixedWindow{Limit: 150_000, Window: time.Millisecond}, bothGreen, false, false},
	{"sliding-counter 1ms", meter.SlidingCounter{Limit: 150_000, Window: time.Millisecond}, bothGreen, false, false},
	{"key fixed-window", wide, bothGreen, true, true},
	{"key sliding-counter", slide, bothGreen, true, true},
	{"key fixed-window 1ms", meter.FixedWindow{Limit: 150_000, Window: time.Millisecond}, bothGreen, true, false},
	{"key token-bucket", meter.TokenBucket{Rate: meter.BitRate(1e9), Burst: plenty}, bothGreen, true, true},
	{"key srtcm", meter.SRTCM{CIR: meter.BitRate(1e9), CBS: 20_000, EBS: plenty}, oneYellow, true, true},
	{"key trtcm", meter.TRTCM{CIR: meter.BitRate(1e9), CBS: plenty, PIR: meter.BitRate(2e9), PBS: 2 * plenty}, bothGreen, true, true},
	{"key 4115 fine", meter.TRTCM4115{CIR: slow, CBS: 1900, EIR: fine, EBS: 1800}, bothGreen, true, false},
}

// TestConcurrentKeys meters on two CPUs by one window or one key. The granted bytes are those
// that the states count and never exceed the meter's limit, and nearly all packets of a key use
// the key's own meter.
func TestConcurrentKeys(t *testing.T) { // not parallel: it needs both CPUs
	kerneltest.NeedRoot(t)
	cpus := allowedCPUs(t)
	if len(cpus) < 2 {
		t.Skip("needs two CPUs")
	}
	for i, test := range contendedMeters {
		if kerneltest.InVM && i%4 != 0 {
			continue
		}
		t.Run(test.name, func(t *testing.T) { test.run(t, cpus) })
	}
}

func (c *contended) run(t *testing.T, cpus []int) {
	const length = 1500
	empty := dataplane.Fraction{Num: 0, Den: 1}
	m := &dataplane.Meter{Params: c.params, Aware: true, PreColor: dscpColors}
	windows := newCounting(c.params, empty)
	if windows == nil {
		m.Initial = empty // a full bucket would overflow before both CPUs start
	}
	if c.keyed {
		m.Per, m.Keys = dataplane.Key{By: dataplane.BySrc}, 1
	}
	policy := &dataplane.Policy{Classes: []dataplane.Class{{Name: "all", Meter: m}}}
	h := newHooked(t, policy, image.EgressEntry, func(c *bpf.ShaperConstants) { c.Handed = 0 })
	frame := func(color meter.Color) []byte {
		b := ipv4(kerneltest.Be16(ethernet(), 0x800), 0, byte(color)<<2, 6, length-20, 0, from4, to4)
		return append(b, make([]byte, length-20)...)
	}
	first := engine.Now()
	if _, _, err := h.program.Benchmark(frame(meter.Green), 1, nil); err != nil {
		t.Fatal(err)
	}
	hammer := hammered{input: c.input}
	one, _ := hammer.hammer(t, h.program, cpus[:1], frame, 10*time.Millisecond) // for the log
	two, _ := hammer.hammer(t, h.program, cpus, frame, 250*time.Millisecond)

	stage := &h.image.Stages[0]
	var rest bpf.ShaperState
	if err := h.maps.States.LookupWithFlags(stage.Slot, &rest, ebpf.LookupLock); err != nil {
		t.Fatal(err)
	}
	states := []bpf.ShaperState{rest}
	if c.keyed {
		states = append(states, onlyKey(t, h, stage.Table))
	}
	end := engine.Now()
	all, err := h.Stats()
	if err != nil {
		t.Fatal(err)
	}
	colors := &all[0].Colors
	granted := colors[meter.Green].Bytes + colors[meter.Yellow].Bytes
	packets := colors[meter.Green].Packets + colors[meter.Yellow].Packets + colors[meter.Red].Packets

	// Bytes taken from each state, and the most that could have been taken.
	taken, elsewhere, most := new(big.Rat), new(big.Rat), new(big.Rat)
	for i, state := range states {
		if windows != nil {
			begun := end/windows.window - first/windows.window + 1
			most.Add(most, new(big.Rat).SetInt64(windows.limit*begun))
			taken.Add(taken, new(big.Rat).SetInt64(int64(state.Word[0])))
		} else if state.Stamp != engine.NotBegun {
			model := newExact(c.params, empty)
			model.Burst = model.Tokens
			limits := model.limits(end - first)
			if c.whole {
				limits = model.limits(end - int64(state.Stamp)) // the time of the first packet
			}
			holds := engine.LevelsAt(&state, &stage.Profile, uint64(end))
			sum := new(big.Rat)
			for k := range limits {
				if _, peak := c.params.(meter.TRTCM); peak && k == 0 {
					continue // P counts all granted bytes
				}
				most.Add(most, limits[k])
				sum.Add(sum, limits[k])
				sum.Sub(sum, new(big.Rat).SetFrac64(holds[k], int64(stage.Profile.Buckets[k].Den)))
			}
			taken.Add(taken, sum)
		}
		if i == 0 && c.keyed {
			elsewhere.Set(taken)
		}
	}
	if !c.whole && windows == nil { // plus the tokens that the buckets may have held
		for _, b := range stage.Profile.Buckets {
			most.Add(most, new(big.Rat).SetInt64(int64(len(states))*b.Size/int64(b.Den)))
		}
	}
	bytes := new(big.Rat).SetInt64(granted)
	if bytes.Cmp(most) > 0 {
		t.Errorf("granted %d bytes, want at most %s", granted, most.FloatString(3))
	}
	if c.whole && bytes.Cmp(taken) != 0 {
		t.Errorf("granted %d bytes, want the %s that the states count", granted, taken.FloatString(3))
	}
	if red := colors[meter.Red].Packets; c.whole && windows != nil && red > 0 {
		t.Errorf("%d of %d packets are red, want none", red, packets)
	}
	share, _ := bytes.Quo(bytes, most).Float64()
	missed := 0.0
	if c.whole { // otherwise the overflow is unknown
		overflow, _ := elsewhere.Float64()
		missed = overflow / length / float64(packets)
		// A CPU that the host stops for some ms while it holds the lock sends all packets of the other there.
		if missed > 0.1 && !kerneltest.InVM {
			t.Errorf("a share of %.6f of the packets used the shared overflow meter, want at most 0.1",
				missed)
		}
	}
	t.Logf("%d packets, granted %.4f of the limit, %.2g of them by the overflow meter; ns per packet: one CPU %d, two CPUs %d and %d",
		packets, share, missed, one[0].Nanoseconds(), two[0].Nanoseconds(), two[1].Nanoseconds())
}

// onlyKey returns the state of the only key of a table.
func onlyKey(t *testing.T, h *hooked, slot int32) bpf.ShaperState {
	t.Helper()
	table, err := image.OpenTable(h.maps.Keys, slot)
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	var key bpf.ShaperKey
	var v image.KeyState
	n := 0
	for all := table.Iterate(); all.Next(&key, &v); {
		n++
	}
	if n != 1 || v.Lock != 0 {
		t.Fatalf("got %d keys, the last one %+v, want one with an open lock", n, v)
	}
	return bpf.ShaperState{Word: v.Word, Stamp: v.Stamp}
}
