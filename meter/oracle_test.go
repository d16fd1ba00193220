package meter

import (
	"math/big"
)

// oracle implements the meters of RFC 2697 §3, RFC 2698 §3, RFC 4115 §3 and MEF 10.3 §12 in
// exact rational arithmetic. It is written from the texts and shares only the parameter
// structs and Color with the package.
type oracle struct {
	refill  func(o *oracle, dt *big.Rat)
	verdict func(o *oracle, b *big.Rat, in Color) Color

	cir, eir *big.Rat // bytes per ns; eir is also PIR
	cbs, ebs *big.Rat // ebs is also PBS
	tc, te   *big.Rat
	now      int64
	begun    bool
}

func rational(r Rate) *big.Rat {
	if r.Bytes == 0 {
		return new(big.Rat)
	}
	return big.NewRat(r.Bytes, int64(r.Period))
}

func ratOf(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

func newOracle(params any) *oracle {
	o := &oracle{}
	switch t := params.(type) {
	case SRTCM:
		o.cir, o.cbs, o.eir, o.ebs = rational(t.CIR), ratOf(t.CBS), new(big.Rat), ratOf(t.EBS)
		o.refill, o.verdict = refillSRTCM, verdict2697and4115
	case TRTCM:
		o.cir, o.cbs, o.eir, o.ebs = rational(t.CIR), ratOf(t.CBS), rational(t.PIR), ratOf(t.PBS)
		o.refill, o.verdict = refillBoth, verdict2698
	case TRTCM4115:
		o.cir, o.cbs, o.eir, o.ebs = rational(t.CIR), ratOf(t.CBS), rational(t.EIR), ratOf(t.EBS)
		o.refill, o.verdict = refillBoth, verdict2697and4115
		if t.Coupling {
			o.refill = refillCoupled
		}
	case TokenBucket:
		o.cir, o.cbs, o.eir, o.ebs = rational(t.Rate), ratOf(t.Burst), new(big.Rat), new(big.Rat)
		o.refill, o.verdict = refillBoth, verdictTwoColor
	}
	o.tc, o.te = new(big.Rat).Set(o.cbs), new(big.Rat).Set(o.ebs)
	return o
}

func (o *oracle) color(now int64, n int, in Color) Color {
	if !o.begun {
		o.begun, o.now = true, now
	}
	if now > o.now {
		dt := new(big.Int).Sub(big.NewInt(now), big.NewInt(o.now))
		o.refill(o, new(big.Rat).SetInt(dt))
		o.now = now
	}
	return o.verdict(o, ratOf(int64(n)), in)
}

func lesser(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) < 0 {
		return new(big.Rat).Set(a)
	}
	return new(big.Rat).Set(b)
}

func refilled(level, rate, dt, limit *big.Rat) (next, over *big.Rat) {
	sum := new(big.Rat).Mul(rate, dt)
	sum.Add(sum, level)
	next = lesser(sum, limit)
	return next, sum.Sub(sum, next)
}

// "If Tc is less than CBS, Tc is incremented by one, else if Te is less than
// EBS, Te is incremented by one": in continuous time, E gains what overflows C.
func refillSRTCM(o *oracle, dt *big.Rat) {
	var over *big.Rat
	o.tc, over = refilled(o.tc, o.cir, dt, o.cbs)
	o.te = lesser(over.Add(over, o.te), o.ebs)
}

func refillBoth(o *oracle, dt *big.Rat) {
	o.tc, _ = refilled(o.tc, o.cir, dt, o.cbs)
	o.te, _ = refilled(o.te, o.eir, dt, o.ebs)
}

func refillCoupled(o *oracle, dt *big.Rat) {
	var over *big.Rat
	o.tc, over = refilled(o.tc, o.cir, dt, o.cbs)
	own := new(big.Rat).Mul(o.eir, dt)
	own.Add(own, over)
	o.te = lesser(own.Add(own, o.te), o.ebs)
}

func verdict2697and4115(o *oracle, b *big.Rat, in Color) Color {
	switch {
	case in == Green && o.tc.Cmp(b) >= 0:
		o.tc.Sub(o.tc, b)
		return Green
	case in != Red && o.te.Cmp(b) >= 0:
		o.te.Sub(o.te, b)
		return Yellow
	}
	return Red
}

func verdict2698(o *oracle, b *big.Rat, in Color) Color {
	switch {
	case in == Red || o.te.Cmp(b) < 0:
		return Red
	case in == Yellow || o.tc.Cmp(b) < 0:
		o.te.Sub(o.te, b)
		return Yellow
	}
	o.te.Sub(o.te, b)
	o.tc.Sub(o.tc, b)
	return Green
}

func verdictTwoColor(o *oracle, b *big.Rat, in Color) Color {
	if in == Red || o.tc.Cmp(b) < 0 {
		return Red
	}
	o.tc.Sub(o.tc, b)
	return in
}

func floorOf(r *big.Rat) int64 {
	return new(big.Int).Div(r.Num(), r.Denom()).Int64() // Euclidean, denominator positive
}

func (o *oracle) tokens() (tc, te int64) { return floorOf(o.tc), floorOf(o.te) }
