package shared

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/redis/go-redis/v9"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// answer is a reply, or the reason why there is none.
type answer struct {
	lease.Reply
	kept    bool  // an increase in it may be used: a replica holds it, or there is no replica
	err     error // no reply
	pending bool  // no reply in time: the call continues, or it has ended late
	skipped bool  // no call was made
}

// ask sends a request for each member and waits for the answers until ctx ends.
func (a *Agent) ask(ctx context.Context, members []*member, requests []lease.Request) []answer {
	// The wait for a replica ends earlier, to keep the answer itself in time.
	early, cancel := context.WithTimeout(ctx, a.deadline*3/4)
	defer cancel()
	out := make([]answer, len(members))
	var lines []*line
	all := len(members) // number of budgets per call
	if _, cluster := a.client.(*redis.ClusterClient); cluster {
		all = 1 // each is in its own slot
	}
	for i := 0; i < len(members); i += all {
		l := a.line(members[i])
		lines = append(lines, l)
		if !l.idle() {
			for j := range all {
				out[i+j] = answer{err: l.noAnswer(), pending: true, skipped: true}
			}
			continue
		}
		c := newExchange(a.script, members[i:i+all], requests[i:i+all])
		if l.replicaFree() {
			c.wait = a.deadline / 2
		}
		l.start(func(ctx context.Context) *result { return c.send(ctx, a.client) })
	}
	for i := range out {
		l := lines[i/all]
		switch {
		case out[i].skipped:
		case l.waitIdle(ctx):
			l.waitReplica(early)
			out[i] = l.result.answers[i%all]
		default:
			out[i] = answer{err: l.noAnswer(), pending: true}
		}
		out[i].err = a.explain(out[i].err)
	}
	return out
}

// explain describes an error of a call.
func (a *Agent) explain(err error) error {
	var timeout net.Error
	var network *net.OpError
	var handshake *handshakeError
	switch dialed := errors.As(err, &handshake) || errors.As(err, &network) && network.Op == "dial"; {
	case err == nil:
		return nil
	case !dialed &&
		(errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()):
		err = fmt.Errorf("no answer within %v", a.deadline)
	default:
		err = explain(err, leaseRights)
	}
	if a.config.Store != "" {
		err = fmt.Errorf("%s: %w", a.config.Store, err)
	}
	return err
}

// line returns the line of a member: its own in a cluster, otherwise one for
// all.
func (a *Agent) line(m *member) *line {
	name := ""
	if _, cluster := a.client.(*redis.ClusterClient); cluster {
		name = m.Name
	}
	if a.lines[name] == nil {
		a.lines[name] = newLine(a.deadline)
	}
	return a.lines[name]
}
