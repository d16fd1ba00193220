package kernel

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// leasedTypes are those of meters that may follow a lease.
var leasedTypes = []dataplane.Params{
	meter.TokenBucket{Rate: bps(1e9), Burst: 1e6},
	meter.TokenBucket{Rate: bps(1e9), Burst: 1e6, GCRA: true},
	meter.SRTCM{CIR: bps(1e9), CBS: 1e6, EBS: 1e6},
	meter.TRTCM{CIR: bps(1e9), CBS: 1e6, PIR: bps(2e9), PBS: 1e6},
	meter.TRTCM4115{CIR: bps(1e9), CBS: 1e6, EIR: bps(2e9), EBS: 1e6},
	meter.TRTCM4115{CIR: bps(1e9), CBS: 1e6, EIR: bps(2e9), EBS: 1e6, Coupling: true},
}

// leasedPolicy has one meter, whose budget is on a server.
func leasedPolicy(p dataplane.Params) *dataplane.Policy {
	m := &dataplane.Meter{Name: "m", Params: p, Aware: true, PreColor: dscpColors, Budget: &dataplane.Budget{Name: "b", Store: dataplane.Store{URL: "redis://h"}}}
	return &dataplane.Policy{Length: dataplane.LengthRule{Overhead: -20}, Classes: []dataplane.Class{{Name: "all", Meter: m}}}
}

// following is a program whose meter follows leases.
type following struct {
	*hooked
	leases
}

func newFollowing(t testing.TB, hook entry, handed uint8) *following {
	t.Helper()
	f := &following{hooked: newHooked(t, leasedPolicy(leasedTypes[0]), hook, func(c *bpf.ShaperConstants) { c.Handed = handed })}
	f.leases.states = f.maps.leases
	if err := f.leases.loadProgram(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.leases.close)
	return f
}

// stage is the program's meter as one of a type, which has had no lease yet.
func (f *following) stage(t testing.TB, p dataplane.Params) leasedStage {
	t.Helper()
	profile, err := p.Profile()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.states.Put(uint32(0), &bpf.ShaperLeased{Phase: 2}); err != nil {
		t.Fatal(err)
	}
	four, _ := p.(meter.TRTCM4115)
	return leasedStage{0, profile.Kind(), four.Coupling}
}

// anyLease is a lease whose phases end about now, long after, or have ended before; the
// second one sometimes before the first.
func anyLease(r *rand.Rand, now int64) (l dataplane.Lease) {
	for i := range l.Limits {
		for b := range l.Limits[i] {
			l.Limits[i][b] = dataplane.Limit{
				Rate:  pick(r, 0, 1, 8, 12345, 1e6, 1e9, r.Int64N(1e9), 8*r.Int64N(1e10)),
				Burst: pick(r, 0, 1, 64, 1500, 3000, r.Int64N(100_000), maxLeaseBurst),
			}
		}
	}
	for i := range l.Until {
		l.Until[i] = now + pick(r, -1, 0, 1, r.Int64N(2e6)-1e5, r.Int64N(1e9), 1<<60)
	}
	return l
}

// TestLeaseOneTruth holds meters that follow leases in the kernel to those of the
// pipeline, packet by packet, over phases and leases that come and end at any time.
func TestLeaseOneTruth(t *testing.T) {
	needRoot(t)
	t.Parallel()
	r := seeded(t)
	var seen [3]int
	installs := 0
	for _, hook := range []entry{egressEntry, xdpEntry} {
		if inVM && hook == xdpEntry { // loading a program takes seconds
			continue
		}
		f := newFollowing(t, hook, 1)
		for k := range rounds(300) {
			params := leasedTypes[k%len(leasedTypes)]
			stage := f.stage(t, params)
			policy := leasedPolicy(params)
			pipeline, err := dataplane.New(policy)
			if err != nil {
				t.Fatal(err)
			}
			now := int64(1e15) + r.Int64N(1e15)
			f.now = math.MinInt64
			lease := dataplane.Lease{}
			for i := range 60 {
				now += pick(r, 0, 1, r.Int64N(1000), r.Int64N(1e6), r.Int64N(1e9))
				if until := lease.Until[r.IntN(2)] + r.Int64N(3) - 1; r.IntN(4) == 0 && until > now && until < now+1e10 {
					now = until // a phase ends about here
				}
				if i > 2 && r.IntN(6) == 0 {
					lease = anyLease(r, now)
					if err := f.set(stage, &lease, uint64(now)); err != nil {
						t.Fatal(err)
					}
					pipeline.SetLease(now, "b", lease)
					installs++
				}
				p := framed(pick(r, meter.Green, meter.Green, meter.Yellow, meter.Red), pick(r, 1, 64, 1500, r.IntN(60_000)), now)
				q := p
				q.Data = append([]byte{}, p.Data...)
				var got, want dataplane.Verdict
				if err := f.run(&p, &got, skb{}); err != nil {
					t.Fatal(err)
				}
				pipeline.Process(&q, &want)
				if got.Color != want.Color {
					t.Fatalf("%v, %T, packet %d of %d bytes, %v before, at %d: %v, want %v; lease %+v", hook, params, i, want.Length, want.Pre, now, got.Color, want.Color, lease)
				}
				seen[got.Color]++
				l, held, err := leaseLevels(f.states, 0, uint64(now))
				if err != nil {
					t.Fatal(err)
				}
				tc, te := l.tokens(held)
				if wantC, wantE := pipeline.Tokens(0); tc != wantC || te != wantE {
					t.Fatalf("%v, %T, packet %d at %d: %d and %d tokens, want %d and %d; lease %+v", hook, params, i, now, tc, te, wantC, wantE, lease)
				}
			}
			state, err := readLease(f.states, 0)
			if err != nil {
				t.Fatal(err)
			}
			if want := pipeline.Asked("b"); [3]uint64(state.Asked[:3]) != want {
				t.Fatalf("%v, %T: asked for %v, want %v", hook, params, state.Asked, want)
			}
		}
	}
	t.Logf("%d leases, colors %v", installs, seen)
	for c, n := range seen {
		if n < rounds(1000) {
			t.Errorf("only %d packets are %v", n, meter.Color(c))
		}
	}
}

// TestLeased reads what meters may let through in each phase of their leases.
func TestLeased(t *testing.T) {
	needRoot(t)
	t.Parallel()
	f := newFollowing(t, egressEntry, 1)
	reads := func(what string, at int64, now, last dataplane.Limits) {
		t.Helper()
		gotNow, gotLast, err := leaseLimits(f.states, 0, uint64(at))
		if err != nil || gotNow != now || gotLast != last {
			t.Errorf("%s: %v, then %v, %v: want %v, then %v", what, gotNow, gotLast, err, now, last)
		}
	}
	for _, params := range leasedTypes {
		stage, what := f.stage(t, params), fmt.Sprintf("%T", params)
		reads(what+" without a lease", 1e15, dataplane.Limits{}, dataplane.Limits{})
		l := dataplane.Lease{Until: [2]int64{1e15 + 10, 1e15 + 20}}
		for i, n := range []int64{1_234_567, 0, 7} {
			l.Limits[i] = dataplane.Limits{{Rate: n, Burst: 10 * n}, {Rate: 2 * n, Burst: 20 * n}}
			switch params.(type) {
			case meter.SRTCM:
				l.Limits[i][1].Rate = 0
			case meter.TokenBucket:
				l.Limits[i][1] = dataplane.Limit{}
			}
		}
		if err := f.set(stage, &l, 1e15); err != nil {
			t.Fatal(err)
		}
		for i, at := range []int64{1e15 + 9, 1e15 + 10, 1e15 + 20} {
			reads(fmt.Sprintf("%s in phase %d", what, i), at, l.Limits[i], l.Limits[2])
		}
	}
}

// TestLeaseBound holds what passes to exact fractions that know nothing of units: each
// bucket gains rate * dt in each phase, and is cut where phases and leases begin.
func TestLeaseBound(t *testing.T) {
	needRoot(t)
	if inVM {
		t.Skip("the arithmetic is that of any kernel")
	}
	t.Parallel()
	r := seeded(t)
	f := newFollowing(t, egressEntry, 1)
	passed := 0
	for k := range rounds(200) {
		params := leasedTypes[k%len(leasedTypes)]
		stage := f.stage(t, params)
		now := int64(1e15)
		f.now = math.MinInt64
		m := bound{at: now}
		switch p := params.(type) {
		case meter.SRTCM:
			m.coupled = true
		case meter.TRTCM4115:
			m.coupled = p.Coupling
		}
		for range 60 {
			now += pick(r, 0, r.Int64N(1000), r.Int64N(1e6), r.Int64N(1e8))
			if r.IntN(5) == 0 {
				lease := anyLease(r, now)
				if err := f.set(stage, &lease, uint64(now)); err != nil {
					t.Fatal(err)
				}
				m.give(now, &lease)
			}
			p := framed(meter.Green, pick(r, 64, 1500, r.IntN(60_000)), now)
			var v dataplane.Verdict
			if err := f.run(&p, &v, skb{}); err != nil {
				t.Fatal(err)
			}
			m.pass(now)
			if v.Color == meter.Red {
				continue
			}
			passed++
			if fault := m.take(params, v.Color, int64(v.Length)); fault != "" {
				t.Fatalf("%T: %d bytes pass %v at %d, and %s", params, v.Length, v.Color, now, fault)
			}
		}
	}
	if passed < rounds(1000) {
		t.Errorf("only %d packets passed", passed)
	}
}

// bound is the most that the buckets of a meter hold.
type bound struct {
	lease dataplane.Lease
	phase int
	at    int64
	holds [2]big.Rat

	coupled bool
}

// bring brings the buckets to a time in the phase that they are in.
func (b *bound) bring(now int64) {
	for i := range b.holds {
		l := b.lease.Limits[b.phase][i]
		b.holds[i].Add(&b.holds[i], new(big.Rat).Mul(big.NewRat(l.Rate, 8e9), new(big.Rat).SetInt64(max(now-b.at, 0))))
		if most := new(big.Rat).SetInt64(l.Burst); b.holds[i].Cmp(most) > 0 {
			if i == 0 && b.coupled { // it overflows into the other one
				b.holds[1].Add(&b.holds[1], new(big.Rat).Sub(&b.holds[0], most))
			}
			b.holds[i].Set(most)
		}
	}
	b.at = max(now, b.at)
}

func (b *bound) pass(now int64) {
	for b.phase < 2 && now >= b.lease.Until[b.phase] {
		b.bring(b.lease.Until[b.phase])
		b.phase++
		b.bring(b.at) // cut
	}
	b.bring(now)
}

func (b *bound) give(now int64, lease *dataplane.Lease) {
	b.pass(now)
	b.lease, b.phase = *lease, 0
	b.bring(now)
	b.pass(now)
}

// take takes what passed from the buckets that it may have come from, or says that
// they did not hold it.
func (b *bound) take(params dataplane.Params, color meter.Color, n int64) string {
	take := func(i int) string {
		if b.holds[i].Sub(&b.holds[i], new(big.Rat).SetInt64(n)).Sign() < 0 {
			return fmt.Sprintf("bucket %d lacks %v of them", i, &b.holds[i])
		}
		return ""
	}
	if _, peak := params.(meter.TRTCM); peak {
		fault := take(1)
		if color == meter.Green {
			fault += take(0)
		}
		return fault
	}
	return take(int(color))
}

// TestLeaseConcurrent has two CPUs at one meter, by the kernel's clock, while leases
// come and phases end: what passes is never a byte above what the phases bring.
func TestLeaseConcurrent(t *testing.T) { // not parallel: the CPUs are for this
	needRoot(t)
	cpus := allowedCPUs(t)
	if len(cpus) < 2 {
		t.Skip("there is but one CPU")
	}
	const length = 1500
	f := newFollowing(t, egressEntry, 0)
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
	var lease dataplane.Lease
	var at int64
	brings := func(until int64) { // from at on
		for i := range lease.Limits {
			end := until
			if i < 2 {
				end = min(until, lease.Until[i])
			}
			if end > at {
				most.Add(most, new(big.Rat).Mul(big.NewRat(lease.Limits[i][0].Rate, 8e9), new(big.Rat).SetInt64(end-at)))
				at = end
			}
		}
	}
	for begin := time.Now(); time.Since(begin) < 500*time.Millisecond; leases++ {
		now := clock(t)
		brings(now)
		rate := func() int64 { return 1e8 + rand.Int64N(5e9) }
		lease = dataplane.Lease{Until: [2]int64{now + rand.Int64N(200_000), now + rand.Int64N(400_000)}}
		for i := range lease.Limits {
			lease.Limits[i][0] = dataplane.Limit{Rate: rate(), Burst: 10_000 + rand.Int64N(50_000)}
		}
		at = now
		if err := f.set(stage, &lease, uint64(now)); err != nil {
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
	brings(clock(t))
	all, err := f.Stats()
	if err != nil {
		t.Fatal(err)
	}
	green := all[0].Colors[meter.Green].Bytes
	state, err := readLease(f.states, 0)
	if err != nil {
		t.Fatal(err)
	}
	if state.Asked[meter.Green] != uint64(green) || state.Asked[meter.Red] != uint64(all[0].Colors[meter.Red].Bytes) {
		t.Errorf("asked for %v, and counted %v", state.Asked, all[0].Colors)
	}
	limit, _ := most.Float64()
	t.Logf("%d leases, %d of %.0f bytes passed", leases, green, limit)
	if new(big.Rat).SetInt64(green).Cmp(most) > 0 {
		t.Errorf("%d bytes passed, more than %s", green, most.FloatString(3))
	}
	if float64(green) < limit/10 {
		t.Errorf("only %d of %.0f bytes passed", green, limit)
	}
}
