package lease

import (
	"fmt"
	"math/bits"
)

// Amounts are the two buckets of a budget, or of a host's part of it: C first, then E
// or P. Rates are in eighths of a token per second, which is bit/s if tokens are
// bytes; bursts in tokens.
type Amounts struct {
	Rate, Burst [2]int64
}

// The largest amounts of a budget. Sums over all its hosts are exact in the
// numbers of Lua, which are IEEE 754 doubles.
const (
	MaxRate  = 1 << 40 // 1.1 Tbit/s
	MaxBurst = 1 << 40
)

// each calls f with the four numbers of a and b.
func each(a, b Amounts, f func(a, b int64) int64) Amounts {
	for i := range a.Rate {
		a.Rate[i], a.Burst[i] = f(a.Rate[i], b.Rate[i]), f(a.Burst[i], b.Burst[i])
	}
	return a
}

// Plus is the sum of each number.
func (a Amounts) Plus(b Amounts) Amounts {
	return each(a, b, func(a, b int64) int64 { return a + b })
}

// Minus is the difference of each number.
func (a Amounts) Minus(b Amounts) Amounts {
	return each(a, b, func(a, b int64) int64 { return a - b })
}

// Min is the smaller of each number.
func (a Amounts) Min(b Amounts) Amounts {
	return each(a, b, func(a, b int64) int64 { return min(a, b) })
}

// Max is the larger of each number.
func (a Amounts) Max(b Amounts) Amounts {
	return each(a, b, func(a, b int64) int64 { return max(a, b) })
}

// Part is num/den of each number, rounded down; 0 <= num <= den.
func (a Amounts) Part(num, den int64) Amounts {
	return each(a, a, func(a, _ int64) int64 {
		hi, lo := bits.Mul64(uint64(a), uint64(num))
		q, _ := bits.Div64(hi, lo, uint64(den))
		return int64(q)
	})
}

// Check returns what is wrong with the amounts of a budget.
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
