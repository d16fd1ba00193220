package walk

import (
	"fmt"
	"math/big"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/metertest"
)

// exact is the model in rational numbers of a meter with the parameters of package meter.
type exact struct{ *metertest.Buckets }

// newExact returns a model whose buckets hold a share of their bursts.
func newExact(params meter.Params, initial dataplane.Fraction) *exact {
	bucket := func(rate meter.Rate, burst int64) metertest.Bucket {
		return metertest.Bucket{Bytes: rate.Bytes, Period: int64(rate.Period), Burst: burst}
	}
	e := &exact{}
	switch p := params.(type) {
	case meter.TokenBucket:
		e.Buckets = metertest.New(metertest.OneBucket, false, bucket(p.Rate, p.Burst))
	case meter.SRTCM:
		e.Buckets = metertest.New(metertest.EitherBucket, true, bucket(p.CIR, p.CBS),
			bucket(meter.Rate{}, p.EBS))
	case meter.TRTCM:
		e.Buckets = metertest.New(metertest.BothBuckets, false, bucket(p.CIR, p.CBS), bucket(p.PIR, p.PBS))
	case meter.TRTCM4115:
		e.Buckets = metertest.New(metertest.EitherBucket, p.Coupling, bucket(p.CIR, p.CBS),
			bucket(p.EIR, p.EBS))
	}
	for i := range e.Tokens {
		e.Tokens[i].SetInt64(initial.Of(e.burst(i)))
	}
	return e
}

// color refills the buckets and meters a packet of n bytes.
func (e *exact) color(now, n int64, in meter.Color) meter.Color {
	return meter.Color(e.Color(now, n, metertest.Color(in)))
}

// burst is the size of a bucket, bytes.
func (e *exact) burst(i int) int64 { return e.Burst[i].Num().Int64() }

// limits is the most that each bucket of a meter, full at first, can grant in dt ns, bytes.
func (e *exact) limits(dt int64) [2]*big.Rat {
	var out [2]*big.Rat
	for i := range out {
		out[i] = new(big.Rat).Mul(e.Rate[i], new(big.Rat).SetInt64(dt))
		out[i].Add(out[i], e.Burst[i])
	}
	return out
}

// excess describes the limit of a meter's RFC that the granted bytes exceed. It is empty if
// they exceed none.
func excess(params meter.Params, limits [2]*big.Rat, granted [3]int64) string {
	green, yellow := granted[meter.Green], granted[meter.Yellow]
	above := func(name string, n int64, limit *big.Rat) string {
		if new(big.Rat).SetInt64(n).Cmp(limit) > 0 {
			return fmt.Sprintf("%d %s bytes, want at most %s", n, name, limit.FloatString(3))
		}
		return ""
	}
	if problem := above("green", green, limits[0]); problem != "" {
		return problem
	}
	both := new(big.Rat).Add(limits[0], limits[1])
	switch p := params.(type) {
	case meter.TRTCM:
		return above("green and yellow", green+yellow, limits[1])
	case meter.TRTCM4115:
		if !p.Coupling {
			return above("yellow", yellow, limits[1])
		}
	}
	return above("green and yellow", green+yellow, both)
}

// missing is the number of bytes that could have been granted but were not.
func missing(params meter.Params, limits [2]*big.Rat, granted [3]int64) *big.Rat {
	n := granted[meter.Green] + granted[meter.Yellow]
	lost := new(big.Rat).Add(limits[0], limits[1])
	if _, ok := params.(meter.TRTCM); ok {
		lost.Set(limits[1])
		// Only packets of input color green take from C.
		if c := new(big.Rat).Sub(limits[0], new(big.Rat).SetInt64(
			granted[meter.Green])); c.Cmp(new(big.Rat).Sub(lost, new(big.Rat).SetInt64(n))) > 0 {
			return c
		}
	}
	return lost.Sub(lost, new(big.Rat).SetInt64(n))
}

// counting is a fixed window or a sliding window counter in integers of any size.
type counting struct {
	limit   int64 // bytes
	window  int64 // ns
	sliding bool
	initial dataplane.Fraction
	taken   map[int64]int64 // bytes, by number of the aligned window
	current int64           // number of the latest window
	begun   bool
}

func newCounting(params meter.Params, initial dataplane.Fraction) *counting {
	c := &counting{initial: initial, taken: map[int64]int64{}}
	switch p := params.(type) {
	case meter.FixedWindow:
		c.limit, c.window = p.Limit, int64(p.Window)
	case meter.SlidingCounter:
		c.limit, c.window, c.sliding = p.Limit, int64(p.Window), true
	default:
		return nil
	}
	return c
}

// counts returns the bytes in view at a time, multiplied by the window's length.
func (c *counting) counts(now int64) *big.Int {
	at, into := new(big.Int).DivMod(big.NewInt(now), big.NewInt(c.window), new(big.Int))
	number := at.Int64()
	switch {
	case !c.begun:
		c.begun, c.current = true, number
		c.taken[number] = c.limit - c.initial.Of(c.limit)
	case number > c.current:
		c.current = number
	case number < c.current: // a late clock counts as the start of the latest window
		into.SetInt64(0)
	}
	sum := new(big.Int).Mul(big.NewInt(c.taken[c.current]), big.NewInt(c.window))
	if c.sliding {
		view := new(big.Int).Sub(big.NewInt(c.window), into)
		sum.Add(sum, view.Mul(view, big.NewInt(c.taken[c.current-1])))
	}
	return sum
}

func (c *counting) color(now, n int64, in meter.Color) meter.Color {
	sum := c.counts(now)
	sum.Add(sum, new(big.Int).Mul(big.NewInt(n), big.NewInt(c.window)))
	if in == meter.Red || sum.Cmp(new(big.Int).Mul(big.NewInt(c.limit), big.NewInt(c.window))) > 0 {
		return meter.Red
	}
	c.taken[c.current] += n
	return in
}

// tokensLeft is the largest packet that would conform, bytes.
func (c *counting) tokensLeft(now int64) int64 {
	most := new(big.Int).Mul(big.NewInt(c.limit), big.NewInt(c.window))
	most.Sub(most, c.counts(now))
	return max(most.Div(most, big.NewInt(c.window)).Int64(), 0)
}
