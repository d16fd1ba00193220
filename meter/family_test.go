package meter

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// The meters that are not in RFC 2697, 2698 or 4115, compared with their models.

// logged returns random numbers, and logs their seed.
func logged(t testing.TB) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// cloneOf returns a copy that shares no memory with m.
func cloneOf(m *Meter) Meter {
	own := *m.profile
	own.log = slices.Clone(own.log)
	return Meter{profile: &own, state: m.state}
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// familyParams returns valid parameters of a kind that has a model. The numbers are small, so
// that their bounds are reached often.
func familyParams(r *rand.Rand) compiler {
	rate := pick(r, BitRate(8e6), Rate{1, 7}, Rate{3, 1}, BitRate(1+r.Int64N(1e9)),
		ByteRate(1+r.Int64N(1000)), Rate{1 + r.Int64N(100), time.Duration(1 + r.Int64N(1e4))})
	burst := 1 + r.Int64N(pick[int64](r, 3, 300, 5000))
	window := time.Duration(1000 + r.Int64N(pick[int64](r, 1, 5, 1000, 1e9)))
	switch r.IntN(9) {
	case 0:
		return TokenBucket{Rate: rate, Burst: burst, GCRA: true}
	case 1, 2:
		return TokenBucket{Rate: rate, Burst: burst, Warmup: window}
	case 3:
		return FixedWindow{Limit: burst, Window: window}
	case 4:
		return SlidingCounter{Limit: burst, Window: window}
	case 5:
		slots := 1 + r.IntN(pick(r, 1, 3, 100))
		slot := max(window/time.Duration(slots), 1000)
		return SlidingWindow{Limit: burst, Window: slot * time.Duration(slots), Slots: slots}
	case 6, 7:
		return SlidingLog{Limit: burst, Window: window, Entries: 1 + r.IntN(pick(r, 1, 3, 50))}
	}
	pir := Rate{rate.Bytes * (1 + r.Int64N(3)), rate.Period}
	return TSWTCM{CIR: rate, PIR: pir, Window: window, Seed: r.Uint64()}
}

// period returns the ns of which the borders of a meter are multiples.
func period(params compiler) int64 {
	switch t := params.(type) {
	case TokenBucket:
		return max(int64(t.Warmup), 1000)
	case FixedWindow:
		return int64(t.Window)
	case SlidingCounter:
		return int64(t.Window)
	case SlidingWindow:
		return int64(t.Window) / int64(t.Slots)
	case SlidingLog:
		return int64(t.Window)
	case TSWTCM:
		return int64(t.Window)
	}
	return 1000
}

// firstTime returns a time for the first packet, not before -2^61.
func firstTime(r *rand.Rand, params compiler) int64 {
	p := period(params)
	return pick(r, 0, -1, 1, p, p-1, -p, -p-1, 1e18, 1e18/p*p, -1e18/p*p-1, -1<<61, r.Int64N(1e18))
}

// nextTime returns a time after now: at once, soon, near a border, or years later.
func nextTime(r *rand.Rand, params compiler, now int64) int64 {
	p := period(params)
	border := now - now%p
	next := now +
		pick(r, 0, 0, 1, r.Int64N(100), r.Int64N(p), p-1, p, p+1, p*r.Int64N(20), 2*p-1, 2*p, r.Int64N(1e10))
	switch r.IntN(12) {
	case 0, 1:
		next = border + p*r.Int64N(4) + r.Int64N(3) - 1
	case 2:
		if r.IntN(8) == 0 {
			next = now + r.Int64N(1<<60)
		}
	}
	if next < now || next > 1<<61 {
		return now
	}
	return next
}

// nextLength returns a length near the tokens, or near the bounds.
func nextLength(r *rand.Rand, params compiler, tc, te, burst int64) int {
	n := pick(r, tc+r.Int64N(3)-1, te+r.Int64N(3)-1, burst+r.Int64N(3)-1, r.Int64N(burst+1),
		r.Int64N(burst/8+2), r.Int64N(burst/8+2), 0)
	if r.IntN(30) == 0 {
		n = pick[int64](r, -1, math.MinInt64, math.MaxInt64, math.MinInt64+1, 1<<47)
		if _, ok := params.(TSWTCM); ok { // an average counts up to 2^46 bytes
			n = pick[int64](r, -1, math.MinInt64, 1<<40)
		}
	}
	return int(n)
}

// compare meters a stream with a Meter and a model. If the time goes backwards, some kinds
// may give less than at the latest time, and the others count it as the latest.
func compare(t testing.TB, r *rand.Rand, params compiler, packets int) {
	t.Helper()
	p := compileProfile(t, params)
	c, e := p.Bursts()
	begin := pick(r, c, c, c, 0, c/2, -1, c+1, r.Int64N(c+1))
	m, o := NewWithTokens(p, begin, e), newSlow(params, begin)
	if begin == c && r.IntN(2) == 0 {
		m = New(p)
	}
	now := firstTime(r, params)
	less := p.Kind() == kindSlidingCounter || p.Kind() == kindGCRA || p.Kind() == kindTSWTCM
	latest := now
	for i := range packets {
		stale := i > 0 && r.IntN(10) == 0
		if stale {
			now = latest
		}
		latest = now
		tc, te := m.Tokens(now)
		n := nextLength(r, params, tc, te, c)
		in := Color(max(r.IntN(8)-5, 0))
		stamp := now
		if stale {
			stamp = now - pick(r, 1, r.Int64N(1e9), period(params), 1<<61)
			early, late := cloneOf(&m), cloneOf(&m)
			if tc, _ := early.Tokens(stamp); tc > firstOf(late.Tokens(now)) {
				t.Fatalf(
					"%+v starting with %d: got %d tokens at %d, want at most those of the latest time %d",
					params, begin, tc, stamp, now)
			}
			if a, b := early.Color(stamp, n, in), late.Color(now, n, in); a < b {
				t.Fatalf("%+v starting with %d: got %v at %d, better than %v at the latest time %d", params,
					begin, a, stamp, b, now)
			}
			if less {
				stamp = now
			}
		}
		got, want := m.Color(stamp, n, in), o.color(now, n, in)
		tc, te = m.Tokens(stamp)
		wantC, wantE := o.tokens()
		if got != want || tc != wantC || te != wantE {
			t.Fatalf("%+v starting with %d, packet %d: %d B at %d (%d), input %v: %v with %d, %d left; model: %v with %d, %d",
				params, begin, i, n, stamp, now, in, got, tc, te, want, wantC, wantE)
		}
		if tc > c || te > e || tc < 0 || te < 0 || got < in {
			t.Fatalf("%+v: got %d, %d tokens and %v for the input color %v", params, tc, te, got, in)
		}
		now = nextTime(r, params, now)
	}
}

func firstOf(a, _ int64) int64 { return a }

func TestFamily(t *testing.T) {
	r := logged(t)
	for range 5000 {
		compare(t, r, familyParams(r), 50)
	}
}

// TestAsGoodAsNew compares the condition of idle eviction and ResetAfter with the models.
func TestAsGoodAsNew(t *testing.T) {
	r := logged(t)
	for range 1000 {
		params := familyParams(r)
		p := compileProfile(t, params)
		if p.Kind() == kindTSWTCM {
			continue
		}
		c, e := p.Bursts()
		m, o := New(p), newSlow(params, c)
		now := firstTime(r, params)
		for range 20 {
			if got, want := p.rested(m.state, m.profile.log, now), o.isIdle(now); got != want {
				tc, _ := m.Tokens(now)
				t.Fatalf("%+v: as good as new at %d: %v, model %v, %d tokens", params, now, got, want, tc)
			}
			n := nextLength(r, params, firstOf(m.Tokens(now)), e, c)
			m.Color(now, n, Green)
			o.color(now, n, Green)
			now = nextTime(r, params, now)
		}
	}
}

// FuzzFamily compares parameters and streams of the fuzzer with the models.
func FuzzFamily(f *testing.F) {
	for kind := range uint8(8) {
		f.Add(kind, int64(3), int64(100), int64(1000), int64(7),
			[]byte("\x00\x01\x02\x03 seed of a stream of some packets, 8 bytes each"))
		f.Add(kind, int64(1), int64(1), int64(4096), int64(1),
			[]byte{0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 255, 255, 255, 3, 0, 1, 2, 3, 4, 5, 6, 7})
	}
	f.Fuzz(func(t *testing.T, kind uint8, rate, burst, window, small int64, stream []byte) {
		w := time.Duration(window)
		params := []compiler{
			TokenBucket{Rate: Rate{rate, w}, Burst: burst},
			TokenBucket{Rate: Rate{rate, time.Duration(small)}, Burst: burst, Warmup: w},
			FixedWindow{Limit: burst, Window: w},
			SlidingCounter{Limit: burst, Window: w},
			SlidingWindow{Limit: burst, Window: w, Slots: int(small)},
			SlidingLog{Limit: burst, Window: w, Entries: int(small & 63)},
			TSWTCM{CIR: Rate{rate, w}, PIR: Rate{small, w}, Window: w, Seed: uint64(burst)},
			TokenBucket{Rate: Rate{rate, w}, Burst: burst},
		}[kind%8]
		p, err := params.Profile()
		if err != nil {
			return
		}
		m, o := New(p), newSlow(params, firstOf(p.Bursts()))
		var now int64
		for ; len(stream) >= 8; stream = stream[8:] {
			word := binary.LittleEndian.Uint64(stream)
			n, in := int(word&0xfff), Color(word>>12&3%3)
			if next := now + int64(word>>18>>(word>>58)); next > now {
				now = next
			}
			got, want := m.Color(now, n, in), o.color(now, n, in)
			tc, te := m.Tokens(now)
			if wantC, wantE := o.tokens(); got != want || tc != wantC || te != wantE {
				t.Fatalf("%+v: %d B at %d, input %v: %v with %d, %d; model %v with %d, %d", params, n, now,
					in, got, tc, te, want, wantC, wantE)
			}
		}
	})
}
