package shared

import (
	"fmt"
	"math"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Source says who decided.
type Source uint8

const (
	FromStore  Source = iota
	FromClosed        // nobody: the store is lost, and the limit is FailClosed
	FromOpen          // nobody: the store is lost, and the limit is FailOpen
	FromRescue        // the local meter of a limit with FailRescue
)

var sources = [...]string{"store", "closed", "open", "rescue"}

// String returns "store", "closed", "open" or "rescue".
func (s Source) String() string {
	if int(s) < len(sources) {
		return sources[s]
	}
	return fmt.Sprintf("Source(%d)", uint8(s))
}

// Decision is a verdict about one request, and what a limited service tells its client. The
// store counts in microseconds: durations are rounded up to one.
type Decision struct {
	Allowed    bool          // all of N was taken
	Taken      int64         // N, 0, or a part of it if the request is for a part
	Remaining  int64         // amount that could be taken at once after this
	RetryAfter time.Duration // until what was not taken fits: 0 if it does, or meter.Never
	ResetAfter time.Duration // until all of the limit is there again
	Time       time.Time     // when the decision was made, by the clock of the store
	Source     Source
	// Err is why the store did not decide, or nil. It holds no password.
	Err error
}

// verdict is what the store said about a key before anything was taken: numbers as the
// script of the kind replies them.
func (l *Limiter) verdict(us int64, reply []int64, n int64, taking bool) Decision {
	taken := reply[0] / l.den
	d := Decision{Allowed: taken == n, Time: time.UnixMicro(us)}
	if taking {
		d.Taken = taken
	}
	rest := n - d.Taken
	var retry, reset int64 // µs
	switch l.kind {
	case bucketKind:
		d.Remaining, retry, reset = l.bucketAfter(reply[1]+d.Taken*l.den, rest)
	case windowKind:
		d.Remaining, retry, reset = l.windowAfter(us, reply[1], reply[2]+d.Taken, rest)
	case counterKind:
		d.Remaining, retry, reset = l.counterAfter(us, reply[1], reply[2]+d.Taken, reply[3], rest)
	case logKind:
		d.Remaining, retry, reset = reply[1], reply[2], reply[3]
	}
	d.ResetAfter = micros(reset)
	if !d.Allowed {
		d.RetryAfter = micros(retry)
		if rest > l.most {
			d.RetryAfter = meter.Never
		}
	}
	return d
}

func micros(us int64) time.Duration {
	if us > math.MaxInt64/int64(time.Microsecond) {
		return meter.Never
	}
	return time.Duration(us) * time.Microsecond
}

// bucketAfter is what remains of a bucket that lacks so many ticks, and the µs until rest
// fits, if it ever does, and until it is full.
func (l *Limiter) bucketAfter(lacks, rest int64) (remaining, retry, reset int64) {
	burst := l.args[0]
	remaining = (burst - lacks) / l.den
	if rest > remaining && rest <= l.most {
		retry = up(lacks+rest*l.den-burst, l.per)
	}
	return remaining, retry, up(lacks, l.per)
}

func up(a, b int64) int64 { return (a + b - 1) / b }

// windowAfter is the same for a window since 1970 in which so much was used.
func (l *Limiter) windowAfter(us, at, used, rest int64) (remaining, retry, reset int64) {
	remaining = max(l.most-used, 0)
	end := (at+1)*l.window - us
	if rest > remaining {
		retry = end
	}
	if used > 0 {
		reset = end
	}
	return remaining, retry, reset
}

// counterAfter is the same for a window in which so much was used, and before it in the
// window before.
func (l *Limiter) counterAfter(us, at, used, before, rest int64) (remaining, retry, reset int64) {
	begin := at * l.window
	view := l.window - max(us-begin, 0)
	counts, more := mulDiv(before, view, l.window)
	if more {
		counts++
	}
	remaining = max(l.most-used-counts, 0)
	if rest > remaining && rest <= l.most {
		// The window before counts no more than left once no more of it is in view.
		left, of, start := l.most-used-rest, before, begin
		if left < 0 { // not in this window: in the next one, used is what was before
			left, of, start = l.most-rest, used, begin+l.window
		}
		inView := l.window
		if left < of {
			inView, _ = mulDiv(left, l.window, of)
		}
		retry = start + l.window - inView - us
	}
	switch {
	case used > 0:
		reset = begin + 2*l.window - us
	case before > 0:
		reset = begin + l.window - us
	}
	return remaining, retry, reset
}
