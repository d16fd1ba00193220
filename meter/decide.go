package meter

import (
	"math"
	"time"
)

// Peek returns the color that Color would return, and takes nothing.
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

// TakeUpTo takes up to n bytes, as many as would be green, and returns their number. Use it to
// lease a part of a budget.
func (m *Meter) TakeUpTo(now int64, n int) int {
	m.begin(now)
	n = int(min(int64(n), m.profile.remaining(m.state, m.profile.log, now)))
	if n <= 0 || m.Color(now, n, Green) == Red {
		return 0
	}
	return n
}

// Never is the time to wait for an impossible event.
const Never time.Duration = math.MaxInt64

// Decision is a verdict, with the numbers of a service's answer to its client: GCRA's remaining,
// retry_after and reset_after, for every kind of meter.
type Decision struct {
	Color      Color
	Remaining  int64         // bytes left for green requests now
	RetryAfter time.Duration // time until the same bytes would be green; 0 if they were; or Never
	ResetAfter time.Duration // time until the meter is as good as new, or Never
}

// Decide meters n bytes as Color does in color-blind mode. It also returns what Tokens,
// RetryAfter and ResetAfter would return next. It does not allocate.
func (m *Meter) Decide(now int64, n int) Decision {
	return m.profile.made().decide(&m.state, m.profile.log, now, n)
}

func (p *Profile) decide(s *state, log []entry, now int64, n int) Decision {
	d := Decision{Color: p.color(s, log, now, n, Green)}
	d.Remaining = p.remaining(*s, log, now)
	if d.Color != Green {
		d.RetryAfter = orNever(p.retryAfter(*s, log, now, n))
	}
	d.ResetAfter = orNever(p.resetAfter(*s, log, now))
	return d
}

func orNever(d time.Duration, ever bool) time.Duration {
	if !ever {
		return Never
	}
	return d
}

// remaining returns the number of bytes that would be green: the tokens in every bucket from which
// green packets take.
func (p *Profile) remaining(s state, log []entry, now int64) int64 {
	tc, te := p.tokens(s, log, now)
	if p.peak {
		return min(tc, te)
	}
	return tc
}
