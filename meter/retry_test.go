package meter

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// anyParams returns parameters of any kind.
func anyParams(r *rand.Rand) compiler {
	if r.IntN(2) == 0 {
		return randomParams(r)
	}
	return familyParams(r)
}

// usedMeter returns a meter with some history, and the time of its latest packet.
func usedMeter(t testing.TB, r *rand.Rand, params compiler) (m *Meter, now int64) {
	p := compileProfile(t, params)
	c, e := p.Bursts()
	m = new(Meter)
	*m = NewWithTokens(p, pick(r, c, c, 0, c/2), pick(r, e, 0))
	now = firstTime(r, params)
	for i := range 1 + r.IntN(20) {
		if i > 0 {
			now = nextTime(r, params, now)
		}
		tc, te := m.Tokens(now)
		m.Color(now, nextLength(r, params, tc, te, c+1), Color(max(r.IntN(8)-5, 0)))
	}
	return m, now
}

func sameState(a, b *Meter, now int64) bool {
	if a.state != b.state {
		return false
	}
	for i := range a.profile.log {
		if a.profile.log[i] != b.profile.log[i] {
			return false
		}
	}
	return firstOf(a.Tokens(now)) == firstOf(b.Tokens(now))
}

func TestPeek(t *testing.T) {
	r := logged(t)
	for range 3000 {
		params := anyParams(r)
		m, now := usedMeter(t, r, params)
		now = pick(r, now, nextTime(r, params, now), now-1)
		tc, te := m.Tokens(now)
		n, in := nextLength(r, params, tc, te, tc+1), Color(r.IntN(3))
		before := cloneOf(m)
		peeked := m.Peek(now, n, in)
		if !sameState(m, &before, now) {
			t.Fatalf("%+v: Peek changed the meter", params)
		}
		if got := m.Color(now, n, in); got != peeked {
			t.Fatalf("%+v: %d B, input %v: got %v from Peek, %v from Color", params, n, in, peeked, got)
		}
	}
}

func TestTakeUpTo(t *testing.T) {
	r := logged(t)
	for range 3000 {
		params := anyParams(r)
		m, now := usedMeter(t, r, params)
		now = nextTime(r, params, now)
		tc, te := m.Tokens(now)
		n := nextLength(r, params, tc, te, tc+1)
		one, more := cloneOf(m), cloneOf(m)
		got := m.TakeUpTo(now, n)
		if got < 0 || got > max(n, 0) {
			t.Fatalf("%+v: TakeUpTo of %d returned %d", params, n, got)
		}
		if got > 0 && (one.Color(now, got, Green) != Green || !sameState(&one, m, now)) {
			t.Fatalf("%+v: TakeUpTo of %d returned %d, which is not green", params, n, got)
		}
		if got < n && m.profile.kind != kindTSWTCM && more.Color(now, got+1, Green) == Green {
			t.Fatalf("%+v: TakeUpTo of %d returned %d, but one more is green", params, n, got)
		}
	}
}

// TestRetryAfter checks the color at the time that it returns, and a ns before.
func TestRetryAfter(t *testing.T) {
	r := logged(t)
	never, later := 0, 0
	for range 5000 {
		params := anyParams(r)
		m, now := usedMeter(t, r, params)
		if m.profile.kind == kindTSWTCM {
			continue
		}
		at := pick(r, now, now, nextTime(r, params, now), now-1, now-period(params))
		tc, _ := m.Tokens(at)
		c, _ := m.profile.Bursts()
		n := int(pick(r, tc, tc+1, tc+1+r.Int64N(c+1), c, c+1, 0, 1, -1))
		if n == 0 && at < now && m.profile.kind == kindSlidingCounter {
			continue // before the latest time, more than the limit may be within the window
		}
		before := cloneOf(m)
		after, ok := m.RetryAfter(at, n)
		if !sameState(m, &before, at) {
			t.Fatalf("%+v: RetryAfter changed the meter", params)
		}
		green := func(at int64) bool {
			m := cloneOf(m)
			return m.Color(at, n, Green) == Green
		}
		switch {
		case !ok:
			never++
			for _, later := range []int64{0, 1, period(params), 3 * period(params), 1e12, 1e17} {
				if green(at + later) {
					t.Fatalf("%+v: RetryAfter of %d B at %d returned false, but they fit %d later", params, n,
						at, later)
				}
			}
		case after < 0 || !green(at+int64(after)):
			t.Fatalf("%+v: RetryAfter of %d B at %d returned %v, but they do not fit then; %d tokens, latest packet %d",
				params, n, at, after, tc, now)
		case after > 0:
			later++
			for _, early := range []int64{int64(after) - 1, r.Int64N(int64(after)), 0} {
				if green(at + early) {
					t.Fatalf("%+v: RetryAfter of %d B at %d returned %v, but they fit after %d; %d tokens, latest packet %d",
						params, n, at, after, early, tc, now)
				}
			}
		}
	}
	if never < 100 || later < 500 {
		t.Errorf("got %d cases that never fit and %d that fit later, too few for this test", never, later)
	}
}

// TestRetryAfterTSW has times at which the average is low enough.
func TestRetryAfterTSW(t *testing.T) {
	p := compileProfile(t, TSWTCM{CIR: BitRate(8e6), PIR: BitRate(16e6), Window: time.Millisecond, Seed: 1})
	m := New(p) // 1000 bytes per window
	m.Color(0, 3000, Green)
	after, ok := m.RetryAfter(0, 100)
	if !ok || after < 2*time.Millisecond || after > 4*time.Millisecond {
		t.Fatalf("got %v, %v, want about 3 ms, true", after, ok)
	}
	if got := m.Color(int64(after), 100, Green); got != Green {
		t.Errorf("after %v: got %v, want green", after, got)
	}
	if _, ok := m.RetryAfter(0, 1001); ok {
		t.Error("got true for more than CIR in a window, which is never certain to be green")
	}
	fresh := New(p)
	for n, m := range map[int]*Meter{0: &m, 1000: &fresh} {
		if after, ok := m.RetryAfter(0, n); after != 0 || !ok {
			t.Errorf("%d bytes, which are green now: got %v, %v, want 0, true", n, after, ok)
		}
	}
}

// TestResetAfterTSW has averages that end after more than half of the longest Duration, and
// never within it. An average of a units ends when a * Window < Window + dt.
func TestResetAfterTSW(t *testing.T) {
	p := compileProfile(t, TSWTCM{CIR: BitRate(8e6), PIR: BitRate(16e6), Window: time.Second, Seed: 1})
	for _, test := range []struct {
		n     int
		after int64
		ok    bool
	}{
		{0, 0, true},
		{1, 65535*1e9 + 1, true},
		{100_000, (100_000*65536-1)*1e9 + 1, true}, // 208 years
		{150_000, 0, false},
	} {
		m := New(p)
		m.Color(0, test.n, Green)
		if after, ok := m.ResetAfter(0); int64(after) != test.after || ok != test.ok {
			t.Errorf("%d bytes: got reset after %d, %v; want %d, %v", test.n, after, ok, test.after, test.ok)
		}
	}
}

// TestRetryAfterBounds has the longest time that a Duration has, and one more; and the largest
// packet that fits both buckets of a trTCM, and one more.
func TestRetryAfterBounds(t *testing.T) {
	fast := Rate{1, 1}
	m := New(compileProfile(t, TokenBucket{Rate: fast, Burst: 100}))
	m.Color(0, 100, Green)
	at := int64(100 - math.MaxInt64)
	if after, ok := m.RetryAfter(at, 100); after != math.MaxInt64 || !ok {
		t.Errorf("100 bytes after the longest time: got %d, %v", after, ok)
	}
	if after, ok := m.RetryAfter(at-1, 100); ok {
		t.Errorf("100 bytes after more than a Duration: got %d, want none", after)
	}
	both := New(compileProfile(t, TRTCM{CIR: fast, CBS: 200, PIR: fast, PBS: 100}))
	if after, ok := both.RetryAfter(0, 100); after != 0 || !ok {
		t.Errorf("PBS bytes: got %v, %v, want 0, true", after, ok)
	}
	if after, ok := both.RetryAfter(0, 101); ok {
		t.Errorf("more than PBS: got %v, want none", after)
	}
}

// TestRetryAfterBeforeBegin calls RetryAfter and ResetAfter before the clock has begun. They
// begin it, in all kinds alike.
func TestRetryAfterBeforeBegin(t *testing.T) {
	µs := int64(time.Microsecond)
	for _, test := range []struct {
		params       compiler
		n            int
		retry, reset int64
	}{
		{TokenBucket{Rate: BitRate(8e6), Burst: 100}, 10, 10 * µs, 100 * µs},
		{SRTCM{CIR: BitRate(8e6), CBS: 100, EBS: 50}, 10, 10 * µs, 150 * µs},
		{FixedWindow{Limit: 100, Window: 1000}, 10, 995, 995},
		{SlidingCounter{Limit: 100, Window: 1000}, 10, 995 + 100, 995 + 1000},
		{SlidingWindow{Limit: 100, Window: 1000, Slots: 10}, 10, 995, 995},
		{SlidingLog{Limit: 100, Window: 1000, Entries: 2}, 10, 1000, 1000},
	} {
		m := NewWithTokens(compileProfile(t, test.params), 0, 0)
		begun := cloneOf(&m)
		if got := begun.Color(5, test.n, Green); got == Green {
			t.Fatalf("%+v: the meter is not empty at first", test.params)
		}
		for _, m := range []*Meter{&begun, &m} {
			retry, ok := m.RetryAfter(5, test.n)
			if !ok || int64(retry) != test.retry {
				t.Errorf("%+v: retry after %d, %v; want %d", test.params, retry, ok, test.retry)
			}
			reset, ok := m.ResetAfter(5)
			if !ok || int64(reset) != test.reset {
				t.Errorf("%+v: reset after %d, %v; want %d", test.params, reset, ok, test.reset)
			}
		}
	}
}

// isAsNew reports whether a meter behaves like a new one at now: both have the same tokens, and
// give the same colors.
func isAsNew(m *Meter, r *rand.Rand, params compiler, now, latest int64) bool {
	old, fresh := cloneOf(m), New(m.profile)
	if _, ok := params.(TokenBucket); ok && m.profile.rule != nil {
		return newSlowWarmIdle(m, now)
	}
	c, e := m.profile.Bursts()
	tc, te := old.Tokens(now)
	if tc != c || te != e || !m.profile.rested(m.state, m.profile.log, now) {
		return false
	}
	now = max(now, latest) // earlier, a new meter may be in another window
	for range 10 {
		n, in := nextLength(r, params, c, e, c+1), Color(r.IntN(3))
		if old.Color(now, n, in) != fresh.Color(now, n, in) {
			return false
		}
		now = nextTime(r, params, now)
	}
	return true
}

// newSlowWarmIdle returns the model of a warm-up with the exact state of a meter: Tokens
// rounds down.
func newSlowWarmIdle(m *Meter, now int64) bool {
	w := m.profile.rule.(warmUp)
	fine := int64(w.rate / uint64(w.num))
	s := slowWarm{
		rate: ratOf(w.num), burst: ratOf(w.burst * (w.unit / fine)), warmup: ratOf(w.length),
		level: ratOf(m.first), begin: m.second, last: m.epoch, begun: true,
	}
	s.level.Quo(s.level, ratOf(fine))
	return m.epoch <= now && s.isIdle(now)
}

func TestResetAfter(t *testing.T) {
	r := logged(t)
	never, later := 0, 0
	for range 4000 {
		params := anyParams(r)
		m, now := usedMeter(t, r, params)
		if m.profile.kind == kindTSWTCM {
			continue
		}
		at := pick(r, now, now, nextTime(r, params, now), now-1)
		before := cloneOf(m)
		after, ok := m.ResetAfter(at)
		if !sameState(m, &before, at) {
			t.Fatalf("%+v: ResetAfter changed the meter", params)
		}
		switch {
		case !ok:
			never++
			if four, is := params.(TRTCM4115); !is || four.CIR.Bytes > 0 && four.EIR.Bytes > 0 {
				t.Fatalf("%+v: ResetAfter returned false", params)
			}
			if isAsNew(m, r, params, at+1e17, now) {
				t.Fatalf("%+v: ResetAfter returned false, but the meter becomes as good as new", params)
			}
		case after < 0 || !isAsNew(m, r, params, at+int64(after), now):
			t.Fatalf("%+v: not as good as new %v after %d; state %+v", params, after, at, m.state)
		case after > 0 && isAsNew(m, r, params, at+int64(after)-1, now):
			t.Fatalf("%+v: as good as new 1 ns before %v after %d; state %+v", params, after, at, m.state)
		case after > 0:
			later++
		}
	}
	if never < 10 || later < 500 {
		t.Errorf("got %d cases that never reset and %d that reset later, too few for this test", never, later)
	}
}

func TestNoPanicAtTheEndsOfTime(t *testing.T) {
	r := logged(t)
	ends := []int64{math.MinInt64, math.MinInt64 + 1, -1 << 62, 0, 1 << 62, math.MaxInt64 - 1, math.MaxInt64}
	for range 2000 {
		m := New(compileProfile(t, anyParams(r)))
		for range 5 {
			now := pick(r, ends...)
			tc, _ := m.Tokens(now)
			m.Color(now, int(tc), Green)
			m.Peek(now, 1, Yellow)
			m.RetryAfter(now, 1)
			m.ResetAfter(now)
			m.Explain(now, math.MaxInt, Green)
		}
	}
}

// TestGapsOfCenturies has pauses longer than an int64 of ns.
func TestGapsOfCenturies(t *testing.T) {
	r := logged(t)
	for range 500 {
		params := anyParams(r)
		m := New(compileProfile(t, params))
		c, e := m.profile.Bursts()
		m.Color(-1<<62+1, int(c), Green)
		if four, ok := params.(TRTCM4115); ok && (four.CIR.Bytes == 0 || four.EIR.Bytes == 0) {
			continue
		}
		if m.profile.kind == kindTSWTCM {
			continue // an average decays, but never ends
		}
		want := c
		if w, ok := params.(TokenBucket); ok && w.Warmup > 0 {
			want = c / 3
		}
		if tc, te := m.Tokens(math.MaxInt64); tc != want || te != e {
			t.Fatalf("%+v: %d, %d of %d, %d", params, tc, te, want, e)
		}
	}
}
