package meter

import (
	"math"
	"time"
)

// Never is how long to wait for what does not come.
const Never time.Duration = math.MaxInt64

// Decision is a verdict, and what a limited service tells its client beside it:
// Remaining, RetryAfter and ResetAfter of GCRA, for every meter.
type Decision struct {
	Color      Color
	Remaining  int64         // bytes that would be green at once after this
	RetryAfter time.Duration // until as many bytes would be green: 0 where these were, or Never
	ResetAfter time.Duration // until the meter is as if nothing had passed, or Never
}

// Decide meters n bytes as Color does in color-blind mode, and says what Tokens,
// RetryAfter and ResetAfter would say next. It does not allocate.
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

// remaining is how many bytes would be green: what Tokens has of every bucket
// that green takes from.
func (p *Profile) remaining(s state, log []entry, now int64) int64 {
	tc, te := p.tokens(s, log, now)
	if p.peak {
		return min(tc, te)
	}
	return tc
}
