package meter

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"
)

// What limits more than packets: asking without taking, taking a part, waiting.

// Peek is the color that Color would return. It takes nothing.
func (m *Meter) Peek(now int64, n int, in Color) Color {
	m.begin(now)
	return m.profile.peek(m.state, m.profile.log, now, n, in)
}

func (p *Profile) peek(s state, log []entry, now int64, n int, in Color) Color {
	if p.rule != nil {
		return p.byRule(&s, log, now, n, in, false)
	}
	return p.color(&s, nil, now, n, in)
}

// TakeUpTo takes what would be green, but no more than n bytes, and returns how
// much that is: a lease of a part.
func (m *Meter) TakeUpTo(now int64, n int) int {
	m.begin(now)
	n = int(min(int64(n), m.profile.remaining(m.state, m.profile.log, now)))
	if n <= 0 || m.Color(now, n, Green) == Red {
		return 0
	}
	return n
}

// RetryAfter is how long it takes until n bytes would be green, 0 for now, if
// nothing else is taken; false where they never would be, or not as soon as in the
// 292 years of a Duration. It is GCRA's retry_after.
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
	if p.peak {
		peak, fits := p.e.until(s.second + cost - p.e.full())
		after, ok = max(after, peak), ok && fits && cost < p.e.tooLarge
	}
	return delay(now, s.epoch, after, ok && cost < p.c.tooLarge)
}

// delay is a time after the latest that a state has seen, seen from now; false where
// it does not come, or a Duration does not reach it.
func delay(now, epoch, after int64, comes bool) (time.Duration, bool) {
	if after > 0 && epoch > now { // no tokens come before the latest time is there again
		back := uint64(epoch) - uint64(now)
		if back > uint64(math.MaxInt64-after) {
			return 0, false
		}
		after += int64(back)
	}
	if !comes {
		return 0, false
	}
	return time.Duration(after), true
}

// until is in how many ns a bucket will have paid a debt, in units.
func (b *bucket) until(debt int64) (ns int64, ok bool) {
	switch {
	case debt <= 0:
		return 0, true
	case b.rate == 0:
		return 0, false
	}
	return (debt-1)/b.rate + 1, true
}

// retryByRule looks where a rule has more and more as time goes by. After a
// pause, a warm-up has less.
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
	if w, ok := p.rule.(warmUp); ok && s.epoch != notBegun {
		cold := s.epoch + w.length - 1
		if cold < s.epoch {
			cold = math.MaxInt64
		}
		if after, ok := soonest(now, max(now, cold), fits); ok {
			return after, true
		}
	}
	return soonest(now, p.horizonOf(s, now), fits)
}

// horizonOf is a time at which a state is as good as new.
func (p *Profile) horizonOf(s state, now int64) int64 {
	from := max(now, p.latest(s))
	if from > math.MaxInt64-p.rule.span() {
		return math.MaxInt64
	}
	return from + p.rule.span()
}

// latest is a time that is not before the latest that a state has seen.
func (p *Profile) latest(s state) int64 {
	if s.epoch == notBegun {
		return math.MinInt64
	}
	if w, ok := p.rule.(slidingLog); ok {
		return s.epoch * w.slot
	}
	return s.epoch
}

// ResetAfter is how long it takes until the meter is as if nothing had passed,
// if nothing else is taken; false where it never will be, as for RetryAfter. It is
// GCRA's reset_after.
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
		// From when C is full on, E has both rates: e = (numC+numE)*t - c.
		both := bucket{rate: p.c.rate + p.e.rate}
		overflows, fits := both.until(s.first + s.second)
		if !paid || overflows < afterE {
			afterE, paid = overflows, fits && p.c.rate > 0
		}
	}
	return delay(now, s.epoch, max(afterC, afterE), ok && paid)
}

// rested says whether a state is as good as that of a new meter that is full.
func (p *Profile) rested(s state, log []entry, now int64) bool {
	if p.rule != nil {
		return p.rule.rested(s, log, now)
	}
	p.rebase(&s, now)
	return s.first <= 0 && s.second <= 0
}

// Reservation is a promise of Reserve.
type Reservation struct {
	OK    bool          // it was made
	Delay time.Duration // until it may be used

	profile *Profile
	at      int64 // ns
	cost    int64 // units, or bytes of a wide bucket
}

// Reserve takes n bytes that may be used after a delay, ahead of those that ask
// later: the bucket of a token bucket or GCRA goes below empty for it. All other
// meters promise only what is green now. It is not OK where n never fits, would
// have to wait for more than longest, or is more than a bucket counts ahead, which
// is at least three times its burst.
func (m *Meter) Reserve(now int64, n int, longest time.Duration) Reservation {
	p := m.profile
	after, ok := m.RetryAfter(now, n)
	switch {
	case !ok || after > longest || n < 0:
		return Reservation{}
	case after == 0 && m.Color(now, n, Green) != Red:
		return Reservation{OK: true, at: now}
	}
	r := Reservation{true, after, p, now + int64(after), int64(n)}
	w, ok := p.rule.(wide)
	switch {
	case r.at < now: // beyond all times
		return Reservation{}
	case ok && !w.excess:
		l := w.load(m.state, p.log)
		w.refill(&l, now)
		if w.c.burst-l.at[0].bytes > maxGained-r.cost {
			return Reservation{}
		}
		l.at[0].bytes -= r.cost
		w.store(l, &m.state, p.log)
		return r
	case p.rule != nil || p.e.tooLarge > 0:
		return Reservation{}
	}
	p.rebase(&m.state, now)
	r.cost = p.cost(n)
	if m.first > maxGained-r.cost {
		return Reservation{}
	}
	m.first += r.cost
	return r
}

// Cancel gives back what was reserved, unless its delay is over. SetProfile ends
// all reservations: it forgives what they took ahead.
func (m *Meter) Cancel(now int64, r Reservation) {
	if !r.OK || now >= r.at || r.profile != m.profile {
		return
	}
	if w, ok := r.profile.rule.(wide); ok {
		w.give(&m.state, r.cost)
		return
	}
	m.first = max(m.first-r.cost, 0) // one before it may have been canceled
}

// ErrNeverFits is what Wait returns for more than the meter ever lets through.
var ErrNeverFits = errors.New("more than the meter ever lets through")

// Do calls f with the meter, which no other goroutine has meanwhile.
func (l *Locked) Do(f func(*Meter)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.m)
}

// Wait returns when n bytes may pass, which it has taken, or with an error: that
// of the context, also where its deadline comes before, or ErrNeverFits. Those
// who wait for a token bucket or GCRA are served in order, but for those who come
// after one gave up. clock is that of the
// meter, in ns.
func (l *Locked) Wait(ctx context.Context, clock func() int64, n int) error {
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		longest := time.Duration(math.MaxInt64)
		if deadline, ok := ctx.Deadline(); ok {
			longest = time.Until(deadline)
		}
		var r Reservation
		var after time.Duration
		var ever bool
		l.Do(func(m *Meter) {
			now := clock()
			m.Color(now, 0, Red) // begins what has not begun, or has paused
			after, ever = m.RetryAfter(now, n)
			r = m.Reserve(now, n, longest)
		})
		switch {
		case !ever:
			return fmt.Errorf("%d bytes are %w", n, ErrNeverFits)
		case after > longest:
			return fmt.Errorf("%d bytes would have to wait for %v: %w", n, after, context.DeadlineExceeded)
		}
		timer := time.NewTimer(after)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			l.Do(func(m *Meter) { m.Cancel(clock(), r) })
			return context.Cause(ctx)
		}
		if r.OK {
			return nil
		}
	}
}

// CreditWindow is a two-color meter without a clock, as a TCP sender's window: a
// packet takes credit, and its departure or acknowledgment gives it back. A packet
// conforms while the bytes out and its own are no more than Window. It is safe
// for several goroutines; the zero CreditWindow lets only empty packets through.
type CreditWindow struct {
	Window int64

	mu  sync.Mutex
	out int64
}

// Color meters one packet and takes its credit. The result is in, or Red.
func (w *CreditWindow) Color(n int, in Color) Color {
	w.mu.Lock()
	defer w.mu.Unlock()
	if in == Red || n < 0 || int64(n) > w.Window-w.out {
		return Red
	}
	w.out += int64(n)
	return in
}

// Return gives back the credit of n bytes, but no more than is out.
func (w *CreditWindow) Return(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.out -= min(max(int64(n), 0), w.out)
}

// Out is how many bytes are out.
func (w *CreditWindow) Out() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.out
}
