package tc

import "math/big"

const (
	tickNS   = 64 // ns in a tick of the packet scheduler (PSCHED_SHIFT, net/pkt_sched.h)
	maxTicks = 1<<32 - 1
	second   = 1_000_000_000
)

// burstTicks returns the ticks of a number of bytes at a rate in bytes/s, rounded up, and whether
// tc can store them.
func burstTicks(rate, bytes int64) (ticks int64, ok bool) {
	if rate <= 0 {
		return 0, false
	}
	n := big.NewInt(bytes)
	n.Mul(n, big.NewInt(second))
	d := big.NewInt(rate)
	d.Mul(d, big.NewInt(tickNS))
	n.Add(n, d).Sub(n, big.NewInt(1)).Quo(n, d)
	return n.Int64(), n.IsInt64() && n.Int64() < maxTicks
}

// bytesOfTicks returns the bytes of a number of ticks at a rate in bytes/s, rounded down.
func bytesOfTicks(rate, ticks int64) int64 {
	n := big.NewInt(rate)
	n.Mul(n, big.NewInt(ticks)).Mul(n, big.NewInt(tickNS)).Quo(n, big.NewInt(second))
	return n.Int64()
}

// part returns n*share/whole, rounded down.
func part(n, share, whole int64) int64 {
	p := big.NewInt(n)
	p.Mul(p, big.NewInt(share)).Quo(p, big.NewInt(whole))
	return p.Int64()
}
