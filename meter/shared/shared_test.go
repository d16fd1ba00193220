package shared

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

var ctx = context.Background()

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newTestStore returns a store that is closed when the test ends. Its deadline is long
// enough for a busy machine.
func newTestStore(t testing.TB, client redis.UniversalClient, config Config) *Backend {
	t.Helper()
	if config.Deadline == 0 {
		config.Deadline = 10 * time.Second
	}
	s, err := New(client, config)
	noError(t, err)
	t.Cleanup(s.Close)
	return s
}

func newTestLimiter(t testing.TB, s *Backend, l Limit) *Limiter {
	t.Helper()
	made, err := s.Limiter(l)
	noError(t, err)
	return made
}

// family has a limit of each kind, of 5 per 10 s.
var family = []LimitParams{
	meter.TokenBucket{Rate: meter.Every(2 * time.Second), Burst: 5},
	meter.TokenBucket{Rate: meter.Every(2 * time.Second), Burst: 5, GCRA: true},
	meter.FixedWindow{Limit: 5, Window: 10 * time.Second},
	meter.SlidingCounter{Limit: 5, Window: 10 * time.Second},
	meter.SlidingLog{Limit: 5, Window: 10 * time.Second, Entries: 5},
}

// lasting is family with limits that no token comes back to during a test by the server's clock.
var lasting = []LimitParams{
	meter.TokenBucket{Rate: meter.Every(time.Hour), Burst: 5},
	meter.TokenBucket{Rate: meter.Every(time.Hour), Burst: 5, GCRA: true},
	meter.FixedWindow{Limit: 5, Window: year},
	meter.SlidingCounter{Limit: 5, Window: year},
	meter.SlidingLog{Limit: 5, Window: year, Entries: 5},
}

const year = 366 * 24 * time.Hour

// TestDecide decides by the server's clock.
func TestDecide(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, server *storetest.Server) {
		s := newTestStore(t, server.Client(), Config{})
		for i, p := range lasting {
			l := newTestLimiter(t, s, Limit{Name: fmt.Sprint("limit", i), Params: p})
			before := time.Now()
			d, err := l.Decide(ctx, "customer-42", 3)
			noError(t, err)
			if !d.Allowed || d.Taken != 3 || d.Remaining != 2 || d.RetryAfter != 0 || d.Source != FromStore ||
				d.Err != nil {
				t.Errorf("%T: 3 of 5: got %+v, want 3 taken and 2 remaining at the store", p, d)
			}
			if d.Time.Before(before.Add(-time.Millisecond)) ||
				d.Time.After(time.Now().Add(time.Millisecond)) {
				t.Errorf("%T: got time %v, want after %v", p, d.Time, before)
			}
			d, err = l.Decide(ctx, "customer-42", 3)
			noError(t, err)
			if d.Allowed || d.Taken != 0 || d.Remaining != 2 || d.RetryAfter <= 0 || d.RetryAfter > 2*year ||
				d.ResetAfter < d.RetryAfter {
				t.Errorf("%T: 3 of 2: got %+v, want a refusal with 2 remaining and times", p, d)
			}
			d, err = l.TakeUpTo(ctx, "customer-42", 9)
			noError(t, err)
			if d.Allowed || d.Taken != 2 || d.Remaining != 0 || d.RetryAfter != meter.Never {
				t.Errorf("%T: up to 9 of 2: got %+v, want 2 taken and no retry", p, d)
			}
			d, err = l.Decide(ctx, "customer-43", 6)
			noError(t, err)
			if d.Allowed || d.RetryAfter != meter.Never || d.Remaining != 5 || d.ResetAfter != 0 {
				t.Errorf("%T: 6 of 5: got %+v, want a refusal without a retry, 5 remaining", p, d)
			}
		}
	})
}

// TestKeys checks that each limit of a budget has one key, which expires when
// its state is empty. A refusal creates no key.
func TestKeys(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, server *storetest.Server) {
		c := server.Client()
		s := newTestStore(t, c, Config{})
		for i, p := range family {
			server.Flush()
			l := newTestLimiter(t, s, Limit{Name: fmt.Sprint("limit", i), Params: p})
			d, err := l.Decide(ctx, "customer-42", 6)
			noError(t, err)
			if keys := c.Keys(ctx, "*").Val(); len(keys) != 0 || d.Allowed {
				t.Errorf("%T: got keys %q after a refusal, want none", p, keys)
			}
			var took time.Duration // of the last call: the server may stop between TIME and PEXPIRE
			for range 2 {
				begin := time.Now()
				d, err = l.Decide(ctx, "customer-42", 1)
				noError(t, err)
				took = time.Since(begin)
			}
			keys := c.Keys(ctx, "*").Val()
			if len(keys) != 1 || keys[0] != l.key("customer-42", "") {
				t.Fatalf("%T: keys %q, want one", p, keys)
			}
			expires := time.UnixMilli(c.PExpireTime(ctx, keys[0]).Val().Milliseconds())
			if after := expires.Sub(d.Time.Add(d.ResetAfter)); after < -took ||
				after > took+3*time.Millisecond {
				t.Errorf("%T: the key expires %v after its state is empty, want 0 to 3 ms (the call took %v)",
					p, after, took)
			}
		}
		short := newTestLimiter(t, s, Limit{
			Name: "short", Params: meter.TokenBucket{Rate: meter.Every(20 * time.Millisecond), Burst: 1},
		})
		_, err := short.Decide(ctx, "customer-42", 1)
		noError(t, err)
		storetest.Until(t, "key expires",
			func() bool { return c.Exists(ctx, short.key("customer-42", "")).Val() == 0 })
		if d, err := short.Decide(ctx, "customer-42", 1); err != nil || !d.Allowed {
			t.Errorf("after the key expired: got %+v, %v, want it allowed", d, err)
		}
	})
}

// TestManyKeys decides about many keys of many limits in few calls.
func TestManyKeys(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, server *storetest.Server) {
		s := newTestStore(t, server.Client(), Config{})
		var limiters []*Limiter
		for i, p := range family {
			limiters = append(limiters, newTestLimiter(t, s, Limit{Name: fmt.Sprint("limit", i), Params: p}))
		}
		var requests []Request
		for i := range 300 {
			for _, l := range limiters {
				requests = append(requests, Request{
					Limiter: l, Budget: fmt.Sprint("customer-", i%7), Key: fmt.Sprint(i), N: int64(i % 7),
				})
			}
		}
		noError(t, server.Client().ScriptFlush(ctx).Err())
		before := countCalls(server)
		decisions, err := s.Each(ctx, requests)
		noError(t, err)
		for i, d := range decisions {
			if n := requests[i].N; d.Err != nil || d.Allowed != (n <= 5) || d.Taken != n*boolToInt(n <= 5) {
				t.Fatalf("%+v: got %+v, want allowed %v", requests[i], d, n <= 5)
			}
		}
		// Two calls per limit; the first time the script is unknown.
		if made := countCalls(server) - before; made != 2*2*len(limiters) {
			t.Errorf("got %d calls, want %d", made, 2*2*len(limiters))
		}

		same := Request{Limiter: limiters[0], Budget: "same", N: 2, Part: true}
		decisions, err = s.Each(ctx, []Request{same, same, same, same})
		noError(t, err)
		var taken []int64
		for _, d := range decisions {
			taken = append(taken, d.Taken)
		}
		if want := []int64{2, 2, 1, 0}; !reflect.DeepEqual(taken, want) {
			t.Errorf("four times 2 of the same 5: took %v, want %v", taken, want)
		}
		all := same
		same.Budget, all.Budget, all.Part = "mixed", "mixed", false
		decisions, err = s.Each(ctx, []Request{same, same, all, same})
		noError(t, err)
		if d := decisions; d[0].Taken != 2 || d[1].Taken != 2 || d[2].Taken != 0 || d[3].Taken != 1 {
			t.Errorf("2 of the same 5, alternating with and without Part: got %+v, want 2, 2, 0 and 1 taken",
				d)
		}
	})
}

func boolToInt(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// countCalls returns the number of script calls to a server, including failed ones.
func countCalls(server *storetest.Server) int {
	n := 0
	for _, command := range []string{"evalsha", "eval"} {
		stat := server.Info("commandstats", "cmdstat_"+command)
		var made int
		_, _ = fmt.Sscanf(stat, "calls=%d", &made)
		n += made
	}
	return n
}

// TestAllLimitsOrNone takes from several limits or from none, and compares the result with
// meters that are all peeked at first.
func TestAllLimitsOrNone(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	storetest.Each(t, func(t *testing.T, server *storetest.Server) {
		random := rand.New(rand.NewPCG(seed, 1))
		outcomes := [2]int{}
		for i := range 30 {
			v := newVirtual(t, server, 1_795_000_000_000_000+random.Int64N(1e12))
			var twins []*twin
			for j := 0; j < 1+random.IntN(5); {
				p := randomParams(random)
				if _, err := v.Limiter(Limit{Name: "try", Params: p}); err == nil {
					twins = append(twins, v.twin(fmt.Sprintf("all%d-%d", i, j), p))
					j++
				}
			}
			for range 30 {
				if v.us > 4e15 {
					break
				}
				var requests []Request
				all := true
				for _, tw := range twins {
					v.passTime(tw, random)
					n := random.Int64N(tw.amount()/2 + 2)
					requests = append(requests, Request{Limiter: tw.l, Budget: "b", Key: tw.key, N: n})
					all = all && tw.m.Peek(v.us*1000, int(n), meter.Green) == meter.Green
				}
				decisions, err := v.All(ctx, requests)
				noError(t, err)
				for j, tw := range twins {
					n := requests[j].N
					want := Decision{}
					if all {
						tw.m.Color(v.us*1000, int(n), meter.Green)
						want.Taken = n
					}
					d := decisions[j]
					if d.Allowed != all {
						t.Fatalf("seed %d: %+v: allowed %v, want %v", seed, requests[j], d.Allowed, all)
					}
					d.Allowed = d.Taken == n
					if tw.m.Peek(v.us*1000, int(n), meter.Green) == meter.Green && !all {
						want.RetryAfter = 0
					}
					if err := tw.sameAfter(d, want, v.us, n); err != nil {
						t.Fatalf("seed %d, round %d: %v", seed, i, err)
					}
				}
				outcomes[boolToInt(all)]++
				tw := random.IntN(len(twins))
				v.us += randomWait(decisions[tw], twins[tw].l, random)
			}
		}
		if outcomes[0] < 50 || outcomes[1] < 50 {
			t.Errorf("seed %d: got %d refused and %d allowed, want 50 of each", seed, outcomes[0],
				outcomes[1])
		}
	})
}

// TestFlushedScripts makes the server forget its scripts between calls.
func TestFlushedScripts(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, server *storetest.Server) {
		s := newTestStore(t, server.Client(), Config{})
		l := newTestLimiter(t, s, Limit{Name: "limit", Params: lasting[0]})
		for i := range 5 {
			noError(t, server.Client().ScriptFlush(ctx).Err())
			d, err := l.Decide(ctx, "customer-42", 1)
			if err != nil || !d.Allowed || d.Source != FromStore || d.Remaining != int64(4-i) {
				t.Errorf("call %d: got %+v, %v, want %d remaining", i, d, err, 4-i)
			}
		}
		if stats := s.Stats(); !reflect.DeepEqual(stats, Stats{}) {
			t.Errorf("got %+v, want no losses", stats)
		}
	})
}

// TestCluster uses limits of budgets in all slots of a cluster, with one script
// call for the keys of each budget, while slots move.
func TestCluster(t *testing.T) {
	t.Parallel()
	nodes := storetest.Cluster(t, storetest.Kinds(t)[0], 0)
	client := openClient(t, "redis://"+nodes.Addrs()[0]+"?addr="+strings.Join(nodes.Addrs()[1:], "&addr="))
	s := newTestStore(t, client, Config{})
	l := newTestLimiter(t, s, Limit{Name: "limit", Params: lasting[0]})
	log := newTestLimiter(t, s, Limit{Name: "log", Params: lasting[4]})

	var requests []Request
	for i := range 64 {
		requests = append(requests, Request{Limiter: l, Budget: "customer-42", Key: strconv.Itoa(i), N: 1})
	}
	all := func() (n int) {
		for _, p := range nodes.Primaries {
			n += countCalls(p)
		}
		return n
	}
	_, err := s.Each(ctx, requests)
	noError(t, err)
	before := all()
	decisions, err := s.Each(ctx, requests)
	noError(t, err)
	for _, d := range decisions {
		if d.Source != FromStore || d.Remaining != 3 {
			t.Fatalf("got %+v, want 3 remaining at the store", d)
		}
	}
	if made := all() - before; made != 1 {
		t.Errorf("64 keys of a budget took %d calls, want 1", made)
	}
	for i := range requests {
		requests[i].Budget, requests[i].Key = "customer-"+strconv.Itoa(i), ""
	}
	decisions, err = s.Each(ctx, requests)
	noError(t, err)
	for i, d := range decisions {
		if want := int64(4); d.Source != FromStore || d.Remaining != want {
			t.Errorf("budget %d: got %+v, want %d remaining", i, d, want)
		}
	}

	// While a slot moves, missing keys are redirected by ASK; afterwards, all
	// keys by MOVED.
	slot := nodes.Slot(l.key("customer-99", ""))
	_, to := nodes.Owner(slot)
	decide := func(when string, l *Limiter, want int64) {
		t.Helper()
		if d, err := l.Decide(ctx, "customer-99", 1); err != nil || d.Source != FromStore ||
			d.Remaining != want {
			t.Errorf("%s: got %+v, %v, want %d remaining", when, d, err, want)
		}
	}
	decide("before", l, 4)
	nodes.Begin(slot, to)
	decide("key is still here", l, 3)
	decide("key is new", log, 4)
	nodes.Move(slot, to)
	decide("moved", l, 2)
	decide("moved", log, 3)
	if both, err := s.All(ctx, []Request{
		{Limiter: l, Budget: "customer-99", N: 2}, {Limiter: log, Budget: "customer-99", N: 2},
	}); err != nil ||
		!both[0].Allowed || both[1].Remaining != 1 {
		t.Errorf("both limits: got %+v, %v, want 1 remaining", both, err)
	}
	if stats := s.Stats(); stats.Lost != 0 || stats.Local != 0 {
		t.Errorf("got %+v, want no losses", stats)
	}

	// A client of one server cannot follow.
	_, other := nodes.Owner(slot)
	single := newTestStore(t, other.Client(), Config{})
	d, err := newTestLimiter(t, single,
		Limit{Name: "limit", Params: lasting[0]}).Decide(ctx, "customer-99", 1)
	if err != nil || d.Err == nil || !strings.Contains(d.Err.Error(), "MOVED") ||
		!strings.Contains(d.Err.Error(), "use redis.NewClusterClient") {
		t.Errorf("client of one node: got %+v, %v, want MOVED and a remedy", d, err)
	}
}

// TestConcurrent makes many goroutines take from one limit: together they get
// exactly its amount.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, server *storetest.Server) {
		s := newTestStore(t, server.Client(), Config{})
		for i, p := range []LimitParams{
			meter.TokenBucket{Rate: meter.Every(time.Hour), Burst: 100},
			meter.FixedWindow{Limit: 100, Window: 366 * 24 * time.Hour},
			meter.SlidingCounter{Limit: 100, Window: 366 * 24 * time.Hour},
			meter.SlidingLog{Limit: 100, Window: time.Hour, Entries: 100},
		} {
			l := newTestLimiter(t, s, Limit{Name: fmt.Sprint("limit", i), Params: p})
			var taken atomic.Int64
			var done sync.WaitGroup
			for range 8 {
				done.Go(func() {
					for range 20 {
						d, err := l.TakeUpTo(ctx, "customer-42", 3)
						if err != nil || d.Err != nil {
							t.Errorf("got %+v, %v, want no error", d, err)
						}
						taken.Add(d.Taken)
					}
				})
			}
			done.Wait()
			if n := taken.Load(); n != 100 {
				t.Errorf("%T: got %d taken, want 100", p, n)
			}
		}
	})
}
