package meter

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"slices"
)

// EnvelopeParams are the parameters of a bandwidth profile envelope: flows sharing bandwidth by
// rank (MEF 10.3 §12.1).
type EnvelopeParams struct {
	Flows []EnvelopeFlow // from the highest rank to the lowest

	// Coupling is the flag CF0. Green tokens overflowing the lowest rank become yellow tokens of
	// the highest rank; without Coupling they are discarded. With Coupling no flow may have
	// Coupling of its own ([R150]).
	Coupling bool
}

// EnvelopeFlow is one bandwidth profile flow of an envelope.
type EnvelopeFlow struct {
	Buckets TRTCM4115

	// CIRMax and EIRMax limit the rates at which the green and the yellow bucket receive tokens,
	// including the overflow of other flows. Nil is no limit. A zero rate lets no tokens in.
	CIRMax, EIRMax *Rate
}

// Envelope meters flows sharing bandwidth by rank. Tokens overflowing a green bucket go into the
// green bucket of the next lower rank, or with Coupling of the flow into its own yellow bucket.
// Tokens overflowing a yellow bucket go into the yellow bucket of the next lower rank. Tokens above
// CIRMax or EIRMax are discarded.
//
// All flows share one clock: each packet refills the buckets of all flows, as in MEF 10.3.
// An Envelope is for one goroutine.
type Envelope struct {
	den     int64 // units in a byte
	plenty  int64 // units enough to fill all buckets
	coupled bool
	flows   []flow
	last    int64 // ns, time of the latest packet
	begun   bool  // whether there was one
}

// flow is the state of one flow: the green bucket, then the yellow one, in units.
type flow struct {
	num, more    [2]int64 // units in a nanosecond: own rate, and the most from other flows
	size, tokens [2]int64
	coupled      bool
	spare        int64 // green tokens overflowing to the own yellow bucket, during a refill
}

// NewEnvelope compiles the parameters. Buckets begin full. The error joins a FieldError for
// each invalid parameter.
func NewEnvelope(t EnvelopeParams) (*Envelope, error) {
	var f fieldErrors
	if len(t.Flows) == 0 {
		f.add("flows", "are missing")
	}
	if t.Coupling &&
		slices.ContainsFunc(t.Flows, func(flow EnvelopeFlow) bool { return flow.Buckets.Coupling }) {
		f.add("coupling", "of an envelope cannot be combined with coupling of a flow (MEF 10.3 [R150])")
	}
	var rates []Rate
	for _, flow := range t.Flows {
		if _, err := flow.Buckets.Profile(); err != nil {
			f = append(f, err)
			continue
		}
		rates = append(rates, flow.Buckets.CIR, flow.Buckets.EIR)
		for i, limit := range [2]*Rate{flow.CIRMax, flow.EIRMax} {
			if limit != nil && f.optionalRate([2]string{"CIRMax", "EIRMax"}[i], *limit) {
				rates = append(rates, *limit)
			}
		}
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
		sum.Add(sum, big.NewInt(flow.Buckets.CBS))
		sum.Add(sum, big.NewInt(flow.Buckets.EBS))
	}
	if sum.Mul(sum, den).Cmp(big.NewInt(maxUnits)) > 0 {
		return nil,
			&FieldError{"CBS", fmt.Sprintf("and EBS of all flows together exceed the largest burst that 64 bits count exactly at their rates, %v bytes",
				new(big.Int).Quo(big.NewInt(maxUnits), den))}
	}
	for _, rate := range rates {
		if num := units(rate.rat(), den); num.Cmp(big.NewInt(maxRate)) > 0 {
			return nil, &FieldError{
				"CIRMax",
				fmt.Sprintf("or another rate is too fast or too fine to be counted exactly with the others: %v over the denominator %v",
					rate, den),
			}
		}
	}
	e := &Envelope{den: den.Int64(), plenty: sum.Int64(), coupled: t.Coupling}
	for _, t := range t.Flows {
		f := flow{more: [2]int64{math.MaxInt64, math.MaxInt64}, coupled: t.Buckets.Coupling}
		limits := [2]*Rate{t.CIRMax, t.EIRMax}
		for i, rate := range [2]Rate{t.Buckets.CIR, t.Buckets.EIR} {
			f.num[i] = units(rate.rat(), den).Int64()
			f.size[i] = [2]int64{t.Buckets.CBS, t.Buckets.EBS}[i] * e.den
			if limits[i] != nil {
				limit := units(limits[i].rat(), den).Int64()
				f.num[i] = min(f.num[i], limit)
				f.more[i] = limit - f.num[i]
			}
		}
		f.tokens = f.size
		e.flows = append(e.flows, f)
	}
	return e, nil
}

// SetTokens sets the buckets of a flow to tc and te bytes, limited to the range from 0 to
// their bursts. Flows are numbered as in EnvelopeParams.
func (e *Envelope) SetTokens(flow int, tc, te int64) {
	f := &e.flows[flow]
	for i, tokens := range [2]int64{tc, te} {
		f.tokens[i] = min(max(tokens, 0), f.size[i]/e.den) * e.den
	}
}

// refill adds the tokens since the latest packet of any flow.
func (e *Envelope) refill(now int64) {
	if !e.begun {
		e.last, e.begun = now, true
	}
	if now <= e.last {
		return
	}
	dt := uint64(now) - uint64(e.last)
	e.last = now
	// All green buckets come first, as the last of them may overflow into the first yellow
	// one.
	var over int64
	for i := range e.flows {
		f := &e.flows[i]
		over = f.add(0, e.inflow(f, 0, dt, over))
		if f.coupled {
			f.spare, over = over, 0
		}
	}
	if !e.coupled {
		over = 0
	}
	for i := range e.flows {
		f := &e.flows[i]
		over = f.add(1, e.inflow(f, 1, dt, over+f.spare))
	}
}

// inflow returns the units received by a bucket, up to its limit: those of its own rate and the
// overflow of others. Plenty is enough for all buckets.
func (e *Envelope) inflow(f *flow, i int, dt uint64, over int64) int64 {
	units := e.grown(dt, f.num[i])
	if over > 0 {
		units = min(units+min(over, e.grown(dt, f.more[i])), e.plenty)
	}
	return units
}

// grown returns the units arriving in dt ns, at most plenty.
func (e *Envelope) grown(dt uint64, num int64) int64 {
	hi, lo := bits.Mul64(dt, uint64(num))
	if hi > 0 || lo > uint64(e.plenty) {
		return e.plenty
	}
	return int64(lo)
}

// add puts units into a bucket and returns the overflow.
func (f *flow) add(i int, units int64) int64 {
	over := max(units-(f.size[i]-f.tokens[i]), 0)
	f.tokens[i] += units - over
	return over
}

// Color is Meter.Color for a packet of a flow.
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

// Tokens returns the whole bytes in the buckets of a flow at now. It takes nothing.
func (e *Envelope) Tokens(flow int, now int64) (tc, te int64) {
	at := *e
	at.flows = slices.Clone(e.flows)
	at.refill(now)
	f := &at.flows[flow]
	return f.tokens[0] / e.den, f.tokens[1] / e.den
}

// Explain is Meter.Explain for a packet of a flow.
func (e *Envelope) Explain(flow int, now int64, n int, in Color) Explanation {
	return kindTRTCM4115.explain(n, in,
		func() (tc, te int64) { return e.Tokens(flow, now) },
		func() Color { return e.Color(flow, now, n, in) })
}
