package queue

import (
	"math"
	"math/big"
	"math/bits"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// maxTerm bounds both terms of a pace. It is what the kernel's arithmetic of 64
// bits has room for, with packets of up to a megabyte.
const maxTerm = 1 << 44

// pace is when a rate is free again: an exact time that moves on by what each
// packet takes.
type pace struct {
	num, den uint64 // length*num/den is the ns that a packet takes
	next     int64  // ns, whole part
	frac     uint64 // ns/den beyond it
	begun    bool
}

func newPace(r meter.Rate) (pace, error) {
	switch {
	case r.Bytes <= 0 || r.Period <= 0:
		return pace{}, &meter.FieldError{Field: "rate", Reason: "must be above zero"}
	case r == meter.Unlimited:
		return pace{}, &meter.FieldError{Field: "rate", Reason: "must not be unlimited: a queue sends at a rate"}
	}
	f := big.NewRat(int64(r.Period), r.Bytes)
	if f.Num().Int64() > maxTerm || f.Denom().Int64() > maxTerm {
		return pace{}, &meter.FieldError{Field: "rate", Reason: "is too fine to stay exact: choose a rounder one"}
	}
	return pace{num: f.Num().Uint64(), den: f.Denom().Uint64()}, nil
}

// Pace returns the time that a byte takes at a rate, num/den ns in lowest
// terms, or what is wrong with the rate.
func Pace(r meter.Rate) (num, den uint64, err error) {
	p, err := newPace(r)
	return p.num, p.den, err
}

// from makes now the time where the rate has been free since before.
func (p *pace) from(now int64) {
	if !p.begun || p.next < now {
		p.next, p.frac, p.begun = now, 0, true
	}
}

// follow makes it free when another would have been.
func (p *pace) follow(before *pace) {
	p.next, p.frac, p.begun = before.due(), 0, before.begun
}

// due is the time, rounded up to a ns.
func (p *pace) due() int64 {
	if p.frac > 0 {
		return p.next + 1
	}
	return p.next
}

// after is the pace moved on by n bytes. It says whether an int64 holds it.
func (p pace) after(n int) (pace, bool) {
	hi, lo := bits.Mul64(uint64(max(n, 0)), p.num)
	lo, carry := bits.Add64(lo, p.frac, 0)
	if hi += carry; hi >= p.den {
		return p, false
	}
	ns, rest := bits.Div64(hi, lo, p.den)
	if ns > math.MaxInt64-1 || p.next > math.MaxInt64-1-int64(ns) {
		return p, false
	}
	p.next, p.frac = p.next+int64(ns), rest
	return p, true
}
