package meter

import (
	"errors"
	"fmt"
	"math/big"
	"math/bits"
	"slices"
)

// EnvelopeParams are the parameters of a bandwidth profile envelope, MEF 10.3
// §12: flows that share their bandwidth by rank.
type EnvelopeParams struct {
	CIRMax, EIRMax Rate        // that a flow has at most; the zero Rate is no limit
	Flows          []TRTCM4115 // from the highest rank to the lowest
}

// Envelope meters flows that share bandwidth by rank. What overflows the bucket
// of a flow goes into that of the next lower rank, green to green and yellow to
// yellow; green that overflows a flow with coupling goes into its own yellow
// bucket. No bucket gets more in a time than CIRMax or EIRMax brings in it.
//
// All flows share one clock: their buckets are refilled whenever a packet of any
// comes, as MEF 10.3 does it. One goroutine has an Envelope.
type Envelope struct {
	den    int64
	max    [2]int64 // units in a ns; -1 for no limit
	plenty int64    // units that fill all buckets
	flows  []flow
	last   int64 // ns
	begun  bool
}

// flow is one of an envelope, both buckets in units.
type flow struct {
	num, size, tokens [2]int64
	coupled           bool
}

// NewEnvelope compiles the parameters. Buckets begin full. The error joins all
// that is wrong with them.
func NewEnvelope(t EnvelopeParams) (*Envelope, error) {
	var f faults
	for i, rate := range [2]Rate{t.CIRMax, t.EIRMax} {
		f.optionalRate([2]string{"CIRMax", "EIRMax"}[i], rate)
	}
	if len(t.Flows) == 0 {
		f.add("flows", "are missing")
	}
	rates := []Rate{t.CIRMax, t.EIRMax}
	for _, flow := range t.Flows {
		if _, err := flow.Profile(); err != nil {
			f = append(f, err)
			continue
		}
		rates = append(rates, flow.CIR, flow.EIR)
	}
	if f != nil {
		return nil, errors.Join(f...)
	}
	den := big.NewInt(1)
	for _, rate := range rates {
		den = lcm(den, rate.rat().Denom())
	}
	sum := new(big.Int)
	for _, flow := range t.Flows {
		sum.Add(sum, big.NewInt(flow.CBS))
		sum.Add(sum, big.NewInt(flow.EBS))
	}
	if sum.Mul(sum, den).Cmp(big.NewInt(maxUnits)) > 0 {
		return nil, &FieldError{"CBS", fmt.Sprintf("and EBS of all flows are together above the largest burst that stays exact at their rates, %v bytes", new(big.Int).Quo(big.NewInt(maxUnits), den))}
	}
	for _, rate := range rates {
		if num := units(rate.rat(), den); num.Cmp(big.NewInt(maxNum)) > 0 {
			return nil, &FieldError{"CIRMax", fmt.Sprintf("or another rate is too fast or too fine to stay exact beside the others: %v over the denominator %v", rate, den)}
		}
	}
	e := &Envelope{den: den.Int64(), max: [2]int64{-1, -1}, plenty: sum.Int64()}
	for i, rate := range [2]Rate{t.CIRMax, t.EIRMax} {
		if rate.Bytes > 0 {
			e.max[i] = units(rate.rat(), den).Int64()
		}
	}
	for _, t := range t.Flows {
		f := flow{coupled: t.Coupling}
		for i, rate := range [2]Rate{t.CIR, t.EIR} {
			f.num[i] = units(rate.rat(), den).Int64()
			f.size[i] = [2]int64{t.CBS, t.EBS}[i] * e.den
		}
		f.tokens = f.size
		e.flows = append(e.flows, f)
	}
	return e, nil
}

// SetTokens gives the buckets of a flow tc and te bytes, cut to their bursts.
func (e *Envelope) SetTokens(flow int, tc, te int64) {
	f := &e.flows[flow]
	for i, tokens := range [2]int64{tc, te} {
		f.tokens[i] = min(max(tokens, 0), f.size[i]/e.den) * e.den
	}
}

// refill gives all flows what has come since the last packet of any.
func (e *Envelope) refill(now int64) {
	var dt uint64
	if e.begun && now > e.last {
		dt = uint64(now) - uint64(e.last)
	}
	if !e.begun || dt > 0 {
		e.last, e.begun = now, true
	}
	if dt == 0 {
		return
	}
	var carry [2]int64
	most := [2]int64{e.plenty, e.plenty}
	for i, num := range e.max {
		if num >= 0 {
			most[i] = e.grown(dt, num)
		}
	}
	for i := range e.flows {
		f := &e.flows[i]
		over := f.add(0, min(e.grown(dt, f.num[0])+carry[0], most[0]))
		carry[0] = over
		if f.coupled {
			carry[1] += over
			carry[0] = 0
		}
		carry[1] = f.add(1, min(e.grown(dt, f.num[1])+carry[1], most[1]))
	}
}

func (e *Envelope) grown(dt uint64, num int64) int64 {
	hi, lo := bits.Mul64(dt, uint64(num))
	if hi > 0 || lo > uint64(e.plenty) {
		return e.plenty
	}
	return int64(lo)
}

// add puts units into a bucket and returns those that overflow.
func (f *flow) add(i int, units int64) int64 {
	over := max(units-(f.size[i]-f.tokens[i]), 0)
	f.tokens[i] += units - over
	return over
}

// Color meters a packet of a flow, by its index. It is Meter.Color otherwise.
func (e *Envelope) Color(flow int, now int64, n int, in Color) Color {
	e.refill(now)
	f := &e.flows[flow]
	hi, cost := bits.Mul64(uint64(n), uint64(e.den))
	fits := func(i int) bool { return n >= 0 && hi == 0 && cost <= uint64(f.tokens[i]) }
	switch {
	case in == Green && fits(0):
		f.tokens[0] -= int64(cost)
		return Green
	case in != Red && fits(1):
		f.tokens[1] -= int64(cost)
		return Yellow
	}
	return Red
}

// Tokens returns what the buckets of a flow would hold at now, in whole bytes.
func (e *Envelope) Tokens(flow int, now int64) (tc, te int64) {
	at := *e
	at.flows = slices.Clone(e.flows)
	at.refill(now)
	f := &at.flows[flow]
	return f.tokens[0] / e.den, f.tokens[1] / e.den
}

// Explain is Color with the grounds of its verdict.
func (e *Envelope) Explain(flow int, now int64, n int, in Color) Explanation {
	return KindTRTCM4115.explain(n, in,
		func() (tc, te int64) { return e.Tokens(flow, now) },
		func() Color { return e.Color(flow, now, n, in) })
}
