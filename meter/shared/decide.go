package shared

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// Request asks to take N from a limit.
type Request struct {
	Limiter *Limiter
	Budget  string // owner of the limit, such as a customer: 1 to 256 bytes
	// Key divides the budget, for instance by user: each key gets the full limit. Empty for a limit
	// of the whole budget. Up to 256 bytes.
	Key  string
	N    int64 // amount, such as 1 request; 0 takes nothing and returns the state
	Part bool  // take a part of N if not all of it fits
}

// maxBatch bounds the keys of one script call, because the server is blocked until it ends.
const maxBatch = 256

// Decide takes n from the limit of a budget, or nothing if n does not fit.
//
// It returns an error for an invalid budget or n, and when ctx ends: then n may have been
// taken. A failure of the store is not an error. The limit's Fail mode decides instead, and
// Decision.Source and Err report it.
func (l *Limiter) Decide(ctx context.Context, budget string, n int64) (Decision, error) {
	return l.one(ctx, Request{Limiter: l, Budget: budget, N: n})
}

// TakeUpTo takes as much of n as fits the limit of a budget. It returns errors as Decide does.
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

// Each decides about each request independently, in one round trip. One script call serves up to
// 256 requests of a limit; in a cluster, of a limit and budget. Requests of one key are decided in
// order, unless the server forgot a script and is sent it again. Each returns errors as Decide
// does.
func (s *Backend) Each(ctx context.Context, requests []Request) ([]Decision, error) {
	if err := s.check(ctx, requests); err != nil {
		return nil, err
	}
	decisions := make([]Decision, len(requests))
	batches := s.batches(requests)
	calls := make([]*call, len(batches))
	for i, b := range batches {
		calls[i] = b.call(s, requests)
	}
	s.run(ctx, calls)
	for i, b := range batches {
		if err := calls[i].err; err != nil {
			if cause := contextError(ctx); cause != nil {
				return nil, cause
			}
			for _, at := range b.indexes {
				decisions[at] = s.decideLocally(requests[at], err, true)
			}
			s.local.Add(uint64(len(b.indexes)))
			continue
		}
		for _, at := range b.indexes {
			found := b.limiter.nextState(calls[i])
			decisions[at] = found.verdict(requests[at].N, requests[at].Part)
		}
	}
	return decisions, nil
}

// All takes the amounts of all requests, or nothing if one of them does not fit. The requests must
// be of one budget and of different limits or keys, and Part must not be set. Allowed is the same
// in all decisions; the refusing limits have a RetryAfter. All returns errors as Decide does.
func (s *Backend) All(ctx context.Context, requests []Request) ([]Decision, error) {
	if err := s.check(ctx, requests); err != nil {
		return nil, err
	}
	if len(requests) == 0 {
		return nil, nil
	}
	c := &call{script: s.scripts.all, budget: requests[0].Budget, requests: requests}
	seen := map[string]bool{}
	for _, r := range requests {
		l := r.Limiter
		key := l.key(r.Budget, r.Key)
		switch {
		case r.Budget != c.budget:
			return nil, fault("Budget",
				"%q and %q differ: all requests of a call to All must be of one budget", c.budget, r.Budget)
		case r.Part:
			return nil, fault("Part", "is set: All takes everything or nothing")
		case seen[key]:
			return nil, fault("Key", "%q occurs twice for limit %q: combine the two requests", r.Key,
				l.limit.Name)
		case len(requests) > maxBatch:
			return nil, fault("Requests", "are %d: the maximum of All is %d", len(requests), maxBatch)
		}
		seen[key] = true
		c.keys = append(c.keys, key)
		c.args = append(c.args, int(l.kind), l.args[0], l.args[1], l.args[2], l.amount(r.N))
		c.want += algorithms[l.kind].replies
	}
	s.run(ctx, []*call{c})
	if c.err != nil {
		if cause := contextError(ctx); cause != nil {
			return nil, cause
		}
		s.local.Add(uint64(len(requests)))
		return s.allLocally(requests, c.err), nil
	}
	found := make([]found, len(requests))
	all := true
	for i, r := range requests {
		found[i] = r.Limiter.nextState(c)
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

// check returns an error for invalid requests.
func (s *Backend) check(ctx context.Context, requests []Request) error {
	if err := contextError(ctx); err != nil {
		return err
	}
	for _, r := range requests {
		switch {
		case r.Limiter == nil:
			return fault("Limiter", "is missing: use Store.Limiter")
		case r.Limiter.store != s:
			return fault("Limiter", "%q belongs to another store", r.Limiter.limit.Name)
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

// batch is a group of requests for one script call.
type batch struct {
	limiter *Limiter
	budget  string
	part    bool
	indexes []int // of the requests
	keys    []string
	args    []any
}

// batches groups requests by limit and, in a cluster, by budget. The requests of a key stay in
// order.
func (s *Backend) batches(requests []Request) []*batch {
	type group struct {
		limiter *Limiter
		budget  string
	}
	_, single := s.client.(*redis.Client) // a single server accepts keys of any slot
	var batches []*batch
	last := make(map[group]*batch, 1)
	for i, r := range requests {
		l, g := r.Limiter, group{limiter: r.Limiter}
		if !single {
			g.budget = r.Budget
		}
		b := last[g]
		if b == nil || b.part != r.Part || len(b.keys) == maxBatch {
			b = &batch{
				limiter: l, budget: r.Budget, part: r.Part, args: []any{l.args[0], l.args[1], l.args[2]},
			}
			batches, last[g] = append(batches, b), b
		}
		b.indexes = append(b.indexes, i)
		b.keys = append(b.keys, l.key(r.Budget, r.Key))
		b.args = append(b.args, l.amount(r.N))
	}
	return batches
}

func (b *batch) call(s *Backend, requests []Request) *call {
	k := b.limiter.kind
	c := &call{
		script: s.scripts.each[k], budget: b.budget, keys: b.keys, args: b.args,
		want: len(b.keys) * algorithms[k].replies, requests: requests, indexes: b.indexes,
	}
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
	want   int // numbers in the reply after the time

	requests []Request // those of the keys, if indexes is nil
	indexes  []int     // of the keys' requests

	place *place
	us    int64
	reply []int64
	err   error
}

// run makes calls in one round trip. Calls to lost places fail at once.
func (s *Backend) run(caller context.Context, calls []*call) {
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

// runAll makes calls in one round trip. It repeats calls whose script the server does not have
// in a second one, with the script.
func (s *Backend) runAll(ctx context.Context, calls []*call) {
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

// answer parses a reply: seconds, microseconds and further numbers.
func (c *call) answer(cmd *redis.Cmd) {
	text, err := cmd.Text()
	if err == nil {
		err = c.parse(text)
	}
	c.err = err
}

func (c *call) parse(text string) error {
	c.reply = make([]int64, 0, c.want+2)
	for word := range strings.SplitSeq(text, " ") {
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return fmt.Errorf("the store replied with %.80q instead of numbers", text)
		}
		if n < -1 || n > lease.MaxNumber || len(c.reply) == cap(c.reply) {
			return fmt.Errorf("the store replied with the number %d, or with more than %d numbers", n,
				c.want+2)
		}
		c.reply = append(c.reply, n)
	}
	if len(c.reply) != c.want+2 {
		return fmt.Errorf("the store replied with %d numbers instead of %d", len(c.reply), c.want+2)
	}
	seconds, us := c.reply[0], c.reply[1]
	if seconds < 0 || seconds > lease.MaxNumber/1_000_000 || us < 0 || us >= 1e6 {
		return fmt.Errorf("the store replied with the time %d s %d µs", seconds, us)
	}
	c.us, c.reply = seconds*1e6+us, c.reply[2:]
	rest := c.reply
	for i := range c.keys {
		if c.indexes != nil {
			i = c.indexes[i]
		}
		r := &c.requests[i]
		n := algorithms[r.Limiter.kind].replies
		if !r.Limiter.possible(c.us, r.N, rest[:n]) {
			return fmt.Errorf("the store replied with the impossible state %d of limit %q", rest[:n],
				r.Limiter.limit.Name)
		}
		rest = rest[n:]
	}
	return nil
}

// failed explains the error of a call. The server is lost if it cannot decide about any key,
// but not if the caller's context ended.
func (s *Backend) failed(caller context.Context, c *call) {
	lost := cannotDecide(c.err)
	c.err = s.explain(c.place.addr, c.err)
	if lost && contextError(caller) == nil {
		s.lose(c.place, c.budget, c.err)
	}
}

// contextError returns why a context ended, or nil. A connection may notice a deadline before the
// context does.
func contextError(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return nil
}
