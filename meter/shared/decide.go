package shared

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Request asks to take N from a limit.
type Request struct {
	Limiter *Limiter
	Budget  string // whose limit it is, such as a customer: up to 256 bytes
	// Key is what the limit is kept for within the budget, such as a user of the
	// customer; empty for the budget as a whole. Up to 256 bytes.
	Key  string
	N    int64 // what to take; 0 only asks
	Part bool  // take a part of N if not all of it fits
}

// maxBatch is how many keys one script decides about: the server does nothing else
// meanwhile.
const maxBatch = 256

// Decide takes n from a budget's limit, or nothing.
//
// An error is a bad budget or n; then nothing was taken. Or it is that of ctx; then n may
// have been taken. A store that fails is no error: the limit's Fail decides, and the
// Decision says so.
func (l *Limiter) Decide(ctx context.Context, budget string, n int64) (Decision, error) {
	return l.one(ctx, Request{Limiter: l, Budget: budget, N: n})
}

// TakeUpTo takes what fits of n from a budget's limit. Errors are those of Decide.
func (l *Limiter) TakeUpTo(ctx context.Context, budget string, n int64) (Decision, error) {
	return l.one(ctx, Request{Limiter: l, Budget: budget, N: n, Part: true})
}

func (l *Limiter) one(ctx context.Context, r Request) (Decision, error) {
	d, err := l.store.Each(ctx, []Request{r})
	if err != nil {
		return Decision{}, err
	}
	return d[0], nil
}

// Each decides about each request by itself, in order. Requests of one limit are one script
// call for 256 of them, in a cluster if they are of one budget, and all calls are made in
// one round trip. Errors are those of Decide.
func (s *Store) Each(ctx context.Context, requests []Request) ([]Decision, error) {
	if err := s.check(ctx, requests); err != nil {
		return nil, err
	}
	decisions := make([]Decision, len(requests))
	var batches []*batch
	for i, r := range requests {
		batches = s.addTo(batches, r, i)
	}
	calls := make([]*call, len(batches))
	for i, b := range batches {
		calls[i] = b.call(s)
	}
	s.run(ctx, calls)
	for i, b := range batches {
		if err := calls[i].err; err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return nil, cause
			}
			for _, at := range b.at {
				decisions[at] = s.without(requests[at], err, true)
			}
			s.local.Add(uint64(len(b.at)))
			continue
		}
		for _, at := range b.at {
			found := b.limiter.take(calls[i])
			decisions[at] = found.verdict(requests[at].N, requests[at].Part)
		}
	}
	return decisions, nil
}

// All takes from the limits of all requests, or from none. They must be of one budget, and each
// of another limit or key, and none may be for a part. Allowed and Taken say of each
// decision whether all were taken; the limits that refused have a RetryAfter. Errors are
// those of Decide.
func (s *Store) All(ctx context.Context, requests []Request) ([]Decision, error) {
	if err := s.check(ctx, requests); err != nil {
		return nil, err
	}
	if len(requests) == 0 {
		return nil, nil
	}
	c := &call{script: s.scripts.all, budget: requests[0].Budget}
	seen := map[string]bool{}
	for _, r := range requests {
		l := r.Limiter
		key := l.key(r.Budget, r.Key)
		switch {
		case r.Budget != c.budget:
			return nil, fault("Budget", "%q and %q differ: all requests of a call to All must be of one budget", c.budget, r.Budget)
		case r.Part:
			return nil, fault("Part", "is set: All takes everything or nothing")
		case seen[key]:
			return nil, fault("Key", "%q comes twice with limit %q: add the two requests up", r.Key, l.limit.Name)
		case len(requests) > maxBatch:
			return nil, fault("Requests", "are %d: All decides about %d at most", len(requests), maxBatch)
		}
		seen[key] = true
		c.keys = append(c.keys, key)
		c.args = append(c.args, int(l.kind), l.args[0], l.args[1], l.args[2], l.amount(r.N))
		c.want += algorithms[l.kind].replies
	}
	s.run(ctx, []*call{c})
	if c.err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		s.local.Add(uint64(len(requests)))
		return s.allWithout(requests, c.err), nil
	}
	found := make([]found, len(requests))
	all := true
	for i, r := range requests {
		found[i] = r.Limiter.take(c)
		all = all && found[i].fits(r.N)
	}
	decisions := make([]Decision, len(requests))
	for i, r := range requests {
		if all {
			decisions[i] = found[i].verdict(r.N, false)
		} else {
			decisions[i] = found[i].refusal(r.N)
		}
	}
	return decisions, nil
}

// check refuses requests that no limit can decide about.
func (s *Store) check(ctx context.Context, requests []Request) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	for _, r := range requests {
		switch {
		case r.Limiter == nil:
			return fault("Limiter", "is missing: Store.Limiter makes one")
		case r.Limiter.store != s:
			return fault("Limiter", "%q is of another store", r.Limiter.limit.Name)
		case r.N < 0:
			return fault("N", "of %d is negative", r.N)
		}
		if err := checkName("Budget", r.Budget, maxKey, ""); err != nil {
			return err
		}
		if err := checkName("Key", r.Key, maxKey, ""); err != nil {
			return err
		}
	}
	return nil
}

// batch is requests that one script decides about.
type batch struct {
	limiter *Limiter
	budget  string
	part    bool
	at      []int // where they are among all
	keys    []string
	args    []any
}

// addTo adds a request to the last batch of its limit and, in a cluster, budget, or begins
// another. So requests of one key stay in order.
func (s *Store) addTo(batches []*batch, r Request, at int) []*batch {
	_, alone := s.client.(*redis.Client) // one server: it takes keys of all budgets
	l := r.Limiter
	var b *batch
	for i := len(batches) - 1; i >= 0 && b == nil; i-- {
		if c := batches[i]; c.limiter == l && (alone || c.budget == r.Budget) {
			b = c
		}
	}
	if b == nil || b.part != r.Part || len(b.keys) == maxBatch {
		b = &batch{limiter: l, budget: r.Budget, part: r.Part, args: []any{l.args[0], l.args[1], l.args[2]}}
		batches = append(batches, b)
	}
	b.at = append(b.at, at)
	b.keys = append(b.keys, l.key(r.Budget, r.Key))
	b.args = append(b.args, l.amount(r.N))
	return batches
}

func (b *batch) call(s *Store) *call {
	k := b.limiter.kind
	c := &call{script: s.scripts.each[k], budget: b.budget, keys: b.keys, args: b.args, want: len(b.keys) * algorithms[k].replies}
	if len(b.keys) == 1 {
		c.script = s.scripts.one[k]
	}
	if b.part {
		c.args = append(c.args, b.limiter.den) // the unit
	}
	return c
}

// call is one script call.
type call struct {
	script *redis.Script
	budget string
	keys   []string
	args   []any
	want   int // numbers in the reply beside the time

	place *place
	us    int64
	reply []int64
	err   error
}

// run makes calls in one round trip, except those to places that are lost.
func (s *Store) run(caller context.Context, calls []*call) {
	ctx, cancel := context.WithTimeout(caller, s.config.Deadline)
	defer cancel()
	var send []*call
	for _, c := range calls {
		if c.place, c.err = s.place(ctx, c.keys[0]); c.err != nil {
			s.failed(caller, c)
			continue
		}
		if loss := c.place.loss.Load(); loss != nil {
			c.err = loss.Err
			continue
		}
		c.args = s.arguments(c.args)
		send = append(send, c)
	}
	if len(send) == 1 {
		c := send[0]
		c.answer(c.script.Run(ctx, s.client, c.keys, c.args...))
	} else if len(send) > 1 {
		s.runAll(ctx, send)
	}
	for _, c := range send {
		if c.err != nil {
			s.failed(caller, c)
		}
	}
}

// runAll makes calls in one round trip, and those whose script the server does not know in
// another.
func (s *Store) runAll(ctx context.Context, calls []*call) {
	for _, run := range []func(*call, redis.Pipeliner) *redis.Cmd{
		func(c *call, p redis.Pipeliner) *redis.Cmd { return c.script.EvalSha(ctx, p, c.keys, c.args...) },
		func(c *call, p redis.Pipeliner) *redis.Cmd { return c.script.Eval(ctx, p, c.keys, c.args...) },
	} {
		cmds := make([]*redis.Cmd, len(calls))
		_, _ = s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i, c := range calls {
				cmds[i] = run(c, p)
			}
			return nil
		})
		var unknown []*call
		for i, c := range calls {
			c.answer(cmds[i])
			if redis.HasErrorPrefix(c.err, "NOSCRIPT") {
				unknown = append(unknown, c)
			}
		}
		if calls = unknown; len(calls) == 0 {
			return
		}
	}
}

// answer takes what a script replied: seconds, microseconds and other numbers.
func (c *call) answer(cmd *redis.Cmd) {
	text, err := cmd.Text()
	if c.err = err; err != nil {
		return
	}
	c.reply = make([]int64, 0, c.want+2)
	for word := range strings.SplitSeq(text, " ") {
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			c.err = fmt.Errorf("the script replied %q: %w", text, err)
			return
		}
		c.reply = append(c.reply, n)
	}
	if len(c.reply) != c.want+2 {
		c.err = fmt.Errorf("the script replied %d numbers, not %d", len(c.reply), c.want+2)
		return
	}
	c.us = c.reply[0]*1e6 + c.reply[1]
	c.reply = c.reply[2:]
}

// failed explains the error of a call. If the server cannot decide about any key, it is
// lost; not if the caller gave up.
func (s *Store) failed(caller context.Context, c *call) {
	lost := cannotDecide(c.err)
	c.err = s.explain(c.place.addr, c.err)
	if lost && caller.Err() == nil {
		s.lose(c.place, c.budget, c.err)
	}
}
