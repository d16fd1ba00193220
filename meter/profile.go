package meter

import (
	"errors"
	"fmt"
	"math/big"
	"unsafe"
)

// Bounds to keep all sums of a state within 64 bits. A profile exceeding one is wide.
const (
	maxBurst = 1 << 59 // bytes, of any bucket, wide or not
	maxUnits = 1 << 59 // units of a burst
	maxRate  = 1 << 50 // units in a nanosecond
	// maxGained bounds the units gained since the epoch. A bucket owes at most maxGained
	// + maxUnits, so the sum of two stays within 63 bits.
	maxGained = 1 << 61
	// maxHorizon bounds the ns since the epoch. Before its clock begins, a meter's epoch is longer
	// ago than this, so the packet path finds it by the horizon.
	maxHorizon = 1 << 55
)

// Profile is a compiled set of parameters. It is immutable and may be shared by any
// number of meters and goroutines.
type Profile struct {
	horizon uint64 // ns after the epoch within which the units gained are at most maxGained; 0 with a rule
	den     int64  // units in a byte
	c, e    bucket // C, and E or P
	coupled int64  // mask: tokens overflowing C go into E (RFC 2697 §3)
	longest uint64 // bytes: one more than the larger burst; any longer packet costs as much
	barredC int64  // the best input color barred from C
	peak    bool   // a green packet takes from both buckets (RFC 2698 §3)
	kind    Kind
	rule    rule    // meters in place of the buckets, unless nil
	log     []entry // memory of the rule; a profile with one belongs to a single meter
	params  Params  // the parameters before compilation
}

// bucket is a bucket in the units of its profile: 1/den byte, with den such that a whole number of
// units arrives in a nanosecond.
type bucket struct {
	rate     int64 // units in a nanosecond
	tooLarge int64 // units: burst + 1, the smallest cost above the burst; 0 if there is no bucket
}

// full returns the units of a full bucket.
func (b *bucket) full() int64 { return max(b.tooLarge-1, 0) }

// owes returns the units missing from a full bucket when it holds these tokens.
func (b *bucket) owes(tokens, den int64) int64 {
	return b.full() - min(max(tokens, 0), b.full()/den)*den
}

// bucketParams are the parameters of a bucket. Without a name there is none.
type bucketParams struct {
	name  string // of the burst
	rate  Rate
	burst int64 // bytes
}

// profile compiles one or two buckets, or returns the errors collected so far and its own.
func (f *fieldErrors) profile(params Params, c, e bucketParams, coupled bool) (*Profile, error) {
	for _, b := range [2]bucketParams{c, e} {
		if b.burst > maxBurst {
			f.add(b.name, fmt.Sprintf("of %d bytes is above 2^59", b.burst))
		}
	}
	if *f != nil {
		return nil, errors.Join(*f...)
	}
	p := &Profile{
		longest: uint64(max(c.burst, e.burst)) + 1,
		barredC: int64(Yellow),
		peak:    params.Kind().Info().Peak,
		kind:    params.Kind(),
		params:  params,
	}
	if e.name == "" {
		p.barredC = int64(Red) // a yellow packet may conform, and stays yellow
	}
	if p.narrow(c, e, coupled) {
		return p, nil
	}
	w, err := newWide(c, e, coupled)
	if err != nil {
		return nil, err
	}
	p.rule = w
	return p, nil
}

// narrow gives the profile two buckets of 64 bits with one unit. It reports false
// if they do not fit.
func (p *Profile) narrow(c, e bucketParams, coupled bool) bool {
	rateC, rateE := c.rate.rat(), e.rate.rat()
	den := lcm(rateC.Denom(), rateE.Denom())
	unitsC, unitsE := units(rateC, den), units(rateE, den)
	burst := big.NewInt(max(c.burst, e.burst))
	switch {
	case c.rate == unlimited, e.rate == unlimited,
		burst.Mul(burst, den).Cmp(big.NewInt(maxUnits)) > 0,
		unitsC.Cmp(big.NewInt(maxRate)) > 0, unitsE.Cmp(big.NewInt(maxRate)) > 0:
		return false
	}
	p.den = den.Int64()
	p.c = bucket{unitsC.Int64(), c.burst*p.den + 1}
	if e.name != "" {
		p.e = bucket{unitsE.Int64(), e.burst*p.den + 1}
	}
	p.horizon = min(uint64(maxGained/max(p.c.rate, p.e.rate, 1)), maxHorizon)
	if coupled {
		p.coupled = -1
	}
	return true
}

// units returns a rate in bytes per nanosecond in units of 1/den byte.
func units(rate *big.Rat, den *big.Int) *big.Int {
	n := new(big.Int).Quo(den, rate.Denom())
	return n.Mul(n, rate.Num())
}

func lcm(a, b *big.Int) *big.Int {
	g := new(big.Int).GCD(nil, nil, a, b)
	return g.Mul(new(big.Int).Quo(a, g), b)
}

// Params returns the parameters of the profile.
func (p *Profile) Params() Params { return p.params }

// Kind returns the algorithm.
func (p *Profile) Kind() Kind { return p.kind }

// Bursts returns the largest values of Meter.Tokens: CBS and EBS, or CBS and PBS, in bytes. For a
// meter of two colors they are its burst or limit, and zero.
func (p *Profile) Bursts() (c, e int64) {
	if p.rule != nil {
		return p.rule.bursts()
	}
	return p.c.full() / p.den, p.e.full() / p.den
}

// Memory returns the bytes of a Meter, without its shared Profile.
func (p *Profile) Memory() int {
	return int(unsafe.Sizeof(Meter{})) + p.entries()*int(unsafe.Sizeof(entry{}))
}

// Integers are the constants of a Profile, for a meter in another language. A
// unit of a bucket is 1/Den byte. The first bucket of a pair is C, the second E or
// P. Den[i]*Burst[i] is at most 2^59, Num[i] at most 2^50.
type Integers struct {
	Den     [2]int64
	Num     [2]int64 // units in a nanosecond
	Burst   [2]int64 // bytes
	Excess  bool     // there is a second bucket
	Coupled bool     // tokens overflowing C go into E, in the same unit (RFC 2697 §3)
	Peak    bool     // green takes from both buckets (RFC 2698 §3)
	Limit   Color    // the worst input color admitted to C

	// Of a window, whose limit is the first Burst; 0 for buckets.
	Window  int64 // ns
	Sliding bool  // the window before counts, too
}

// Integers returns the constants. The error is a FieldError if the state of the meter
// is neither buckets nor counts of windows, or does not fit 64 bits each.
func (p *Profile) Integers() (Integers, error) {
	c, e := p.Bursts()
	i := Integers{
		Den:     [2]int64{p.den, p.den},
		Num:     [2]int64{p.c.rate, p.e.rate},
		Burst:   [2]int64{c, e},
		Excess:  p.e.tooLarge > 0,
		Coupled: p.coupled != 0,
		Peak:    p.peak,
		Limit:   Color(p.barredC - 1),
	}
	switch r := p.rule.(type) {
	case nil:
	case fixedWindow:
		i.Window, i.Limit = r.length, Yellow
	case slidingCounter:
		i.Window, i.Limit, i.Sliding = r.length, Yellow, true
	case wide:
		if err := r.tooWide(p.kind); err != nil {
			return Integers{}, err
		}
		i.Den, i.Num = [2]int64{r.c.den, r.e.den}, [2]int64{r.c.num, r.e.num}
		i.Excess, i.Coupled = r.excess, r.coupled
	case warmUp:
		return Integers{}, &FieldError{"Warmup", "needs more state than two words of 64 bits"}
	default:
		return Integers{}, &FieldError{
			"type", p.kind.String() + " needs more state than two words of 64 bits",
		}
	}
	return i, nil
}
