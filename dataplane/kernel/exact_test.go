package kernel

import (
	"fmt"
	"math/big"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// exact is a meter in rational numbers, written from the RFCs. It shares
// nothing with package meter but the structs of parameters.
type exact struct {
	rate, size, holds [2]*big.Rat // bytes per ns, bytes
	color             func(e *exact, n *big.Rat, in meter.Color) meter.Color
	coupled           bool // what C has no room for goes into E
	last              int64
	begun             bool
}

func newExact(params dataplane.Params, initial dataplane.Fraction) *exact {
	e := &exact{}
	set := func(i int, rate meter.Rate, burst int64) {
		e.rate[i] = new(big.Rat)
		if rate.Bytes > 0 {
			e.rate[i].SetFrac64(rate.Bytes, int64(rate.Period))
		}
		e.size[i] = new(big.Rat).SetInt64(burst)
		e.holds[i] = new(big.Rat).SetInt64(initial.Of(burst))
	}
	switch p := params.(type) {
	case meter.TokenBucket:
		set(0, p.Rate, p.Burst)
		set(1, meter.Rate{}, 0)
		e.color = twoColors
	case meter.SRTCM:
		set(0, p.CIR, p.CBS)
		set(1, meter.Rate{}, p.EBS)
		e.color, e.coupled = eitherBucket, true
	case meter.TRTCM:
		set(0, p.CIR, p.CBS)
		set(1, p.PIR, p.PBS)
		e.color = bothBuckets
	case meter.TRTCM4115:
		set(0, p.CIR, p.CBS)
		set(1, p.EIR, p.EBS)
		e.color, e.coupled = eitherBucket, p.Coupling
	}
	return e
}

// at lets time pass.
func (e *exact) at(now int64) {
	if !e.begun {
		e.begun, e.last = true, now
	}
	dt := new(big.Rat).SetInt(new(big.Int).Sub(big.NewInt(now), big.NewInt(e.last)))
	if dt.Sign() <= 0 {
		return
	}
	e.last = now
	for i := range e.holds {
		e.holds[i].Add(e.holds[i], new(big.Rat).Mul(dt, e.rate[i]))
	}
	over := new(big.Rat).Sub(e.holds[0], e.size[0])
	if over.Sign() > 0 {
		e.holds[0].Set(e.size[0])
		if e.coupled {
			e.holds[1].Add(e.holds[1], over)
		}
	}
	if e.holds[1].Cmp(e.size[1]) > 0 {
		e.holds[1].Set(e.size[1])
	}
}

// take takes n bytes from a bucket that holds them.
func (e *exact) take(i int, n *big.Rat) bool {
	if e.holds[i].Cmp(n) < 0 {
		return false
	}
	e.holds[i].Sub(e.holds[i], n)
	return true
}

func twoColors(e *exact, n *big.Rat, in meter.Color) meter.Color {
	if in == meter.Red || !e.take(0, n) {
		return meter.Red
	}
	return in
}

// eitherBucket is RFC 2697 and RFC 4115: green takes from C, else from E.
func eitherBucket(e *exact, n *big.Rat, in meter.Color) meter.Color {
	switch {
	case in == meter.Green && e.take(0, n):
		return meter.Green
	case in != meter.Red && e.take(1, n):
		return meter.Yellow
	}
	return meter.Red
}

// bothBuckets is RFC 2698: what passes takes from P, green from C as well.
func bothBuckets(e *exact, n *big.Rat, in meter.Color) meter.Color {
	switch {
	case in == meter.Red || !e.take(1, n):
		return meter.Red
	case in == meter.Green && e.take(0, n):
		return meter.Green
	}
	return meter.Yellow
}

// whole is the size of a bucket in bytes.
func (e *exact) whole(i int) int64 { return e.size[i].Num().Int64() }

// limits is what each bucket of a full meter can have granted after dt ns, in
// bytes.
func (e *exact) limits(dt int64) [2]*big.Rat {
	var out [2]*big.Rat
	for i := range out {
		out[i] = new(big.Rat).Mul(e.rate[i], new(big.Rat).SetInt64(dt))
		out[i].Add(out[i], e.size[i])
	}
	return out
}

// excess says which limit of a meter's RFC the bytes granted by color are
// above, or nothing.
func excess(params dataplane.Params, limits [2]*big.Rat, granted [3]int64) string {
	green, yellow := granted[meter.Green], granted[meter.Yellow]
	above := func(name string, n int64, limit *big.Rat) string {
		if new(big.Rat).SetInt64(n).Cmp(limit) > 0 {
			return fmt.Sprintf("%d bytes %s are above the limit, %s", n, name, limit.FloatString(3))
		}
		return ""
	}
	if fault := above("green", green, limits[0]); fault != "" {
		return fault
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

// missing is what could have been granted, too, in bytes.
func missing(params dataplane.Params, limits [2]*big.Rat, granted [3]int64) *big.Rat {
	n := granted[meter.Green] + granted[meter.Yellow]
	lost := new(big.Rat).Add(limits[0], limits[1])
	if _, ok := params.(meter.TRTCM); ok {
		lost.Set(limits[1])
		// Only what came green may take from C.
		if c := new(big.Rat).Sub(limits[0], new(big.Rat).SetInt64(granted[meter.Green])); c.Cmp(new(big.Rat).Sub(lost, new(big.Rat).SetInt64(n))) > 0 {
			return c
		}
	}
	return lost.Sub(lost, new(big.Rat).SetInt64(n))
}

// counting is a meter that counts in windows, in integers of any size: what was
// taken, by the number of the aligned window.
type counting struct {
	limit, window int64
	sliding       bool
	initial       dataplane.Fraction
	taken         map[int64]int64
	current       int64 // the latest window
	begun         bool
}

func newCounting(params dataplane.Params, initial dataplane.Fraction) *counting {
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

// counts is what counts at a time, times the window's length.
func (c *counting) counts(now int64) *big.Int {
	at, into := new(big.Int).DivMod(big.NewInt(now), big.NewInt(c.window), new(big.Int))
	number := at.Int64()
	switch {
	case !c.begun:
		c.begun, c.current = true, number
		c.taken[number] = c.limit - c.initial.Of(c.limit)
	case number > c.current:
		c.current = number
	case number < c.current: // a clock that is late: the window has just begun
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

// left is the largest packet that would conform.
func (c *counting) left(now int64) int64 {
	most := new(big.Int).Mul(big.NewInt(c.limit), big.NewInt(c.window))
	most.Sub(most, c.counts(now))
	return max(most.Div(most, big.NewInt(c.window)).Int64(), 0)
}
