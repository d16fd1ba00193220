package meter

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"
)

// The contract of a Meter: in any order of calls, each call returns what a model in exact
// fractions returns, and the bytes taken are at most the burst and what the rate brings.

// wideParams returns buckets of which at least one needs more than 64 bits.
func wideParams(r *rand.Rand) compiler {
	rate := func() Rate {
		return pick(r, BitRate(99_999_999_999), BitRate(1+r.Int64N(400e9)), Rate{1 << 30, 24 * time.Hour},
			Rate{1, math.MaxInt64},
			Rate{1 + r.Int64N(1e6), time.Duration(1 + r.Int64())}, ByteRate(math.MaxInt64),
			Rate{math.MaxInt64 - 1, 1}, Per(1, time.Second))
	}
	burst := func() int64 {
		return pick(r, 1, 1500, 1<<30, 250e6, 1<<40, 1<<59, 1+r.Int64N(1<<59), 1+r.Int64N(1e6))
	}
	for {
		a, b := rate(), rate()
		var c compiler
		switch r.IntN(8) {
		case 7: // a rule beside its bucket
			c = TokenBucket{
				Rate: BitRate(1 + r.Int64N(400e9)), Burst: 1 + r.Int64N(3.8e6),
				Warmup: time.Duration(1+r.Int64N(1e7)) * 100,
			}
		case 0, 1:
			c = TokenBucket{Rate: a, Burst: burst(), GCRA: r.IntN(2) == 0}
		case 2:
			c = SRTCM{CIR: a, CBS: burst() - 1, EBS: burst()}
		case 3:
			if a.Cmp(b) > 0 {
				a, b = b, a
			}
			c = TRTCM{CIR: a, CBS: burst(), PIR: b, PBS: burst()}
		case 4, 5:
			c = TRTCM4115{
				CIR: pick(r, a, Rate{}), CBS: burst(), EIR: b, EBS: burst() - 1, Coupling: r.IntN(2) == 0,
			}
		case 6: // P is too large for a common unit with C
			c = TRTCM{CIR: Rate{999_999_937, 7999999993}, CBS: burst(), PIR: Rate{1, 1}, PBS: 1 << 50}
		}
		if p, err := c.Profile(); err == nil && p.rule != nil {
			return c
		}
	}
}

func contractParams(r *rand.Rand) compiler {
	if r.IntN(3) == 0 {
		return wideParams(r)
	}
	return anyParams(r)
}

// ratesOf returns the rate and burst of the bucket that green packets take from.
func ratesOf(params compiler) (rate Rate, burst int64, buckets bool) {
	switch t := params.(type) {
	case TokenBucket:
		return t.Rate, t.Burst, true
	case SRTCM:
		return t.CIR, t.CBS, true
	case TRTCM:
		return t.CIR, t.CBS, true
	case TRTCM4115:
		return t.CIR, t.CBS, true
	}
	return Rate{}, 0, false
}

// compareCalls makes random calls of a meter and its model, and compares them. If the clock goes
// backwards, a meter may give less than the model, and only the bound is checked.
func compareCalls(t testing.TB, r *rand.Rand, params compiler, calls int, back bool) {
	t.Helper()
	p := compileProfile(t, params)
	c, e := p.Bursts()
	tc, te := pick(r, c, 0, c/2, -1, c+1), pick(r, e, 0, e/3)
	m := NewWithTokens(p, tc, te)
	if r.IntN(4) == 0 {
		m, tc, te = New(p), c, e
	}
	model := newContract(params, tc, te)
	now := pick(r, 0, -1, 1e18, r.Int64(), -r.Int64()/2, math.MaxInt64-1e9, -1<<63+1<<55+2+r.Int64N(1e12),
		-1<<63+1<<55+2)
	begin, granted := int64(0), new(big.Rat) // start of the bound, bytes that were green since
	latest := int64(math.MinInt64)
	var last Reservation
	var lastBytes int64
	rate, burst, buckets := ratesOf(params)
	_, warm := p.rule.(warmUp)
	single := buckets && !warm && (p.kind == kindTokenBucket || p.kind == kindGCRA)
	take := func(n int) {
		granted.Add(granted, ratOf(int64(n)))
		most := new(big.Rat).Mul(rational(rate), new(big.Rat).SetInt(nsSince(latest, begin)))
		if most.Add(most, ratOf(burst)); buckets && granted.Cmp(most) > 0 {
			t.Fatalf("%+v: got %s green bytes in %d ns, want at most %s", params, granted.FloatString(0),
				latest-begin, most.FloatString(0))
		}
	}
	for i := range calls {
		at := now
		if back && r.IntN(4) == 0 {
			at = now - pick(r, 1, r.Int64N(1e9), r.Int64())
			if at > now || at < -1<<63+1<<55+2 {
				at = -1<<63 + 1<<55 + 2
			}
		}
		if latest == math.MinInt64 {
			begin = at
		}
		begin = min(begin, at)
		latest = max(latest, at)
		seen := latest // latest time that the model has seen
		n := nextLength(r, params, model.remaining(seen), second(model.tokens(seen)), c)
		if p.kind == kindTSWTCM {
			n = int(min(int64(n), 1<<40)) // an average counts up to 2^46 bytes
		}
		in := Color(max(r.IntN(8)-5, 0))
		call, got, want := "", "", ""
		say := func(x ...any) string { return fmt.Sprint(x...) }
		switch r.IntN(14) {
		case 0, 1:
			call = "Color"
			color := m.Color(at, n, in)
			got, want = say(color), say(model.color(seen, n, in))
			if color == Green {
				take(n)
			}
		case 2:
			call = "Peek"
			got, want = say(m.Peek(at, n, in)), say(model.copyAt(seen).color(seen, n, in))
		case 3:
			call = "Tokens"
			got, want = say(m.Tokens(at)), say(model.tokens(seen))
		case 4:
			call = "TakeUpTo"
			took := m.TakeUpTo(at, n)
			should := max(int(min(int64(n), model.remaining(seen))), 0)
			if should > 0 && model.color(seen, should, Green) == Red {
				should = 0
			}
			got, want = say(took), say(should)
			take(took)
		case 5:
			call = "RetryAfter"
			after, ok := m.RetryAfter(at, n)
			got = say(after, ok)
			model.begin(seen)
			if !back {
				want = retryWant(r, model, p, at, n, after, ok)
			}
		case 6:
			call = "ResetAfter"
			m.ResetAfter(at)
			model.begin(seen)
		case 7, 8:
			call = "Reserve"
			longest := pick(r, 0, math.MaxInt64, time.Duration(r.Int64N(1e9)))
			after, ever := m.RetryAfter(at, n)
			res := m.Reserve(at, n, longest)
			model.begin(seen)
			if p.kind == kindTSWTCM || warm {
				if res.OK {
					got, want = say(true), say(model.color(seen, n, Green) != Red)
					take(n)
				} else if after == 0 && ever && n >= 0 {
					model.color(seen, n, Green) // draws a random number, or logs a packet
				}
				break
			}
			now := model.green(seen, n)
			should := n >= 0 &&
				(now && longest >= 0 || single && ever && after <= longest && at+int64(after) >= at &&
					model.counts(p, seen, n))
			got, want = say(res.OK, res.Delay), say(should, time.Duration(0))
			if should && !now {
				want = say(should, after)
			}
			switch {
			case res.OK && res.Delay == 0:
				model.color(seen, n, Green)
				take(n)
			case res.OK:
				model.slow.color(seen, 0, Red)
				model.debit(int64(n))
				last, lastBytes = res, int64(n)
				buckets = false // reserved bytes count at their time: see TestReserve
			}
		case 9:
			call = "Cancel"
			m.Tokens(at) // as the model did
			m.Cancel(at, last)
			if last.OK && at < last.at {
				model.credit(lastBytes)
			}
			last = Reservation{}
		case 10:
			call = "Decide"
			d := m.Decide(at, n)
			got, want = say(d.Color, d.Remaining), say(model.color(seen, n, Green), model.remaining(seen))
			if d.Color == Green {
				take(n)
			}
		case 11:
			call = "Explain"
			before := say(model.tokens(seen))
			x := m.Explain(at, n, in)
			color := model.color(seen, n, in)
			want = before + " " + say(color) + " " + say(model.tokens(seen))
			got = say(x.TcBefore, " ", x.TeBefore, " ", x.Color, " ", x.TcAfter, " ", x.TeAfter)
			if x.Color == Green {
				take(n)
			}
		case 12:
			call = "Colors"
			lengths, before := []int{n, n / 2, 1}, []Color{in, Green, in}
			if r.IntN(2) == 0 {
				before = nil
			}
			colors := []Color{Red, Red, Yellow}
			m.Colors(at, lengths, before, colors)
			for i, n := range lengths {
				got += say(colors[i], " ")
				came := Green
				if before != nil {
					came = before[i]
				}
				want += say(model.color(seen, n, came), " ")
				if colors[i] == Green {
					take(n)
				}
			}
		case 13:
			call = "SetProfile"
			if !buckets || warm || back {
				m.Tokens(at)
				break
			}
			params = randomBuckets(r)
			p = compileProfile(t, params)
			m.SetProfile(at, p)
			model = model.become(t, params, &m, at)
			lastBytes = 0 // reservations have ended
			rate, burst, _ = ratesOf(params)
			single = p.kind == kindTokenBucket || p.kind == kindGCRA
			c, _ = p.Bursts()
			begin, granted = latest, new(big.Rat)
		}
		if got != want && !back {
			t.Fatalf(
				"%+v starting with %d, %d; call %d: %s at %d (latest %d) of %d B, input %v: %s; model: %s",
				params, tc, te, i, call, at, now, n, in, got, want)
		}
		next := nextTime(r, params, now)
		if r.IntN(20) == 0 {
			next = now + int64(r.Uint64N(1<<63))
		}
		if r.IntN(60) == 0 {
			next = math.MaxInt64 - r.Int64N(3)
		}
		now = max(now, next)
	}
}

// randomBuckets returns parameters of buckets without a warm-up.
func randomBuckets(r *rand.Rand) compiler {
	for {
		params := contractParams(r)
		if t, ok := params.(TokenBucket); ok && t.Warmup > 0 {
			continue
		}
		if _, _, ok := ratesOf(params); ok {
			return params
		}
	}
}

// retryWant returns the result of RetryAfter if the model confirms it: green then, and not a
// ns earlier.
func retryWant(
	r *rand.Rand, model *contract, p *Profile, at int64, n int, after time.Duration, ok bool,
) string {
	if p.kind == kindTSWTCM {
		return fmt.Sprint(after, ok)
	}
	_, warm := p.rule.(warmUp)
	if !ok {
		for _, later := range []int64{0, 1, r.Int64N(1e12), math.MaxInt64} {
			if at+later >= at && model.green(at+later, n) {
				return fmt.Sprintf("green %d ns later", later)
			}
		}
		return fmt.Sprint(after, ok)
	}
	then := at + int64(after)
	switch {
	case then < at: // past the largest time
	case !model.green(then, n):
		return "not green then"
	case after > 0 && !warm && model.green(then-1, n):
		return "green before"
	}
	return fmt.Sprint(after, ok)
}

func second(_, b int64) int64 { return b }

func TestContract(t *testing.T) {
	r := logged(t)
	for range 6000 {
		compareCalls(t, r, contractParams(r), 40, r.IntN(4) == 0)
	}
}

func FuzzContract(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Fuzz(func(t *testing.T, a, b uint64) {
		r := rand.New(rand.NewPCG(a, b))
		compareCalls(t, r, contractParams(r), 200, r.IntN(4) == 0)
	})
}

// TestFarApart makes all calls at times as far apart as an int64 allows, forwards and
// backwards. Nothing panics, tokens never exceed the burst, and an earlier time finds no
// more tokens than the latest.
func TestFarApart(t *testing.T) {
	r := logged(t)
	times := []int64{
		math.MinInt64, math.MinInt64 + 1, math.MinInt64 + 2, firstWindow - 1, firstWindow, -1 << 62, -1, 0, 1,
		1 << 62, math.MaxInt64 - 1e9, math.MaxInt64,
	}
	all := append([]compiler{
		TokenBucket{Rate: Rate{1 << 30, 24 * time.Hour}, Burst: 1 << 30},
		TRTCM4115{CIR: BitRate(99_999_999_999), CBS: 1 << 30, EIR: BitRate(7), EBS: 1 << 31, Coupling: true},
		TokenBucket{Rate: Unlimited, Burst: 100},
		SlidingCounter{Limit: 1 << 40, Window: time.Microsecond},
		SlidingCounter{Limit: 1 << 47, Window: maxWindow},
		TSWTCM{CIR: BitRate(8e6), PIR: BitRate(8e6), Window: time.Hour, Seed: 1},
	}, allKinds...)
	for _, params := range all {
		p := compileProfile(t, params)
		c, e := p.Bursts()
		for _, then := range times {
			for _, now := range times {
				m := New(p)
				if r.IntN(2) == 0 && (then >= -1<<63+1<<55+2 || p.rule != nil) {
					m = NewWithTokens(p, c/2, e/2)
				}
				for i := range int64(3) { // in consecutive windows
					m.Color(then+i*max(period(params), 1000), int(c/4), Green)
				}
				latest := m.Clone()
				late, _ := latest.Tokens(math.MaxInt64)
				if early, _ := m.Tokens(now); early > max(late, c/2) && p.kind != kindTSWTCM && now < then {
					t.Errorf("%+v: got %d tokens at %d, want at most the %d of the later time %d", params,
						early, now, late, then)
				}
				_, warm := p.rule.(warmUp)
				// an average has decayed for the most part
				if full, _ := m.Tokens(now); now > then && uint64(now)-uint64(then) > 1<<62 && !warm &&
					full < c-c/1e6 {
					t.Errorf("%+v: got %d tokens at %d, want %d: the latest call was at %d", params, full,
						now, c, then)
				}
				m.Peek(now, 10, Yellow)
				if n := m.TakeUpTo(now, 1); n < 0 || n > 1 {
					t.Errorf("%+v: TakeUpTo of 1 returned %d", params, n)
				}
				m.RetryAfter(now, int(c))
				m.ResetAfter(now)
				m.Cancel(now, m.Reserve(now, 20, math.MaxInt64))
				if d := m.Decide(now, 5); d.Remaining < 0 || d.Remaining > c || d.RetryAfter < 0 ||
					d.ResetAfter < 0 {
					t.Errorf("%+v at %d, after %d: got %+v, want no number out of range", params, now, then,
						d)
				}
				m.Explain(now, 5, Green)
				m.Colors(now, []int{1, 2}, nil, make([]Color, 2))
				m.SetProfile(now, compileProfile(t, pick(r, all...)))
				c, e := m.profile.Bursts()
				if tc, te := m.Tokens(then); tc < 0 || te < 0 || tc > c || te > e {
					t.Errorf("%+v: got %d, %d tokens, want 0 to %d, %d", m.profile, tc, te, c, e)
				}
			}
		}
	}
	// Windows are aligned at any time.
	m := New(compileProfile(t, FixedWindow{Limit: 100, Window: time.Second}))
	for _, now := range []int64{math.MinInt64, -1 << 62, 0} {
		if n := m.TakeUpTo(now, 200); n != 100 {
			t.Errorf("got %d of 100 at %d", n, now)
		}
	}
}
