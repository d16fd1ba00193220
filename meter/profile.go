package meter

import (
	"errors"
	"fmt"
	"math/big"
	"time"
	"unsafe"
)

const (
	// maxBurst bounds every burst, in bytes.
	maxBurst = 1 << 59
	// maxUnits bounds a bucket in units (bytes times the denominator of its
	// rate); a profile with a larger one is wide.
	maxUnits = 1 << 59
	// maxNum bounds the numerator of a rate, in units per nanosecond; a profile
	// with a larger one is wide.
	maxNum = 1 << 50
	// maxElapsed bounds tokens counted since a meter's epoch, in units.
	// A debt is at most maxElapsed + maxUnits, so sums of two stay in int64.
	maxElapsed = 1 << 61
	// maxHorizon bounds the horizon, in ns: a meter that has not begun is told by
	// its epoch being longer ago.
	maxHorizon = 1 << 55
)

// SRTCM is a single-rate three-color marker, RFC 2697 §2. CBS and EBS are in
// bytes; one of them may be zero.
type SRTCM struct {
	CIR      Rate
	CBS, EBS int64
}

// TRTCM is a two-rate three-color marker, RFC 2698 §2. CBS and PBS are in
// bytes and above zero; PIR is at least CIR.
type TRTCM struct {
	CIR Rate
	CBS int64
	PIR Rate
	PBS int64
}

// TRTCM4115 is the two-rate three-color marker of RFC 4115 §3. CBS and EBS are
// in bytes. A rate of zero never refills its bucket.
type TRTCM4115 struct {
	CIR Rate
	CBS int64
	EIR Rate
	EBS int64
	// Coupling is the coupling flag of MEF 10.3: what overflows the
	// committed bucket goes into the excess bucket.
	Coupling bool
}

// TokenBucket is a single-rate two-color meter. A packet that conforms keeps
// its color, one that does not is red. Burst is in bytes.
type TokenBucket struct {
	Rate  Rate
	Burst int64
	// Warmup is how long the rate takes from a third to full after a pause of
	// as long; 0 is none, else from a microsecond to a day. After a pause the
	// bucket holds a third, and the rate climbs in 100 steps, as that of Guava's
	// SmoothWarmingUp with its cold factor of 3.
	Warmup time.Duration
	// GCRA gives the meter the name of the generic cell rate algorithm (ITU-T I.371),
	// the leaky bucket as a meter. That is a token bucket: Burst is its depth,
	// Meter.Tokens what its users call remaining, RetryAfter and ResetAfter are
	// retry_after and reset_after. Only Kind and the names of clauses differ. There
	// is no GCRA with a Warmup.
	GCRA bool
}

// Profile is a compiled set of parameters, immutable, for any number of
// meters in any number of goroutines.
type Profile struct {
	horizon uint64 // ns after the epoch within which elapsed fits maxElapsed
	den     int64  // units in a byte
	over    uint64 // bytes: one more than the larger burst; longer packets cost this
	c, e    bucket
	coupled int64 // mask: what overflows C goes into E (RFC 2697 §3)
	cLimit  int64 // colors before that are below it may take from C
	peak    bool  // green takes from both buckets (RFC 2698 §3)
	kind    Kind
	rule    rule    // of a meter that is no such bucket; horizon is 0 then
	log     []entry // its memory, where it has any: a profile with one has one meter
}

// bucket holds the constants of one bucket. The unit of a profile is 1/den
// byte, chosen so that a whole number of them, num, arrives in a nanosecond.
// A packet costs den a byte. Nothing is divided, nothing is ever rounded.
type bucket struct {
	num  int64 // units in a nanosecond
	room int64 // units: one more than the burst; 0 fits no packet, not even an empty one
}

// Profile compiles the parameters. The error joins all that is wrong with them.
func (t SRTCM) Profile() (*Profile, error) {
	var f faults
	f.rate("CIR", t.CIR, "RFC 2697 §2")
	f.bytes("CBS", t.CBS)
	f.bytes("EBS", t.EBS)
	if t.CBS == 0 && t.EBS == 0 {
		f.add("CBS", "and EBS are both zero: one of them must be larger (RFC 2697 §2)")
	}
	// RFC 2697 is RFC 4115 with coupling and an excess rate of zero.
	return f.profile(t.Kind(), [2]string{"CBS", "EBS"}, t.CIR, t.CBS, Rate{}, t.EBS, true)
}

// Profile compiles the parameters. The error joins all that is wrong with them.
func (t TRTCM) Profile() (*Profile, error) {
	var f faults
	f.rates(t.CIR, t.PIR, "RFC 2698 §2")
	f.positive("CBS", t.CBS, "RFC 2698 §2")
	f.positive("PBS", t.PBS, "RFC 2698 §2")
	return f.profile(t.Kind(), [2]string{"CBS", "PBS"}, t.CIR, t.CBS, t.PIR, t.PBS, false)
}

// Profile compiles the parameters. The error joins all that is wrong with them.
func (t TRTCM4115) Profile() (*Profile, error) {
	var f faults
	f.optionalRate("CIR", t.CIR)
	f.optionalRate("EIR", t.EIR)
	f.bytes("CBS", t.CBS)
	f.bytes("EBS", t.EBS)
	if t.CBS == 0 && t.EBS == 0 {
		f.add("CBS", "and EBS are both zero: every packet would be red")
	}
	return f.profile(t.Kind(), [2]string{"CBS", "EBS"}, t.CIR, t.CBS, t.EIR, t.EBS, t.Coupling)
}

// Profile compiles the parameters. The error joins all that is wrong with them.
func (t TokenBucket) Profile() (*Profile, error) {
	var f faults
	if t.Warmup != 0 {
		f.span("Warmup", t.Warmup, maxWarmup)
	}
	if t.GCRA && t.Warmup != 0 {
		f.add("Warmup", "does not go with GCRA")
	}
	f.rate("Rate", t.Rate, "")
	f.positive("Burst", t.Burst, "")
	p, err := f.profile(t.Kind(), [2]string{"Burst", ""}, t.Rate, t.Burst, Rate{}, 0, false)
	if err != nil || t.Warmup == 0 {
		return p, err
	}
	return p.warmUp(t.Warmup)
}

// Kind returns the algorithm.
func (p *Profile) Kind() Kind { return p.kind }

// Bursts returns the most that Tokens can be: CBS and EBS in bytes, or CBS and
// PBS. The second is zero for a meter of two colors, whose first is its burst or
// limit.
func (p *Profile) Bursts() (c, e int64) {
	if p.rule != nil {
		return p.rule.bursts()
	}
	return p.c.burst(p.den), p.e.burst(p.den)
}

// Memory is how many bytes a Meter takes, without its shared Profile.
func (p *Profile) Memory() int {
	return int(unsafe.Sizeof(Meter{})) + p.entries()*int(unsafe.Sizeof(entry{}))
}

func (b *bucket) burst(den int64) int64 { return max(b.room-1, 0) / den }

// FieldError is a fault of one parameter.
type FieldError struct {
	Field  string // of the struct: CIR, CBS, EBS, PIR, PBS, EIR; Rate, Burst, Limit, ...
	Reason string
}

func (e *FieldError) Error() string { return e.Field + " " + e.Reason }

// faults collects what is wrong with a set of parameters.
type faults []error

func (f *faults) add(field, reason string) { *f = append(*f, &FieldError{field, reason}) }

func (f *faults) optionalRate(field string, r Rate) bool {
	if reason := r.fault(); reason != "" {
		f.add(field, reason)
		return false
	}
	return true
}

func (f *faults) rate(field string, r Rate, clause string) bool {
	if !f.optionalRate(field, r) {
		return false
	}
	if r.Bytes == 0 {
		f.add(field, "must be above zero"+cite(clause))
	}
	return r.Bytes > 0
}

// rates are those of a meter with two that are ordered.
func (f *faults) rates(cir, pir Rate, clause string) {
	okC, okP := f.rate("CIR", cir, clause), f.rate("PIR", pir, clause)
	if okC && okP && pir.Cmp(cir) < 0 {
		f.add("PIR", fmt.Sprintf("%v is below CIR %v: it must be equal or greater%s", pir, cir, cite(clause)))
	}
}

func (f *faults) bytes(field string, n int64) {
	if n < 0 {
		f.add(field, "is negative")
	}
}

func (f *faults) positive(field string, n int64, clause string) {
	if n <= 0 {
		f.add(field, "must be above zero"+cite(clause))
	}
}

func cite(clause string) string {
	if clause == "" {
		return ""
	}
	return " (" + clause + ")"
}

// profile compiles the two buckets, or returns the faults. A second bucket without
// a name is none.
func (f *faults) profile(k Kind, names [2]string, cr Rate, cb int64, er Rate, eb int64, coupled bool) (*Profile, error) {
	for i, burst := range [2]int64{cb, eb} {
		if burst > maxBurst {
			f.add(names[i], fmt.Sprintf("of %d bytes is above 2^59", burst))
		}
	}
	if *f != nil {
		return nil, errors.Join(*f...)
	}
	c, e := cr.finite().rat(), er.finite().rat()
	one := lcm(c.Denom(), e.Denom())
	w := wide{
		c:       wideBucket{c.Num().Int64(), c.Denom().Int64(), cb},
		e:       wideBucket{e.Num().Int64(), e.Denom().Int64(), eb},
		coupled: coupled,
		excess:  names[1] != "",
	}
	if coupled {
		numC, numE := units(c, one), units(e, one)
		if !one.IsInt64() || !numC.IsInt64() || !numE.IsInt64() {
			return nil, &FieldError{"EIR", fmt.Sprintf("%v has no unit in common with CIR %v that stays exact, which coupling needs: choose a rounder one", er, cr)}
		}
		w.c.num, w.c.den, w.e.num, w.e.den = numC.Int64(), one.Int64(), numE.Int64(), one.Int64()
	}
	if cr == unlimited {
		w.c.num = endless
	}
	if er == unlimited {
		w.e.num = endless
	}
	p := &Profile{over: uint64(max(cb, eb)) + 1, cLimit: int64(Yellow), peak: k == KindTRTCM, kind: k}
	if !w.excess {
		p.cLimit = int64(Red) // a yellow packet may conform, and stays yellow
	}
	if !w.narrow(p, one) {
		p.rule = w
	}
	return p, nil
}

// units is a rate in bytes per nanosecond, in units of 1/den byte.
func units(rate *big.Rat, den *big.Int) *big.Int {
	n := new(big.Int).Quo(den, rate.Denom())
	return n.Mul(n, rate.Num())
}

func lcm(a, b *big.Int) *big.Int {
	g := new(big.Int).GCD(nil, nil, a, b)
	return g.Mul(new(big.Int).Quo(a, g), b)
}

// Integers are the constants of a Profile, for a meter in another language. A
// unit of a bucket is 1/Den byte. The first bucket of a pair is C, the second E or
// P. Den[i]*Burst[i] is at most 2^59, Num[i] at most 2^50.
type Integers struct {
	Den     [2]int64
	Num     [2]int64 // units in a nanosecond
	Burst   [2]int64 // bytes
	Excess  bool     // there is a second bucket
	Coupled bool     // what overflows C goes into E, which has the same unit (RFC 2697 §3)
	Peak    bool     // green takes from both buckets (RFC 2698 §3)
	Limit   Color    // the worst color before that may take from C

	// Of a window, whose limit is the first Burst; 0 for buckets.
	Window  int64 // ns
	Sliding bool  // it counts the window before, too
}

// Integers returns the constants. The error is a FieldError where the state is
// neither buckets nor counts of windows, or does not fit 64 bits for each.
func (p *Profile) Integers() (Integers, error) {
	c, e := p.Bursts()
	i := Integers{
		Den:     [2]int64{p.den, p.den},
		Num:     [2]int64{p.c.num, p.e.num},
		Burst:   [2]int64{c, e},
		Excess:  p.e.room > 0,
		Coupled: p.coupled != 0,
		Peak:    p.peak,
		Limit:   Color(p.cLimit - 1),
	}
	switch r := p.rule.(type) {
	case nil:
	case fixedWindow:
		i.Window, i.Limit = r.length, Yellow
	case slidingCounter:
		i.Window, i.Limit, i.Sliding = r.length, Yellow, true
	case wide:
		if fault := r.fault(p.kind); fault != nil {
			return Integers{}, fault
		}
		i.Den, i.Num = [2]int64{r.c.den, r.e.den}, [2]int64{r.c.num, r.e.num}
		i.Excess, i.Coupled = r.excess, r.coupled
	case warmUp:
		return Integers{}, &FieldError{"Warmup", "has more state than two words of 64 bits"}
	default:
		return Integers{}, &FieldError{"type", p.kind.String() + " has more state than two words of 64 bits"}
	}
	return i, nil
}
