package meter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"
)

type compiler interface{ Profile() (*Profile, error) }

func compile(t testing.TB, c compiler) *Profile {
	t.Helper()
	p, err := c.Profile()
	if err != nil {
		t.Fatalf("%+v: %v", c, err)
	}
	return p
}

// TestTrace has rows worked out by hand from the text of the RFCs, at every bound and one
// byte to either side of it. 8 Mbit/s is one byte per microsecond.
func TestTrace(t *testing.T) {
	const µs = 1000
	mega := BitRate(8e6)
	type row struct {
		at     int64 // ns
		n      int
		in     Color
		want   Color
		tc, te int64 // tokens after the packet; te is Tp for trTCM
	}
	for _, test := range []struct {
		name   string
		params compiler
		rows   []row
	}{
		{"srTCM: equal conforms, one more does not", SRTCM{mega, 100, 50}, []row{
			{0, 101, Green, Red, 100, 50},
			{0, 100, Green, Green, 0, 50},
			{0, 51, Green, Red, 0, 50},
			{0, 50, Green, Yellow, 0, 0},
			{0, 1, Green, Red, 0, 0},
			{0, 0, Green, Green, 0, 0},
		}},
		{"srTCM: green does not debit E, C is filled before E", SRTCM{mega, 100, 50}, []row{
			{0, 60, Green, Green, 40, 50},
			{0, 50, Green, Yellow, 40, 0},
			{59 * µs, 99, Yellow, Red, 99, 0},
			{60 * µs, 1, Yellow, Red, 100, 0},
			{61 * µs, 2, Yellow, Red, 100, 1},
			{61 * µs, 1, Yellow, Yellow, 100, 0},
			{111 * µs, 100, Green, Green, 0, 50},
		}},
		{"srTCM: overflow counts once, whatever the verdict in between", SRTCM{mega, 100, 50}, []row{
			{0, 50, Yellow, Yellow, 100, 0},
			{10 * µs, 200, Green, Red, 100, 10},
			{10 * µs, 200, Green, Red, 100, 10},
			{20 * µs, 5, Yellow, Yellow, 100, 15},
			{20 * µs, 5, Red, Red, 100, 15},
			{55 * µs, 50, Yellow, Yellow, 100, 0},
		}},
		{"srTCM: yellow never takes from C, red takes nothing", SRTCM{mega, 100, 50}, []row{
			{0, 51, Yellow, Red, 100, 50},
			{0, 50, Yellow, Yellow, 100, 0},
			{0, 10, Red, Red, 100, 0},
			{0, 0, Red, Red, 100, 0},
		}},
		{"srTCM: CBS zero", SRTCM{mega, 0, 50}, []row{
			{0, 50, Green, Yellow, 0, 0},
			{10 * µs, 11, Green, Red, 0, 10},
			{10 * µs, 10, Green, Yellow, 0, 0},
		}},
		{"srTCM: EBS zero", SRTCM{mega, 100, 0}, []row{
			{0, 100, Green, Green, 0, 0},
			{500 * µs, 1, Yellow, Red, 100, 0},
		}},
		{"trTCM: green debits both", TRTCM{mega, 100, BitRate(16e6), 150}, []row{
			{0, 151, Green, Red, 100, 150},
			{0, 100, Green, Green, 0, 50},
			{0, 51, Green, Red, 0, 50},
			{0, 50, Green, Yellow, 0, 0},
			{10 * µs, 21, Green, Red, 10, 20},
			{10 * µs, 11, Green, Yellow, 10, 9},
			{10 * µs, 10, Green, Red, 10, 9},
			{11 * µs, 11, Green, Green, 0, 0},
		}},
		{"trTCM: yellow spends only P, red nothing", TRTCM{mega, 100, mega, 100}, []row{
			{0, 100, Red, Red, 100, 100},
			{0, 100, Yellow, Yellow, 100, 0},
			{0, 1, Yellow, Red, 100, 0},
			{50 * µs, 51, Green, Red, 100, 50},
			{50 * µs, 50, Green, Green, 50, 0},
		}},
		{"RFC 4115: C does not need E, equal conforms", TRTCM4115{CIR: mega, CBS: 100, EIR: BitRate(16e6), EBS: 50}, []row{
			{0, 50, Yellow, Yellow, 100, 0},
			{0, 100, Green, Green, 0, 0},
			{10 * µs, 10, Green, Green, 0, 20},
			{10 * µs, 20, Green, Yellow, 0, 0},
			{1000 * µs, 10, Red, Red, 100, 50},
		}},
		{"RFC 4115: a rate of zero never refills", TRTCM4115{CIR: Rate{}, CBS: 100, EIR: mega, EBS: 50}, []row{
			{0, 100, Green, Green, 0, 50},
			{1e18, 1, Green, Yellow, 0, 49},
		}},
		{"MEF 10.3: without coupling C's overflow is lost", TRTCM4115{CIR: mega, CBS: 100, EIR: Rate{}, EBS: 50}, []row{
			{0, 50, Yellow, Yellow, 100, 0},
			{90 * µs, 1, Yellow, Red, 100, 0},
		}},
		{"MEF 10.3: coupling adds C's overflow to E's own rate", TRTCM4115{CIR: mega, CBS: 100, EIR: mega, EBS: 50, Coupling: true}, []row{
			{0, 50, Yellow, Yellow, 100, 0},
			{0, 10, Green, Green, 90, 0},
			{20 * µs, 31, Yellow, Red, 100, 30},
			{20 * µs, 30, Yellow, Yellow, 100, 0},
		}},
		{"token bucket", TokenBucket{Rate: mega, Burst: 100}, []row{
			{0, 101, Green, Red, 100, 0},
			{0, 0, Yellow, Yellow, 100, 0},
			{0, 60, Green, Green, 40, 0},
			{0, 10, Yellow, Yellow, 30, 0},
			{0, 10, Red, Red, 30, 0},
			{0, 31, Green, Red, 30, 0},
			{1 * µs, 31, Green, Green, 0, 0},
			{1*µs + 999, 1, Green, Red, 0, 0},
			{2 * µs, 1, Green, Green, 0, 0},
		}},
		{"a clock that steps back refills nothing and loses nothing", TRTCM{mega, 100, mega, 100}, []row{
			{1000 * µs, 100, Green, Green, 0, 0},
			{0, 1, Green, Red, 0, 0},
			{999 * µs, 1, Green, Red, 0, 0},
			{1010 * µs, 11, Green, Red, 10, 10},
			{1010 * µs, 10, Green, Green, 0, 0},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := New(compile(t, test.params))
			for i, r := range test.rows {
				got := m.Color(r.at, r.n, r.in)
				tc, te := m.Tokens(r.at)
				if got != r.want || tc != r.tc || te != r.te {
					t.Fatalf("row %d: %d B at %d, input %v: %v with %d, %d left; want %v with %d, %d",
						i, r.n, r.at, r.in, got, tc, te, r.want, r.tc, r.te)
				}
			}
		})
	}
}

// randomParams returns valid parameters of the meters in RFCs, with rates from 1 bit/s to
// 400 Gbit/s.
func randomParams(r *rand.Rand) compiler {
	rate := func() Rate {
		switch r.IntN(5) {
		case 0:
			return BitRate(1 + r.Int64N(400e9))
		case 1:
			return BitRate(int64(math.Pow(10, float64(r.IntN(12)))))
		case 2:
			return Rate{1 + r.Int64N(1e6), time.Duration(1 + r.IntN(1e6))}
		case 3:
			return ByteRate(1 + r.Int64N(1e9))
		}
		return BitRate(1 + r.Int64N(1000))
	}
	burst := func() int64 { return 1 + r.Int64N([]int64{10, 3000, 100_000}[r.IntN(3)]) }
	for {
		var c compiler
		a, b := rate(), rate()
		switch r.IntN(6) {
		case 0, 1:
			c = SRTCM{a, burst() - 1, burst()}
		case 2:
			if a.Cmp(b) > 0 {
				a, b = b, a
			}
			c = TRTCM{a, burst(), b, burst()}
		case 3:
			if r.IntN(4) == 0 {
				a = Rate{}
			}
			c = TRTCM4115{a, burst(), b, burst() - 1, false}
		case 4:
			if r.IntN(4) == 0 {
				b = Rate{}
			}
			c = TRTCM4115{a, burst(), b, burst() - 1, true}
		case 5:
			c = TokenBucket{Rate: a, Burst: burst()}
		}
		if _, err := c.Profile(); err == nil {
			return c
		}
	}
}

// against meters a random stream with a Meter and the oracle, and compares them.
func against(t testing.TB, r *rand.Rand, params compiler, packets int) {
	t.Helper()
	p, err := params.Profile()
	if err != nil {
		t.Fatalf("%+v: %v", params, err)
	}
	m, o := New(p), newOracle(params)
	cbs, ebs := p.Bursts()
	now := int64(r.Uint64())
	if r.IntN(2) == 0 {
		now = r.Int64N(1e18)
	}
	for i := range packets {
		n := r.IntN(1600)
		if r.IntN(8) == 0 { // near the tokens
			tc, te := o.tokens()
			n = max(int([]int64{tc, te, cbs, ebs}[r.IntN(4)])+r.IntN(3)-1, 0)
		}
		in := Color(max(r.IntN(6)-3, 0))
		got, want := m.Color(now, n, in), o.color(now, n, in)
		tc, te := m.Tokens(now)
		wantC, wantE := o.tokens()
		if got != want || tc != wantC || te != wantE {
			t.Fatalf("%+v packet %d: %d B at %d, input %v: %v with %d, %d left; oracle: %v with %d, %d",
				params, i, n, now, in, got, tc, te, want, wantC, wantE)
		}
		now = later(r, now)
	}
}

// later returns a time after now: usually soon, sometimes centuries later.
func later(r *rand.Rand, now int64) int64 {
	spans := []int64{1, 100, 10_000, 1e6, 1e7, 1e9, 1e12, 1e15, math.MaxInt64}
	dt := r.Int64N(spans[min(r.IntN(len(spans)), r.IntN(len(spans)))])
	return max(now, now+dt) // at most the largest int64
}

func TestAgainstOracle(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 3000 {
		against(t, r, randomParams(r), 100)
	}
}

func FuzzMeter(f *testing.F) {
	f.Add(uint64(1), int64(1e9), int64(1500), int64(2e9), int64(3000), []byte("\x00\x01\x02seed"))
	f.Add(uint64(2), int64(1), int64(64), int64(400e9), int64(65536), []byte{255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, kind uint64, cir, cbs, eir, ebs int64, stream []byte) {
		a, b := BitRate(cir), BitRate(eir)
		c := []compiler{
			SRTCM{a, cbs, ebs},
			TRTCM{a, cbs, b, ebs},
			TRTCM4115{a, cbs, b, ebs, false},
			TRTCM4115{a, cbs, b, ebs, true},
			TokenBucket{Rate: a, Burst: cbs},
		}[kind%5]
		p, err := c.Profile()
		if err != nil {
			return
		}
		m, o := New(p), newOracle(c)
		var now int64
		for len(stream) >= 8 {
			word := binary.LittleEndian.Uint64(stream)
			stream = stream[8:]
			n, in := int(word&0xffff), Color(word>>16&3%3)
			if dt := int64(word >> 18 >> (word >> 58)); now+dt > now {
				now += dt
			}
			if got, want := m.Color(now, n, in), o.color(now, n, in); got != want {
				t.Fatalf("%+v: %d B at %d, input %v: %v, oracle %v", c, n, now, in, got, want)
			}
		}
	})
}

// TestLongRun compares the tokens granted to a backlogged stream with the closed form
// CBS + CIR*t, at the oddest rates.
func TestLongRun(t *testing.T) {
	for _, bps := range []int64{1, 7, 64_000, 9_700_001, 999_999_999, 1e9, 9_999_999_999, 100e9, 399_999_999_999, 400e9} {
		t.Run(BitRate(bps).String(), func(t *testing.T) {
			t.Parallel()
			rate := BitRate(bps)
			const cbs, n = 15_000, 1500
			m := New(compile(t, TokenBucket{Rate: rate, Burst: cbs}))
			step := max(8e9*n/bps/3, 1) + 1 // three times as many packets as fit
			var granted, now int64
			for i := range int64(2e6) {
				now = i * step
				if m.Color(now, n, Green) == Green {
					granted += n
				}
			}
			tc, _ := m.Tokens(now)
			earned := new(big.Rat).Mul(rational(rate), whole(now))
			earned.Add(earned, whole(cbs))
			if got := granted + tc; 3*granted < 2*n && bps > 7 || got != floor(earned) {
				t.Errorf("%d granted and %d left after %d ns, want %v in all", granted, tc, now, earned.FloatString(3))
			}
		})
	}
}

func TestProperties(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 2000 {
		c := randomParams(r)
		p := compile(t, c)
		m, burst := New(p), New(p)
		cbs, _ := p.Bursts()
		var rate Rate
		switch t := c.(type) {
		case SRTCM:
			rate = t.CIR
		case TRTCM:
			rate = t.CIR
		case TRTCM4115:
			rate = t.CIR
		case TokenBucket:
			rate = t.Rate
		}
		now, first, latest, green := int64(0), int64(0), int64(0), int64(0)
		for range 20 {
			lengths, colors := make([]int, 8), make([]Color, 8)
			for i := range lengths {
				lengths[i], colors[i] = r.IntN(1600), Color(r.IntN(3))
			}
			if r.IntN(4) == 0 { // an earlier time, for both
				now -= r.Int64N(1000)
			}
			first, latest = min(first, now), max(latest, now)
			before := append([]Color(nil), colors...)
			burst.Colors(now, lengths, colors, colors)
			for i, n := range lengths {
				got := m.Color(now, n, before[i])
				if got != colors[i] {
					t.Fatalf("%+v: Colors gave %v, Color %v", c, colors[i], got)
				}
				if got < before[i] {
					t.Fatalf("%+v: %v became %v", c, before[i], got)
				}
				if got == Green {
					green += int64(n)
				}
			}
			most := new(big.Rat).Mul(rational(rate), whole(latest-first))
			if most.Add(most, whole(cbs)); whole(green).Cmp(most) > 0 {
				t.Fatalf("%+v: %d green bytes in %d ns", c, green, latest-first)
			}
			now = later(r, now)
		}
	}
}

func TestStaleTimeGrantsNoMore(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for range 2000 {
		m := New(compile(t, randomParams(r)))
		now := r.Int64N(1e15)
		for range 10 {
			m.Color(now, r.IntN(1600), Green)
			latest, old := m.Clone(), m.Clone()
			n, in := r.IntN(1600), Color(r.IntN(3))
			if late, early := latest.Color(now, n, in), old.Color(now-r.Int64N(1e16), n, in); early < late {
				t.Fatalf("%v at an earlier time, %v at the latest", early, late)
			}
			now += r.Int64N(1e7)
		}
	}
}

func TestColorEach(t *testing.T) {
	p := compile(t, SRTCM{BitRate(1e6), 1500, 3000})
	a, b := New(p), New(p)
	colors := make([]Color, 4)
	ColorEach([]*Meter{&a, &b, &a, &a}, 5, []int{1500, 1000, 3000, 1}, nil, colors)
	if want := []Color{Green, Green, Yellow, Red}; fmt.Sprint(colors) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", colors, want)
	}
}

func TestNewWithTokens(t *testing.T) {
	p := compile(t, TRTCM{BitRate(8e6), 1000, BitRate(16e6), 2000})
	m := NewWithTokens(p, 0, -5)
	if got := m.Color(1e18, 1, Green); got != Red {
		t.Errorf("first packet of an empty meter: %v", got)
	}
	if tc, tp := m.Tokens(1e18 + 10_000); tc != 10 || tp != 20 {
		t.Errorf("10 us later: %d, %d", tc, tp)
	}
	m = NewWithTokens(p, 500, 9999)
	if tc, tp := m.Tokens(0); tc != 500 || tp != 2000 {
		t.Errorf("begins with %d, %d", tc, tp)
	}
}

func TestSetProfile(t *testing.T) {
	slow := compile(t, SRTCM{BitRate(1), 3000, 5000})
	for _, test := range []struct {
		to     compiler
		tc, te int64
	}{
		{SRTCM{BitRate(8e6), 3000, 5000}, 2000, 5000},
		{SRTCM{BitRate(999_999_937), 1500, 9000}, 1500, 5000},
		{TRTCM{BitRate(1), 2001, BitRate(7), 400}, 2000, 400},
		{TokenBucket{Rate: Rate{3, 7}, Burst: 1999}, 1999, 0},
		{SRTCM{BitRate(8e9), 50e6, 1 << 30}, 2000, 5000},
	} {
		m := New(slow)
		m.Color(0, 1000, Green)
		m.SetProfile(0, compile(t, test.to))
		if tc, te := m.Tokens(0); tc != test.tc || te != test.te {
			t.Errorf("%+v: %d, %d; want %d, %d", test.to, tc, te, test.tc, test.te)
		}
	}
}

func TestExplain(t *testing.T) {
	p := compile(t, TRTCM{BitRate(8e6), 1000, BitRate(16e6), 2000})
	m := New(p)
	m.Color(0, 900, Green)
	got := m.Explain(50_000, 200, Green)
	want := Explanation{200, Green, Yellow, 150, 1200, 150, 1000, kindTRTCM.Clause(Green, Yellow)}
	if got != want {
		t.Errorf("%+v\nwant %+v", got, want)
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
			t.Errorf("%v %v -> %v: %v %q", test.k, test.in, test.out, got, got.Text())
		}
	}
}

func TestErrors(t *testing.T) {
	ok := BitRate(1e6)
	for _, test := range []struct {
		params compiler
		want   string
	}{
		{SRTCM{ok, 0, 0}, "CBS and EBS are both zero"},
		{SRTCM{Rate{}, 1, 0}, "CIR must be above zero"},
		{SRTCM{Rate{-1, 1}, -1, 0}, "CIR is negative\nCBS is negative"},
		{SRTCM{Rate{1, 0}, 1, 0}, "CIR needs a period above zero"},
		{TRTCM{ok, 0, ok, 0}, "CBS must be above zero (RFC 2698 §2)\nPBS must be above zero"},
		{TRTCM{ok, 1, BitRate(1e6 - 1), 1}, "PIR 999999bit is below CIR 1mbit"},
		{TRTCM4115{ok, 0, ok, 0, false}, "CBS and EBS are both zero"},
		{TokenBucket{Rate: ok}, "Burst must be above zero"},
		{TRTCM{BitRate(20e6), 0, BitRate(10e6), 0}, "PIR 10mbit is below CIR 20mbit: it must be equal or greater (RFC 2698 §2)\nCBS must be above zero (RFC 2698 §2)\nPBS must be above zero (RFC 2698 §2)"},
		{TokenBucket{Rate: BitRate(1), Burst: 1<<59 + 1}, "Burst of 576460752303423489 bytes is above 2^59"},
		{TRTCM{Rate{}, 1, BitRate(1), 1<<59 + 1}, "CIR must be above zero (RFC 2698 §2)\nPBS of 576460752303423489 bytes is above 2^59"},
		{TRTCM4115{Rate{1, math.MaxInt64}, 1, Rate{1, math.MaxInt64 - 1}, 1, true}, "EIR 1B/2562047h47m16.854775806s and CIR 1B/2562047h47m16.854775807s have no common unit that 64 bits count exactly, which coupling needs"},
	} {
		_, err := test.params.Profile()
		var field *FieldError
		if err == nil || !strings.Contains(err.Error(), test.want) || !errors.As(err, &field) {
			t.Errorf("%+v: %v, want %q", test.params, err, test.want)
		}
	}
	// The largest values are valid.
	compile(t, TokenBucket{Rate: BitRate(1), Burst: 1 << 59})
	compile(t, TRTCM{Rate{1, math.MaxInt64}, 1 << 59, Rate{math.MaxInt64, 1}, 1 << 59})
}

func TestLengthsBeyondEveryBurst(t *testing.T) {
	p := compile(t, SRTCM{BitRate(1), 72057594, 72057594})
	for _, n := range []int{-1, math.MinInt, math.MaxInt, 72057595} {
		m := New(p)
		if got := m.Color(0, n, Green); got != Red {
			t.Errorf("length %d: %v", n, got)
		}
		if tc, te := m.Tokens(0); tc != 72057594 || te != 72057594 {
			t.Errorf("length %d took tokens: %d, %d", n, tc, te)
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
		{Rate{10000, time.Minute}, "10000B/1m0s"},
		{Rate{}, "0bit"},
	} {
		if got := test.r.String(); got != test.want {
			t.Errorf("%+v: %s, want %s", test.r, got, test.want)
		}
	}
	if b, ok := BitRate(1e6).Burst(20 * time.Millisecond); b != 2500 || !ok {
		t.Errorf("20 ms at 1 Mbit/s: %d bytes, %v", b, ok)
	}
	if _, ok := ByteRate(math.MaxInt64).Burst(time.Hour); ok {
		t.Error("a burst above int64 was not noticed")
	}
}

func TestParseColor(t *testing.T) {
	for c := Green; c <= Red; c++ {
		if got, err := ParseColor(c.String()); got != c || err != nil {
			t.Errorf("%v: %v, %v", c, got, err)
		}
	}
	if _, err := ParseColor("amber"); err == nil {
		t.Error("amber is not a color")
	}
}

// TestLocked offers far more than the rate from several goroutines, each with its own clock
// reading, and checks the bytes that passed against the bound.
func TestLocked(t *testing.T) {
	p := compile(t, TRTCM{BitRate(80e6), 10_000, BitRate(160e6), 20_000})
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
		t.Errorf("%d green bytes, at most %d", sum[Green], most)
	}
	if most := 20_000 + elapsed/50; sum[Green]+sum[Yellow] > most {
		t.Errorf("%d bytes not red, at most %d", sum[Green]+sum[Yellow], most)
	}
	if sum[Red] == 0 || sum[Green] == 0 {
		t.Errorf("colors %v: the test did not load the meter", sum)
	}
}

func TestAllocations(t *testing.T) {
	p := compile(t, SRTCM{BitRate(1e9), 1500, 1500})
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
		t.Errorf("%v allocations", n)
	}
	if size := unsafe.Sizeof(m); size > 32 {
		t.Errorf("a meter takes %d bytes", size)
	}
}

func BenchmarkColor(b *testing.B) {
	for _, c := range []compiler{
		TokenBucket{Rate: BitRate(1e9), Burst: 65536},
		SRTCM{BitRate(1e9), 65536, 65536},
		TRTCM{BitRate(1e9), 65536, BitRate(2e9), 65536},
		TRTCM4115{BitRate(5e8), 65536, BitRate(3e8), 65536, false},
		TRTCM4115{BitRate(5e8), 65536, BitRate(3e8), 65536, true},
		TokenBucket{Rate: BitRate(99_999_999_999), Burst: 250e6},
		TRTCM{BitRate(999_999_999), 65536, BitRate(1e9), 1e9},
	} {
		p := compile(b, c)
		name := p.Kind().String()
		if p.rule != nil {
			name += "-wide"
		}
		b.Run(name, func(b *testing.B) {
			m, now := New(p), int64(0)
			for b.Loop() {
				now += 1600
				m.Color(now, 594, Green)
			}
		})
	}
}
