package walk

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/metertest"
)

// leasedTypes has parameters of every type that can follow a lease.
var leasedTypes = []meter.Params{
	meter.TokenBucket{Rate: meter.BitRate(1e9), Burst: 1e6},
	meter.TokenBucket{Rate: meter.BitRate(1e9), Burst: 1e6, GCRA: true},
	meter.SRTCM{CIR: meter.BitRate(1e9), CBS: 1e6, EBS: 1e6},
	meter.TRTCM{CIR: meter.BitRate(1e9), CBS: 1e6, PIR: meter.BitRate(2e9), PBS: 1e6},
	meter.TRTCM4115{CIR: meter.BitRate(1e9), CBS: 1e6, EIR: meter.BitRate(2e9), EBS: 1e6},
	meter.TRTCM4115{CIR: meter.BitRate(1e9), CBS: 1e6, EIR: meter.BitRate(2e9), EBS: 1e6, Coupling: true},
}

// leasedPolicy has one meter with a budget on a server.
func leasedPolicy(p meter.Params) *dataplane.Policy {
	m := &dataplane.Meter{
		Name: "m", Params: p, Aware: true, PreColor: dscpColors,
		Budget: &dataplane.Budget{Name: "b", Address: dataplane.Address{URL: "redis://h"}},
	}
	return &dataplane.Policy{
		Length: dataplane.LengthRule{Overhead: -20}, Classes: []dataplane.Class{{Name: "all", Meter: m}},
	}
}

// following is a program whose meter follows leases.
type following struct {
	*hooked
	image.Leases
}

func newFollowing(t testing.TB, hook image.Entry, handed uint8) *following {
	t.Helper()
	f := &following{hooked: newHooked(t, leasedPolicy(leasedTypes[0]), hook,
		func(c *bpf.ShaperConstants) { c.Handed = handed })}
	f.Leases.States = f.maps.Leases
	if err := f.Leases.LoadProgram(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Leases.Close)
	return f
}

// stage turns the program's meter into one with these parameters and without a lease.
func (f *following) stage(t testing.TB, p meter.Params) image.LeasedStage {
	t.Helper()
	profile, err := p.Profile()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.States.Put(uint32(0), &bpf.ShaperLeased{Phase: 2}); err != nil {
		t.Fatal(err)
	}
	four, _ := p.(meter.TRTCM4115)
	return image.LeasedStage{Slot: 0, Kind: profile.Kind(), Coupled: four.Coupling}
}

// anyLease is a random lease. Its phases end shortly before or after now, or much later. The
// second phase sometimes ends before the first.
func anyLease(r *rand.Rand, now int64) (l compiled.Lease) {
	for i := range l.Limits {
		for b := range l.Limits[i] {
			l.Limits[i][b] = compiled.BucketLimit{
				Rate:  kerneltest.Pick(r, 0, 1, 8, 12345, 1e6, 1e9, r.Int64N(1e9), 8*r.Int64N(1e10)),
				Burst: kerneltest.Pick(r, 0, 1, 64, 1500, 3000, r.Int64N(100_000), image.MaxLeaseBurst),
			}
		}
	}
	for i := range l.Until {
		l.Until[i] = now + kerneltest.Pick(r, -1, 0, 1, r.Int64N(2e6)-1e5, r.Int64N(1e9), 1<<60)
	}
	return l
}

// TestLeaseOneTruth compares meters that follow leases with the pipeline, packet by packet.
// Leases start and phases end at random times.
func TestLeaseOneTruth(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	r := kerneltest.Seeded(t)
	var seen [3]int
	installs := 0
	for _, hook := range []image.Entry{image.EgressEntry, image.XdpEntry} {
		if kerneltest.InVM && hook == image.XdpEntry { // loading a program takes seconds
			continue
		}
		f := newFollowing(t, hook, 1)
		for k := 0; k < kerneltest.Rounds(300) || slices.Min(seen[:]) < kerneltest.Rounds(1000); k++ {
			if k == kerneltest.Rounds(30_000) {
				t.Fatalf("packets by color %v, want at least %d of each", seen, kerneltest.Rounds(1000))
			}
			params := leasedTypes[k%len(leasedTypes)]
			stage := f.stage(t, params)
			policy := leasedPolicy(params)
			pl, err := pipeline.New(policy)
			if err != nil {
				t.Fatal(err)
			}
			now := int64(1e15) + r.Int64N(1e15)
			f.now = math.MinInt64
			lease := compiled.Lease{}
			for i := range 60 {
				now += kerneltest.Pick(r, 0, 1, r.Int64N(1000), r.Int64N(1e6), r.Int64N(1e9))
				if until := lease.Until[r.IntN(2)] + r.Int64N(3) - 1; r.IntN(4) == 0 && until > now &&
					until < now+1e10 {
					now = until // within 1 ns of the end of a phase
				}
				if i > 2 && r.IntN(6) == 0 {
					lease = anyLease(r, now)
					if err := f.Set(stage, &lease, uint64(now)); err != nil {
						t.Fatal(err)
					}
					pl.SetLease(now, "b", lease)
					installs++
				}
				p := framed(kerneltest.Pick(r, meter.Green, meter.Green, meter.Yellow, meter.Red),
					kerneltest.Pick(r, 1, 64, 1500, r.IntN(60_000)), now)
				q := p
				q.Data = append([]byte{}, p.Data...)
				var got, want dataplane.Verdict
				if err := f.run(&p, &got, skb{}); err != nil {
					t.Fatal(err)
				}
				pl.Process(&q, &want)
				if got.Color != want.Color {
					t.Fatalf(
						"%v, %T, packet %d of %d bytes, input color %v, at %d: got %v, want %v; lease %+v",
						hook, params, i, want.Length, want.Pre, now, got.Color, want.Color, lease)
				}
				seen[got.Color]++
				l, held, err := image.LeaseLevels(f.States, 0, uint64(now))
				if err != nil {
					t.Fatal(err)
				}
				tc, te := l.Tokens(held)
				if wantC, wantE := pl.Tokens(0); tc != wantC || te != wantE {
					t.Fatalf("%v, %T, packet %d at %d: got %d and %d tokens, want %d and %d; lease %+v", hook,
						params, i, now, tc, te, wantC, wantE, lease)
				}
			}
			state, err := image.ReadLease(f.States, 0)
			if err != nil {
				t.Fatal(err)
			}
			if want := pl.Demand("b"); [3]uint64(state.Asked[:3]) != want {
				t.Fatalf("%v, %T: got a demand of %v bytes, want %v", hook, params, state.Asked, want)
			}
		}
	}
	t.Logf("%d leases, colors %v", installs, seen)
}

// TestLeased checks the limits that are read back for each phase of a lease.
func TestLeased(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	f := newFollowing(t, image.EgressEntry, 1)
	reads := func(what string, at int64, now, last compiled.BucketLimits) {
		t.Helper()
		gotNow, gotLast, err := image.LeaseLimits(f.States, 0, uint64(at))
		if err != nil || gotNow != now || gotLast != last {
			t.Errorf("%s: got %v, then %v (%v), want %v, then %v", what, gotNow, gotLast, err, now, last)
		}
	}
	for _, params := range leasedTypes {
		stage, what := f.stage(t, params), fmt.Sprintf("%T", params)
		reads(what+" without a lease", 1e15, compiled.BucketLimits{}, compiled.BucketLimits{})
		l := compiled.Lease{Until: [2]int64{1e15 + 10, 1e15 + 20}}
		for i, n := range []int64{1_234_567, 0, 7} {
			l.Limits[i] = compiled.BucketLimits{{Rate: n, Burst: 10 * n}, {Rate: 2 * n, Burst: 20 * n}}
			switch params.(type) {
			case meter.SRTCM:
				l.Limits[i][1].Rate = 0
			case meter.TokenBucket:
				l.Limits[i][1] = compiled.BucketLimit{}
			}
		}
		if err := f.Set(stage, &l, 1e15); err != nil {
			t.Fatal(err)
		}
		for i, at := range []int64{1e15 + 9, 1e15 + 10, 1e15 + 20} {
			reads(fmt.Sprintf("%s in phase %d", what, i), at, l.Limits[i], l.Limits[2])
		}
	}
}

// TestLeaseBound checks that a meter never grants more than a model in exact fractions: each
// bucket gains rate * dt in each phase and is capped when a phase or lease begins.
func TestLeaseBound(t *testing.T) {
	kerneltest.NeedRoot(t)
	if kerneltest.InVM {
		t.Skip("not in a VM: the arithmetic is the same in every kernel")
	}
	t.Parallel()
	r := kerneltest.Seeded(t)
	f := newFollowing(t, image.EgressEntry, 1)
	passed := 0
	for k := range kerneltest.Rounds(200) {
		params := leasedTypes[k%len(leasedTypes)]
		stage := f.stage(t, params)
		now := int64(1e15)
		f.now = math.MinInt64
		m := leaseBound{Buckets: newExact(params, dataplane.Fraction{Den: 1}).Buckets}
		m.setPhase() // no tokens until the first lease
		m.Refill(now)
		for range 60 {
			now += kerneltest.Pick(r, 0, r.Int64N(1000), r.Int64N(1e6), r.Int64N(1e8))
			if r.IntN(5) == 0 {
				lease := anyLease(r, now)
				if err := f.Set(stage, &lease, uint64(now)); err != nil {
					t.Fatal(err)
				}
				m.startLease(now, &lease)
			}
			p := framed(meter.Green, kerneltest.Pick(r, 64, 1500, r.IntN(60_000)), now)
			var v dataplane.Verdict
			if err := f.run(&p, &v, skb{}); err != nil {
				t.Fatal(err)
			}
			m.advance(now)
			if v.Color == meter.Red {
				continue
			}
			passed++
			if problem := m.debit(params, v.Color, int64(v.Length)); problem != "" {
				t.Fatalf("%T: granted %d %v bytes at %d, but %s", params, v.Length, v.Color, now, problem)
			}
		}
	}
	if passed < kerneltest.Rounds(1000) {
		t.Errorf("%d packets passed, want at least %d", passed, kerneltest.Rounds(1000))
	}
}

// leaseBound is an upper bound of the tokens of a meter that follows leases.
type leaseBound struct {
	*metertest.Buckets
	lease compiled.Lease
	phase int
}

// setPhase gives the buckets the limits of the current phase.
func (b *leaseBound) setPhase() {
	for i, l := range b.lease.Limits[b.phase] {
		b.Rate[i], b.Burst[i] = big.NewRat(l.Rate, 8e9), new(big.Rat).SetInt64(l.Burst)
	}
}

// advance brings the buckets to a time, through the phases that end before it.
func (b *leaseBound) advance(now int64) {
	for b.phase < 2 && now >= b.lease.Until[b.phase] {
		b.Refill(b.lease.Until[b.phase])
		b.phase++
		b.setPhase()
		b.Refill(b.Now) // caps the buckets at the new bursts
	}
	b.Refill(now)
}

// startLease starts a lease at a time.
func (b *leaseBound) startLease(now int64, lease *compiled.Lease) {
	b.advance(now)
	b.lease, b.phase = *lease, 0
	b.setPhase()
	b.advance(now)
}

// debit takes granted bytes from their buckets. It describes a bucket that held too few.
func (b *leaseBound) debit(params meter.Params, color meter.Color, n int64) string {
	take := func(i int) string {
		if b.Tokens[i].Sub(b.Tokens[i], new(big.Rat).SetInt64(n)).Sign() < 0 {
			return fmt.Sprintf("bucket %d is left with %v bytes", i, b.Tokens[i])
		}
		return ""
	}
	if _, peak := params.(meter.TRTCM); peak {
		problem := take(1)
		if color == meter.Green {
			problem += take(0)
		}
		return problem
	}
	return take(int(color))
}

// TestLeaseConcurrent meters on two CPUs by one meter, with the kernel's clock, while leases start
// and phases end. The granted bytes never exceed the tokens that the phases bring.
func TestLeaseConcurrent(t *testing.T) { // not parallel: it needs both CPUs
	kerneltest.NeedRoot(t)
	cpus := allowedCPUs(t)
	if len(cpus) < 2 {
		t.Skip("needs two CPUs")
	}
	const length = 1500
	f := newFollowing(t, image.EgressEntry, 0)
	stage := f.stage(t, leasedTypes[0])
	frame := framed(meter.Green, length, 0)
	frame.Data = append(frame.Data, make([]byte, frame.WireLen-len(frame.Data))...)
	var stop atomic.Bool
	var running []<-chan error
	for _, cpu := range cpus {
		running = append(running, onCPU(cpu, func() error {
			for !stop.Load() {
				if _, _, err := f.program.Benchmark(frame.Data, 1000, nil); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	most, leases := new(big.Rat), 0
	var lease compiled.Lease
	var at int64
	addTokens := func(until int64) { // from at on
		for i := range lease.Limits {
			end := until
			if i < 2 {
				end = min(until, lease.Until[i])
			}
			if end > at {
				most.Add(most,
					new(big.Rat).Mul(big.NewRat(lease.Limits[i][0].Rate, 8e9), new(big.Rat).SetInt64(end-at)))
				at = end
			}
		}
	}
	for begin := time.Now(); time.Since(begin) < 500*time.Millisecond; leases++ {
		now := engine.Now()
		addTokens(now)
		rate := func() int64 { return 1e8 + rand.Int64N(5e9) }
		lease = compiled.Lease{Until: [2]int64{now + rand.Int64N(200_000), now + rand.Int64N(400_000)}}
		for i := range lease.Limits {
			lease.Limits[i][0] = compiled.BucketLimit{Rate: rate(), Burst: 10_000 + rand.Int64N(50_000)}
		}
		at = now
		if err := f.Set(stage, &lease, uint64(now)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Microsecond)
	}
	stop.Store(true)
	var errs []error
	for _, done := range running {
		errs = append(errs, <-done)
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	addTokens(engine.Now())
	all, err := f.Stats()
	if err != nil {
		t.Fatal(err)
	}
	green := all[0].Colors[meter.Green].Bytes
	state, err := image.ReadLease(f.States, 0)
	if err != nil {
		t.Fatal(err)
	}
	if state.Asked[meter.Green] != uint64(green) ||
		state.Asked[meter.Red] != uint64(all[0].Colors[meter.Red].Bytes) {
		t.Errorf("got a demand of %v bytes, want the counted %v", state.Asked, all[0].Colors)
	}
	limit, _ := most.Float64()
	t.Logf("%d leases, %d of %.0f bytes passed", leases, green, limit)
	if new(big.Rat).SetInt64(green).Cmp(most) > 0 {
		t.Errorf("%d bytes passed, want at most %s", green, most.FloatString(3))
	}
	if green == 0 {
		t.Error("no packet passed")
	}
}
