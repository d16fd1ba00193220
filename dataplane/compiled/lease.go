package compiled

import (
	"math/big"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// BucketLimits contains the rates and bursts of the buckets of a meter: C, then E or P.
type BucketLimits [2]BucketLimit

// BucketLimit is the rate and burst of one bucket.
type BucketLimit struct {
	Rate  int64 // eighths of a token per second: bit/s for a meter of bytes
	Burst int64 // tokens: bytes, or packets
}

// Lease limits a meter whose budget is on a server. Its three phases have limits of their own.
type Lease struct {
	Limits [3]BucketLimits
	// Until contains the ends of the first two phases, in ns of the pipeline's clock.
	// A second end before the first counts as the first.
	Until [2]int64
}

// Ends returns the ends of the first two phases, in ns, in order.
func (l *Lease) Ends() [2]int64 { return [2]int64{l.Until[0], max(l.Until[0], l.Until[1])} }

// LimitsOf returns the limits of a meter with token buckets, with rates rounded down. If
// two buckets share a rate, the second has rate 0.
func LimitsOf(p meter.Params) (l BucketLimits) {
	before := ""
	for i, b := range p.Buckets() {
		l[i].Burst = b.Burst
		if b.RateName != before {
			l[i].Rate = eighths(b.Rate)
		}
		before = b.RateName
	}
	return l
}

// eighths returns a rate in eighths of a token per second, rounded down.
func eighths(r meter.Rate) int64 {
	n := new(big.Int).Mul(big.NewInt(r.Bytes), big.NewInt(8e9))
	return n.Div(n, big.NewInt(int64(max(r.Period, 1)))).Int64()
}

// With returns the parameters of a meter with token buckets with its limits replaced by l.
// The result may be invalid, such as with a zero rate or burst: then nothing passes.
func (l BucketLimits) With(p meter.Params) meter.Params {
	if p.Kind().Info().Peak {
		l[0].Rate = min(l[0].Rate, l[1].Rate) // PIR must be at least CIR (RFC 2698 §2)
	}
	before := ""
	for i, b := range p.Buckets() {
		p = meter.WithField(p, b.BurstName, l[i].Burst)
		if b.RateName != before {
			p = meter.WithField(p, b.RateName, meter.BitRate(l[i].Rate))
		}
		before = b.RateName
	}
	return p
}
