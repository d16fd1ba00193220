package oracle

import "math/big"

// tsw is the state of a time sliding window three-color marker, RFC 2859.
type tsw struct {
	window    *big.Rat // ns
	committed *big.Int // units in a window at cir
	peak      *big.Int // units in a window at pir
	seed      uint64

	average *big.Int // units in the window
	last    *big.Rat // nil before the first green or yellow packet
	drawn   uint64   // number of random numbers drawn
}

// tswUnits is the number of units per byte or packet.
const tswUnits = 1 << 16

func (s *tsw) decide(now, cost *big.Rat, in color) color {
	if in == red { // neither counted, nor the start of the clock
		return red
	}
	if s.last == nil {
		s.last = now
	}
	s.estimate(now, cost)
	return max(in, s.mark())
}

// estimate implements RFC 2859 §3.
func (s *tsw) estimate(now, cost *big.Rat) {
	units := new(big.Rat).Mul(cost, whole(tswUnits))
	units.Add(units, new(big.Rat).SetInt(s.average))
	units.Mul(units, s.window)
	dt := new(big.Rat).Sub(now, s.last)
	s.average = floor(units.Quo(units, dt.Add(dt, s.window)))
	s.last = now
}

// mark implements RFC 2859 §4, with one random number for both probabilities.
func (s *tsw) mark() color {
	if s.average.Cmp(s.committed) <= 0 {
		return green
	}
	s.drawn++
	u := splitmix64(s.seed+s.drawn*0x9E3779B97F4A7C15) >> 32
	switch {
	case s.average.Cmp(s.peak) > 0 && s.hits(u, s.peak):
		return red
	case s.hits(u, s.committed):
		return yellow
	}
	return green
}

// hits reports whether a random number of 32 bits is below the part of the average above a level.
func (s *tsw) hits(u uint64, level *big.Int) bool {
	left := new(big.Int).SetUint64(u)
	left.Mul(left, s.average)
	right := new(big.Int).Sub(s.average, level)
	right.Lsh(right, 32)
	return left.Cmp(right) < 0
}

func parseTSW(o *options) func() state {
	cir, pir := o.rate("cir"), o.rate("pir")
	if cir.Sign() == 0 || pir.Cmp(cir) < 0 {
		o.fail("not pir >= cir > 0")
	}
	window := new(big.Rat).SetInt(o.duration("window", whole(3600e9)))
	seed := o.integer("seed", "0", 0, 1<<64-1)
	level := func(rate *big.Rat) *big.Int {
		units := new(big.Rat).Mul(rate, window)
		return floor(units.Mul(units, whole(tswUnits)))
	}
	return func() state {
		return &tsw{
			window: window, committed: level(cir), peak: level(pir), seed: seed, average: new(big.Int),
		}
	}
}
