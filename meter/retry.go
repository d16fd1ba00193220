package meter

import (
	"math"
	"time"
)

// RetryAfter returns the time until n bytes would be green if nothing else is taken; 0 means
// now. It returns false if they never would be, or not within the 292 years of a Duration.
// It is GCRA's retry_after.
func (m *Meter) RetryAfter(now int64, n int) (time.Duration, bool) {
	m.begin(now)
	return m.profile.retryAfter(m.state, m.profile.log, now, n)
}

func (p *Profile) retryAfter(s state, log []entry, now int64, n int) (time.Duration, bool) {
	if p.rule != nil {
		return p.retryByRule(s, log, now, n)
	}
	p.rebase(&s, now)
	cost := p.cost(n)
	after, ok := p.c.until(s.first + cost - p.c.full())
	if p.peak { // both rates are above zero
		peak, _ := p.e.until(s.second + cost - p.e.full())
		after, ok = max(after, peak), cost < p.e.tooLarge
	}
	return delay(now, s.epoch, after, ok && cost < p.c.tooLarge)
}

// delay returns the time from now until after ns past the epoch. It returns false if that time
// never comes, or exceeds a Duration.
func delay(now, epoch, after int64, happens bool) (time.Duration, bool) {
	if after > 0 && epoch > now { // no tokens arrive before the latest time so far
		back := uint64(epoch) - uint64(now)
		if back > uint64(math.MaxInt64-after) {
			return 0, false
		}
		after += int64(back)
	}
	if !happens {
		return 0, false
	}
	return time.Duration(after), true
}

// until returns the ns in which the bucket gains the units of a debt.
func (b *bucket) until(debt int64) (ns int64, ok bool) {
	switch {
	case debt <= 0:
		return 0, true
	case b.rate == 0:
		return 0, false
	}
	return (debt-1)/b.rate + 1, true
}

// retryByRule searches for the time: the tokens of a rule only grow, except in a warm-up: a pause
// takes tokens from it.
func (p *Profile) retryByRule(s state, log []entry, now int64, n int) (time.Duration, bool) {
	if s.epoch == notBegun {
		p.byRule(&s, log, now, 0, Green, false)
	}
	fits := func(now int64) bool {
		if _, draws := p.rule.(tsw); draws {
			tc, _ := p.rule.tokens(s, log, now)
			return n >= 0 && int64(n) <= tc
		}
		at := s
		return p.byRule(&at, log, now, n, Green, false) == Green
	}
	if w, ok := p.rule.(warmUp); ok {
		warm := s.epoch + w.length - 1 // the last time before a pause
		if warm < s.epoch {
			warm = math.MaxInt64
		}
		if after, ok := soonest(now, max(now, warm), fits); ok {
			return after, true
		}
	}
	return soonest(now, p.horizonOf(s, now), fits)
}

// horizonOf returns a time at which a state is as good as new.
func (p *Profile) horizonOf(s state, now int64) int64 {
	from := max(now, p.latest(s))
	if from > math.MaxInt64-p.rule.span() {
		return math.MaxInt64
	}
	return from + p.rule.span()
}

// latest returns the latest time in a state, or a later one.
func (p *Profile) latest(s state) int64 {
	if s.epoch == notBegun {
		return math.MinInt64
	}
	if w, ok := p.rule.(slidingLog); ok {
		return s.epoch * w.slot
	}
	return s.epoch
}

// ResetAfter returns the time until the meter is as good as new if nothing else is taken. It
// returns false if it never will be, as RetryAfter does. It is GCRA's reset_after.
func (m *Meter) ResetAfter(now int64) (time.Duration, bool) {
	m.begin(now)
	return m.profile.resetAfter(m.state, m.profile.log, now)
}

func (p *Profile) resetAfter(s state, log []entry, now int64) (time.Duration, bool) {
	if p.rule != nil {
		if s.epoch == notBegun {
			p.byRule(&s, log, now, 0, Green, false)
		}
		return soonest(now, p.horizonOf(s, now), func(now int64) bool { return p.rule.rested(s, log, now) })
	}
	p.rebase(&s, now)
	afterC, ok := p.c.until(s.first)
	afterE, paid := p.e.until(s.second)
	if p.coupled != 0 && s.second > 0 {
		// When C is full, E gains at both rates: owedE = owedC + owedE - (rateC+rateE)*t.
		both := bucket{rate: p.c.rate + p.e.rate}
		overflows, fits := both.until(s.first + s.second)
		if !paid || overflows < afterE {
			afterE, paid = overflows, fits
		}
	}
	return delay(now, s.epoch, max(afterC, afterE), ok && paid)
}

// rested reports whether a state is as good as a new, full meter's.
func (p *Profile) rested(s state, log []entry, now int64) bool {
	if p.rule != nil {
		return p.rule.rested(s, log, now)
	}
	p.rebase(&s, now)
	return s.first <= 0 && s.second <= 0
}
