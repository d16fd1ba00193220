package meter

import (
	"errors"
	"math"
	"math/big"
	"math/bits"
	"time"
)

// TSWTCM is the time sliding window three-color marker of RFC 2859. CIR is its committed target
// rate, PIR its peak target rate, and Window its AVG_INTERVAL. If the average rate is above a
// target, packets get the worse color at random, with a probability growing with the excess. Equal
// seeds give equal colors.
//
// The average is kept in 1/65536 byte in a Window, rounded down. A pause longer than 2^63-1 ns
// counts as 2^63-1 ns.
type TSWTCM struct {
	CIR, PIR Rate
	Window   time.Duration
	Seed     uint64
}

const (
	tswShift  = 16      // a unit of the average is 1/2^16 byte in a window
	maxAvg    = 1 << 62 // units of the average
	maxTSWAvg = time.Hour
)

// Kind returns the kind tswtcm.
func (TSWTCM) Kind() Kind { return kindTSWTCM }

// Buckets describes each target rate as a bucket. Its burst is the bytes of the rate in one Window.
// Its tokens are how far the average is below the rate.
func (t TSWTCM) Buckets() []Bucket {
	target := func(name string, r Rate) Bucket {
		burst, _ := r.Burst(t.Window)
		return Bucket{name, name, "below " + name, r, burst}
	}
	return []Bucket{target("CIR", t.CIR), target("PIR", t.PIR)}
}

// Profile compiles the parameters. The error joins a FieldError for each invalid one.
func (t TSWTCM) Profile() (*Profile, error) {
	var f fieldErrors
	f.rates(t.CIR, t.PIR, "RFC 2859 §2")
	f.span("Window", t.Window, maxTSWAvg)
	r := tsw{window: int64(t.Window), seed: t.Seed}
	for i, rate := range [2]Rate{t.CIR, t.PIR} {
		target := rate.rat()
		target.Mul(target, new(big.Rat).SetInt64(int64(t.Window)<<tswShift))
		whole := new(big.Int).Quo(target.Num(), target.Denom())
		if !whole.IsInt64() || whole.Int64() > maxAvg {
			f.add([2]string{"CIR", "PIR"}[i], "allows more than 2^46 bytes in a window")
			continue
		}
		r.target[i] = uint64(whole.Int64())
	}
	if f != nil {
		return nil, errors.Join(f...)
	}
	return &Profile{params: t, kind: t.Kind(), rule: r}, nil
}

// tsw keeps the time of the latest packet in epoch, the average in first, and the number of
// random numbers drawn in second.
type tsw struct {
	target [2]uint64 // CIR and PIR, in units of the average
	window int64     // ns
	seed   uint64
}

func (w tsw) start(_, _ int64) (c, e int64) { return 0, 0 }
func (w tsw) entries() int                  { return 0 }
func (w tsw) span() int64                   { return math.MaxInt64 }

func (w tsw) bursts() (c, e int64) {
	return int64(w.target[0] >> tswShift), int64(w.target[1] >> tswShift)
}

// average returns the average with a packet of n bytes at now (RFC 2859 §3).
func (w tsw) average(s *state, now int64, n uint64) uint64 {
	var dt uint64
	if s.epoch != notBegun && now > s.epoch {
		dt = min(uint64(now)-uint64(s.epoch), math.MaxInt64)
	}
	sum := min(uint64(s.first)+min(n, maxLimit)<<tswShift, maxAvg)
	hi, lo := bits.Mul64(sum, uint64(w.window))
	if hi == 0 {
		return lo / (uint64(w.window) + dt)
	}
	average, _ := bits.Div64(hi, lo, uint64(w.window)+dt)
	return average
}

// look also updates the average, as there is nothing to take.
func (w tsw) look(s *state, now int64, n int, in Color) Color {
	if in == Red || n < 0 {
		return Red
	}
	average := w.average(s, now, uint64(n))
	s.epoch = max(s.epoch, now, earliest) // notBegun is before earliest
	s.first = int64(average)
	if average <= w.target[0] {
		return in
	}
	s.second++
	u := splitMix(w.seed, uint64(s.second)) >> 32
	// PIR is at least CIR, so an average above PIR is above both. A branch on a random
	// number would be mispredicted.
	return max(in, Color(above(average, w.target[0], u)+above(average, w.target[1], u)))
}

// above returns 1 with the probability (average-target)/average, or 0. u is 32 random bits.
func above(average, target, u uint64) uint64 {
	hi, lo := bits.Mul64(u, average)
	over := average - min(target, average)
	_, less := bits.Sub64(lo, over<<32, 0)
	_, less = bits.Sub64(hi, over>>32, less)
	return less
}

// splitMix returns the n-th number of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
func splitMix(seed, n uint64) uint64 {
	z := seed + n*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (w tsw) tokens(s state, _ []entry, now int64) (tc, te int64) {
	average := w.average(&s, now, 0)
	left := func(target uint64) int64 { return int64((target - min(average, target)) >> tswShift) }
	return left(w.target[0]), left(w.target[1])
}

func (w tsw) valid(s state, _ []entry) bool { return s.first >= 0 && s.first <= maxAvg }

func (w tsw) rested(s state, _ []entry, now int64) bool { return w.average(&s, now, 0) == 0 }
