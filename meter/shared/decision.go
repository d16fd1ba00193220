package shared

import (
	"fmt"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Source names the origin of a decision.
type Source uint8

const (
	FromStore  Source = iota // the server
	FromClosed               // refused without the server, by FailClosed
	FromOpen                 // allowed without the server, by FailOpen
	FromRescue               // the local meter of a limit with FailRescue
)

var sources = [...]string{"store", "closed", "open", "rescue"}

// String returns "store", "closed", "open" or "rescue".
func (s Source) String() string {
	if int(s) < len(sources) {
		return sources[s]
	}
	return fmt.Sprintf("Source(%d)", uint8(s))
}

// Decision is the verdict about a request and the state of its limit afterwards. The store
// counts in microseconds; durations are rounded up.
type Decision struct {
	Allowed   bool  // all of N was taken
	Taken     int64 // amount taken: N, 0, or with Part a part of N
	Remaining int64 // amount that would fit now
	// time until the rest of N fits: 0 if Allowed, meter.Never if it is above the limit
	RetryAfter time.Duration
	ResetAfter time.Duration // time until the limit is full again
	Time       time.Time     // time of the decision, on the server's clock if Source is FromStore
	Source     Source
	Err        error // reason for a Source other than FromStore, else nil; contains no password
}

// found is the state of a key before a decision.
type found struct {
	*Limiter
	us    int64   // server's clock
	state []int64 // numbers in the reply of the algorithm's script
}

// nextState removes the numbers of the next key from a reply.
func (l *Limiter) nextState(c *call) found {
	n := algorithms[l.kind].replies
	f := found{l, c.us, c.reply[:n]}
	c.reply = c.reply[n:]
	return f
}

// possible reports whether the limit's script can reply with these numbers, which are from -1 to
// lease.MaxNumber, to a request for n. Arithmetic with other numbers could overflow.
func (l *Limiter) possible(us, n int64, state []int64) bool {
	least := slices.Min(state)
	switch l.kind {
	case bucketKind:
		return least >= 0 && state[0] <= l.args[0]
	case windowKind, counterKind: // the number of the window, or of the next one if the clock went back
		at := us / l.window
		return least >= 0 && (state[0] == at || state[0] == at+1)
	}
	taken, remaining, retry, reset := state[0], state[1], state[2], state[3]
	return 0 <= taken && taken <= min(n, l.most) && 0 <= remaining && remaining <= l.most &&
		(retry >= 0 || n > l.most) && 0 <= reset
}

// fits reports whether all of n fits.
func (f found) fits(n int64) bool {
	if f.kind == logKind {
		return f.state[0] == n
	}
	remaining, _, _ := f.after(0, 0)
	return n <= remaining
}

// verdict repeats the decision of the script.
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

// refusal is the decision about n if nothing was taken because some limit refused.
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

// after returns the amount left after taken, the µs until rest fits, and the µs until the limit is
// full again. retry is undefined if rest is above the limit.
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
	return s[1], s[2], s[3] // computed by the script, which reads the log
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// bucketAfter implements after for a bucket short of full by a number of ticks.
func (l *Limiter) bucketAfter(lacks, rest int64) (remaining, retry, reset int64) {
	burst := l.args[0]
	remaining = (burst - lacks) / l.den
	if rest > remaining && rest <= l.most {
		retry = divideUp(lacks+rest*l.den-burst, l.per)
	}
	return remaining, retry, divideUp(lacks, l.per)
}

func divideUp(a, b int64) int64 { return (a + b - 1) / b }

// windowAfter implements after for the window with number at.
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

// counterAfter implements after for the window with number at and the one before it.
func (l *Limiter) counterAfter(us, at, used, before, rest int64) (remaining, retry, reset int64) {
	begin := at * l.window
	view := l.window - max(us-begin, 0)
	counts, more := mulDiv(before, view, l.window)
	if more {
		counts++
	}
	remaining = max(l.most-used-counts, 0)
	if rest > remaining && rest <= l.most {
		// Rest fits when the visible part of the previous window counts at most left.
		left, of, start := l.most-used-rest, before, begin
		if left < 0 { // not in this window, but in the next one, of which this is the previous
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
