package meter

import (
	"math"
	"testing"
	"time"
)

// TestDecide compares a decision with the calls that it replaces.
func TestDecide(t *testing.T) {
	r := logged(t)
	for range 3000 {
		params := anyParams(r)
		m, now := usedMeter(t, r, params)
		now = pick(r, now, nextTime(r, params, now), now-1)
		tc, te := m.Tokens(now)
		c, _ := m.profile.Bursts()
		n := nextLength(r, params, tc, te, c+1)
		one := cloneOf(m)
		got := m.Decide(now, n)
		if want := one.Color(now, n, Green); got.Color != want || !sameState(m, &one, now) {
			t.Fatalf("%+v: %d B: %+v, Color %v", params, n, got, want)
		}
		after, ever := one.RetryAfter(now, n)
		if want := orNever(after, ever); got.Color != Green && got.RetryAfter != want || got.Color == Green &&
			got.RetryAfter != 0 {
			t.Fatalf("%+v: %d B: %+v, RetryAfter %v", params, n, got, want)
		}
		if want := orNever(one.ResetAfter(now)); got.ResetAfter != want {
			t.Fatalf("%+v: %d B: %+v, ResetAfter %v", params, n, got, want)
		}
		if left := one.TakeUpTo(now, math.MaxInt); one.profile.kind != kindTSWTCM &&
			int64(left) != got.Remaining {
			t.Fatalf("%+v: %d B: got %+v, but %d B more are green", params, n, got, left)
		}
	}
}

// TestDecideByHand has rows worked out by hand: each kind at a byte per microsecond with a
// burst of 100, for 60 bytes and 60 more.
func TestDecideByHand(t *testing.T) {
	const µs = time.Microsecond
	for _, test := range []struct {
		params compiler
		want   [2]Decision
	}{
		{TokenBucket{Rate: BitRate(8e6), Burst: 100}, [2]Decision{{Green, 40, 0, 60 * µs}, {Red, 40, 20 * µs, 60 * µs}}},
		{TokenBucket{Rate: BitRate(8e6), Burst: 100}, [2]Decision{{Green, 40, 0, 60 * µs}, {Red, 40, 20 * µs, 60 * µs}}},
		{
			SRTCM{CIR: BitRate(8e6), CBS: 100, EBS: 100},
			[2]Decision{{Green, 40, 0, 60 * µs}, {Yellow, 40, 20 * µs, 120 * µs}},
		},
		{
			TRTCM{CIR: BitRate(8e6), CBS: 100, PIR: BitRate(8e6), PBS: 110},
			[2]Decision{{Green, 40, 0, 60 * µs}, {Red, 40, 20 * µs, 60 * µs}},
		},
		{
			TRTCM4115{CIR: BitRate(8e6), CBS: 100, EIR: BitRate(16e6), EBS: 100},
			[2]Decision{{Green, 40, 0, 60 * µs}, {Yellow, 40, 20 * µs, 60 * µs}},
		},
		{TRTCM4115{CBS: 100, EIR: BitRate(8e6), EBS: 100}, [2]Decision{{Green, 40, 0, Never}, {Yellow, 40, Never, Never}}},
		{
			FixedWindow{Limit: 100, Window: time.Second},
			[2]Decision{{Green, 40, 0, time.Second}, {Red, 40, time.Second, time.Second}},
		},
		{
			SlidingLog{Limit: 100, Window: time.Second, Entries: 9},
			[2]Decision{{Green, 40, 0, time.Second}, {Red, 40, time.Second, time.Second}},
		},
	} {
		m := New(compileProfile(t, test.params))
		for i, want := range test.want {
			if got := m.Decide(0, 60); got != want {
				t.Errorf("%+v, %d: got %+v, want %+v", test.params, i, got, want)
			}
		}
		if got := m.Decide(0, 101); got.Color == Green || got.RetryAfter != Never {
			t.Errorf("%+v: more than the burst: got %+v, want Red and Never", test.params, got)
		}
	}
}

func TestDecideAllocatesNothing(t *testing.T) {
	for _, params := range append([]compiler{
		TokenBucket{Rate: BitRate(99_999_999_999), Burst: 250e6},
		TRTCM4115{CIR: BitRate(7), CBS: 1 << 40, EIR: Unlimited, EBS: 1 << 59, Coupling: true},
	}, allKinds...) {
		m := New(compileProfile(t, params))
		now := int64(0)
		if n := testing.AllocsPerRun(100, func() {
			now += 10_000
			m.Decide(now, 60)
			m.Color(now, 60, Yellow)
			m.Cancel(now, m.Reserve(now, 60, time.Second))
			m.TakeUpTo(now, 10)
		}); n != 0 {
			t.Errorf("%+v: got %v allocations, want 0", params, n)
		}
	}
}
