package meter

import (
	"fmt"
	"math"
	"math/big"
	"time"
)

// Rate is an exact rate: Bytes in every Period. The zero Rate refills
// nothing. Where a caller meters packets instead of bytes, Bytes counts
// packets.
type Rate struct {
	Bytes  int64
	Period time.Duration
}

// Unlimited is the largest Rate. A bucket that it refills is full at any time: what
// is no longer than its burst conforms.
var Unlimited = unlimited

// unlimited cannot be changed by others.
var unlimited = Rate{math.MaxInt64, 1}

// finite is the rate, or zero instead of Unlimited.
func (r Rate) finite() Rate {
	if r == unlimited {
		return Rate{}
	}
	return r
}

// start is where Now begins.
var start = time.Now()

// Now is a clock for meters: ns since the program began, which never go back
// (time.Since). It may be handed to Locked.Wait.
func Now() int64 { return int64(time.Since(start)) }

// BitRate returns the rate of n bits per second, exactly: 1 bit/s is one byte
// in eight seconds.
func BitRate(n int64) Rate { return Rate{n, 8 * time.Second} }

// ByteRate returns the rate of n bytes per second.
func ByteRate(n int64) Rate { return Rate{n, time.Second} }

// Per returns the rate of n in a period: bytes, packets, requests or whatever
// else the caller meters. Per(5, time.Second) is five requests a second.
func Per(n int64, period time.Duration) Rate { return Rate{n, period} }

// Every returns the rate of one in each period.
func Every(period time.Duration) Rate { return Rate{1, period} }

// Cmp compares two valid rates exactly: -1 where r is slower than s, 0 where
// they are equal, +1 where r is faster.
func (r Rate) Cmp(s Rate) int {
	return r.rat().Cmp(s.rat())
}

// Burst returns how many whole bytes the rate brings in d, rounded down, and
// false where that is more than an int64 holds.
func (r Rate) Burst(d time.Duration) (int64, bool) {
	b := r.rat()
	b.Mul(b, new(big.Rat).SetInt64(int64(d)))
	q := new(big.Int).Quo(b.Num(), b.Denom())
	return q.Int64(), q.IsInt64()
}

// Bits returns the rate in bits per second, and whether that is a whole
// number which an int64 holds.
func (r Rate) Bits() (int64, bool) {
	b := r.rat()
	b.Mul(b, big.NewRat(8*int64(time.Second), 1))
	return b.Num().Int64(), b.IsInt() && b.Num().IsInt64()
}

// String gives bits per second where that is a whole number, else the
// fraction: "10mbit", "1234bit", "10000B/1m0s". Unlimited is "unlimited".
func (r Rate) String() string {
	if r == unlimited {
		return "unlimited"
	}
	bits, whole := r.Bits()
	if !whole {
		return fmt.Sprintf("%dB/%v", r.Bytes, r.Period)
	}
	units := [...]string{"bit", "kbit", "mbit", "gbit", "tbit"}
	u := 0
	for u < len(units)-1 && bits != 0 && bits%1000 == 0 {
		bits /= 1000
		u++
	}
	return fmt.Sprintf("%d%s", bits, units[u])
}

// rat is the rate in bytes per nanosecond.
func (r Rate) rat() *big.Rat {
	if r.Bytes == 0 || r.Period <= 0 {
		return new(big.Rat)
	}
	return big.NewRat(r.Bytes, int64(r.Period))
}

// fault says what makes the rate unusable, or nothing.
func (r Rate) fault() string {
	switch {
	case r.Bytes < 0:
		return "is negative"
	case r.Period < 0, r.Period == 0 && r.Bytes != 0:
		return "needs a period above zero"
	}
	return ""
}
