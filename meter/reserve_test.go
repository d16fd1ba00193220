package meter

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"
)

// reservable returns a meter that can reserve ahead of time, and its rate.
func reservable(r *rand.Rand) (compiler, Rate) {
	rate := pick(r, BitRate(8e6), Rate{1, 7}, BitRate(1+r.Int64N(1e9)), Rate{3, 2})
	burst := 1 + r.Int64N(3000)
	return TokenBucket{Rate: rate, Burst: burst, GCRA: r.IntN(2) == 0}, rate
}

// TestReserve checks the bytes granted, at the times at which they may be used, against the
// bound of the bucket. They are granted in order, and no later than necessary.
func TestReserve(t *testing.T) {
	r := logged(t)
	delayed := 0
	for range 1000 {
		params, rate := reservable(r)
		p := compileProfile(t, params)
		m := New(p)
		burst, _ := p.Bursts()
		now := r.Int64N(1e15)
		begin, last := now, now
		granted := new(big.Rat)
		for range 30 {
			n := int(r.Int64N(burst + 2))
			longest := pick(r, math.MaxInt64, 0, time.Duration(r.Int64N(1e6)), -1)
			after, ever := m.RetryAfter(now, n)
			before := m.Clone()
			res := m.Reserve(now, n, longest)
			if want := ever && after <= longest; res.OK != want {
				t.Fatalf("%+v: %d B that fit in %v, at most %v: got %+v", params, n, after, longest, res)
			}
			if !res.OK {
				if m != before {
					t.Fatalf("%+v: a refused reservation changed the meter", params)
				}
				now += r.Int64N(1000)
				continue
			}
			at := now + int64(res.Delay)
			if res.Delay != after || at < last && n > 0 {
				t.Fatalf("%+v: %d B: got a reservation at %d, want after %d and in %v", params, n, at, last,
					after)
			}
			if n > 0 {
				last = at
			}
			if res.Delay > 0 {
				delayed++
			}
			granted.Add(granted, ratOf(int64(n)))
			most := new(big.Rat).Mul(rational(rate), ratOf(at-begin))
			if most.Add(most, ratOf(burst)); granted.Cmp(most) > 0 {
				t.Fatalf("%+v: got %s bytes in %d ns, want at most %s", params, granted, at-begin, most)
			}
			now += pick(r, 0, r.Int64N(1000), r.Int64N(1e5), int64(res.Delay))
		}
	}
	if delayed < 1000 {
		t.Errorf("got %d delayed reservations, too few for this test", delayed)
	}
}

// TestReserveAhead reserves whole bursts until the meter cannot count more: four of the
// largest burst, more of smaller ones, and one more for each that has refilled.
func TestReserveAhead(t *testing.T) {
	t.Parallel()
	if math.MaxInt < 1<<59 {
		t.Skip("an int of 32 bits has no lengths that reach the bound")
	}
	for _, row := range []struct {
		rate  Rate
		burst int64
		most  int
	}{
		{ByteRate(1e9), 1 << 59, 4},
		{Rate{1 << 50, 1}, 1 << 59, 4},
		{ByteRate(math.MaxInt64), 1 << 59, 4},
		{Rate{math.MaxInt64 - 1, 1}, 1 << 59, 4},
		{Rate{1, 8}, 1 << 56, 4}, // eight units per byte
		{ByteRate(1e9), 1 << 58, 8},
		{Rate{math.MaxInt64 - 1, 1}, 1 << 58, 8},
	} {
		if int64(int(row.burst)) != row.burst {
			t.Skip("this needs an int of 64 bits")
		}
		m := New(compileProfile(t, TokenBucket{Rate: row.rate, Burst: row.burst}))
		now := int64(0)
		reserve := func(want int) {
			made := 0
			for m.Reserve(now, int(row.burst), math.MaxInt64).OK {
				made++
			}
			if made != want {
				t.Errorf("%v, %d bytes: %d were reserved at %d, not %d", row.rate, row.burst, made, now, want)
			}
		}
		reserve(row.most)
		after, ok := m.ResetAfter(now)
		if !ok {
			t.Fatalf("%v, %d bytes: ResetAfter returned false", row.rate, row.burst)
		}
		most := time.Duration(row.most)
		now += int64((after + most - 1) / most)
		reserve(max(1, int(int64(most)/int64(after)))) // several bytes may arrive in a ns
	}
}

// TestCancelRestores compares a meter that reserved and canceled with one that did not.
func TestCancelRestores(t *testing.T) {
	r := logged(t)
	for range 2000 {
		params, _ := reservable(r)
		m := New(compileProfile(t, params))
		burst, _ := m.profile.Bursts()
		now := r.Int64N(1e12)
		m.Color(now, int(burst), Green)
		for range r.IntN(4) {
			m.Reserve(now, int(r.Int64N(burst+1)), math.MaxInt64)
		}
		without := m.Clone()
		res := m.Reserve(now, 1+int(r.Int64N(burst)), math.MaxInt64)
		if !res.OK || res.Delay == 0 {
			t.Fatalf("%+v: got %+v, want a delayed reservation", params, res)
		}
		canceled := now + r.Int64N(int64(res.Delay))
		m.Cancel(canceled, res)
		for _, at := range []int64{canceled, now + int64(res.Delay), now + 1e6, now + 1e12} {
			a, _ := m.Tokens(at)
			b, _ := without.Tokens(at)
			x, _ := m.RetryAfter(at, int(burst))
			y, _ := without.RetryAfter(at, int(burst))
			if a != b || x != y {
				t.Fatalf("%+v: got %d tokens and %v after Cancel, want %d and %v as without the reservation",
					params, a, x, b, y)
			}
		}
		// After the delay, Cancel returns nothing.
		res = m.Reserve(now, int(burst), math.MaxInt64)
		over := now + int64(res.Delay)
		late := m.Clone()
		late.Cancel(over, res)
		if late != m {
			t.Fatalf("%+v: Cancel after the delay changed the meter", params)
		}
		// Nor if there was no delay, or no reservation.
		m.Cancel(now, Reservation{})
		now = over + 1e15
		m.Cancel(now, m.Reserve(now, 1, 0))
		if tc, _ := m.Tokens(now); tc != burst-1 {
			t.Fatalf("%+v: got %d tokens, want %d", params, tc, burst-1)
		}
	}
}

// TestCancelNeverOverfills cancels in any order. Tokens never exceed the burst, and no more
// is granted than burst and rate allow.
func TestCancelNeverOverfills(t *testing.T) {
	r := logged(t)
	for range 2000 {
		params, rate := reservable(r)
		m := New(compileProfile(t, params))
		burst, _ := m.profile.Bursts()
		now := r.Int64N(1e12)
		begin, granted := now, new(big.Rat)
		var ahead []Reservation
		var sizes []int64
		for range 40 {
			n := r.Int64N(burst + 1)
			if len(ahead) > 0 && r.IntN(2) == 0 {
				i := r.IntN(len(ahead))
				m.Cancel(now, ahead[i])
				if now < ahead[i].at {
					granted.Sub(granted, ratOf(sizes[i]))
				}
				ahead[i], sizes[i] = ahead[len(ahead)-1], sizes[len(ahead)-1]
				ahead, sizes = ahead[:len(ahead)-1], sizes[:len(ahead)-1]
			} else if res := m.Reserve(now, int(n), math.MaxInt64); res.OK {
				ahead, sizes = append(ahead, res), append(sizes, n)
				granted.Add(granted, ratOf(n))
				most := new(big.Rat).Mul(rational(rate), ratOf(now+int64(res.Delay)-begin))
				if most.Add(most, ratOf(burst)); granted.Cmp(most) > 0 {
					t.Fatalf("%+v: got %s bytes in %d ns, want at most %s", params, granted,
						now+int64(res.Delay)-begin, most)
				}
			}
			if tc, _ := m.Tokens(now); tc > burst || tc < 0 {
				t.Fatalf("%+v: got %d tokens, want 0 to %d", params, tc, burst)
			}
			now += pick(r, 0, 1, r.Int64N(1000), r.Int64N(1e6))
		}
	}
}

// TestSetProfileEndsReservations cancels after SetProfile, with other or equal parameters.
// Cancel returns nothing, as SetProfile has returned the bytes.
func TestSetProfileEndsReservations(t *testing.T) {
	begin := compileProfile(t, TokenBucket{Rate: BitRate(8e6), Burst: 100})
	for _, to := range []compiler{
		TokenBucket{Rate: Rate{1, 7}, Burst: 100},
		TokenBucket{Rate: BitRate(8e6), Burst: 50},
		TokenBucket{Rate: BitRate(8e6), Burst: 100, GCRA: true},
		nil, // the same profile
		TokenBucket{Rate: Rate{1, 1000}, Burst: 1000},
		SRTCM{CIR: Rate{1, 1000}, CBS: 100, EBS: 100},
		FixedWindow{Limit: 100, Window: 1e9},
		SlidingCounter{Limit: 100, Window: 1e9},
		SlidingLog{Limit: 100, Window: 1e9, Entries: 10},
		TokenBucket{Rate: Rate{1, 1000}, Burst: 100, Warmup: 1e6},
	} {
		m := New(begin)
		m.Color(0, 100, Green)
		res := m.Reserve(0, 90, math.MaxInt64)
		p := begin
		if to != nil {
			p = compileProfile(t, to)
		}
		m.SetProfile(0, p)
		m.Cancel(0, res)
		if tc, _ := m.Tokens(0); tc > 0 {
			t.Errorf("%+v: got %d tokens after all were taken", to, tc)
		}
		if n := m.TakeUpTo(0, 1000); n > 0 {
			t.Errorf("%+v: TakeUpTo returned %d B after all were taken", to, n)
		}
	}
}

// TestReserveOtherKinds checks that all other meters reserve only bytes that are green now.
func TestReserveOtherKinds(t *testing.T) {
	r := logged(t)
	for range 1000 {
		params := anyParams(r)
		m, now := usedMeter(t, r, params)
		if p := m.profile; p.rule == nil && p.e.tooLarge == 0 {
			continue
		}
		tc, _ := m.Tokens(now)
		n := int(pick(r, tc, tc+1, 1, 0, r.Int64N(3000)))
		if n == 0 && m.profile.kind == kindTSWTCM {
			continue // its average decides
		}
		before, again := cloneOf(m), cloneOf(m)
		after, ok := m.RetryAfter(now, n)
		res := m.Reserve(now, n, math.MaxInt64)
		if res.OK != (ok && after == 0) || res.Delay != 0 {
			t.Fatalf("%+v: %d of %d B: got %+v, but RetryAfter returned %v, %v", params, n, tc, res, after,
				ok)
		}
		if res.OK {
			before.Color(now, n, Green)
		}
		if !sameState(m, &before, now) {
			t.Fatalf("%+v: Cancel of %d of %d B did not restore the meter: %+v", params, n, tc, res)
		}
		m.Cancel(now-1, res)
		if !res.OK && !sameState(m, &again, now) {
			t.Fatalf("%+v: Cancel of a refused reservation changed the meter", params)
		}
	}
}

// TestCancelInTurn cancels reservations whose predecessors have been canceled.
func TestCancelInTurn(t *testing.T) {
	const µs = 1000
	m := New(compileProfile(t, TokenBucket{Rate: BitRate(8e6), Burst: 100}))
	m.Color(0, 100, Green)
	one := m.Reserve(0, 100, math.MaxInt64)
	two := m.Reserve(0, 100, math.MaxInt64)
	m.Cancel(0, one)
	three := m.Reserve(150*µs, 60, math.MaxInt64)
	if one.Delay != 100*µs || two.Delay != 200*µs || three.Delay != 10*µs {
		t.Fatalf("got delays of %v, %v and %v, want 100, 200 and 10 µs", one.Delay, two.Delay, three.Delay)
	}
	m.Cancel(150*µs, two)
	m.Cancel(150*µs, three)
	if tc, _ := m.Tokens(150 * µs); tc != 100 || m.TakeUpTo(150*µs, 1000) != 100 {
		t.Errorf("got %d tokens, want 100", tc)
	}
}
