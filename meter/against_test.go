package meter

import (
	"encoding/binary"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"
)

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
			c = SRTCM{CIR: a, CBS: burst() - 1, EBS: burst()}
		case 2:
			if a.Cmp(b) > 0 {
				a, b = b, a
			}
			c = TRTCM{CIR: a, CBS: burst(), PIR: b, PBS: burst()}
		case 3:
			if r.IntN(4) == 0 {
				a = Rate{}
			}
			c = TRTCM4115{CIR: a, CBS: burst(), EIR: b, EBS: burst() - 1}
		case 4:
			if r.IntN(4) == 0 {
				b = Rate{}
			}
			c = TRTCM4115{CIR: a, CBS: burst(), EIR: b, EBS: burst() - 1, Coupling: true}
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
		now = laterTime(r, now)
	}
}

// laterTime returns a time after now: usually soon, sometimes centuries later.
func laterTime(r *rand.Rand, now int64) int64 {
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
			SRTCM{CIR: a, CBS: cbs, EBS: ebs},
			TRTCM{CIR: a, CBS: cbs, PIR: b, PBS: ebs},
			TRTCM4115{CIR: a, CBS: cbs, EIR: b, EBS: ebs},
			TRTCM4115{CIR: a, CBS: cbs, EIR: b, EBS: ebs, Coupling: true},
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
	for _, bps := range []int64{
		1, 7, 64_000, 9_700_001, 999_999_999, 1e9, 9_999_999_999, 100e9, 399_999_999_999, 400e9,
	} {
		t.Run(BitRate(bps).String(), func(t *testing.T) {
			t.Parallel()
			rate := BitRate(bps)
			const cbs, n = 15_000, 1500
			m := New(compileProfile(t, TokenBucket{Rate: rate, Burst: cbs}))
			step := max(8e9*n/bps/3, 1) + 1 // three times as many packets as fit
			var granted, now int64
			for i := range int64(2e6) {
				now = i * step
				if m.Color(now, n, Green) == Green {
					granted += n
				}
			}
			tc, _ := m.Tokens(now)
			earned := new(big.Rat).Mul(rational(rate), ratOf(now))
			earned.Add(earned, ratOf(cbs))
			if got := granted + tc; 3*granted < 2*n && bps > 7 || got != floorOf(earned) {
				t.Errorf("%d granted and %d left after %d ns, want %v in all", granted, tc, now,
					earned.FloatString(3))
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
		p := compileProfile(t, c)
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
					t.Fatalf("%+v: got %v from Colors, %v from Color", c, colors[i], got)
				}
				if got < before[i] {
					t.Fatalf("%+v: got %v for the input color %v, want no better color", c, got, before[i])
				}
				if got == Green {
					green += int64(n)
				}
			}
			most := new(big.Rat).Mul(rational(rate), ratOf(latest-first))
			if most.Add(most, ratOf(cbs)); ratOf(green).Cmp(most) > 0 {
				t.Fatalf("%+v: got %d green bytes in %d ns, want at most %s", c, green, latest-first,
					most.FloatString(0))
			}
			now = laterTime(r, now)
		}
	}
}
