package meter

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"
)

type compiler interface{ Profile() (*Profile, error) }

func compileProfile(t testing.TB, c compiler) *Profile {
	t.Helper()
	p, err := c.Profile()
	if err != nil {
		t.Fatalf("%+v: %v", c, err)
	}
	return p
}

func TestStaleTimeGrantsNoMore(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for range 2000 {
		m := New(compileProfile(t, randomParams(r)))
		now := r.Int64N(1e15)
		for range 10 {
			m.Color(now, r.IntN(1600), Green)
			latest, old := m.Clone(), m.Clone()
			n, in := r.IntN(1600), Color(r.IntN(3))
			if late, early := latest.Color(now, n, in), old.Color(now-r.Int64N(1e16), n, in); early < late {
				t.Fatalf("got %v at an earlier time, better than %v at the latest", early, late)
			}
			now += r.Int64N(1e7)
		}
	}
}

func TestColorEach(t *testing.T) {
	p := compileProfile(t, SRTCM{CIR: BitRate(1e6), CBS: 1500, EBS: 3000})
	a, b := New(p), New(p)
	colors := make([]Color, 4)
	ColorEach([]*Meter{&a, &b, &a, &a}, 5, []int{1500, 1000, 3000, 1}, nil, colors)
	if want := []Color{Green, Green, Yellow, Red}; fmt.Sprint(colors) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", colors, want)
	}
}

func TestNewWithTokens(t *testing.T) {
	p := compileProfile(t, TRTCM{CIR: BitRate(8e6), CBS: 1000, PIR: BitRate(16e6), PBS: 2000})
	m := NewWithTokens(p, 0, -5)
	if m.Begun() {
		t.Error("the clock has begun before the first call")
	}
	if got := m.Color(1e18, 1, Green); got != Red || !m.Begun() {
		t.Errorf("first packet of an empty meter: got %v, clock begun %v, want red, true", got, m.Begun())
	}
	if tc, tp := m.Tokens(1e18 + 10_000); tc != 10 || tp != 20 {
		t.Errorf("10 µs later: got %d, %d, want 10, 20", tc, tp)
	}
	m = NewWithTokens(p, 500, 9999)
	if tc, tp := m.Tokens(0); tc != 500 || tp != 2000 {
		t.Errorf("at the beginning: got %d, %d, want 500, 2000", tc, tp)
	}
}

func TestSetProfile(t *testing.T) {
	slow := compileProfile(t, SRTCM{CIR: BitRate(1), CBS: 3000, EBS: 5000})
	for _, test := range []struct {
		to     compiler
		tc, te int64
	}{
		{SRTCM{CIR: BitRate(8e6), CBS: 3000, EBS: 5000}, 2000, 5000},
		{SRTCM{CIR: BitRate(999_999_937), CBS: 1500, EBS: 9000}, 1500, 5000},
		{TRTCM{CIR: BitRate(1), CBS: 2001, PIR: BitRate(7), PBS: 400}, 2000, 400},
		{TokenBucket{Rate: Rate{3, 7}, Burst: 1999}, 1999, 0},
		{SRTCM{CIR: BitRate(8e9), CBS: 50e6, EBS: 1 << 30}, 2000, 5000},
	} {
		m := New(slow)
		m.Color(0, 1000, Green)
		m.SetProfile(0, compileProfile(t, test.to))
		if tc, te := m.Tokens(0); tc != test.tc || te != test.te {
			t.Errorf("%+v: got %d, %d; want %d, %d", test.to, tc, te, test.tc, test.te)
		}
	}
}

func TestExplain(t *testing.T) {
	p := compileProfile(t, TRTCM{CIR: BitRate(8e6), CBS: 1000, PIR: BitRate(16e6), PBS: 2000})
	m := New(p)
	m.Color(0, 900, Green)
	got := m.Explain(50_000, 200, Green)
	want := Explanation{200, Green, Yellow, 150, 1200, 150, 1000, kindTRTCM.Clause(Green, Yellow)}
	if got != want {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	for _, test := range []struct {
		k       Kind
		in, out Color
		want    string
	}{
		{kindSRTCM, Green, Green, "rfc2697-green"},
		{kindSRTCM, Yellow, Yellow, "rfc2697-pre-yellow"},
		{kindTRTCM, Yellow, Red, "rfc2698-red"},
		{kindTRTCM, Red, Red, "rfc2698-pre-red"},
		{kindTRTCM4115, Green, Yellow, "rfc4115-yellow"},
		{kindTokenBucket, Green, Red, "token-bucket-red"},
	} {
		if got := test.k.Clause(test.in, test.out); got.String() != test.want || got.Text() == "" {
			t.Errorf("%v %v -> %v: got %v with text %q, want %s", test.k, test.in, test.out, got, got.Text(),
				test.want)
		}
	}
}

func TestErrors(t *testing.T) {
	ok := BitRate(1e6)
	for _, test := range []struct {
		params compiler
		want   string
	}{
		{SRTCM{CIR: ok, CBS: 0, EBS: 0}, "CBS and EBS are both zero"},
		{SRTCM{CIR: Rate{}, CBS: 1, EBS: 0}, "CIR must be above zero"},
		{SRTCM{CIR: Rate{-1, 1}, CBS: -1, EBS: 0}, "CIR is negative\nCBS is negative"},
		{SRTCM{CIR: Rate{1, 0}, CBS: 1, EBS: 0}, "CIR needs a period above zero"},
		{
			TRTCM{CIR: ok, CBS: 0, PIR: ok, PBS: 0},
			"CBS must be above zero (RFC 2698 §2)\nPBS must be above zero",
		},
		{TRTCM{CIR: ok, CBS: 1, PIR: BitRate(1e6 - 1), PBS: 1}, "PIR 999999bit is below CIR 1mbit"},
		{TRTCM4115{CIR: ok, CBS: 0, EIR: ok, EBS: 0}, "CBS and EBS are both zero"},
		{TokenBucket{Rate: ok}, "Burst must be above zero"},
		{
			TRTCM{CIR: BitRate(20e6), CBS: 0, PIR: BitRate(10e6), PBS: 0},
			"PIR 10mbit is below CIR 20mbit: it must be equal or greater (RFC 2698 §2)\n" +
				"CBS must be above zero (RFC 2698 §2)\n" +
				"PBS must be above zero (RFC 2698 §2)",
		},
		{TokenBucket{Rate: BitRate(1), Burst: 1<<59 + 1}, "Burst of 576460752303423489 bytes is above 2^59"},
		{
			TRTCM{CIR: Rate{}, CBS: 1, PIR: BitRate(1), PBS: 1<<59 + 1},
			"CIR must be above zero (RFC 2698 §2)\nPBS of 576460752303423489 bytes is above 2^59",
		},
		{
			TRTCM4115{
				CIR: Rate{1, math.MaxInt64}, CBS: 1, EIR: Rate{1, math.MaxInt64 - 1}, EBS: 1, Coupling: true,
			},
			"EIR 1B/2562047h47m16.854775806s and CIR 1B/2562047h47m16.854775807s have no common unit that 64 bits count exactly, which coupling needs",
		},
	} {
		_, err := test.params.Profile()
		var field *FieldError
		if err == nil || !strings.Contains(err.Error(), test.want) || !errors.As(err, &field) {
			t.Errorf("%+v: got %v, want %q", test.params, err, test.want)
		}
	}
	// The largest values are valid.
	compileProfile(t, TokenBucket{Rate: BitRate(1), Burst: 1 << 59})
	compileProfile(t,
		TRTCM{CIR: Rate{1, math.MaxInt64}, CBS: 1 << 59, PIR: Rate{math.MaxInt64, 1}, PBS: 1 << 59})
}

func TestLengthsBeyondEveryBurst(t *testing.T) {
	p := compileProfile(t, SRTCM{CIR: BitRate(1), CBS: 72057594, EBS: 72057594})
	for _, n := range []int{-1, math.MinInt, math.MaxInt, 72057595} {
		m := New(p)
		if got := m.Color(0, n, Green); got != Red {
			t.Errorf("length %d: got %v, want red", n, got)
		}
		if tc, te := m.Tokens(0); tc != 72057594 || te != 72057594 {
			t.Errorf("length %d: got %d, %d tokens, want all", n, tc, te)
		}
	}
}

func TestRate(t *testing.T) {
	for _, test := range []struct {
		r    Rate
		want string
	}{
		{BitRate(1), "1bit"},
		{BitRate(1500), "1500bit"},
		{BitRate(10e6), "10mbit"},
		{ByteRate(125e6), "1gbit"},
		{BitRate(1e15), "1000tbit"},
		{Rate{10000, time.Minute}, "10000B/1m0s"},
		{Rate{}, "0bit"},
	} {
		if got := test.r.String(); got != test.want {
			t.Errorf("%+v: got %s, want %s", test.r, got, test.want)
		}
	}
	if b, ok := BitRate(1e6).Burst(20 * time.Millisecond); b != 2500 || !ok {
		t.Errorf("20 ms at 1 Mbit/s: got %d bytes, %v, want 2500, true", b, ok)
	}
	if _, ok := ByteRate(math.MaxInt64).Burst(time.Hour); ok {
		t.Error("got true for a burst above the largest int64, want false")
	}
}

func TestParseColor(t *testing.T) {
	for c := Green; c <= Red; c++ {
		if got, err := ParseColor(c.String()); got != c || err != nil {
			t.Errorf("%v: got %v, %v, want the same color", c, got, err)
		}
	}
	if got := Color(3).String(); got != "Color(3)" {
		t.Errorf("the number after red: got %s", got)
	}
	if _, err := ParseColor("amber"); err == nil {
		t.Error("ParseColor accepted amber")
	}
}

// TestLocked offers far more than the rate from several goroutines, each with its own clock
// reading, and checks the bytes that passed against the bound.
func TestLocked(t *testing.T) {
	p := compileProfile(t, TRTCM{CIR: BitRate(80e6), CBS: 10_000, PIR: BitRate(160e6), PBS: 20_000})
	l := NewLocked(p)
	begin := time.Now()
	var mu sync.Mutex
	var sum [3]int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			var own [3]int64
			lengths, colors := []int{100, 1500, 700, 64}, make([]Color, 4)
			for range 20_000 {
				now := int64(time.Since(begin))
				l.Colors(now, lengths, nil, colors)
				for i, c := range colors {
					own[c] += int64(lengths[i])
				}
				own[l.Color(now, 300, Green)] += 300
			}
			mu.Lock()
			defer mu.Unlock()
			for c := range own {
				sum[c] += own[c]
			}
		})
	}
	wg.Wait()
	elapsed := int64(time.Since(begin))
	if most := 10_000 + elapsed/100; sum[Green] > most {
		t.Errorf("got %d green bytes, want at most %d", sum[Green], most)
	}
	if most := 20_000 + elapsed/50; sum[Green]+sum[Yellow] > most {
		t.Errorf("got %d bytes not red, want at most %d", sum[Green]+sum[Yellow], most)
	}
	if sum[Red] == 0 || sum[Green] == 0 {
		t.Errorf("got colors %v: the test did not load the meter", sum)
	}
}

func TestAllocations(t *testing.T) {
	p := compileProfile(t, SRTCM{CIR: BitRate(1e9), CBS: 1500, EBS: 1500})
	m := New(p)
	l := NewLocked(p)
	lengths, colors, meters := make([]int, 32), make([]Color, 32), make([]*Meter, 32)
	for i := range meters {
		meters[i] = &m
	}
	var now int64
	if n := testing.AllocsPerRun(1000, func() {
		now += 1000
		m.Color(now, 100, Green)
		m.Colors(now, lengths, nil, colors)
		ColorEach(meters, now, lengths, colors, colors)
		l.Color(now, 100, Green)
		l.Colors(now, lengths, nil, colors)
		m.Tokens(now)
		m.Explain(now, 100, Green)
		m.SetProfile(now, p)
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
	if size := unsafe.Sizeof(m); size > 32 {
		t.Errorf("got a Meter of %d bytes, want at most 32", size)
	}
}
