package meter

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

// kinds are parameters of each kind with bursts of 100, in the order of Kind.
var kinds = []compiler{
	TokenBucket{Rate: BitRate(8e6), Burst: 100},
	SRTCM{BitRate(8e6), 100, 100},
	TRTCM{BitRate(8e6), 100, BitRate(8e6), 200},
	TRTCM4115{BitRate(8e6), 100, BitRate(8e6), 100, false},
	GCRA{BitRate(8e6), 100},
	FixedWindow{100, 1e9},
	SlidingWindow{100, 1e9, 10},
	SlidingCounter{100, 1e9},
	SlidingLog{100, 1e9, 10},
	TSWTCM{BitRate(8e6), BitRate(16e6), 100_000, 1},
	TokenBucket{BitRate(8e6), 100, 1e6}, // with a warm-up, beside the kinds
}

// TestSetProfileOfAll keeps what there is, cut to the burst, between all kinds.
func TestSetProfileOfAll(t *testing.T) {
	for _, from := range kinds {
		for _, to := range kinds {
			for _, took := range []int{0, 30, 100} {
				const now = 1e15 + 5
				m := New(compile(t, from))
				old := m.profile
				m.Color(now, took, Green)
				had, _ := m.Tokens(now)
				p := compile(t, to)
				m.SetProfile(now, p)
				got, _ := m.Tokens(now)
				want := min(had, 100)
				switch {
				case p.Kind() == KindTSWTCM && old.Kind() != KindTSWTCM:
					want = 100 // an average begins anew
				case from != to && p.rule != nil && p.Kind() == KindTokenBucket:
					want = min(had, 33) // as cold as with its first packet
				}
				if got != want || m.Profile().Kind() != p.Kind() {
					t.Errorf("%+v to %+v: %d tokens, then %d, want %d; %v", from, to, had, got, want, m.Profile().Kind())
				}
				if x := m.Explain(now, 1, Green); x.Clause != p.Kind().Clause(Green, x.Color) {
					t.Errorf("%+v to %+v: %v", from, to, x.Clause)
				}
				// Nor more at a time before.
				stale := New(compile(t, from))
				stale.Color(now, took, Green)
				stale.SetProfile(now-1e12, p)
				if got, _ := stale.Tokens(now); p.Kind() != KindTSWTCM && got > want {
					t.Errorf("%+v to %+v at an earlier time: %d tokens, want at most %d", from, to, got, want)
				}
				// Nor does one that waits for its first packet begin.
				empty := NewWithTokens(compile(t, from), 0, 0)
				empty.SetProfile(now, p)
				if got, _ := empty.Tokens(now + 1e12); p.Kind() != KindTSWTCM && old.Kind() != KindTSWTCM && got != 0 {
					t.Errorf("%+v to %+v: an empty one has %d tokens", from, to, got)
				}
			}
		}
	}
	// The same numbers mean another kind.
	m := New(compile(t, SlidingWindow{100, 1000, 1000}))
	m.SetProfile(0, compile(t, SlidingLog{100, 1000, 1000}))
	if got := m.Profile().Kind(); got != KindSlidingLog {
		t.Errorf("a sliding window became %v", got)
	}
	// Cut to the new limit.
	m.SetProfile(0, compile(t, FixedWindow{40, 1e9}))
	if tc, _ := m.Tokens(0); tc != 40 {
		t.Errorf("%d tokens of 40", tc)
	}
}

// TestClauses reaches each clause of each kind by packets.
func TestClauses(t *testing.T) {
	seen := map[Clause]bool{}
	for i, params := range kinds[:KindTSWTCM+1] {
		p := compile(t, params)
		if p.Kind() != Kind(i) || p.Kind().String() == "" {
			t.Errorf("%+v is a %v", params, p.Kind())
		}
		for _, in := range []Color{Green, Yellow, Red} {
			m := New(p)
			for range 200 {
				x := m.Explain(0, 10, in)
				name := x.Clause.String()
				switch {
				case in == x.Color && in != Green:
					if !strings.HasSuffix(name, "-pre-"+in.String()) {
						t.Errorf("%v to %v: %s", in, x.Color, name)
					}
				case !strings.HasSuffix(name, "-"+x.Color.String()) || strings.Contains(name, "-pre-"):
					t.Errorf("%v to %v: %s", in, x.Color, name)
				}
				if text := x.Clause.Text(); text == "" || strings.HasSuffix(text, ": ") || !strings.Contains(x.String(), text) {
					t.Errorf("%s: %q, %v", name, text, x)
				}
				if Kind(i) > KindTRTCM4115 && !strings.HasPrefix(name, p.Kind().String()+"-") {
					t.Errorf("%v: %s", p.Kind(), name)
				}
				seen[x.Clause] = true
			}
		}
	}
	names := map[string]bool{}
	for c := range Clause(NumClauses) {
		if names[c.String()] {
			t.Errorf("%v twice", c)
		}
		names[c.String()] = true
		twoColor := c.Text() == ""
		if seen[c] == twoColor {
			t.Errorf("%v: reached %v, text %q", c, seen[c], c.Text())
		}
		if twoColor && !strings.HasSuffix(c.String(), "-yellow") {
			t.Errorf("%v has no text", c)
		}
	}
	if got := Clause(NumClauses).String(); got != "Clause(50)" || Clause(NumClauses).Text() != got || Kind(10).String() != "Kind(10)" {
		t.Errorf("%s, %v", got, Kind(10))
	}
}

// TestFamilyRefusals has each fault, both sides of each bound.
func TestFamilyRefusals(t *testing.T) {
	ok := BitRate(8e6)
	const day = 24 * time.Hour
	for _, test := range []struct {
		params compiler
		want   string // all that is wrong; empty where nothing is
	}{
		{GCRA{}, "rate must be above zero\nburst must be above zero"},
		{TokenBucket{ok, 1, 999}, "warmup of 999ns is not between 1µs and 24h0m0s"},
		{TokenBucket{ok, 1, day + 1}, "warmup of 24h0m0.000000001s is not between 1µs and 24h0m0s"},
		{TokenBucket{ok, 1, -1}, "warmup of -1ns is not between 1µs and 24h0m0s"},
		{TokenBucket{ok, 1, 1000}, ""},
		{TokenBucket{ok, 1, day}, ""},
		{TokenBucket{BitRate(1), 19216, day}, "burst of 19216 bytes is above the largest burst that stays exact at this rate with a warm-up, 19215 bytes"},
		{TokenBucket{BitRate(1), 19215, day}, ""},
		{FixedWindow{0, 999}, "limit must be above zero\nwindow of 999ns is not between 1µs and 8784h0m0s"},
		{FixedWindow{1<<47 + 1, 366*day + 1}, "limit is above 2^47 bytes\nwindow of 8784h0m0.000000001s is not between 1µs and 8784h0m0s"},
		{FixedWindow{1 << 47, 366 * day}, ""},
		{FixedWindow{1, 1000}, ""},
		{SlidingCounter{-1, -5}, "limit must be above zero\nwindow of -5ns is not between 1µs and 8784h0m0s"},
		{SlidingCounter{1 << 47, 366 * day}, ""},
		{SlidingWindow{1, 1000, 0}, "slots 0 are not between 1 and 4096"},
		{SlidingWindow{0, 0, 4097}, "slots 4097 are not between 1 and 4096\nlimit must be above zero\nwindow of 0s is not between 1µs and 8784h0m0s"},
		{SlidingWindow{1, 1000, 3}, "slots 3 do not divide a window of 1µs into whole nanoseconds"},
		{SlidingWindow{1, 4096, 4096}, ""},
		{SlidingLog{1, 1000, 0}, "entries 0 are not between 1 and 1048576"},
		{SlidingLog{1, 999, 1<<20 + 1}, "entries 1048577 are not between 1 and 1048576\nwindow of 999ns is not between 1µs and 8784h0m0s"},
		{SlidingLog{1, 1000, 1 << 20}, ""},
		{TSWTCM{}, "CIR must be above zero (RFC 2859 §2)\nPIR must be above zero (RFC 2859 §2)\nwindow of 0s is not between 1µs and 1h0m0s"},
		{TSWTCM{ok, BitRate(8e6 - 1), time.Hour + 1, 0}, "PIR 7999999bit is below CIR 8mbit: it must be equal or greater (RFC 2859 §2)\nwindow of 1h0m0.000000001s is not between 1µs and 1h0m0s"},
		{TSWTCM{ok, ok, time.Hour, math.MaxUint64}, ""},
		{TSWTCM{ok, ByteRate(1<<46/3600 + 1), time.Hour, 0}, "PIR brings more than 2^46 bytes in a window"},
		{TSWTCM{ok, ByteRate(1 << 46 / 3600), time.Hour, 0}, ""},
		{TokenBucket{Rate{}, 0, -1}, "warmup of -1ns is not between 1µs and 24h0m0s\nrate must be above zero\nburst must be above zero"},
	} {
		p, err := test.params.Profile()
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%+v: %v", test.params, err)
		case test.want == "":
			if c, _ := p.Bursts(); c < 1 {
				t.Errorf("%+v: a burst of %d", test.params, c)
			}
		case err == nil || err.Error() != test.want:
			t.Errorf("%+v: %v\nwant %s", test.params, err, test.want)
		default:
			if field := new(FieldError); !errors.As(err, &field) {
				t.Errorf("%v is no FieldError", err)
			}
		}
	}
}

func TestIntegersOfAll(t *testing.T) {
	two := Integers{Den: 1000, Num: [2]int64{1, 0}, Burst: [2]int64{100, 0}, Limit: Yellow}
	for i, want := range map[int]*Integers{
		0: &two, 4: &two, 6: nil, 8: nil, 9: nil, 10: nil,
		5: {Burst: [2]int64{100, 0}, Limit: Yellow, Window: 1e9},
		7: {Burst: [2]int64{100, 0}, Limit: Yellow, Window: 1e9, Sliding: true},
	} {
		got, ok := compile(t, kinds[i]).Integers()
		if ok != (want != nil) || ok && got != *want {
			t.Errorf("%+v: %+v, %v", kinds[i], got, ok)
		}
	}
}
