package lease

import (
	"fmt"
	"math/bits"
)

// Amounts are the rates and bursts of the two buckets of a budget, or of a
// host's share: C first, then E or P. Rates are in eighths of a token per
// second, which is bit/s if tokens are bytes. Bursts are in tokens.
type Amounts struct {
	Rate, Burst [2]int64
}

// The largest amounts of a budget. Sums over all its hosts are exact in Lua,
// whose numbers are IEEE 754 doubles: 2^40 times 4096 hosts is 2^52.
const (
	MaxRate  = 1 << 40 // 1.1 Tbit/s
	MaxBurst = 1 << 40
)

// each returns f of each pair of numbers of a and b.
func each(a, b Amounts, f func(a, b int64) int64) Amounts {
	for i := range a.Rate {
		a.Rate[i], a.Burst[i] = f(a.Rate[i], b.Rate[i]), f(a.Burst[i], b.Burst[i])
	}
	return a
}

// Plus returns the sum of each number.
func (a Amounts) Plus(b Amounts) Amounts {
	return each(a, b, func(a, b int64) int64 { return a + b })
}

// Minus returns the difference of each number.
func (a Amounts) Minus(b Amounts) Amounts {
	return each(a, b, func(a, b int64) int64 { return a - b })
}

// Min returns the smaller of each number.
func (a Amounts) Min(b Amounts) Amounts {
	return each(a, b, func(a, b int64) int64 { return min(a, b) })
}

// Max returns the larger of each number.
func (a Amounts) Max(b Amounts) Amounts {
	return each(a, b, func(a, b int64) int64 { return max(a, b) })
}

// Part returns num/den of each number, rounded down; 0 <= num <= den.
func (a Amounts) Part(num, den int64) Amounts {
	return each(a, a, func(a, _ int64) int64 { return part(a, num, den) })
}

// scale returns a * num / den of each number, rounded down, but at most a.
func (a Amounts) scale(num, den Amounts) Amounts {
	for i := range a.Rate {
		if num.Rate[i] < den.Rate[i] {
			a.Rate[i] = part(a.Rate[i], num.Rate[i], den.Rate[i])
		}
		if num.Burst[i] < den.Burst[i] {
			a.Burst[i] = part(a.Burst[i], num.Burst[i], den.Burst[i])
		}
	}
	return a
}

// part returns a * num / den, rounded down; 0 <= num <= den.
func part(a, num, den int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(num))
	q, _ := bits.Div64(hi, lo, uint64(den))
	return int64(q)
}

// Check returns an error if the amounts are out of range for a budget.
func (a Amounts) Check() error {
	for i := range a.Rate {
		if r := a.Rate[i]; r < 0 || r > MaxRate {
			return fmt.Errorf("a rate of %d bit/s is not between 0 and %d", r, int64(MaxRate))
		}
		if b := a.Burst[i]; b < 0 || b > MaxBurst {
			return fmt.Errorf("a burst of %d is not between 0 and %d", b, int64(MaxBurst))
		}
	}
	return nil
}
