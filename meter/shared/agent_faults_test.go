package shared

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

// TestLostBudget makes a store lose a budget. While it learns, no share may grow.
func TestLostBudget(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		g := joinHosts(t, 3, Server{URL: s.URL()})
		for i, lose := range []func(){
			s.Flush, func() { noError(t, s.Client().Del(t.Context(), key("b")).Err()) },
		} {
			g.awaitFull(t, "before")
			held := g.meters[i].allowedRate()
			lose()
			g.shift(i)
			for learns := true; learns; {
				rate := g.meters[i].allowedRate()
				b, err := ShowBudget(t.Context(), s.Client(), "b")
				if learns = err != nil || b.Learning; learns && rate > held {
					t.Fatalf("the share grew from %d to %d while the store was learning", held, rate)
				}
			}
			storetest.Until(t, "one has it alone", func() bool { return g.meters[i].allowedRate() > full })
			g.awaitEvent(t, i, Reset)
			for _, m := range g.meters {
				m.offerRate(budget)
			}
			storetest.Until(t, "all have a share", func() bool {
				return g.meters[0].allowedRate() < budget/2 && g.meters[1].allowedRate() < budget/2
			})
		}
		g.awaitFull(t, "after")

		// In this order: an agent may load the script again at once.
		noError(t, s.Client().ConfigResetStat(t.Context()).Err())
		noError(t, s.Client().ScriptFlush(t.Context()).Err())
		storetest.Until(t, "the script is there again",
			func() bool { return s.Info("commandstats", "cmdstat_eval") != "" })
		g.awaitFull(t, "without a script")
	})
}

// TestRestartedServer restarts a server with its data and without, also after many
// leases.
func TestRestartedServer(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		options []storetest.Option
		resets  int
	}{{"with data", []storetest.Option{storetest.Persist()}, 0}, {"empty", nil, 2}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			storetest.Each(t, func(t *testing.T, s *storetest.Server) {
				g := joinHosts(t, 2, Server{URL: s.URL()})
				time.Sleep(rand.N(500 * time.Millisecond)) // the store learns, or not any more
				g.addAgent(t, testTerms(), Server{URL: s.URL()})
				g.awaitSettled(t, "at first", budget)
				s.Restart()
				storetest.Until(t, "it is called again", func() bool {
					b, err := ShowBudget(t.Context(), s.Client(), "b")
					return err == nil && len(b.Hosts) == 3 && b.Late == 0 && !b.Learning
				})
				g.awaitSettled(t, "restarted", budget)
				s.Kill()
				g.rescued(t, "killed")
				for end := time.Now().Add(
					500 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
					if sum := g.sumRates(); sum > budget/10 || sum < budget/10-rounding {
						t.Fatalf("without a store: got %d in all, want the rescue share %d", sum, budget/10)
					}
				}
				s.Restart()
				g.awaitFull(t, "restarted after many leases")
				if n := g.countEvents(0, Reset); n > test.resets || test.resets == 0 && n > 0 {
					t.Errorf("got %d Reset events, want %d", n, test.resets)
				}
			}, test.options...)
		})
	}
}

// TestPartition partitions one host in one direction or both. It falls to its
// rescue share by its own clock, and the others get the rest.
func TestPartition(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		fault func(p *storetest.TCPProxy)
	}{
		{"requests are late", func(p *storetest.TCPProxy) { p.Stall(storetest.ToServer) }},
		{"replies are lost", func(p *storetest.TCPProxy) { p.Cut(storetest.ToClient) }},
		{"both are lost", func(p *storetest.TCPProxy) { p.Cut(storetest.Both) }},
		{"refused", func(p *storetest.TCPProxy) { p.Refuse() }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			storetest.Each(t, func(t *testing.T, s *storetest.Server) {
				p := storetest.Proxy(t, s.Addr)
				g := joinHosts(t, 1, Server{URL: "redis://" + p.Addr})
				for range 2 {
					g.addAgent(t, testTerms(), Server{URL: s.URL()})
				}
				g.awaitSettled(t, "at first", budget)
				storetest.Until(t, "equal shares",
					func() bool { return g.meters[0].allowedRate() > budget*33/100 })
				test.fault(p)
				rescue := budget / 30
				storetest.Until(t, "the host falls to its rescue share",
					func() bool { return g.meters[0].allowedRate() == rescue })
				storetest.Until(t, "the others have the rest",
					func() bool { return g.sumRates(1, 2) > (budget-rescue)*99/100 })
				if sum := g.sumRates(1, 2); sum > budget-rescue {
					t.Errorf("the other hosts may use %d, want at most %d", sum, budget-rescue)
				}
				p.Heal()
				storetest.Until(t, "equal shares again",
					func() bool { return g.meters[0].allowedRate() > budget*33/100 })
				g.awaitFull(t, "at the end")
			})
		})
	}
}

// TestReleaseBeforeOthersUse delays the answers to a host whose demand falls. Others may
// use the released amount as soon as the store knows of it, so the host must
// have released it before.
func TestReleaseBeforeOthersUse(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		p := storetest.Proxy(t, s.Addr)
		g := joinHosts(t, 1, Server{URL: "redis://" + p.Addr})
		g.addAgent(t, testTerms(), Server{URL: s.URL()})
		p.Delay(storetest.ToClient, 60*time.Millisecond)
		for range 2 {
			g.shift(0)
			storetest.Until(t, "host 0 has it alone", func() bool { return g.meters[0].allowedRate() > full })
			g.shift(1)
			for g.meters[1].allowedRate() < budget/2 {
				b, err := ShowBudget(t.Context(), s.Client(), "b")
				noError(t, err)
				if uses, says := g.meters[0].allowedRate(), b.Hosts[0].Share.Rate[0]; uses > says {
					t.Fatalf("host 0 may use %d, want at most the %d that the store counts", uses, says)
				}
			}
			g.awaitFull(t, "both receive answers")
		}
	})
}

// TestStoppedProcess stops a host's process: its meter follows the last plan.
func TestStoppedProcess(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		g := joinHosts(t, 3, Server{URL: s.URL()})
		g.awaitSettled(t, "at first", budget)
		g.stop[0]()
		rescue := budget / 30
		storetest.Until(t, "it falls to its rescue share",
			func() bool { return g.meters[0].allowedRate() == rescue })
		g.awaitSum(t, "the others have the rest", (budget-rescue)*99/100+rescue, budget)
	})
}

// TestClockJumps makes the store's clock jump, by a change of the script, so
// that only this budget is affected.
func TestClockJumps(t *testing.T) {
	t.Parallel()
	const read = "local time = redis.call('TIME')\n"
	text := layoutScript + storeScript
	if strings.Count(text, read) != 1 {
		t.Fatal("store.lua must read the clock exactly once")
	}
	script := redis.NewScript(
		strings.Replace(text, read, read+"time[1] = time[1] + (redis.call('GET', 'ahead') or 0)\n", 1))
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		g := &group{at: testClock()}
		p := storetest.Proxy(t, s.Addr)
		for i := range 3 {
			way := s.Addr
			if i == 0 {
				way = p.Addr
			}
			a := g.newAgent(t, fmt.Sprint("host-", i), testTerms(), Server{URL: "redis://" + way})
			a.script = script
			g.runAgent(t, a)
		}
		g.awaitSettled(t, "at first", budget)
		for i, seconds := range []int{10, 0, 200_000, 199_999} {
			noError(t, s.Client().Set(t.Context(), "ahead", seconds, 0).Err())
			g.shift(i % 3)
			storetest.Until(t, "one has it alone", func() bool { return g.meters[i%3].allowedRate() > full })
			g.awaitFull(t, "after a jump")
		}
		if n := g.countEvents(1, Reset); n > 0 {
			t.Error("the store lost the budget")
		}
		// After a jump, the store does not know what a partitioned host holds.
		g.shift(0)
		storetest.Until(t, "host 0 has it alone", func() bool { return g.meters[0].allowedRate() > full })
		p.Stall(storetest.Both)
		noError(t, s.Client().Set(t.Context(), "ahead", 300_000, 0).Err())
		g.shift(1)
		rescue := budget / 30
		storetest.Until(t, "host 1 has the rest",
			func() bool { return g.meters[1].allowedRate() > (budget-rescue)*99/100 })
		storetest.Until(t, "host 0 has its rescue share",
			func() bool { return g.meters[0].allowedRate() == rescue })
		terms := testTerms()
		g.doAtOnce(func() {
			if bound := float64(budget) / 8 * float64(terms.Lease()) / 1e9; g.excess > bound {
				t.Errorf("got %.0f bytes beyond the budget, want at most %.0f", g.excess, bound)
			}
			t.Logf("%.0f bytes beyond the budget", g.excess)
		})
	})
}

// TestAgentFailures causes all failures at random, while the store keeps its
// data. All hosts together must never use more than the budget.
func TestAgentFailures(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		r := rand.New(rand.NewPCG(seed, 1))
		g := &group{at: testClock()}
		var ways []*storetest.TCPProxy
		for range 5 {
			p := storetest.Proxy(t, s.Addr)
			ways = append(ways, p)
			g.addAgent(t, testTerms(), Server{URL: "redis://" + p.Addr})
		}
		g.awaitFull(t, "at first")
		direction := func() storetest.Direction { return 1 + storetest.Direction(r.IntN(3)) }
		for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
			i := r.IntN(len(ways))
			switch p := ways[i]; r.IntN(12) {
			case 0:
				p.Stall(direction())
			case 1:
				p.Cut(direction())
			case 2:
				p.Break()
			case 3:
				p.Refuse()
			case 4, 5: // near the deadline
				p.Delay(storetest.Both, time.Duration(11+r.IntN(3))*time.Millisecond)
			case 6, 7, 8:
				p.Heal()
			case 9, 10:
				g.meters[i].offerRate(r.Int64N(3) * budget / 2)
			case 11:
				switch r.IntN(3) {
				case 0:
					s.Restart()
				case 1:
					noError(t, s.Client().ScriptFlush(t.Context()).Err())
				case 2:
					s.Pause()
					time.Sleep(time.Duration(r.IntN(400)) * time.Millisecond)
					s.Resume()
				}
			}
			time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond)
			g.doAtOnce(func() {
				if g.most > budget {
					t.Fatalf("all hosts together could use %d, want at most %d", g.most, budget)
				}
			})
		}
		for i, p := range ways {
			p.Heal()
			g.meters[i].offerRate(budget)
		}
		g.awaitFull(t, "at the end")
		storetest.Until(t, "equal shares", func() bool { return g.meters[0].allowedRate() > budget*19/100 })
	}, storetest.Persist())
}
