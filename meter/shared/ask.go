package shared

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// answer is a reply, or why there is none.
type answer struct {
	lease.Reply
	kept    bool  // a replica has it, or there is none
	err     error // no reply
	pending bool  // no reply yet, but the call goes on
	skipped bool  // no call was made
}

// ask sends a request for each of the members, and waits for the answers until ctx ends.
func (a *Agent) ask(ctx context.Context, members []*member, requests []lease.Request) []answer {
	out := make([]answer, len(members))
	var lines []*line
	all := len(members) // budgets that one call is for
	cluster, _ := a.client.(*redis.ClusterClient)
	if cluster != nil {
		all = 1 // each has a slot of its own
	}
	for i := 0; i < len(members); i += all {
		l := a.line(members[i], cluster != nil)
		lines = append(lines, l)
		if !l.free() {
			for j := range all {
				out[i+j] = answer{err: l.reason(), pending: l.ended != nil, skipped: true}
			}
			continue
		}
		c := a.makeCall(members[i:i+all], requests[i:i+all])
		l.begin(func(ctx context.Context) []answer {
			if cluster != nil {
				return c.sendCluster(ctx, cluster)
			}
			return c.send(ctx, a.client, false)
		})
	}
	for i := range out {
		l := lines[i/all]
		switch {
		case out[i].skipped:
		case l.wait(ctx):
			out[i] = l.answers[i%all]
		default:
			out[i] = answer{err: l.reason(), pending: true}
		}
		out[i].err = a.explain(out[i].err)
	}
	return out
}

// explain puts an error of a call into words.
func (a *Agent) explain(err error) error {
	var timeout net.Error
	var network *net.OpError
	var handshake *handshakeError
	switch dialed := errors.As(err, &handshake) || errors.As(err, &network) && network.Op == "dial"; {
	case err == nil:
		return nil
	case !dialed && (errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()):
		err = fmt.Errorf("no answer within %v", a.deadline)
	default:
		err = explain(err)
	}
	if a.config.Store != "" {
		err = fmt.Errorf("%s: %w", a.config.Store, err)
	}
	return err
}

// line is the line of a member: its own in a cluster, otherwise that of all.
func (a *Agent) line(m *member, cluster bool) *line {
	name := ""
	if cluster {
		name = m.Name
	}
	if a.lines[name] == nil {
		a.lines[name] = newLine(a.interval, a.deadline)
	}
	return a.lines[name]
}

// exchange is a call of one server for some budgets.
type exchange struct {
	keys []string
	args []any
	wait time.Duration // for a replica, 0 if there is none
}

func (a *Agent) makeCall(members []*member, requests []lease.Request) *exchange {
	c := new(exchange)
	for i, m := range members {
		c.keys = append(c.keys, key(m.Name))
		c.args = arguments(c.args, &requests[i])
		if last, _ := m.host.Heard(); last.Replicas > 0 {
			c.wait = a.deadline / 2
		}
	}
	return c
}

// sendCluster has the primary answer that has the slot of the call's only key.
func (c *exchange) sendCluster(ctx context.Context, cluster *redis.ClusterClient) []answer {
	primary, err := cluster.MasterForKey(ctx, c.keys[0])
	if err != nil {
		cluster.ReloadState(ctx)
		return []answer{{err: err}}
	}
	answers := c.send(ctx, primary, false)
	addr, moved := redis.IsMovedError(answers[0].err)
	if !moved {
		addr, _ = redis.IsAskError(answers[0].err)
	}
	if to := node(ctx, cluster, addr); to != nil {
		answers = c.send(ctx, to, !moved)
	}
	if moved || answers[0].err != nil {
		cluster.ReloadState(ctx) // the slot may have another primary
	}
	return answers
}

// node is the primary with an address, or nil.
func node(ctx context.Context, cluster *redis.ClusterClient, addr string) (found *redis.Client) {
	if addr == "" {
		return nil
	}
	var mu sync.Mutex
	_ = cluster.ForEachMaster(ctx, func(_ context.Context, c *redis.Client) error {
		if c.Options().Addr == addr {
			mu.Lock()
			defer mu.Unlock()
			found = c
		}
		return nil
	})
	return found
}

var leaseScript = redis.NewScript(layoutScript + storeScript)

// send has one server answer. asking is for a node of a cluster that is about to get the
// slot.
func (c *exchange) send(ctx context.Context, client redis.Cmdable, asking bool) []answer {
	list, replicas, err := c.run(ctx, client, asking, leaseScript.EvalSha)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		list, replicas, err = c.run(ctx, client, asking, leaseScript.Eval)
	}
	if err == nil && len(list) != len(c.keys) {
		err = fmt.Errorf("the store answered for %d of %d budgets", len(list), len(c.keys))
	}
	answers := make([]answer, len(c.keys))
	for i := range answers {
		if answers[i].err = err; err == nil {
			answers[i].Reply, answers[i].err = reply(list[i])
			answers[i].kept = replicas > 0 || answers[i].Replicas <= 0
		}
	}
	return answers
}

type runner func(ctx context.Context, c redis.Scripter, keys []string, args ...any) *redis.Cmd

// run runs the script, and waits until a replica has what it has changed. It returns how
// many have.
func (c *exchange) run(ctx context.Context, client redis.Cmdable, asking bool, script runner) (list []any, replicas int64, err error) {
	var asked *redis.Cmd
	waited := redis.NewCmd(ctx)
	_, err = client.Pipelined(ctx, func(p redis.Pipeliner) error {
		if asking {
			p.Do(ctx, "ASKING")
		}
		asked = script(ctx, p, c.keys, c.args...)
		if c.wait > 0 {
			waited = p.Do(ctx, "WAIT", 1, max(c.wait.Milliseconds(), 1))
		}
		return nil
	})
	if list, _ = asked.Val().([]any); list == nil {
		return nil, 0, cmp.Or(asked.Err(), err, errors.New("the store answered nothing"))
	}
	if err = waited.Err(); redis.HasErrorPrefix(err, "NOPERM") {
		return nil, 0, err // nothing would ever grow
	}
	replicas, _ = waited.Int64() // 0 without an answer
	return list, replicas, nil
}
