package meter

import (
	"fmt"
	"math/bits"
)

// wide is one or two buckets whose bursts or rates in units exceed 64 bits, or whose rate
// is unlimited. A bucket counts whole bytes, and the units of the next byte. The words of
// a state are the bytes of C and E, and one log entry holds their units. Without E, the
// second word holds the units of C.
type wide struct {
	c, e    wideBucket
	coupled bool // tokens overflowing C go into E, in the same unit
	excess  bool // there is an E
}

type wideBucket struct {
	num, den int64 // units in a nanosecond, or endless; units in a byte
	burst    int64 // bytes
}

// newWide compiles one or two buckets. Coupled buckets must have a common unit.
func newWide(c, e bucketParams, coupled bool) (wide, error) {
	rateC, rateE := c.rate.finite().rat(), e.rate.finite().rat()
	denC, denE := rateC.Denom(), rateE.Denom()
	if coupled {
		denC = lcm(denC, denE)
		denE = denC
	}
	unitsC, unitsE := units(rateC, denC), units(rateE, denE)
	if !denC.IsInt64() || !unitsC.IsInt64() || !unitsE.IsInt64() {
		return wide{}, &FieldError{
			"EIR",
			fmt.Sprintf("%v and CIR %v have no common unit that 64 bits count exactly, which coupling needs: choose rounder rates",
				e.rate, c.rate),
		}
	}
	w := wide{
		c:       wideBucket{unitsC.Int64(), denC.Int64(), c.burst},
		e:       wideBucket{unitsE.Int64(), denE.Int64(), e.burst},
		coupled: coupled,
		excess:  e.name != "",
	}
	if c.rate == unlimited {
		w.c.num = endless
	}
	if e.rate == unlimited {
		w.e.num = endless
	}
	return w, nil
}

// level is the contents of a bucket. The bytes are negative if some are reserved ahead. The
// units are less than a byte.
type level struct{ bytes, units int64 }

// levels are the contents of both buckets.
type levels struct {
	epoch int64
	at    [2]level
}

// endless is the num of an Unlimited rate.
const endless = -1

// plenty fills any bucket, whatever is reserved ahead.
const plenty = 1 << 62 // bytes

func (w *wide) load(s state, log []entry) levels {
	switch {
	case !w.excess:
		return levels{s.epoch, [2]level{{s.first, s.second}}}
	case s.epoch == notBegun: // the log may still be another key's
		return levels{s.epoch, [2]level{{s.first, 0}, {s.second, 0}}}
	}
	return levels{s.epoch, [2]level{{s.first, log[0].slot}, {s.second, log[0].n}}}
}

func (w *wide) store(l levels, s *state, log []entry) {
	if !w.excess {
		*s = state{l.epoch, l.at[0].bytes, l.at[0].units}
		return
	}
	*s = state{l.epoch, l.at[0].bytes, l.at[1].bytes}
	log[0] = entry{l.at[0].units, l.at[1].units}
}

// add puts tokens into a bucket and returns the overflow.
func (b *wideBucket) add(to *level, tokens level) (over level) {
	to.bytes += tokens.bytes
	if units := uint64(to.units) + uint64(tokens.units); units >= uint64(b.den) {
		to.bytes++
		to.units = int64(units - uint64(b.den))
	} else {
		to.units = int64(units)
	}
	if to.bytes >= b.burst {
		over = level{to.bytes - b.burst, to.units}
		*to = level{b.burst, 0}
	}
	return over
}

// brings returns the tokens arriving in dt ns, at most plenty.
func (b *wideBucket) brings(dt uint64) level {
	if b.num == endless {
		return level{plenty, 0}
	}
	hi, lo := bits.Mul64(dt, uint64(b.num))
	if hi >= uint64(b.den) {
		return level{plenty, 0} // 2^64 bytes and more
	}
	bytes, units := bits.Div64(hi, lo, uint64(b.den))
	if bytes > plenty {
		return level{plenty, 0}
	}
	return level{int64(bytes), int64(units)}
}

// refill brings the buckets to now.
func (w *wide) refill(l *levels, now int64) {
	var dt uint64
	if l.epoch != notBegun && now > l.epoch {
		dt = uint64(now) - uint64(l.epoch)
	}
	l.epoch = max(l.epoch, now, earliest) // notBegun is before earliest
	over := w.c.add(&l.at[0], w.c.brings(dt))
	if !w.excess {
		return
	}
	w.e.add(&l.at[1], w.e.brings(dt))
	if w.coupled {
		w.e.add(&l.at[1], over)
	}
}

// take takes the bytes of a packet from buckets that were advanced to now.
func (w *wide) take(p *Profile, l *levels, n int, in Color) Color {
	cost := int64(min(uint64(n), p.longest))
	owedC, owedE := -l.at[0].bytes, -l.at[1].bytes
	roomC, roomE := p.rooms(1, 1, in)
	if !w.excess {
		roomE = noRoom
	}
	var color Color
	if p.peak {
		owedC, owedE, color = takeBoth(owedC, owedE, roomC, roomE, cost)
	} else {
		owedC, owedE, color = takeEither(owedC, owedE, roomC, roomE, cost, in)
	}
	l.at[0].bytes, l.at[1].bytes = -owedC, -owedE
	return color
}

func (w *wide) color(p *Profile, s *state, log []entry, now int64, n int, in Color) Color {
	l := w.load(*s, log)
	w.refill(&l, now)
	color := w.take(p, &l, n, in)
	w.store(l, s, log)
	return color
}

func (w *wide) look(p *Profile, s *state, log []entry, now int64, n int, in Color) Color {
	l := w.load(*s, log)
	w.refill(&l, now)
	if s.epoch == notBegun {
		w.store(l, s, log)
	}
	return w.take(p, &l, n, in)
}

// give puts bytes back into C. There must be no E.
func (w *wide) give(s *state, n int64) {
	l := w.load(*s, nil)
	w.c.add(&l.at[0], level{n, 0})
	w.store(l, s, nil)
}

func (w wide) start(tc, te int64) (c, e int64) {
	c, e = min(max(tc, 0), w.c.burst), min(max(te, 0), w.e.burst)
	if !w.excess {
		e = 0
	}
	return c, e
}

func (w wide) bursts() (c, e int64) { return w.c.burst, w.e.burst }
func (w wide) span() int64          { return 1<<63 - 1 }

func (w wide) entries() int {
	if w.excess {
		return 1
	}
	return 0
}

func (w wide) tokens(s state, log []entry, now int64) (tc, te int64) {
	l := w.load(s, log)
	w.refill(&l, now)
	return max(l.at[0].bytes, 0), max(l.at[1].bytes, 0)
}

func (w wide) rested(s state, log []entry, now int64) bool {
	tc, te := w.tokens(s, log, now)
	return tc == w.c.burst && te == w.e.burst
}

func (w wide) valid(s state, log []entry) bool {
	if !w.excess { // bytes may be reserved ahead
		return s.first >= -maxGained && s.first <= w.c.burst && s.second >= 0 && s.second < w.c.den
	}
	var units entry
	if s.epoch != notBegun {
		if len(log) == 0 {
			return false
		}
		units = log[0]
	}
	return min(s.first, s.second, units.slot, units.n) >= 0 &&
		s.first <= w.c.burst && s.second <= w.e.burst && units.slot < w.c.den && units.n < w.e.den
}

// tooWide returns the reason why the state does not fit two words of 64 bits, or nil.
func (w *wide) tooWide(k Kind) error {
	names := [2]string{"Burst"}
	if w.excess {
		names = [2]string{"CBS", "EBS"}
	}
	if k == kindTRTCM {
		names[1] = "PBS"
	}
	for i, b := range [2]wideBucket{w.c, w.e} {
		switch largest := maxUnits / b.den; {
		case b.num == endless:
			return &FieldError{names[i], "has an unlimited rate, which 64 bits cannot express"}
		case b.burst > largest:
			return &FieldError{names[i], fmt.Sprintf(
				"of %d bytes exceeds the largest burst that 64 bits count exactly at this rate, %d bytes",
				b.burst, largest)}
		case b.num > maxRate:
			return &FieldError{
				names[i],
				fmt.Sprintf("has a rate too fast or too fine for 64 bits: %d/%d bytes/ns", b.num, b.den),
			}
		}
	}
	return nil
}

// buckets returns C and E in the common form of all meters. It returns false for a meter without
// buckets.
func (p *Profile) buckets() (b [2]wideBucket, ok bool) {
	switch r := p.rule.(type) {
	case nil:
		of := func(b bucket) wideBucket { return wideBucket{b.rate, p.den, b.full() / p.den} }
		return [2]wideBucket{of(p.c), of(p.e)}, true
	case wide:
		return [2]wideBucket{r.c, r.e}, true
	}
	return b, false
}

// levels returns the contents of the buckets at now.
func (p *Profile) levels(s state, log []entry, now int64) levels {
	if w, ok := p.rule.(wide); ok {
		l := w.load(s, log)
		w.refill(&l, now)
		return l
	}
	p.rebase(&s, now)
	holds := func(b bucket, debt int64) level {
		units := max(b.full()-debt, 0)
		return level{units / p.den, units % p.den}
	}
	return levels{s.epoch, [2]level{holds(p.c, s.first), holds(p.e, s.second)}}
}

// state returns the state of buckets with these contents.
func (p *Profile) state(l levels, log []entry) (s state) {
	if w, ok := p.rule.(wide); ok {
		w.store(l, &s, log)
		return s
	}
	lacks := func(b bucket, holds level) int64 {
		return b.full() - (holds.bytes*p.den + holds.units)
	}
	return state{l.epoch, lacks(p.c, l.at[0]), lacks(p.e, l.at[1])}
}

// carry returns the contents in the unit of another bucket, at most its burst.
func (l level) carry(from, to wideBucket) level {
	switch {
	case l.bytes < 0:
		return level{}
	case l.bytes >= to.burst:
		return level{to.burst, 0}
	}
	hi, lo := bits.Mul64(uint64(l.units), uint64(to.den))
	units, _ := bits.Div64(hi, lo, uint64(from.den))
	return level{l.bytes, int64(units)}
}
