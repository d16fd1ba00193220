package queue

import (
	"math"
	"math/bits"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// maxTerm bounds both terms of a pace. The kernel computes length*num in 64
// bits, for packets shorter than 2^20 bytes: 20 + 44 = 64.
const maxTerm = 1 << 44

// pace is the time at which a rate is free again. Each packet advances it by an
// exact amount.
type pace struct {
	num, den uint64 // a packet of n bytes takes n*num/den ns
	instant
	begun bool
}

// instant is a time of a pace.
type instant struct {
	next int64  // ns, whole part
	frac uint64 // fraction of a ns, in units of 1/den
}

func newPace(r meter.Rate) (pace, error) {
	switch {
	case r.Bytes <= 0 || r.Period <= 0:
		return pace{}, &meter.FieldError{Field: "rate", Reason: "must be above zero"}
	case r == meter.Unlimited:
		return pace{}, &meter.FieldError{
			Field: "rate", Reason: "must not be unlimited: a queue needs a finite rate",
		}
	}
	num, den := uint64(r.Period), uint64(r.Bytes)
	a, b := num, den
	for a > 0 { // the greatest common divisor
		a, b = b%a, a
	}
	num, den = num/b, den/b
	if num > maxTerm || den > maxTerm {
		return pace{}, &meter.FieldError{
			Field: "rate", Reason: "is too fine to stay exact: choose a rounder rate",
		}
	}
	return pace{num: num, den: den}, nil
}

// Pace returns the time per byte of a rate, as num/den ns in lowest terms, or an
// error if no queue can have the rate.
func Pace(r meter.Rate) (num, den uint64, err error) {
	p, err := newPace(r)
	return p.num, p.den, err
}

// Lowest returns the lower of two maximum rates, of which one or both may be unset.
func Lowest(a, b meter.Rate) meter.Rate {
	none := meter.Rate{}
	if a == none || b != none && b.Cmp(a) < 0 {
		return b
	}
	return a
}

// Duration returns the time that n bytes take at a rate that a queue can have, rounded down to a ns.
func Duration(r meter.Rate, n int64) time.Duration {
	p, err := newPace(r)
	if err != nil {
		return 0
	}
	return time.Duration(instant{}.orNever(int(n), p.num, p.den).next)
}

// notBefore advances the pace to now if the rate was free before now.
func (p *pace) notBefore(now int64) {
	if !p.begun {
		p.instant, p.begun = instant{next: now}, true
	}
	p.instant.notBefore(now)
}

// free returns the time at which the rate is free, rounded up to a ns; math.MinInt64 before the first packet.
func (p *pace) free() int64 {
	if !p.begun {
		return math.MinInt64
	}
	return p.due()
}

// follow makes p free at the time at which before would be.
func (p *pace) follow(before *pace) {
	p.next, p.frac, p.begun = before.due(), 0, before.begun
}

// change gives p the rate of next, unless both are the same. p is free at the same time,
// rounded up to a ns.
func (p *pace) change(next *pace) {
	if p.num == next.num && p.den == next.den {
		return
	}
	next.follow(p)
	*p = *next
}

// due returns the time at which the rate is free, rounded up to a ns.
func (t instant) due() int64 {
	if t.frac > 0 {
		return t.next + 1
	}
	return t.next
}

// notBefore advances the instant to a time.
func (t *instant) notBefore(at int64) {
	if t.next < at {
		*t = instant{next: at}
	}
}

// after returns the time of the pace advanced by n bytes. It returns false if n bytes
// take more than MaxInt64-1 ns, or end after MaxInt64-1, which leaves due room to round up.
func (p *pace) after(n int) (instant, bool) { return p.instant.after(n, p.num, p.den) }

// after is pace.after for an instant of a pace of num/den ns per byte.
func (t instant) after(n int, num, den uint64) (instant, bool) {
	hi, lo := bits.Mul64(uint64(max(n, 0)), num)
	lo, carry := bits.Add64(lo, t.frac, 0)
	if hi += carry; hi >= den {
		return t, false
	}
	ns, rest := bits.Div64(hi, lo, den)
	if ns > math.MaxInt64-1 || t.next > math.MaxInt64-1-int64(ns) {
		return t, false
	}
	return instant{t.next + int64(ns), rest}, true
}

// orNever is after, or the last instant if there is no such time.
func (t instant) orNever(n int, num, den uint64) instant {
	if t, ok := t.after(n, num, den); ok {
		return t
	}
	return instant{next: math.MaxInt64 - 1}
}
