package meter

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

// Reservation is the result of Reserve.
type Reservation struct {
	OK    bool          // whether the bytes were reserved
	Delay time.Duration // time until they may be used

	profile *Profile
	at      int64 // ns: the time at which they may be used
	cost    int64 // units, or bytes of a wide bucket
}

// Reserve takes n bytes now, for use after a delay. A token bucket goes below empty for them, so
// later calls wait longer. All other meters reserve only bytes green now.
//
// The Reservation is not OK if n never fits, if the delay would exceed longest, or if more
// is reserved ahead than the bucket can count, which is at least three times its burst.
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
	case r.at < now: // past the largest time
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

// Cancel returns reserved bytes to the bucket, unless their delay is over at now. SetProfile
// ends all reservations: the bytes reserved ahead are not owed any more.
func (m *Meter) Cancel(now int64, r Reservation) {
	if !r.OK || now >= r.at || r.profile != m.profile {
		return
	}
	if w, ok := r.profile.rule.(wide); ok {
		w.give(&m.state, r.cost)
		return
	}
	m.first = max(m.first-r.cost, 0) // earlier reservations may have been canceled
}

// ErrNeverFits is the error of Wait for more bytes than the meter ever lets through at once.
var ErrNeverFits = errors.New("more than the meter ever lets through")

// Wait takes n bytes and returns when they may pass. clock is the clock of the meter, in ns. The
// error is the context's, also if its deadline is before the bytes may pass, or ErrNeverFits.
//
// Calls on a token bucket are served in order. If a call gives up, its bytes go to calls arriving
// later, which may then be served before calls already waiting.
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
			m.Color(now, 0, Red) // begins the clock, or a warm-up
			after, ever = m.RetryAfter(now, n)
			r = m.Reserve(now, n, longest)
		})
		switch {
		case !ever:
			return fmt.Errorf("%d bytes are %w", n, ErrNeverFits)
		case after > longest:
			return fmt.Errorf("%d bytes must wait for %v: %w", n, after, context.DeadlineExceeded)
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
