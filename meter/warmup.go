package meter

import (
	"fmt"
	"math/bits"
	"time"
)

// steps is the number of steps in which the rate climbs from a third to full.
const steps = 100

const maxWarmup = 24 * time.Hour

// warmUp adds a warm-up to a token bucket.
func (p *Profile) warmUp(d time.Duration) (*Profile, error) {
	if w, ok := p.rule.(wide); ok {
		return nil, w.tooWide(p.kind)
	}
	burst, _ := p.Bursts()
	part := int64(1)
	for _, n := range []int64{2, 4, 5, 10, 20, 25, 50, 100} {
		if int64(d)%n == 0 {
			part = n
		}
	}
	// Divide a unit of the bucket into this many parts, so that a ns of any step brings a whole
	// number.
	fine := 3 * steps * steps / (2 * part)
	w := warmUp{
		num: p.c.rate, rate: uint64(p.c.rate) * uint64(fine), unit: p.den * fine,
		burst: burst, length: int64(d), steps: steps / part, part: int64(d) / part,
	}
	const maxUnits = 1 << 62
	if largest := maxUnits / fine / p.den; burst > largest {
		return nil, &FieldError{
			"Burst",
			fmt.Sprintf("of %d bytes exceeds the largest burst that 64 bits count exactly at this rate with a warm-up of %v, %d bytes",
				burst, d, largest),
		}
	}
	return &Profile{params: p.params, kind: p.kind, rule: w}, nil
}

// warmUp is a token bucket whose rate climbs. A state holds the time of the latest packet in epoch,
// the tokens in first, in 1/unit byte, and the start of the warm-up in second.
type warmUp struct {
	num    int64  // units of the token bucket in a nanosecond, at the full rate
	rate   uint64 // units of the warm-up in a nanosecond, at the full rate
	unit   int64  // units of the warm-up in a byte
	burst  int64  // bytes
	length int64  // ns of the warm-up
	steps  int64  // steps divided by their common divisor with length
	part   int64  // ns: length divided by it
}

func (w warmUp) start(tc, _ int64) (c, e int64) { return min(max(tc, 0), w.burst) * w.unit, 0 }
func (w warmUp) bursts() (c, e int64)           { return w.burst, 0 }
func (w warmUp) entries() int                   { return 0 }
func (w warmUp) span() int64                    { return 1 << 62 }

// brought returns the units, divided by num, arriving in the first ns of a warm-up. In step k the
// rate is (steps+2k)/(3*steps) of the full rate. The sum is ns times the rate of the last step k,
// less the difference of each earlier step.
func (w *warmUp) brought(ns uint64) uint64 {
	k := ns * steps / uint64(w.length)
	return ns*uint64(w.steps)*(steps/2+k) - uint64(w.part)*(k*(k+1)/2)
}

// advance brings a state to now. After a pause a warm-up begins.
func (w *warmUp) advance(s *state, now int64) {
	if cold := s.epoch == notBegun || w.paused(s, now); !cold {
		w.refill(s, now)
		return
	}
	w.refill(s, now)
	s.first = min(s.first, w.burst*w.unit/3)
	s.epoch = max(now, earliest)
	s.second = s.epoch
}

// paused reports whether a packet at now ends a pause.
func (w *warmUp) paused(s *state, now int64) bool {
	return now > s.epoch && uint64(now)-uint64(s.epoch) >= uint64(w.length)
}

// refill adds the tokens since the latest packet.
func (w *warmUp) refill(s *state, now int64) {
	full := w.burst * w.unit
	if s.epoch == notBegun || now <= s.epoch {
		return
	}
	from, to, length := uint64(s.epoch)-uint64(s.second), uint64(now)-uint64(s.second), uint64(w.length)
	var hi, gain uint64
	if from < length {
		hi, gain = bits.Mul64(w.brought(min(to, length))-w.brought(from), uint64(w.num))
	}
	more, warm := bits.Mul64(max(to, length)-max(from, length), w.rate)
	switch left := uint64(full - s.first); {
	case hi > 0 || more > 0 || gain >= left || warm >= left-gain:
		s.first = full
	default:
		s.first += int64(gain + warm)
	}
	s.epoch = now
}

func (w *warmUp) look(s *state, now int64, n int, in Color) Color {
	w.advance(s, now)
	cost := min(uint64(n), uint64(w.burst)+1) * uint64(w.unit)
	return keeps(in != Red && cost <= uint64(s.first), in)
}

func (w warmUp) tokens(s state, _ []entry, now int64) (tc, te int64) {
	w.advance(&s, now)
	return s.first / w.unit, 0
}

func (w warmUp) valid(s state, _ []entry) bool {
	return s.first >= 0 && s.first <= w.burst*w.unit && (s.epoch == notBegun || s.second <= s.epoch)
}

func (w warmUp) rested(s state, _ []entry, now int64) bool {
	rested := s.epoch == notBegun || w.paused(&s, now)
	w.refill(&s, now)
	return rested && s.first == w.burst*w.unit
}
