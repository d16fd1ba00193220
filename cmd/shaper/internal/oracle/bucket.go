package oracle

import "math/big"

// bucket holds at most size tokens, and gains rate tokens per nanosecond.
type bucket struct {
	rate   *big.Rat
	size   *big.Rat
	tokens *big.Rat
}

// add adds n tokens to the bucket and returns the overflow.
func (b *bucket) add(n *big.Rat) (overflow *big.Rat) {
	sum := new(big.Rat).Add(b.tokens, n)
	if sum.Cmp(b.size) <= 0 {
		b.tokens = sum
		return new(big.Rat)
	}
	b.tokens = new(big.Rat).Set(b.size)
	return sum.Sub(sum, b.size)
}

// fits reports whether the bucket holds at least cost tokens.
func (b *bucket) fits(cost *big.Rat) bool { return b.tokens.Cmp(cost) >= 0 }

func (b *bucket) take(cost *big.Rat) { b.tokens = new(big.Rat).Sub(b.tokens, cost) }

// buckets is the state of every meter with plain buckets. c is the committed bucket, and the
// only one of a token bucket. e is the excess bucket of RFC 2697 and RFC 4115. p is the peak
// bucket of RFC 2698.
type buckets struct {
	kind     string // srtcm, trtcm, trtcm4115, token-bucket or gcra
	coupling bool   // RFC 4115 only: the overflow of c goes into e
	c, e, p  *bucket

	last *big.Rat // time of the last refill; nil before the first packet
}

func (b *buckets) decide(now, cost *big.Rat, in color) color {
	b.refill(now)
	switch b.kind {
	case "srtcm":
		return b.committedOrExcess(cost, in)
	case "trtcm":
		return b.rfc2698(cost, in)
	case "trtcm4115":
		return b.committedOrExcess(cost, in)
	}
	return b.tokenBucket(cost, in)
}

// likeNew may refill the buckets. A refill is exact, so the number of refills does not matter.
func (b *buckets) likeNew(now *big.Rat) bool {
	b.refill(now)
	for _, x := range []*bucket{b.c, b.e, b.p} {
		if x != nil && x.tokens.Cmp(x.size) < 0 {
			return false
		}
	}
	return true
}

// refill adds the tokens for the time since the last packet. The clock starts with the first
// packet.
func (b *buckets) refill(now *big.Rat) {
	if b.last == nil {
		b.last = now
		return
	}
	dt := new(big.Rat).Sub(now, b.last)
	if dt.Sign() <= 0 {
		return
	}
	b.last = now

	grant := func(x *bucket) *big.Rat { return new(big.Rat).Mul(x.rate, dt) }
	overflow := b.c.add(grant(b.c))
	switch b.kind {
	case "srtcm":
		b.e.add(overflow)
	case "trtcm":
		b.p.add(grant(b.p))
	case "trtcm4115":
		b.e.add(grant(b.e))
		if b.coupling {
			b.e.add(overflow)
		}
	}
}

// committedOrExcess implements RFC 2697 §3, color-aware, and Figure 1 of RFC 4115 §3. A packet of
// exactly the available tokens conforms.
func (b *buckets) committedOrExcess(cost *big.Rat, pre color) color {
	switch {
	case pre == green && b.c.fits(cost):
		b.c.take(cost)
		return green
	case pre != red && b.e.fits(cost):
		b.e.take(cost)
		return yellow
	}
	return red
}

// rfc2698 implements RFC 2698 §3, color-aware.
func (b *buckets) rfc2698(cost *big.Rat, pre color) color {
	switch {
	case pre == red || !b.p.fits(cost):
		return red
	case pre == yellow || !b.c.fits(cost):
		b.p.take(cost)
		return yellow
	}
	b.p.take(cost)
	b.c.take(cost)
	return green
}

// tokenBucket knows two colors of its own. A conforming packet keeps its input color.
func (b *buckets) tokenBucket(cost *big.Rat, pre color) color {
	if pre == red || !b.c.fits(cost) {
		return red
	}
	b.c.take(cost)
	return pre
}
