package oracle

import "math/big"

// warmBucket is a token bucket whose rate rises in steps from a third to the full rate, during its
// warm-up. It cools down if unused for the time of a warm-up.
type warmBucket struct {
	bucket
	warmup *big.Rat // ns

	begin *big.Rat // beginning of the warm-up
	last  *big.Rat // time of the last packet; nil before the first
}

const warmSteps = 100

func (b *warmBucket) decide(now, cost *big.Rat, in color) color {
	b.tokens = b.level(now)
	if b.cold(now) {
		b.tokens = least(b.tokens, new(big.Rat).Quo(b.size, whole(3)))
		b.begin = now
	}
	b.last = now

	if in == red || !b.fits(cost) {
		return red
	}
	b.take(cost)
	return in
}

func (b *warmBucket) likeNew(now *big.Rat) bool {
	return b.cold(now) && b.level(now).Cmp(b.size) == 0
}

func (b *warmBucket) cold(now *big.Rat) bool {
	return b.last == nil || new(big.Rat).Sub(now, b.last).Cmp(b.warmup) >= 0
}

// level returns the tokens at now if no packet arrives before: the area under the steps of the
// rate since the last packet, step by step.
func (b *warmBucket) level(now *big.Rat) *big.Rat {
	tokens := new(big.Rat).Set(b.tokens)
	if b.last == nil {
		return tokens
	}
	for from := b.last; from.Cmp(now) < 0; {
		k := b.step(from)
		to := now
		if k < warmSteps {
			to = least(now, b.stair(k+1))
		}
		area := new(big.Rat).Sub(to, from)
		area.Mul(area, b.rate)
		area.Mul(area, big.NewRat(warmSteps+2*k, 3*warmSteps))
		tokens.Add(tokens, area)
		from = to
	}
	return least(tokens, b.size)
}

// step returns the number of the step at a time.
func (b *warmBucket) step(t *big.Rat) int64 {
	w := new(big.Rat).Sub(t, b.begin)
	w.Mul(w, whole(warmSteps))
	k := floor(w.Quo(w, b.warmup))
	if k.Cmp(big.NewInt(warmSteps)) >= 0 {
		return warmSteps
	}
	return k.Int64()
}

// stair returns the time at which a step begins, which need not be a whole ns.
func (b *warmBucket) stair(k int64) *big.Rat {
	t := new(big.Rat).Mul(b.warmup, big.NewRat(k, warmSteps))
	return t.Add(t, b.begin)
}

func least(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) < 0 {
		return a
	}
	return b
}

func parseWarmBucket(o *options) func() state {
	warmup := new(big.Rat).SetInt(o.duration("warmup", longest))
	build := func() *warmBucket {
		return &warmBucket{bucket: *o.bucket("rate", "burst"), warmup: warmup}
	}
	build() // reports mistakes
	return func() state { return build() }
}
