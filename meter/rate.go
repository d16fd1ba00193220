package meter

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"time"
)

// Rate is an exact rate: Bytes in every Period. The zero Rate never refills a bucket. If
// you meter packets or requests instead of bytes, Bytes counts those.
type Rate struct {
	Bytes  int64
	Period time.Duration
}

// Unlimited is the largest Rate. Its bucket is always full, so any packet up to the burst
// conforms.
var Unlimited = unlimited

// unlimited is a copy that other packages cannot change.
var unlimited = Rate{math.MaxInt64, 1}

// finite returns the rate, or zero if it is Unlimited.
func (r Rate) finite() Rate {
	if r == unlimited {
		return Rate{}
	}
	return r
}

// BitRate returns the rate of n bits per second. It is exact: 1 bit/s is one byte in eight
// seconds.
func BitRate(n int64) Rate { return Rate{n, 8 * time.Second} }

// ByteRate returns the rate of n bytes per second.
func ByteRate(n int64) Rate { return Rate{n, time.Second} }

// Per returns the rate of n bytes, packets or requests in a period. Per(5, time.Second) is
// five requests a second.
func Per(n int64, period time.Duration) Rate { return Rate{n, period} }

// Every returns the rate of one byte, packet or request in each period.
func Every(period time.Duration) Rate { return Rate{1, period} }

// Cmp compares two valid rates exactly. It returns -1 if r is slower than s, 0 if they are
// equal, and +1 if r is faster.
func (r Rate) Cmp(s Rate) int {
	rHi, rLo := bits.Mul64(uint64(r.Bytes), uint64(max(s.Period, 1))) // only the zero Rate has no period
	sHi, sLo := bits.Mul64(uint64(s.Bytes), uint64(max(r.Period, 1)))
	return cmp.Or(cmp.Compare(rHi, sHi), cmp.Compare(rLo, sLo))
}

// Burst returns the bytes arriving in d, rounded down. It returns false if they exceed an int64.
func (r Rate) Burst(d time.Duration) (int64, bool) {
	b := r.rat()
	b.Mul(b, new(big.Rat).SetInt64(int64(d)))
	q := new(big.Int).Quo(b.Num(), b.Denom())
	return q.Int64(), q.IsInt64()
}

// Bits returns the rate in bits per second. It returns false if the number is not whole or exceeds
// an int64.
func (r Rate) Bits() (int64, bool) {
	period := uint64(max(r.Period, 1)) // only the zero Rate has no period
	hi, lo := bits.Mul64(uint64(r.Bytes), 8*uint64(time.Second))
	if hi >= period {
		return 0, false
	}
	n, rest := bits.Div64(hi, lo, period)
	return int64(n), rest == 0 && n <= math.MaxInt64
}

// String returns bits per second if their number is whole, such as "10mbit" or "1234bit". Otherwise
// it returns a fraction, such as "10000B/1m0s". Unlimited is "unlimited".
func (r Rate) String() string {
	if r == unlimited {
		return "unlimited"
	}
	n, whole := r.Bits()
	if !whole {
		return fmt.Sprintf("%dB/%v", r.Bytes, r.Period)
	}
	units := [...]string{"bit", "kbit", "mbit", "gbit", "tbit"}
	u := 0
	for u < len(units)-1 && n != 0 && n%1000 == 0 {
		n /= 1000
		u++
	}
	return fmt.Sprintf("%d%s", n, units[u])
}

// rat returns the rate in bytes per nanosecond.
func (r Rate) rat() *big.Rat {
	if r.Period <= 0 {
		return new(big.Rat)
	}
	return big.NewRat(r.Bytes, int64(r.Period))
}

// invalidReason returns the reason why the rate is invalid, or "".
func (r Rate) invalidReason() string {
	switch {
	case r.Bytes < 0:
		return "is negative"
	case r.Period < 0, r.Period == 0 && r.Bytes != 0:
		return "needs a period above zero"
	}
	return ""
}
