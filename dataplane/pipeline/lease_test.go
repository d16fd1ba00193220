package pipeline

import (
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// leasedPolicy returns a policy with one meter, which has a budget on a server.
func leasedPolicy(p meter.Params) (*dataplane.Policy, *dataplane.Meter) {
	m := &dataplane.Meter{
		Name: "m", Params: p,
		Budget: &dataplane.Budget{Name: "b", Address: dataplane.Address{URL: "redis://h"}},
	}
	return &dataplane.Policy{Classes: []dataplane.Class{{Name: "a", Match: dataplane.Match{}, Meter: m}}}, m
}

// TestLimitsOf checks that With restores the limits that LimitsOf returns, and that rates
// are rounded down.
func TestLimitsOf(t *testing.T) {
	t.Parallel()
	bit := meter.BitRate
	for _, p := range []meter.Params{
		meter.SRTCM{CIR: bit(1e6), CBS: 2000, EBS: 3000},
		meter.TRTCM{CIR: bit(1e6), CBS: 2000, PIR: bit(2e6), PBS: 3000},
		meter.TRTCM4115{CIR: bit(1e6), CBS: 2000, EIR: bit(2e6), EBS: 3000, Coupling: true},
		meter.TokenBucket{Rate: bit(1e6), Burst: 2000},
		meter.TokenBucket{Rate: bit(1e6), Burst: 2000, GCRA: true},
	} {
		if got := compiled.LimitsOf(p).With(p); got != p {
			t.Errorf("LimitsOf and With turned %#v into %#v", p, got)
		}
	}
	odd := compiled.LimitsOf(
		meter.TokenBucket{Rate: meter.Rate{Bytes: 10, Period: 3 * time.Second}, Burst: 1})
	if odd[0].Rate != 26 { // 80/3 bit/s
		t.Errorf("10 bytes in 3 s are %d bit/s, want 26", odd[0].Rate)
	}
}

// TestLease compares a leased token bucket with exact fractions over random leases. It never
// passes more than the leases allow, and loses less than a byte per change of limits.
func TestLease(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 3))
		policy, m := leasedPolicy(meter.TokenBucket{Rate: meter.BitRate(1e9), Burst: 1e6})
		l, err := New(policy)
		if err != nil {
			t.Fatal(err)
		}
		s := &l.stages[l.plan.Stage(m)]
		limit := func() compiled.BucketLimits {
			if r.IntN(6) == 0 {
				return compiled.BucketLimits{}
			}
			return compiled.BucketLimits{{Rate: 1 + r.Int64N(1<<r.IntN(34)), Burst: 1 + r.Int64N(20000)}}
		}
		var lease compiled.Lease
		level, at, now, changes := new(big.Rat), int64(0), int64(1e12), int64(0)
		fill := func(until int64, limit compiled.BucketLimit) {
			if limit.Rate == 0 {
				limit.Burst = 0
			}
			more := new(big.Rat).SetFrac64(limit.Rate, 8e9)
			level.Add(level, more.Mul(more, new(big.Rat).SetInt64(max(until-at, 0))))
			if burst := new(big.Rat).SetInt64(limit.Burst); level.Cmp(burst) > 0 {
				level.Set(burst)
			}
			at = max(at, until)
		}
		advance := func() {
			for i, until := range lease.Until {
				if at < until {
					fill(min(until, now), lease.Limits[i][0])
					if now < until {
						return
					}
					changes++
					fill(until, lease.Limits[i+1][0]) // cap at the new burst
				}
			}
			if at < now {
				fill(now, lease.Limits[2][0])
			}
		}
		at = now
		for range 400 {
			now += r.Int64N(1 << r.IntN(28))
			advance()
			if r.IntN(10) == 0 {
				lease = compiled.Lease{Limits: [3]compiled.BucketLimits{limit(), limit(), limit()}}
				lease.Until[0] = now + r.Int64N(1e9) - 1e8
				lease.Until[1] = lease.Until[0] + r.Int64N(1e9) - 1e8
				l.SetLease(now, "b", lease)
				lease.Until[1] = max(lease.Until[0], lease.Until[1])
				l.now = now
				changes++
				fill(now, lease.Limits[0][0])
				for i, until := range lease.Until {
					if now >= until {
						fill(now, lease.Limits[i+1][0])
					}
				}
				continue
			}
			n := 1 + r.Int64N(9000)
			want := new(big.Rat).SetInt64(n)
			switch color := s.color(nil, now, int(n), meter.Green); {
			case color == meter.Green && level.Cmp(want) < 0:
				t.Fatalf("seed %d: %d bytes passed with %v tokens", seed, n, level.FloatString(3))
			case color == meter.Green:
				level.Sub(level, want)
			case level.Cmp(want.Add(want, new(big.Rat).SetInt64(changes))) >= 0:
				t.Fatalf("seed %d: %d bytes did not pass with %v tokens, after %d changes", seed, n,
					level.FloatString(3), changes)
			}
		}
		if got := l.Demand("b"); got[0] == 0 || got[2] == 0 {
			t.Fatalf("seed %d: %v tokens were requested, want some green and some red", seed, got)
		}
	}
}

func TestLeaseAllocatesNothing(t *testing.T) {
	policy, m := leasedPolicy(
		meter.TRTCM{CIR: meter.BitRate(1e6), CBS: 2000, PIR: meter.BitRate(2e6), PBS: 3000})
	l, err := New(policy)
	if err != nil {
		t.Fatal(err)
	}
	limits := compiled.LimitsOf(m.Params)
	now := int64(0)
	l.SetLease(0, "b",
		compiled.Lease{Limits: [3]compiled.BucketLimits{limits, {}, limits}, Until: [2]int64{1e6, 2e6}})
	s := &l.stages[l.plan.Stage(m)]
	if n := testing.AllocsPerRun(1000, func() { now += 10000; s.color(nil, now, 100, meter.Green) }); n > 0 {
		t.Errorf("got %v allocations per packet, want 0", n)
	}
}

// TestInheritLease checks that a new pipeline keeps the lease and the tokens.
func TestInheritLease(t *testing.T) {
	t.Parallel()
	policy, _ := leasedPolicy(meter.TokenBucket{Rate: meter.BitRate(8000), Burst: 5000})
	l, err := New(policy)
	if err != nil {
		t.Fatal(err)
	}
	l.SetLease(0, "b",
		compiled.Lease{
			Limits: [3]compiled.BucketLimits{{{Rate: 8000, Burst: 5000}}}, Until: [2]int64{1e12, 1e12},
		})
	l.now = 2e9
	policy, again := leasedPolicy(meter.TokenBucket{Rate: meter.BitRate(9000), Burst: 6000})
	next, err := New(policy)
	if err != nil {
		t.Fatal(err)
	}
	next.Inherit(l)
	if tc, _ := tokensOf(next, again); tc != 2000 {
		t.Errorf("got %d tokens, want 2000", tc)
	}
	if c := next.stages[next.plan.Stage(again)].color(nil, 2e9, 2001, meter.Green); c != meter.Red {
		t.Errorf("2001 bytes with 2000 tokens are %v, want red", c)
	}
}

// TestInheritFromLease checks that a meter whose budget is removed starts with the tokens of
// its lease, not with a full bucket.
func TestInheritFromLease(t *testing.T) {
	policy, _ := leasedPolicy(meter.TokenBucket{Rate: meter.BitRate(8000), Burst: 5000})
	l := newPipeline(t, policy)
	l.SetLease(0, "b",
		compiled.Lease{
			Limits: [3]compiled.BucketLimits{{{Rate: 8000, Burst: 5000}}}, Until: [2]int64{1e12, 1e12},
		})
	l.now = 2e9
	policy, m := leasedPolicy(meter.TokenBucket{Rate: meter.BitRate(8000), Burst: 5000})
	m.Budget = nil
	next, _ := inherited(t, l, policy)
	if tc, _ := tokensOf(next, m); tc != 2000 {
		t.Errorf("got %d tokens, want the 2000 of the lease", tc)
	}
}

// TestLeasePhases has a row at and next to the end of each phase.
func TestLeasePhases(t *testing.T) {
	bucket := meter.TokenBucket{Rate: meter.BitRate(8e9), Burst: 1000} // full after 1 µs
	const start = 1000
	limits := func(burst int64) compiled.BucketLimits {
		return compiled.BucketLimits{{Rate: 8e9, Burst: burst}}
	}
	for _, test := range []struct {
		name  string
		lease compiled.Lease
		at    int64
		want  int64 // tokens
	}{
		{"first phase", compiled.Lease{Limits: [3]compiled.BucketLimits{limits(1000), limits(500), limits(200)}, Until: [2]int64{5000, 8000}}, 4999, 1000},
		{"end of the first phase", compiled.Lease{Limits: [3]compiled.BucketLimits{limits(1000), limits(500), limits(200)}, Until: [2]int64{5000, 8000}}, 5000, 500},
		{"before the end of the second", compiled.Lease{Limits: [3]compiled.BucketLimits{limits(1000), limits(500), limits(200)}, Until: [2]int64{5000, 8000}}, 7999, 500},
		{"end of the second phase", compiled.Lease{Limits: [3]compiled.BucketLimits{limits(1000), limits(500), limits(200)}, Until: [2]int64{5000, 8000}}, 8000, 200},
		{"no second phase", compiled.Lease{Limits: [3]compiled.BucketLimits{limits(1000), limits(500), limits(200)}, Until: [2]int64{5000, 0}}, 5000, 200},
		{"second phase without tokens", compiled.Lease{Limits: [3]compiled.BucketLimits{limits(1000), {}, limits(200)}, Until: [2]int64{5000, 8000}}, 5000, 0},
		{"tokens are lost", compiled.Lease{Limits: [3]compiled.BucketLimits{limits(1000), {}, limits(200)}, Until: [2]int64{5000, 8000}}, 8000, 0},
		{"and arrive again", compiled.Lease{Limits: [3]compiled.BucketLimits{limits(1000), {}, limits(200)}, Until: [2]int64{5000, 8000}}, 8199, 199},
		{"all phases have ended", compiled.Lease{Limits: [3]compiled.BucketLimits{limits(1000), limits(1000), {}}, Until: [2]int64{1, 2}}, 1001, 0},
		{"phases that have ended grant nothing", compiled.Lease{Limits: [3]compiled.BucketLimits{limits(1000), limits(1000), limits(1000)}, Until: [2]int64{1, 2}}, 1001, 1},
	} {
		policy, m := leasedPolicy(bucket)
		l := newPipeline(t, policy)
		if v, _ := process(l, start, ipPacket(0, 20)); v.Color != meter.Red {
			t.Fatalf("%s: the packet before the first lease is %v, want red", test.name, v.Color)
		}
		l.SetLease(0, "b", test.lease)
		if v, _ := process(l, test.at, ipPacket(0, 20)); (v.Color == meter.Green) != (test.want >= 20) {
			t.Errorf("%s: 20 bytes with %d tokens are %v", test.name, test.want, v.Color)
		} else if v.Color == meter.Green {
			test.want -= 20
		}
		if tc, _ := tokensOf(l, m); tc != test.want {
			t.Errorf("%s: %d tokens left, want %d", test.name, tc, test.want)
		}
	}
}

// TestLeaseOfOthers checks that a lease for an unknown budget changes nothing.
func TestLeaseOfOthers(t *testing.T) {
	policy, m := leasedPolicy(meter.TokenBucket{Rate: frametest.Mega, Burst: 1000})
	l := newPipeline(t, policy)
	l.SetLease(0, "a",
		compiled.Lease{
			Limits: [3]compiled.BucketLimits{{{Rate: 8e6, Burst: 1000}}}, Until: [2]int64{1e9, 1e9},
		})
	process(l, 5e8, ipPacket(0, 20))
	if tc, _ := tokensOf(l, m); tc != 0 || l.Demand("a") != [3]uint64{} ||
		l.Demand("b") != [3]uint64{meter.Red: 20} {
		t.Errorf("got %d tokens, %v and %v requested; want 0, none and 20 red", tc, l.Demand("a"),
			l.Demand("b"))
	}
}
