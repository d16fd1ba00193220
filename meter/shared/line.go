package shared

import (
	"context"
	"fmt"
	"time"
)

// line is the way to the server of some budgets. One call at a time is on it. Without an
// answer by the deadline the call goes on until the line loses patience: a connection
// may take longer than a deadline to make, and a server that is slow would not recover
// from new connections at each deadline. Nothing of a late answer is used.
type line struct {
	deadline time.Duration

	ended    chan struct{} // of the call under way; nil if there is none
	result   *result       // of the last call that ended
	took     time.Duration // likewise
	replica  chan error    // of the last call that waited for a replica, nil if that is over
	patience time.Duration
	err      error // of the last call that ended
}

// mostPatience is how long a call goes on at most. Calls that fail are made again in the
// next interval: a store that lost all data learns for a lease only, and must hear of all
// rescue shares meanwhile.
const mostPatience = 2 * time.Second

func newLine(deadline time.Duration) *line {
	l := &line{deadline: deadline}
	l.patience = l.leastPatience()
	return l
}

// leastPatience is enough for a first call on a connection, three round trips. If the
// connection is dead, a new one is there before the lease ends.
func (l *line) leastPatience() time.Duration { return 3 * l.deadline }

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

func (l *line) begin(send func(context.Context) *result) {
	ended, began := make(chan struct{}), time.Now()
	l.ended, l.result = ended, nil
	ctx, cancel := context.WithTimeout(context.Background(), l.patience)
	go func() {
		defer cancel()
		l.result = send(ctx)
		l.took = time.Since(began)
		close(ended)
	}()
}

// settle waits until no call is under way, and reports whether that was before ctx ended.
func (l *line) settle(ctx context.Context) bool {
	if l.ended != nil {
		select {
		case <-l.ended:
		case <-ctx.Done():
		}
	}
	return l.idle()
}

// waitReplica waits until a replica has the increases of the last call, or ctx ends.
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

// replicaFree reports whether no earlier call still waits for a replica.
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

// end notes how a call ended.
func (l *line) end() {
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
