package shared

import (
	"context"
	"fmt"
	"time"
)

// line is the connection to a server for some budgets, with one call at a time.
// A call without an answer by its deadline continues until the line's patience
// ends. Otherwise a connection that takes longer than a deadline would never be
// made, and new connections at each deadline would keep a slow server from
// recovering. Late answers are not used.
type line struct {
	deadline time.Duration

	ended    chan struct{} // closed at the end of the call in progress; nil: no call
	result   *result       // result of the latest ended call
	took     time.Duration // its duration
	replica  chan error    // replica wait of the latest call to start one; nil: none in progress
	patience time.Duration
	err      error // error of the latest ended call
}

// mostPatience is the maximum duration of a call. A failed call is repeated in the next interval: a
// store without its data learns for one lease only, and must receive all rescue shares within it.
const mostPatience = 2 * time.Second

func newLine(deadline time.Duration) *line {
	l := &line{deadline: deadline}
	l.patience = l.leastPatience()
	return l
}

// leastPatience suffices for the first call on a connection, three round trips.
// If the connection is dead, it is replaced before the lease ends.
func (l *line) leastPatience() time.Duration { return 3 * l.deadline }

// idle reports whether no call is in progress.
func (l *line) idle() bool {
	if l.ended == nil {
		return true
	}
	select {
	case <-l.ended:
		l.finish()
		return true
	default:
		return false
	}
}

func (l *line) start(send func(context.Context) *result) {
	ended, started := make(chan struct{}), time.Now()
	l.ended, l.result = ended, nil
	ctx, cancel := context.WithTimeout(context.Background(), l.patience)
	go func() {
		defer cancel()
		l.result = send(ctx)
		l.took = time.Since(started)
		close(ended)
	}()
}

// waitIdle waits until no call is in progress, and reports whether that was
// before ctx ended.
func (l *line) waitIdle(ctx context.Context) bool {
	if l.ended != nil {
		select {
		case <-l.ended:
		case <-ctx.Done():
		}
	}
	return l.idle()
}

// waitReplica waits until a replica holds the increases of the last call, or ctx ends.
func (l *line) waitReplica(ctx context.Context) {
	if l.result.replica == nil {
		return
	}
	select {
	case err := <-l.replica:
		l.result.waited(err)
		l.replica = nil
	case <-ctx.Done():
	}
}

// replicaFree reports whether no wait for a replica is in progress.
func (l *line) replicaFree() bool {
	if l.replica != nil {
		select {
		case <-l.replica:
			l.replica = nil
		default:
		}
	}
	return l.replica == nil
}

// finish records the end of a call.
func (l *line) finish() {
	l.ended = nil
	if l.result.replica != nil {
		l.replica = l.result.replica
	}
	l.err = l.result.answers[0].err
	switch {
	case l.err != nil && l.took >= l.patience:
		l.patience = min(2*l.patience, max(mostPatience, l.patience))
	case l.err == nil:
		l.patience = l.leastPatience()
		if l.took > l.deadline {
			l.err = late(l.took, l.deadline)
		}
	}
}

// noAnswer returns the reason why there is no answer: the error of the last
// call, if it failed.
func (l *line) noAnswer() error {
	if l.err != nil {
		return l.err
	}
	return fmt.Errorf("no answer within %v", l.deadline)
}

func late(took, deadline time.Duration) error {
	return fmt.Errorf(
		"the answer took %v, longer than the deadline of %v: use a longer interval on all hosts",
		took.Round(time.Millisecond), deadline)
}
