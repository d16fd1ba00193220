package meter

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

// allKinds has parameters of each kind with bursts of 100, in the order of Kind.
var allKinds = []compiler{
	TokenBucket{Rate: BitRate(8e6), Burst: 100},
	SRTCM{CIR: BitRate(8e6), CBS: 100, EBS: 100},
	TRTCM{CIR: BitRate(8e6), CBS: 100, PIR: BitRate(8e6), PBS: 200},
	TRTCM4115{CIR: BitRate(8e6), CBS: 100, EIR: BitRate(8e6), EBS: 100},
	TokenBucket{Rate: BitRate(8e6), Burst: 100, GCRA: true},
	FixedWindow{Limit: 100, Window: 1e9},
	SlidingWindow{Limit: 100, Window: 1e9, Slots: 10},
	SlidingCounter{Limit: 100, Window: 1e9},
	SlidingLog{Limit: 100, Window: 1e9, Entries: 10},
	TSWTCM{CIR: BitRate(8e6), PIR: BitRate(16e6), Window: 100_000, Seed: 1},
	TokenBucket{Rate: BitRate(8e6), Burst: 100, Warmup: 1e6}, // with a warm-up, after all kinds
}

// TestSetProfileBetweenKinds changes each kind to each kind. Tokens are kept, up to the burst.
func TestSetProfileBetweenKinds(t *testing.T) {
	for _, from := range allKinds {
		for _, to := range allKinds {
			for _, took := range []int{0, 30, 100} {
				const now = 1e15 + 5
				m := New(compileProfile(t, from))
				old := m.profile
				m.Color(now, took, Green)
				had, _ := m.Tokens(now)
				p := compileProfile(t, to)
				m.SetProfile(now, p)
				got, _ := m.Tokens(now)
				want := min(had, 100)
				switch {
				case p.Kind() == kindTSWTCM && old.Kind() != kindTSWTCM:
					want = 100 // an average begins anew
				case from != to && p.rule != nil && p.Kind() == kindTokenBucket:
					want = min(had, 33) // as cold as at its first packet
				}
				if got != want || m.Profile().Kind() != p.Kind() {
					t.Errorf("%+v to %+v: got %d tokens, then %d, want %d; %v", from, to, had, got, want,
						m.Profile().Kind())
				}
				if x := m.Explain(now, 1, Green); x.Clause != p.Kind().Clause(Green, x.Color) {
					t.Errorf("%+v to %+v: got clause %v, want %v", from, to, x.Clause,
						p.Kind().Clause(Green, x.Color))
				}
				// An earlier time gains nothing.
				stale := New(compileProfile(t, from))
				stale.Color(now, took, Green)
				stale.SetProfile(now-1e12, p)
				if got, _ := stale.Tokens(now); p.Kind() != kindTSWTCM && got > want {
					t.Errorf("%+v to %+v at an earlier time: got %d tokens, want at most %d", from, to, got,
						want)
				}
				// SetProfile begins a clock that has not begun.
				empty, asked := NewWithTokens(compileProfile(t, from), 0, 0), NewWithTokens(p, 0, 0)
				empty.SetProfile(now, p)
				asked.Color(now, 0, Red)
				for _, at := range []int64{now, now + 1000, now + 1e12} {
					e := cloneOf(&empty)
					got, _ := e.Tokens(at)
					want, _ := asked.Tokens(at)
					if p.Kind() != kindTSWTCM && old.Kind() != kindTSWTCM &&
						(got != want || at == now && got != 0) {
						t.Errorf("%+v to %+v: an empty one has %d tokens after %d ns, want %d", from, to, got,
							at-now, want)
					}
				}
			}
		}
	}
	// The same numbers in another kind mean something else.
	m := New(compileProfile(t, SlidingWindow{Limit: 100, Window: 1000, Slots: 1000}))
	m.SetProfile(0, compileProfile(t, SlidingLog{Limit: 100, Window: 1000, Entries: 1000}))
	if got := m.Profile().Kind(); got != kindSlidingLog {
		t.Errorf("got kind %v after SetProfile of a sliding window, want %v", got, kindSlidingLog)
	}
	// Tokens are limited to the new limit.
	m.SetProfile(0, compileProfile(t, FixedWindow{Limit: 40, Window: 1e9}))
	if tc, _ := m.Tokens(0); tc != 40 {
		t.Errorf("got %d tokens, want 40", tc)
	}
}

// TestClauses reaches each clause of each kind with packets.
func TestClauses(t *testing.T) {
	seen := map[Clause]bool{}
	for i, params := range allKinds[:kindTSWTCM+1] {
		p := compileProfile(t, params)
		if p.Kind() != Kind(i) || p.Kind().String() == "" {
			t.Errorf("%+v: got kind %v, want %v", params, p.Kind(), Kind(i))
		}
		for _, in := range []Color{Green, Yellow, Red} {
			m := New(p)
			for range 200 {
				x := m.Explain(0, 10, in)
				name := x.Clause.String()
				switch {
				case in == x.Color && in != Green:
					if !strings.HasSuffix(name, "-pre-"+in.String()) {
						t.Errorf("%v to %v: got clause %s, want -pre-%[1]v", in, x.Color, name)
					}
				case !strings.HasSuffix(name, "-"+x.Color.String()) || strings.Contains(name, "-pre-"):
					t.Errorf("%v to %v: got clause %s, want -%[2]v", in, x.Color, name)
				}
				if text := x.Clause.Text(); text == "" || strings.HasSuffix(text, ": ") ||
					!strings.Contains(x.String(), text) {
					t.Errorf("%s: got text %q, not in %v", name, text, x)
				}
				if Kind(i) > kindTRTCM4115 && !strings.HasPrefix(name, p.Kind().String()+"-") {
					t.Errorf("%v: got clause %s, want the name of the kind first", p.Kind(), name)
				}
				seen[x.Clause] = true
			}
		}
	}
	names := map[string]bool{}
	for c := range Clause(NumClauses) {
		if names[c.String()] {
			t.Errorf("%v is the name of two clauses", c)
		}
		names[c.String()] = true
		twoColor := c.Text() == ""
		if seen[c] == twoColor {
			t.Errorf("%v: got reached %v, with text %q", c, seen[c], c.Text())
		}
		if twoColor && !strings.HasSuffix(c.String(), "-yellow") {
			t.Errorf("%v has no text", c)
		}
	}
	if got := Clause(NumClauses).String(); got != "Clause(50)" || Clause(NumClauses).Text() != got ||
		Kind(10).String() != "Kind(10)" {
		t.Errorf("got %s and %v, want Clause(50) and Kind(10)", got, Kind(10))
	}
}

// TestFamilyErrors has each error, on both sides of each bound.
func TestFamilyErrors(t *testing.T) {
	ok := BitRate(8e6)
	const day = 24 * time.Hour
	for _, test := range []struct {
		params compiler
		want   string // all errors; empty if there is none
	}{
		{TokenBucket{Rate: ok, Burst: 1, Warmup: day, GCRA: true}, "Warmup does not go with GCRA"},
		{TokenBucket{}, "Rate must be above zero\nBurst must be above zero"},
		{TokenBucket{Rate: ok, Burst: 1, Warmup: 999}, "Warmup of 999ns is not between 1µs and 24h0m0s"},
		{TokenBucket{Rate: ok, Burst: 1, Warmup: day + 1}, "Warmup of 24h0m0.000000001s is not between 1µs and 24h0m0s"},
		{TokenBucket{Rate: ok, Burst: 1, Warmup: -1}, "Warmup of -1ns is not between 1µs and 24h0m0s"},
		{TokenBucket{Rate: ok, Burst: 1, Warmup: 1000}, ""},
		{TokenBucket{Rate: ok, Burst: 1, Warmup: day}, ""},
		// 2^62 units: 8e9 per byte, of 150 parts each if the warm-up is a multiple of 100 ns,
		// of 15000 if it is a multiple of neither 2 nor 5.
		{TokenBucket{Rate: BitRate(1), Burst: 3843072, Warmup: day}, "Burst of 3843072 bytes exceeds the largest burst that 64 bits count exactly at this rate with a warm-up of 24h0m0s, 3843071 bytes"},
		{TokenBucket{Rate: BitRate(1), Burst: 3843071, Warmup: day}, ""},
		{TokenBucket{Rate: BitRate(1), Burst: 38431, Warmup: 1001}, "Burst of 38431 bytes exceeds the largest burst that 64 bits count exactly at this rate with a warm-up of 1.001µs, 38430 bytes"},
		{TokenBucket{Rate: BitRate(1), Burst: 38430, Warmup: 1001}, ""},
		{TokenBucket{Rate: BitRate(1), Burst: 72057595, Warmup: day}, "Burst of 72057595 bytes exceeds the largest burst that 64 bits count exactly at this rate, 72057594 bytes"},
		{TokenBucket{Rate: Unlimited, Burst: 1, Warmup: day}, "Burst has an unlimited rate, which 64 bits cannot express"},
		{
			FixedWindow{Limit: 0, Window: 999},
			"Limit must be above zero\nWindow of 999ns is not between 1µs and 8784h0m0s",
		},
		{
			FixedWindow{Limit: 1<<47 + 1, Window: 366*day + 1},
			"Limit is above 2^47 bytes\nWindow of 8784h0m0.000000001s is not between 1µs and 8784h0m0s",
		},
		{FixedWindow{Limit: 1 << 47, Window: 366 * day}, ""},
		{FixedWindow{Limit: 1, Window: 1000}, ""},
		{
			SlidingCounter{Limit: -1, Window: -5},
			"Limit must be above zero\nWindow of -5ns is not between 1µs and 8784h0m0s",
		},
		{SlidingCounter{Limit: 1 << 47, Window: 366 * day}, ""},
		{SlidingWindow{Limit: 1, Window: 1000, Slots: 0}, "Slots 0 are not between 1 and 4096"},
		{
			SlidingWindow{Limit: 0, Window: 0, Slots: 4097},
			"Slots 4097 are not between 1 and 4096\n" +
				"Limit must be above zero\n" +
				"Window of 0s is not between 1µs and 8784h0m0s",
		},
		{
			SlidingWindow{Limit: 1, Window: 1000, Slots: 3},
			"Slots 3 do not divide a window of 1µs into whole nanoseconds",
		},
		{SlidingWindow{Limit: 1, Window: 4096, Slots: 4096}, ""},
		{SlidingLog{Limit: 1, Window: 1000, Entries: 0}, "Entries 0 are not between 1 and 1048576"},
		{
			SlidingLog{Limit: 1, Window: 999, Entries: 1<<20 + 1},
			"Entries 1048577 are not between 1 and 1048576\nWindow of 999ns is not between 1µs and 8784h0m0s",
		},
		{SlidingLog{Limit: 1, Window: 1000, Entries: 1 << 20}, ""},
		{TSWTCM{}, "CIR must be above zero (RFC 2859 §2)\nPIR must be above zero (RFC 2859 §2)\nWindow of 0s is not between 1µs and 1h0m0s"},
		{
			TSWTCM{CIR: ok, PIR: BitRate(8e6 - 1), Window: time.Hour + 1, Seed: 0},
			"PIR 7999999bit is below CIR 8mbit: it must be equal or greater (RFC 2859 §2)\n" +
				"Window of 1h0m0.000000001s is not between 1µs and 1h0m0s",
		},
		{TSWTCM{CIR: ok, PIR: Rate{}, Window: time.Hour, Seed: 0}, "PIR must be above zero (RFC 2859 §2)"},
		{TSWTCM{CIR: Rate{5, 0}, PIR: ok, Window: time.Hour, Seed: 0}, "CIR needs a period above zero"},
		{TSWTCM{CIR: ok, PIR: ok, Window: time.Hour, Seed: math.MaxUint64}, ""},
		{
			TSWTCM{CIR: ok, PIR: ByteRate(1<<46/3600 + 1), Window: time.Hour, Seed: 0},
			"PIR allows more than 2^46 bytes in a window",
		},
		{TSWTCM{CIR: ok, PIR: ByteRate(1 << 46 / 3600), Window: time.Hour, Seed: 0}, ""},
		{
			TSWTCM{CIR: ok, PIR: Rate{1<<46 + 1, time.Hour}, Window: time.Hour, Seed: 0},
			"PIR allows more than 2^46 bytes in a window",
		},
		{TSWTCM{CIR: ok, PIR: Rate{1 << 46, time.Hour}, Window: time.Hour, Seed: 0}, ""},
		{
			TSWTCM{CIR: Unlimited, PIR: Unlimited, Window: time.Hour, Seed: 0},
			"CIR allows more than 2^46 bytes in a window\nPIR allows more than 2^46 bytes in a window",
		},
		{TokenBucket{Rate: Rate{}, Burst: 0, Warmup: -1}, "Warmup of -1ns is not between 1µs and 24h0m0s\nRate must be above zero\nBurst must be above zero"},
	} {
		p, err := test.params.Profile()
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%+v: got %v, want nil", test.params, err)
		case test.want == "":
			if c, _ := p.Bursts(); c < 1 {
				t.Errorf("%+v: got a burst of %d, want 1 or more", test.params, c)
			}
		case err == nil || err.Error() != test.want:
			t.Errorf("%+v: got %v\nwant %s", test.params, err, test.want)
		default:
			if field := new(FieldError); !errors.As(err, &field) {
				t.Errorf("got %v, want a FieldError", err)
			}
		}
	}
}

func TestIntegersOfAllKinds(t *testing.T) {
	// Each bucket fits 64 bits with its own unit, but not with a common one.
	apart, err := compileProfile(t,
		TRTCM{CIR: BitRate(1e9 - 1), CBS: 1 << 26, PIR: BitRate(1e9), PBS: 1 << 50}).Integers()
	if want := (Integers{
		[2]int64{8e9, 8},
		[2]int64{1e9 - 1, 1},
		[2]int64{1 << 26, 1 << 50},
		true, false, true, Green, 0,
		false,
	}); err != nil ||
		apart != want {
		t.Errorf("got %+v, %v, want %+v", apart, err, want)
	}
	two := Integers{Den: [2]int64{1000, 1000}, Num: [2]int64{1, 0}, Burst: [2]int64{100, 0}, Limit: Yellow}
	for i, want := range map[int]*Integers{
		0: &two, 4: &two, 6: nil, 8: nil, 9: nil, 10: nil,
		5: {Burst: [2]int64{100, 0}, Limit: Yellow, Window: 1e9},
		7: {Burst: [2]int64{100, 0}, Limit: Yellow, Window: 1e9, Sliding: true},
	} {
		got, err := compileProfile(t, allKinds[i]).Integers()
		if (err == nil) != (want != nil) || want != nil && got != *want {
			t.Errorf("%+v: got %+v, %v, want %+v", allKinds[i], got, err, want)
		}
		if field := new(FieldError); err != nil && !errors.As(err, &field) {
			t.Errorf("got %v, want a FieldError", err)
		}
	}
}

// TestIntegersBounds has the largest buckets that fit 64 bits with a unit each but not with a
// common unit, and one more of each value.
func TestIntegersBounds(t *testing.T) {
	odd := BitRate(1e9 - 1) // 8e9 units in a byte
	for _, test := range []struct {
		params compiler
		want   string // begin of the error; empty if there is none
	}{
		{TRTCM{CIR: odd, CBS: 72057594, PIR: BitRate(1e9), PBS: 1 << 56}, ""},
		{TRTCM{CIR: odd, CBS: 72057595, PIR: BitRate(1e9), PBS: 1 << 56}, "CBS of 72057595 bytes exceeds"},
		{
			TRTCM{CIR: odd, CBS: 72057594, PIR: BitRate(1e9), PBS: 1<<56 + 1},
			"PBS of 72057594037927937 bytes exceeds",
		},
		{TRTCM{CIR: odd, CBS: 72057594, PIR: Rate{1 << 50, 1}, PBS: 1 << 59}, ""},
		{
			TRTCM{CIR: odd, CBS: 72057594, PIR: Rate{1<<50 + 1, 1}, PBS: 1 << 59},
			"PBS has a rate too fast or too fine",
		},
		{TRTCM{CIR: odd, CBS: 1, PIR: Unlimited, PBS: 1}, "PBS has an unlimited rate"},
		{TRTCM4115{CIR: odd, CBS: 1, EIR: Unlimited, EBS: 1}, "EBS has an unlimited rate"},
		{SRTCM{CIR: Unlimited, CBS: 1, EBS: 1}, "CBS has an unlimited rate"},
		{TokenBucket{Rate: Unlimited, Burst: 1}, "Burst has an unlimited rate"},
	} {
		_, err := compileProfile(t, test.params).Integers()
		if got := fmt.Sprint(err); (err == nil) != (test.want == "") || err != nil &&
			!strings.HasPrefix(got, test.want) {
			t.Errorf("%+v: got %v, want %q", test.params, err, test.want)
		}
	}
}
