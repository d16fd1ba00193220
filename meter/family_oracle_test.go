package meter

import "math/big"

// slowMeter is a meter in exact rational arithmetic. It is written from the rules and shares only
// the parameter structs and Color with the package. Time never goes backwards.
type slowMeter interface {
	// color meters a packet at a time that is not before the latest.
	color(now int64, n int, in Color) Color
	// tokens is Meter.Tokens at the time of the latest packet.
	tokens() (tc, te int64)
	// idle reports whether the meter is as good as new at now.
	isIdle(now int64) bool
}

// newSlow returns the model of a meter that begins with tokens, at most the burst.
func newSlow(params compiler, tokens int64) slowMeter {
	switch t := params.(type) {
	case TokenBucket:
		if t.Warmup == 0 {
			return newSlowBucket(t, tokens)
		}
		return &slowWarm{
			rate: rational(t.Rate), burst: ratOf(t.Burst), warmup: ratOf(int64(t.Warmup)),
			level: ratOf(min(max(tokens, 0), t.Burst)),
		}
	case FixedWindow:
		return &slowWindow{limit: t.Limit, length: int64(t.Window), carried: takenOf(t.Limit, tokens)}
	case SlidingCounter:
		return &slowCounter{limit: t.Limit, length: int64(t.Window), carried: takenOf(t.Limit, tokens)}
	case SlidingWindow:
		slot := int64(t.Window) / int64(t.Slots)
		return &slowLog{limit: t.Limit, slot: slot, length: int64(t.Slots), first: takenOf(t.Limit, tokens)}
	case SlidingLog:
		return &slowLog{
			limit: t.Limit, slot: 1, length: int64(t.Window), entries: t.Entries,
			first: takenOf(t.Limit, tokens),
		}
	case TSWTCM:
		return newSlowTSW(t)
	}
	panic("no model")
}

// takenOf returns the bytes taken if tokens are left of a limit.
func takenOf(limit, tokens int64) int64 { return limit - min(max(tokens, 0), limit) }

func nsSince(now, then int64) *big.Int { return new(big.Int).Sub(big.NewInt(now), big.NewInt(then)) }

// windowOf returns floor(now / length).
func windowOf(now, length int64) *big.Int {
	return new(big.Int).Div(big.NewInt(now), big.NewInt(length)) // Euclidean: floor for length > 0
}

// slowBucket is the oracle of a token bucket.
type slowBucket struct{ oracle }

func newSlowBucket(t TokenBucket, tokens int64) *slowBucket {
	b := &slowBucket{*newOracle(t)}
	b.Tokens[0] = ratOf(min(max(tokens, 0), t.Burst))
	return b
}

func (b *slowBucket) color(now int64, n int, in Color) Color {
	if n < 0 {
		b.oracle.color(now, 0, Red)
		return Red
	}
	return b.oracle.color(now, n, in)
}

func (b *slowBucket) isIdle(now int64) bool {
	later := b.Clone()
	if later.Begun {
		later.Refill(now)
	}
	return later.Tokens[0].Cmp(later.Burst[0]) == 0
}

// slowWarm is a token bucket with a warm-up.
type slowWarm struct {
	rate, burst, warmup *big.Rat
	level               *big.Rat
	stairs              []*big.Rat // area before each step
	begin, last         int64
	begun               bool
}

// area returns the integral of the share of the rate from the start of the warm-up to w: the
// steps before that of w, and the part of its own step.
func (b *slowWarm) area(w *big.Rat) *big.Rat {
	if b.stairs == nil {
		sum := new(big.Rat)
		for k := range int64(101) {
			b.stairs = append(b.stairs, new(big.Rat).Set(sum))
			width := new(big.Rat).Mul(b.warmup, big.NewRat(1, 100))
			sum.Add(sum, width.Mul(width, big.NewRat(100+2*k, 300)))
		}
	}
	step := new(big.Rat).Quo(w, b.warmup)
	k := int64(100)
	if step.Cmp(ratOf(1)) < 0 {
		k = floorOf(step.Mul(step, ratOf(100)))
	}
	part := new(big.Rat).Mul(b.warmup, big.NewRat(k, 100))
	part.Sub(w, part).Mul(part, big.NewRat(100+2*k, 300))
	return part.Add(part, b.stairs[k])
}

func (b *slowWarm) levelAt(now int64) *big.Rat {
	if !b.begun {
		return b.level
	}
	gain := b.area(new(big.Rat).SetInt(nsSince(now, b.begin)))
	gain.Sub(gain, b.area(new(big.Rat).SetInt(nsSince(b.last, b.begin))))
	gain.Mul(gain, b.rate)
	return lesser(gain.Add(gain, b.level), b.burst)
}

func (b *slowWarm) paused(now int64) bool {
	return !b.begun || new(big.Rat).SetInt(nsSince(now, b.last)).Cmp(b.warmup) >= 0
}

func (b *slowWarm) color(now int64, n int, in Color) Color {
	level, cold := b.levelAt(now), b.paused(now)
	if cold {
		level = lesser(level, new(big.Rat).Quo(b.burst, ratOf(3)))
		b.begin = now
	}
	b.level, b.last, b.begun = level, now, true
	cost := ratOf(int64(n))
	if in == Red || n < 0 || cost.Cmp(level) > 0 {
		return Red
	}
	b.level = new(big.Rat).Sub(level, cost)
	return in
}

func (b *slowWarm) tokens() (tc, te int64) { return floorOf(b.level), 0 }

func (b *slowWarm) isIdle(now int64) bool { return b.paused(now) && b.levelAt(now).Cmp(b.burst) == 0 }

// slowWindow is a fixed window.
type slowWindow struct {
	limit   int64
	length  int64
	carried int64 // bytes taken before the first packet, or in this window
	window  *big.Int
}

func (w *slowWindow) color(now int64, n int, in Color) Color {
	if at := windowOf(now, w.length); w.window == nil || at.Cmp(w.window) > 0 {
		if w.window != nil {
			w.carried = 0
		}
		w.window = at
	}
	if in == Red || n < 0 || new(big.Rat).Add(ratOf(w.carried), ratOf(int64(n))).Cmp(ratOf(w.limit)) > 0 {
		return Red
	}
	w.carried += int64(n)
	return in
}

func (w *slowWindow) tokens() (tc, te int64) { return w.limit - w.carried, 0 }

func (w *slowWindow) isIdle(now int64) bool {
	return w.carried == 0 || w.window != nil && windowOf(now, w.length).Cmp(w.window) > 0
}
