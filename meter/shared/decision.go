package shared

import (
	"fmt"
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

// found is the state of a key when the store decided, before anything was taken.
type found struct {
	*Limiter
	us    int64   // the store's clock
	state []int64 // as the script of the kind replies it
}

// take takes the next key's numbers from a reply.
func (l *Limiter) take(c *call) found {
	n := algorithms[l.kind].replies
	f := found{l, c.us, c.reply[:n]}
	c.reply = c.reply[n:]
	return f
}

// fits says whether all of n fits.
func (f found) fits(n int64) bool {
	if f.kind == logKind {
		return f.state[0] == n
	}
	remaining, _, _ := f.after(0, 0)
	return n <= remaining
}

// verdict is the decision that the script made: it takes n if that fits, or the part of it
// that does.
func (f found) verdict(n int64, part bool) Decision {
	var taken int64
	if f.kind == logKind {
		taken = f.state[0]
	} else if remaining, _, _ := f.after(0, 0); n <= remaining {
		taken = n
	} else if part {
		taken = remaining
	}
	return f.decision(taken, n-taken, taken == n)
}

// refusal is the decision about n if nothing is taken, because another limit refused.
func (f found) refusal(n int64) Decision {
	return f.decision(0, n, false)
}

func (f found) decision(taken, rest int64, allowed bool) Decision {
	d := Decision{Allowed: allowed, Taken: taken, Time: time.UnixMicro(f.us)}
	var retry, reset int64
	d.Remaining, retry, reset = f.after(taken, rest)
	d.RetryAfter, d.ResetAfter = micros(retry), micros(reset)
	if rest > f.most {
		d.RetryAfter = meter.Never
	}
	return d
}

// after is what remains after so much was taken, and the µs until rest fits, and until all
// is there again. retry means nothing for more than ever fits.
func (f found) after(taken, rest int64) (remaining, retry, reset int64) {
	s := f.state
	switch f.kind {
	case bucketKind:
		return f.bucketAfter(s[0]+taken*f.den, rest)
	case windowKind:
		return f.windowAfter(f.us, s[0], s[1]+taken, rest)
	case counterKind:
		return f.counterAfter(f.us, s[0], s[1]+taken, s[2], rest)
	}
	return s[1], s[2], s[3] // the script looked ahead: the log is there
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

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
