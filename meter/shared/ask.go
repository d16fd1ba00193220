package shared

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

var leaseScript = redis.NewScript(layoutScript + storeScript)

// answer is a reply, or why there is none.
type answer struct {
	lease.Reply
	err error
}

// ask sends a request for each of the agent's budgets, and says of each reply whether
// a replica has it, if there are any.
func (a *Agent) ask(ctx context.Context, requests []lease.Request) ([]answer, []bool, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(a.members[0].Terms.Deadline))
	defer cancel()
	cluster, ok := a.client.(*redis.ClusterClient)
	if !ok {
		all := make([]int, len(requests))
		for i := range all {
			all[i] = i
		}
		out, kept := make([]answer, len(requests)), make([]bool, len(requests))
		err := a.send(ctx, a.client, all, requests, out, kept)
		return out, kept, err
	}
	// Each budget has a slot of its own.
	out, kept := make([]answer, len(requests)), make([]bool, len(requests))
	done := make(chan int)
	for i := range requests {
		go func() {
			client, err := cluster.MasterForKey(ctx, key(a.members[i].Name))
			if err == nil {
				err = a.send(ctx, client, []int{i}, requests, out, kept)
			}
			if err != nil {
				out[i].err = err
				if moved(err) {
					cluster.ReloadState(context.WithoutCancel(ctx))
				}
			}
			done <- i
		}()
	}
	for range requests {
		<-done
	}
	return out, kept, nil
}

// moved reports whether another node of the cluster has the slot.
func moved(err error) bool {
	return redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK")
}

// send has one server answer the requests of some of the budgets.
func (a *Agent) send(ctx context.Context, client redis.Cmdable, which []int, requests []lease.Request, out []answer, kept []bool) error {
	var keys []string
	var args []any
	wait := false
	for _, i := range which {
		keys = append(keys, key(a.members[i].Name))
		args = arguments(args, &requests[i])
		last, _ := a.members[i].host.Heard()
		wait = wait || last.Replicas > 0
	}
	run := func(script func(redis.Cmdable) *redis.Cmd) (*redis.Cmd, int64, error) {
		if !wait {
			cmd := script(client)
			return cmd, 0, cmd.Err()
		}
		p := client.Pipeline()
		cmd := script(p)
		replicas := p.Do(ctx, "WAIT", 1, max(a.members[0].Terms.Deadline/2e6, 1))
		_, _ = p.Exec(ctx)
		n, _ := replicas.Int64() // 0 without an answer
		return cmd, n, cmd.Err()
	}
	cmd, replicas, err := run(func(c redis.Cmdable) *redis.Cmd { return leaseScript.EvalSha(ctx, c, keys, args...) })
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		cmd, replicas, err = run(func(c redis.Cmdable) *redis.Cmd { return leaseScript.Eval(ctx, c, keys, args...) })
	}
	if err != nil {
		return err
	}
	list, ok := cmd.Val().([]any)
	if !ok || len(list) != len(which) {
		return fmt.Errorf("the store answered %T of %d budgets", cmd.Val(), len(which))
	}
	for n, i := range which {
		r, err := reply(list[n])
		out[i] = answer{r, err}
		kept[i] = replicas > 0 || r.Replicas <= 0
	}
	return nil
}
