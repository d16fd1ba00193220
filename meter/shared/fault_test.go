package shared

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

const secretWord = "s3cr3t-w0rd"

// openClient returns a client from Open that is closed when the test ends.
func openClient(t testing.TB, url string) redis.UniversalClient {
	t.Helper()
	client, err := Open(Server{URL: url})
	noError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// losses counts the calls of OnLost and OnFound.
type losses struct {
	mu          sync.Mutex
	lost, found []Loss
}

func (l *losses) config() Config {
	return Config{
		Deadline: 10 * time.Second, Retry: 50 * time.Millisecond,
		OnLost:  func(loss Loss) { l.mu.Lock(); defer l.mu.Unlock(); l.lost = append(l.lost, loss) },
		OnFound: func(loss Loss) { l.mu.Lock(); defer l.mu.Unlock(); l.found = append(l.found, loss) },
	}
}

func (l *losses) counts() (lost, found int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.lost), len(l.found)
}

// TestServerFailures covers every way in which a server cannot decide. The decision's
// error must have the remedy and no password.
func TestServerFailures(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	for _, kind := range storetest.Kinds(t) {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			guarded := storetest.Start(t, kind, storetest.Password(secretWord),
				storetest.User("reader", secretWord, "~*", "+@all", "-evalsha"),
				storetest.User("other", secretWord, "~other:*", "+@all"))
			replica := storetest.Replica(t, guarded)
			single := storetest.Start(t, kind, storetest.Config("cluster-enabled yes"))
			gone := storetest.Start(t, kind)
			gone.Kill()
			full := storetest.Start(t, kind, storetest.MaxMemory("1")) // byte
			for _, f := range []struct {
				name, url string
				want      []string
			}{
				{"no listener", gone.URL(), []string{gone.Addr, "refused"}},
				{"another server", strings.Replace(web.URL, "http:", "redis:", 1), []string{strings.TrimPrefix(web.URL, "http://")}},
				{"no such host", "redis://store.invalid:6379", []string{"store.invalid"}},
				{"server without TLS", strings.Replace(full.URL(), "redis:", "rediss:", 1), []string{full.Addr}},
				{"wrong password", guarded.URLOf("", "not-"+secretWord), []string{"WRONGPASS", "check the user name and the password"}},
				{"no password", "redis://" + guarded.Addr, []string{"NOAUTH", "set a user name"}},
				{"no right for EVALSHA", guarded.URLOf("reader", secretWord), []string{"NOPERM", "+evalsha"}},
				{"no right for the keys", guarded.URLOf("other", secretWord), []string{"NOPERM", rights}},
				{"out of memory", full.URL(), []string{"OOM", "raise maxmemory"}},
				{"read-only replica", replica.URL(), []string{"READONLY", "connect to the primary"}},
				{"node of a cluster", single.URL(), []string{"CLUSTERDOWN"}},
			} {
				t.Run(f.name, func(t *testing.T) {
					t.Parallel()
					var l losses
					config := l.config()
					if strings.HasPrefix(f.url, "rediss:") {
						config.Deadline = 200 * time.Millisecond // the server waits for more bytes
					}
					s, err := New(openClient(t, f.url), config)
					noError(t, err)
					d, err := newTestLimiter(t, s,
						Limit{Name: "limit", Params: family[0]}).Decide(ctx, "customer-42", 1)
					noError(t, err)
					if d.Allowed || d.Source != FromClosed || d.Err == nil ||
						d.RetryAfter != 50*time.Millisecond {
						t.Fatalf("got %+v, want a refusal", d)
					}
					for _, want := range f.want {
						if !strings.Contains(d.Err.Error(), want) {
							t.Errorf("%v: lacks %q", d.Err, want)
						}
					}
					if text := fmt.Sprintf("%v %+v", d.Err, s.Stats()); strings.Contains(text, secretWord) {
						t.Errorf("%s: the error or the stats contain the password", text)
					}
					s.Close()
					if lost, found := l.counts(); lost != 1 || found != 0 {
						t.Errorf("got %d losses and %d recoveries, want 1 and 0", lost, found)
					}
				})
			}
		})
	}
}

// TestDecisionRights uses a user with only the rights that the message of
// NOPERM lists.
func TestDecisionRights(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, server *storetest.Server) {
		s := newTestStore(t, openClient(t, server.URLOf("shaper", secretWord)), Config{})
		var all []Request
		for i, p := range lasting {
			l := newTestLimiter(t, s, Limit{Name: fmt.Sprint("limit", i), Params: p})
			all = append(all, Request{Limiter: l, Budget: "customer-42", N: 1})
			for n := range 7 {
				if d, err := l.Decide(ctx, "customer-42", 1); err != nil || d.Source != FromStore ||
					d.Allowed != (n < 5) {
					t.Fatalf("got %+v, %v, want 5 allowed by the store", d, err)
				}
			}
		}
		few := newTestStore(t, openClient(t, server.URLOf("bucket", secretWord)), Config{})
		d, err := newTestLimiter(t, few, Limit{Name: "few", Params: lasting[4]}).Decide(ctx, "customer-42", 1)
		if err != nil || d.Err == nil || !strings.Contains(d.Err.Error(), logRights) ||
			few.Stats().Lost != 0 {
			t.Errorf("sliding log without its rights: got %+v, %v, want %q", d, err, logRights)
		}
		for _, decide := range []func(context.Context, []Request) ([]Decision, error){s.Each, s.All} {
			decisions, err := decide(ctx, all)
			noError(t, err)
			for _, d := range decisions {
				if d.Source != FromStore || d.Allowed {
					t.Errorf("got %+v, want a refusal by the store", d)
				}
			}
		}
	}, storetest.User("shaper", secretWord, strings.Fields(rights+" "+logRights)...),
		storetest.User("bucket", secretWord, strings.Fields(rights)...))
}

// counting counts the requests to the server.
type counting struct{ n atomic.Int64 }

func (c *counting) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *counting) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { c.n.Add(1); return next(ctx, cmd) }
}

func (c *counting) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { c.n.Add(1); return next(ctx, cmds) }
}

// TestLostServer kills the server: the first decision notices, and from then on each
// limit decides by its fail mode, without a call.
func TestLostServer(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, server *storetest.Server) {
		client := openClient(t, server.URL())
		var asked counting
		client.AddHook(&asked)
		var l losses
		config := l.config()
		config.Retry = time.Minute // so that the monitor makes few requests
		s := newTestStore(t, client, config)
		limits := map[Fail]*Limiter{}
		for fail, name := range map[Fail]string{
			FailClosed: "closed", FailOpen: "open", FailRescue: "rescue",
		} {
			limit := Limit{
				Name: name, Params: meter.TokenBucket{Rate: meter.Every(time.Hour), Burst: 100}, Fail: fail,
			}
			if fail == FailRescue {
				limit.Share = 0.1
			}
			limits[fail] = newTestLimiter(t, s, limit)
			if d, err := limits[fail].Decide(ctx, "customer-42", 1); err != nil || d.Source != FromStore {
				t.Fatalf("got %+v, %v, want a decision of the store", d, err)
			}
		}
		server.Kill()
		const first = 20 // concurrent decisions that do not know of the loss
		var done sync.WaitGroup
		for range first {
			done.Go(func() {
				if d, err := limits[FailOpen].Decide(ctx, "customer-42", 1); err != nil ||
					d.Source != FromOpen || d.Err == nil {
					t.Errorf("first decision without the store: got %+v, %v, want FromOpen and an error", d,
						err)
				}
			})
		}
		done.Wait()
		before := asked.n.Load()
		allowed := map[Fail]int{}
		const decisions = 1000
		for range decisions {
			for fail, limit := range limits {
				d, err := limit.Decide(ctx, "customer-42", 1)
				noError(t, err)
				if d.Err == nil || d.Source == FromStore {
					t.Fatalf("got %+v, want a local decision and an error", d)
				}
				if d.Allowed {
					allowed[fail]++
				}
			}
		}
		if allowed[FailClosed] != 0 || allowed[FailOpen] != decisions || allowed[FailRescue] != 10 {
			t.Errorf("allowed %v of %d, want none, all, and a tenth of 100", allowed, decisions)
		}
		// The monitor's requests are additional, but far fewer than the
		// decisions.
		if n := asked.n.Load() - before; n > decisions/10 {
			t.Errorf("got %d requests to a lost server for %d decisions, want at most %d", n, 3*decisions,
				decisions/10)
		}
		if lost, found := l.counts(); found != 0 || lost > 1 {
			t.Errorf("got %d losses and %d recoveries, want 1 and 0", lost, found)
		}
		stats := s.Stats()
		if stats.Lost != 1 || stats.Local != 3*decisions+first || len(stats.Losses) != 1 ||
			stats.Losses[0].Addr != server.Addr {
			t.Errorf("got %+v, want one loss of %s and %d local decisions", stats, server.Addr,
				3*decisions+first)
		}
	})
}

// TestServerFoundAgain ends, stops, partitions or fills a server, and restores it.
func TestServerFoundAgain(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, server *storetest.Server) {
		proxy := storetest.Proxy(t, server.Addr)
		for _, f := range []struct {
			name       string
			begin, end func()
		}{
			{"killed", server.Kill, server.Restart},
			{"paused", server.Pause, server.Resume},
			{"cut off", func() { proxy.Cut(storetest.Both) }, proxy.Heal},
			{"refused", proxy.Refuse, proxy.Heal},
			{"read-only", func() { server.Client().ReplicaOf(ctx, "127.0.0.1", "1") }, func() { server.Client().ReplicaOf(ctx, "NO", "ONE") }},
		} {
			var l losses
			config := l.config()
			config.Deadline = 50 * time.Millisecond // for failures that end only at the deadline
			client := openClient(t, "redis://"+proxy.Addr)
			var asked counting
			client.AddHook(&asked)
			s := newTestStore(t, client, config)
			limit := newTestLimiter(t, s, Limit{
				Name: "limit", Params: meter.TokenBucket{Rate: meter.Per(1e6, time.Second), Burst: 1e6},
				Fail: FailOpen,
			})
			from := func(want Source) func() bool {
				return func() bool {
					d, err := limit.Decide(ctx, "customer-42", 1)
					noError(t, err)
					return d.Source == want && d.Allowed
				}
			}
			for i := 1; i <= 2; i++ {
				storetest.Until(t, f.name+": the store decides", from(FromStore))
				f.begin()
				storetest.Until(t, f.name+": the store is lost", from(FromOpen))
				// Now only the monitor makes requests, and it must not consider
				// the store found.
				lost, _ := l.counts()
				before, stats := asked.n.Load(), s.Stats()
				storetest.Until(t, f.name+": the monitor asks",
					func() bool { return asked.n.Load() >= before+3 })
				if now := s.Stats(); now.Found != stats.Found || len(now.Losses) != 1 {
					t.Errorf("%s: got %+v, want one loss and no recovery", f.name, now)
				}
				f.end()
				storetest.Until(t, f.name+": the store is found", from(FromStore))
				storetest.Until(t, f.name+": OnFound was called", func() bool {
					nowLost, nowFound := l.counts()
					return nowLost >= max(lost, i) && nowFound == nowLost && s.Stats().Losses == nil
				})
			}
			s.Close()
			l.mu.Lock()
			for i, found := range l.found {
				if found.Since != l.lost[i].Since || found.After <= 0 || found.Err == nil ||
					found.Addr != proxy.Addr {
					t.Errorf("%s: got OnLost with %+v, OnFound with %+v", f.name, l.lost[i], found)
				}
			}
			l.mu.Unlock()
		}
	})
}

// TestDeadline makes calls that would never end: each ends at its deadline.
func TestDeadline(t *testing.T) {
	t.Parallel()
	server := storetest.Start(t, storetest.Kinds(t)[0])
	for _, f := range []struct {
		name  string
		begin func(p *storetest.TCPProxy, c *redis.Client)
	}{
		{"no answer on an open connection", func(p *storetest.TCPProxy, c *redis.Client) {
			noError(t, c.Ping(ctx).Err())
			p.Stall(storetest.ToClient)
		}},
		{"no answer on a new connection", func(p *storetest.TCPProxy, _ *redis.Client) { p.Stall(storetest.Both) }},
		{"no connection in the pool", func(p *storetest.TCPProxy, c *redis.Client) {
			noError(t, c.Ping(ctx).Err())
			p.Stall(storetest.Both)
			go c.Ping(ctx)
			storetest.Until(t, "the connection is in use",
				func() bool { return c.PoolStats().IdleConns == 0 })
		}},
	} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			proxy := storetest.Proxy(t, server.Addr)
			client := redis.NewClient(&redis.Options{
				Addr: proxy.Addr, ContextTimeoutEnabled: true, PoolSize: 1,
				ReadTimeout: time.Hour, WriteTimeout: time.Hour, DialTimeout: time.Hour,
				PoolTimeout: time.Hour,
			})
			t.Cleanup(func() { _ = client.Close() })
			f.begin(proxy, client)
			s, err := New(client, Config{Deadline: 20 * time.Millisecond})
			noError(t, err)
			l := newTestLimiter(t, s, Limit{Name: "limit", Params: family[0], Fail: FailOpen})
			d, err := l.Decide(ctx, "customer-42", 1)
			if err != nil || d.Source != FromOpen ||
				!strings.Contains(fmt.Sprint(d.Err), "no answer within 20ms") {
				t.Errorf("got %+v, %v, want FromOpen and \"no answer within 20ms\"", d, err)
			}
			s.Close()
			proxy.Heal()
		})
	}
}

// TestCallerGivesUp ends the caller's context: Decide returns its error, and
// the store is not lost.
func TestCallerGivesUp(t *testing.T) {
	t.Parallel()
	server := storetest.Start(t, storetest.Kinds(t)[0])
	proxy := storetest.Proxy(t, server.Addr)
	// go-redis notices a canceled context only at the deadline.
	s := newTestStore(t, openClient(t, "redis://"+proxy.Addr), Config{Deadline: 5 * time.Second})
	l := newTestLimiter(t, s, Limit{Name: "limit", Params: family[0]})
	_, err := l.Decide(ctx, "customer-42", 1)
	noError(t, err)
	proxy.Stall(storetest.ToClient)
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if d, err := l.Decide(short, "customer-42", 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %+v, %v, want context.DeadlineExceeded", d, err)
	}
	if _, err := l.Decide(short, "customer-42", 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a context that has ended: got %v, want context.DeadlineExceeded", err)
	}
	reason := errors.New("the client disconnected")
	canceled, give := context.WithCancelCause(ctx)
	stalled := proxy.Bytes(storetest.ToClient)
	go func() {
		storetest.Until(t, "the server has answered",
			func() bool { return proxy.Bytes(storetest.ToClient) > stalled })
		give(reason)
	}()
	if _, err := s.All(canceled,
		[]Request{{Limiter: l, Budget: "customer-42", N: 1}}); !errors.Is(err, reason) {
		t.Errorf("got %v, want %v", err, reason)
	}
	proxy.Heal()
	if d, err := l.Decide(ctx, "customer-42", 1); err != nil || d.Source != FromStore {
		t.Errorf("got %+v, %v, want a decision of the store", d, err)
	}
	if stats := s.Stats(); stats.Lost != 0 {
		t.Errorf("got %+v, want no loss", stats)
	}
}
