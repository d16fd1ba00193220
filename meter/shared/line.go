package shared

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// line is the way to the server of some budgets. One call at a time is on it. Without an
// answer by the deadline the call goes on until the line loses patience: a connection
// may take longer than a deadline to make, and a server that is slow would not recover
// from new connections at each deadline. Nothing of a late answer is used.
type line struct {
	interval, deadline time.Duration

	ended    chan struct{} // of the call under way; nil if there is none
	answers  []answer      // of it, when it has ended
	took     time.Duration // likewise
	patience time.Duration
	failures int       // calls in a row that ended in an error
	next     time.Time // no call begins before
	err      error     // of the last call that ended
}

const (
	leastPatience = 250 * time.Millisecond
	mostPatience  = dialTimeout + time.Second // the error of a connection is more than none
	mostPause     = time.Second               // between two calls that fail
)

func newLine(interval, deadline time.Duration) *line {
	l := &line{interval: interval, deadline: deadline}
	l.patience = l.leastPatience()
	return l
}

// leastPatience is enough for a first call: five round trips, each below a deadline.
func (l *line) leastPatience() time.Duration { return max(5*l.deadline, leastPatience) }

// free reports whether a call can begin.
func (l *line) free() bool { return l.idle() && !time.Now().Before(l.next) }

// idle reports whether no call is under way.
func (l *line) idle() bool {
	if l.ended == nil {
		return true
	}
	select {
	case <-l.ended:
		l.end()
		return true
	default:
		return false
	}
}

func (l *line) begin(send func(context.Context) []answer) {
	ended, began := make(chan struct{}), time.Now()
	l.ended = ended
	ctx, cancel := context.WithTimeout(context.Background(), l.patience)
	go func() {
		defer cancel()
		l.answers = send(ctx)
		l.took = time.Since(began)
		close(ended)
	}()
}

// wait waits until no call is under way, and reports whether that was before ctx ended.
func (l *line) wait(ctx context.Context) bool {
	if l.ended != nil {
		select {
		case <-l.ended:
		case <-ctx.Done():
		}
	}
	return l.idle()
}

// end notes how a call ended. After the second failure in a row, calls are made less and
// less often.
func (l *line) end() {
	l.ended = nil
	if l.err = l.answers[0].err; l.err == nil {
		l.failures, l.patience, l.next = 0, l.leastPatience(), time.Time{}
		if l.took > l.deadline {
			l.err = late(l.took, l.deadline)
		}
		return
	}
	if l.took >= l.patience {
		l.patience = min(2*l.patience, max(mostPatience, l.patience))
	}
	if l.failures++; l.failures > 1 {
		pause := min(l.interval<<min(l.failures-2, 10), max(mostPause, l.interval))
		l.next = time.Now().Add(pause - rand.N(pause/2+1))
	}
}

// reason is why there is no answer: the error of the last call if there is one.
func (l *line) reason() error {
	if l.err != nil {
		return l.err
	}
	return fmt.Errorf("no answer within %v", l.deadline)
}

func late(took, deadline time.Duration) error {
	return fmt.Errorf("the answer took %v, longer than the deadline of %v: give all hosts a longer interval", took.Round(time.Millisecond), deadline)
}
