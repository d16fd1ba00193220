package shared

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

// slowTerms returns terms with deadlines that a busy machine can meet.
func slowTerms() lease.Terms {
	t := testTerms()
	t.Interval, t.Deadline = 300e6, 150e6
	return t
}

// TestQuietSlowNetwork uses a network on which connecting takes longer than a deadline,
// and then each answer does.
func TestQuietSlowNetwork(t *testing.T) {
	nettest.Quiet(t)
	t.Parallel()
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		p := storetest.Proxy(t, s.Addr)
		p.Delay(storetest.Both, 40*time.Millisecond) // TLS 160 ms, HELLO 80 ms, each call 80 ms
		g := &group{at: testClock()}
		a := g.addAgent(t, slowTerms(), Server{URL: "rediss://" + p.Addr, CAFile: s.CertFile()})
		g.awaitFull(t, "a slow connection")
		p.Delay(storetest.Both, 110*time.Millisecond)
		g.rescued(t, "slow answers")
		g.hasError(t, 0, "longer than the deadline of 150ms", "longer interval")
		calls := a.Status()[0].Calls
		storetest.Until(t, "calls", func() bool { return a.Status()[0].Calls > calls+5 })
		p.Heal()
		g.awaitFull(t, "fast answers")
		if n := p.Accepted(); n > 4 {
			t.Errorf("got %d connections, want about one", n)
		}
	}, storetest.TLS())
}

// TestConnections checks that agents use one connection each, and a second one
// for calls during a wait for a replica. On a busy machine, a call without an
// answer in time can cost its connection.
func TestConnections(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		storetest.Replica(t, s)
		p := storetest.Proxy(t, s.Addr)
		g := joinHosts(t, 3, Server{URL: "redis://" + p.Addr})
		g.awaitFull(t, "all share the budget")
		calls := g.agents[0].Status()[0].Calls
		storetest.Until(t, "calls", func() bool { return g.agents[0].Status()[0].Calls > calls+5 })
		n, lost := p.Accepted(), uint64(0)
		for _, a := range g.agents {
			lost += a.Status()[0].Lost
		}
		if n > 12+int(lost) {
			t.Errorf("got %d connections of 3 hosts that lost %d calls, want about two of each", n, lost)
		}
		t.Logf("%d connections, %d lost calls", n, lost)
		for _, c := range []string{"cmdstat_client", "cmdstat_client|setinfo", "cmdstat_select"} {
			if stat := s.Info("commandstats", c); stat != "" {
				t.Errorf("got calls of %s: %s", c, stat)
			}
		}
		if stat := s.Info("commandstats", "cmdstat_wait"); stat == "" {
			t.Error("no call waited for the replica")
		}
	})
}

// TestMeterFails uses a meter that rejects plans: its host must not report
// shares that the meter exceeds.
func TestMeterFails(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		g := joinHosts(t, 2, Server{URL: s.URL()})
		g.awaitSettled(t, "two hosts", budget)
		m := g.meters[0]
		g.doAtOnce(func() { m.fail, m.offers = errors.New("no memory"), 0 })
		checkWords(t, g.awaitEvent(t, 0, Failed).Err, "no memory")
		g.awaitSum(t, "the lease of its last plan ends", budget*95/100-rounding, budget*95/100+budget/10)
		storetest.Until(t, "the other has the rest",
			func() bool { return g.meters[1].allowedRate() > budget*90/100 })
		storetest.Until(t, "it has its rescue share", func() bool { return m.allowedRate() == budget/20 })
		g.doAtOnce(func() { m.fail, m.offers = nil, budget })
		storetest.Until(t, "both have a share again",
			func() bool { return g.meters[0].allowedRate() > budget*45/100 })
		g.awaitFull(t, "two hosts again")
	})
}

// TestRebind replaces a host's meter by one whose counts start at 0, and then
// resets the counts.
func TestRebind(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		g := joinHosts(t, 1, Server{URL: s.URL()})
		g.awaitFull(t, "one host")
		g.meters[0].offerRate(0)
		storetest.Until(t, "it has no demand", func() bool {
			b, err := ShowBudget(t.Context(), s.Client(), "b")
			return err == nil && b.Hosts[0].Demand[0] == 0
		})
		demands := func(name string) {
			t.Helper()
			calls := func() uint64 { return g.agents[0].Status()[0].Calls }
			for until, now := calls()+3, uint64(0); now < until; now = calls() {
				b, err := ShowBudget(t.Context(), s.Client(), "b")
				if noError(t, err); b.Hosts[0].Demand[0] != 0 {
					t.Fatalf("%s: got a demand of %d, want 0", name, b.Hosts[0].Demand[0])
				}
				time.Sleep(time.Millisecond)
			}
		}
		m := &fluid{group: g}
		noError(t, g.agents[0].Bind([]LeasedMeter{m}))
		demands("a new meter")
		storetest.Until(t, "it has a demand", func() bool {
			// again and again: one demand lasts for one report only
			g.doAtOnce(func() { m.counts[0] += 1e12 })
			b, err := ShowBudget(t.Context(), s.Client(), "b")
			return err == nil && b.Hosts[0].Demand[0] > 0
		})
		storetest.Until(t, "it has none any more", func() bool {
			b, err := ShowBudget(t.Context(), s.Client(), "b")
			return err == nil && b.Hosts[0].Demand[0] == 0
		})
		g.doAtOnce(func() { m.counts = [3]float64{} })
		demands("a reset meter")
	})
}

// TestReplace changes an agent's budgets while it runs.
func TestReplace(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		g := joinHosts(t, 1, Server{URL: s.URL()})
		g.awaitFull(t, "one host")
		a := g.agents[0]
		noError(t, a.Replace([]Budget{{"c", "host-0", testTerms()}, {"b", "host-0", testTerms()}}))
		noError(t, a.Bind([]LeasedMeter{nil, g.meters[0]}))
		if st := a.Status(); st[0].Heard || !st[1].Heard || g.meters[0].allowedRate() < full {
			t.Errorf("got %+v, want only the second budget heard", st)
		}
		storetest.Until(t, "the new budget has a share", func() bool { return a.Status()[0].Heard })
		noError(t, g.meters[0].Apply(lease.Plan{}))
		noError(t, a.Replace([]Budget{{"c", "host-0", testTerms()}}))
		b, err := ShowBudget(t.Context(), s.Client(), "b")
		if err != nil || len(b.Hosts) > 0 {
			t.Errorf("the budget that the agent left: got %+v, %v, want no hosts", b, err)
		}
		checkWords(t, a.Replace([]Budget{{"c", "host-0", slowTerms()}}), "300ms differs from 100ms")
		if len(a.Status()) != 1 {
			t.Errorf("got %+v, want one budget", a.Status())
		}
	})
}

// TestCallsAreSpread checks that agents that start together call at different times. A process that
// stands still makes late calls at once.
func TestCallsAreSpread(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	spread := func() time.Duration {
		var mu sync.Mutex
		var first []int64
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		for range 40 {
			said := false
			now := func() int64 {
				mu.Lock()
				defer mu.Unlock()
				if !said {
					said, first = true, append(first, testClock())
				}
				return testClock()
			}
			a, err := NewAgent(client, []Budget{{"b", "h", slowTerms()}}, AgentConfig{Clock: now})
			noError(t, err)
			running.Go(func() { a.Run(ctx) })
		}
		storetest.Until(t, "all call", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(first) == 40
		})
		cancel()
		running.Wait()
		return time.Duration(slices.Max(first) - slices.Min(first))
	}
	longest := time.Duration(0)
	for try := 0; try < 20 && longest < 150*time.Millisecond; try++ {
		longest = max(longest, spread())
	}
	if longest < 150*time.Millisecond {
		t.Errorf("got all calls within %v, want at least 150 ms", longest)
	}
}

// TestPatience checks that a line waits increasingly long for a server that
// does not answer.
func TestPatience(t *testing.T) {
	t.Parallel()
	l := newLine(80 * time.Millisecond)
	call := func(result func(context.Context) *result) {
		if !l.idle() {
			t.Error("a call is in progress, want none")
		}
		l.start(result)
		now, cancel := context.WithCancel(t.Context())
		cancel()
		_ = l.waitIdle(now) // does not wait
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if !l.waitIdle(ctx) || !l.idle() {
			t.Error("the call did not end")
		}
	}
	fails := func(err error) *result { return &result{answers: []answer{{err: err}}} }
	silent := func(ctx context.Context) *result {
		<-ctx.Done()
		return fails(ctx.Err())
	}
	for _, want := range []time.Duration{
		240 * time.Millisecond, 480 * time.Millisecond, 960 * time.Millisecond, 1920 * time.Millisecond,
		mostPatience, mostPatience,
	} {
		if l.patience != want {
			t.Fatalf("patience %v, want %v", l.patience, want)
		}
		if want < 500*time.Millisecond {
			call(silent)
		} else {
			l.ended, l.result, l.took = nil, fails(errDown), want
			l.finish()
		}
		if l.err == nil || l.noAnswer() == nil {
			t.Error("got no error of an unanswered call")
		}
	}
	call(func(context.Context) *result { return fails(errDown) })
	if !errors.Is(l.noAnswer(), errDown) || l.patience != mostPatience {
		t.Errorf("got %v with patience %v, want errDown with %v", l.noAnswer(), l.patience, mostPatience)
	}
	call(func(context.Context) *result { return fails(nil) })
	if l.patience != 240*time.Millisecond || newLine(time.Second).patience != 3*time.Second {
		t.Errorf("got patience %v, want 240 ms after an answer, and 3 s for an interval of 1 s", l.patience)
	}
}
