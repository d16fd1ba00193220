package shared

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

var leaseScript = redis.NewScript(layoutScript + storeScript)

// exchange is one call of a server for some budgets.
type exchange struct {
	script   *redis.Script
	keys     []string
	args     []any
	requests []lease.Request
	wait     time.Duration // time limit for a replica; 0: do not wait
}

// result is the result of a call.
type result struct {
	answers []answer
	replica chan error // receives nil once a replica holds the increases; nil: no wait in progress
}

func newExchange(script *redis.Script, members []*member, requests []lease.Request) *exchange {
	c := &exchange{script: script, requests: requests}
	for i, m := range members {
		c.keys = append(c.keys, key(m.Name))
		c.args = arguments(c.args, &requests[i])
	}
	return c
}

// send makes the call.
func (c *exchange) send(ctx context.Context, client redis.UniversalClient) (r *result) {
	if err := guard(func() error { r = c.sendBy(ctx, client); return nil }); err != nil {
		return c.failed(err)
	}
	return r
}

func (c *exchange) sendBy(ctx context.Context, client redis.UniversalClient) *result {
	switch client := client.(type) {
	case *redis.Client:
		return c.sendTo(ctx, client, false)
	case *redis.ClusterClient:
		return c.sendCluster(ctx, client)
	}
	return c.failed(fmt.Errorf("%T is not a client returned by Open", client))
}

// sendCluster calls the primary owning the slot of the call's only key.
func (c *exchange) sendCluster(ctx context.Context, cluster *redis.ClusterClient) *result {
	primary, err := cluster.MasterForKey(ctx, c.keys[0])
	if err != nil {
		cluster.ReloadState(ctx)
		return c.failed(err)
	}
	r := c.sendTo(ctx, primary, false)
	addr, moved := redis.IsMovedError(r.answers[0].err)
	if !moved {
		addr, _ = redis.IsAskError(r.answers[0].err)
	}
	if to := node(ctx, cluster, addr); to != nil {
		r = c.sendTo(ctx, to, !moved)
	}
	if moved || r.answers[0].err != nil {
		cluster.ReloadState(ctx) // the slot may have another primary
	}
	return r
}

// node returns the primary with an address, or nil.
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

// sendTo calls one server. asking is for a cluster node that is about to get
// the slot.
func (c *exchange) sendTo(ctx context.Context, client *redis.Client, asking bool) *result {
	conn := client.Conn() // WAIT covers writes of the same connection
	waiting := false
	defer func() {
		if !waiting {
			_ = conn.Close()
		}
	}()
	list, err := c.run(ctx, conn, asking, c.script.EvalSha)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		list, err = c.run(ctx, conn, asking, c.script.Eval)
	}
	if err == nil && len(list) != len(c.keys) {
		err = fmt.Errorf("the store replied with %d answers for %d budgets", len(list), len(c.keys))
	}
	r := c.failed(err)
	all := true
	for i := range r.answers {
		if a := &r.answers[i]; err == nil {
			r := &c.requests[i]
			a.Reply, a.err = reply(list[i], r.Leave)
			a.kept = a.Replicas <= 0 || a.Share == a.Share.Min(r.Holds) && a.Rescue == a.Rescue.Min(r.Rescue)
			all = all && a.kept
		}
	}
	if all || err != nil || c.wait == 0 {
		return r
	}
	r.replica, waiting = make(chan error, 1), true
	go func() {
		defer conn.Close()
		r.replica <- guard(func() error { return waitReplica(conn, c.wait) })
	}()
	return r
}

func (c *exchange) failed(err error) *result {
	r := &result{answers: make([]answer, len(c.keys))}
	for i := range r.answers {
		r.answers[i].err = err
	}
	return r
}

type runner func(ctx context.Context, c redis.Scripter, keys []string, args ...any) *redis.Cmd

func (c *exchange) run(ctx context.Context, conn *redis.Conn, asking bool, script runner) ([]any, error) {
	if !asking {
		return script(ctx, conn, c.keys, c.args...).Slice()
	}
	var cmd *redis.Cmd
	_, err := conn.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Do(ctx, "ASKING")
		cmd = script(ctx, p, c.keys, c.args...)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return cmd.Slice()
}

var errNoReplica = errors.New("no replica has stored it yet")

// waitReplica waits until a replica has stored the writes of a connection. An
// idle server checks the time limit only ten times a second, so this can take
// longer.
func waitReplica(conn *redis.Conn, atMost time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), atMost+time.Second)
	defer cancel()
	n, err := conn.Do(ctx, "WAIT", 1, max(atMost.Milliseconds(), 1)).Int64()
	if err == nil && n == 0 {
		err = errNoReplica
	}
	return err
}

// waited records the end of the wait for a replica. Without the right to WAIT
// no share could grow, so that is an error of the call.
func (r *result) waited(err error) {
	r.replica = nil
	for i := range r.answers {
		if a := &r.answers[i]; !a.kept && redis.HasErrorPrefix(err, "NOPERM") {
			a.err = err
		} else if err == nil {
			a.kept = true
		}
	}
}
