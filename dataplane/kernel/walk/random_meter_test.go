package walk

import (
	"math"
	"math/big"
	"math/rand/v2"
	"time"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Two periods without a common divisor: the common unit of rates over them is that of the product.
const (
	period1 = 6_000_011 * time.Nanosecond
	period2 = 5_999_989 * time.Nanosecond
)

// anyRate is a random rate from 1 bit/s to 400 Gbit/s, of any order of magnitude.
func anyRate(r *rand.Rand) meter.Rate {
	fast := func(most float64) int64 { return int64(math.Exp(r.Float64() * math.Log(most))) }
	switch r.IntN(6) {
	case 0:
		return meter.BitRate(kerneltest.Pick[int64](r, 1, 2, 3, 7, 64e3, 1e6, 1e7, 1e9, 1e10, 1e11, 4e11))
	case 1:
		return meter.BitRate(fast(4e11) | 1) // odd: the unit is an eighth of a ns
	case 2:
		return meter.Rate{Bytes: fast(3e5), Period: kerneltest.Pick(r, period1, period2)}
	case 3:
		return meter.Rate{Bytes: fast(1e6), Period: time.Duration(1 + r.Int64N(1e7))}
	case 4:
		return meter.Rate{
			Bytes: 1 + r.Int64N(1000), Period: kerneltest.Pick(r, time.Minute, time.Hour, 1000*time.Hour),
		}
	}
	return meter.BitRate(fast(4e11))
}

// anyMeter is a random meter of a kind from 0 to 4, with bursts up to the largest that its rates
// allow.
func anyMeter(r *rand.Rand, kind int) *dataplane.Meter {
	for {
		a, b := anyRate(r), anyRate(r)
		if a.Cmp(b) > 0 {
			a, b = b, a
		}
		if kind > 1 && r.IntN(2) == 0 {
			a, b = b, a
		}
		if kind > 2 && r.IntN(6) == 0 {
			b = meter.Rate{}
		}
		params := func(cb, eb int64) meter.Params {
			return [...]meter.Params{
				meter.TokenBucket{Rate: a, Burst: cb},
				meter.TRTCM{CIR: a, CBS: cb, PIR: b, PBS: eb},
				meter.SRTCM{CIR: a, CBS: cb, EBS: eb},
				meter.TRTCM4115{CIR: a, CBS: cb, EIR: b, EBS: eb},
				meter.TRTCM4115{CIR: a, CBS: cb, EIR: b, EBS: eb, Coupling: true},
			}[kind]
		}
		profile, err := params(1, 1).Profile()
		if err != nil {
			continue // too fine to be exact
		}
		one, err := profile.Integers()
		if err != nil {
			continue
		}
		burst := func(i int) int64 {
			den := one.Den[i] // common to both buckets
			if b := [2]meter.Rate{a, b}[i]; b.Bytes > 0 && !one.Coupled {
				own, err := meter.TokenBucket{Rate: b, Burst: 1}.Profile()
				if err != nil {
					panic(err)
				}
				den = integers(own).Den[0]
			}
			most := int64(1<<59) / den
			return min(most,
				kerneltest.Pick(r, 1, 1, 64, 1500, 1500+r.Int64N(60_000), 65_535, 1e6, 1e9, most-1, most))
		}
		m := &dataplane.Meter{Params: params(burst(0), burst(1)), Aware: r.IntN(3) > 0, PreColor: dscpColors}
		if kind > 1 && r.IntN(8) == 0 {
			m.Params = kerneltest.Pick(r, params(burst(0), 0), params(0, burst(1)))
		}
		if profile, err = m.Params.Profile(); err != nil {
			continue
		}
		if _, err := profile.Integers(); err != nil {
			continue
		}
		if r.IntN(3) == 0 {
			m.Initial = dataplane.Fraction{Num: r.Int64N(4), Den: 3}
		}
		return m
	}
}

const (
	year    = 366 * 24 * time.Hour
	maximal = 1 << 47
)

// anyWindow is a random fixed or sliding window, of any order of magnitude.
func anyWindow(r *rand.Rand, sliding bool) meter.Params {
	fast := func(most float64) int64 { return int64(math.Exp(r.Float64() * math.Log(most))) }
	limit := kerneltest.Pick(r, 1, 2, 1500, 1500+r.Int64N(1e5), 1<<31, 1<<32+1, maximal-1, maximal,
		fast(maximal), fast(1e6))
	window := kerneltest.Pick(r, time.Microsecond, 1001, time.Millisecond, time.Second, 86_028_121, 1<<32,
		1<<32-1, time.Hour, year-1, year, time.Duration(1000+fast(float64(year-1000))))
	if sliding {
		return meter.SlidingCounter{Limit: limit, Window: window}
	}
	return meter.FixedWindow{Limit: limit, Window: window}
}

// anyGap is a random time between two packets of about size bytes: from 0 to years, and often at
// the limits of the meter's integers.
func anyGap(r *rand.Rand, s *bpf.ShaperProfile, size int64) int64 {
	special := func(ns uint64) int64 { // at most 70 years, plus or minus 1 ns
		return max(int64(min(ns, 1<<61))+r.Int64N(3)-1, 0)
	}
	b := &s.Buckets[r.IntN(2)]
	perBytes := func(n int64) int64 { // ns in which the bucket gains about n bytes
		if b.Num == 0 {
			return r.Int64N(1e9)
		}
		ns, _ := new(big.Int).Quo(new(big.Int).Mul(big.NewInt(n), new(big.Int).SetUint64(b.Den)),
			new(big.Int).SetUint64(b.Num)).Float64()
		return int64(min(ns, 1<<57))
	}
	switch r.IntN(40) {
	case 0:
		return special(s.Horizon)
	case 1:
		return special(b.Full)
	case 2:
		return special(s.Horizon * (1 + r.Uint64N(5)) / 2)
	case 3:
		return r.Int64N(3e16) // a year
	case 4:
		return special(uint64(perBytes(b.Size / int64(b.Den)))) // fills the bucket
	case 5, 6, 7:
		return int64(min(r.Uint64N(s.Horizon)/8, 1<<57))
	case 8, 9, 10, 11, 12, 13:
		return 0
	case 14, 15, 16:
		return r.Int64N(1000)
	case 17, 18, 19:
		return special(uint64(perBytes(size)))
	}
	return perBytes(r.Int64N(2*size + 1))
}
