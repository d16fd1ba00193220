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

// TestFlushed makes a store lose a budget. While it learns, no share may grow.
func TestFlushed(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		g := join(t, 3, Server{URL: s.URL()})
		for i, lose := range []func(){s.Flush, func() { must(t, s.Client().Del(t.Context(), key("b")).Err()) }} {
			g.full(t, "before")
			held := g.meters[i].rate()
			lose()
			g.shift(i)
			for learns := true; learns; {
				rate := g.meters[i].rate()
				b, err := ShowBudget(t.Context(), s.Client(), "b")
				if learns = err != nil || b.Learning; learns && rate > held {
					t.Fatalf("a share grows from %d to %d while the store learns", held, rate)
				}
			}
			storetest.Until(t, "one has it alone", func() bool { return g.meters[i].rate() > full })
			g.event(t, i, Reset)
			for _, m := range g.meters {
				m.offer(budget)
			}
			storetest.Until(t, "all have a share", func() bool { return g.meters[0].rate() < budget/2 && g.meters[1].rate() < budget/2 })
		}
		g.full(t, "after")

		// In this order: an agent may load the script again at once.
		must(t, s.Client().ConfigResetStat(t.Context()).Err())
		must(t, s.Client().ScriptFlush(t.Context()).Err())
		storetest.Until(t, "the script is there again", func() bool { return s.Info("commandstats", "cmdstat_eval") != "" })
		g.full(t, "without a script")
	})
}

// TestRestarted restarts a server with its data and without, also after many
// leases.
func TestRestarted(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		options []storetest.Option
		resets  int
	}{{"with data", []storetest.Option{storetest.Persist()}, 0}, {"empty", nil, 2}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			storetest.Each(t, func(t *testing.T, s *storetest.Server) {
				g := join(t, 3, Server{URL: s.URL()})
				g.full(t, "at first")
				s.Restart()
				storetest.Until(t, "it is called again", func() bool {
					b, err := ShowBudget(t.Context(), s.Client(), "b")
					return err == nil && len(b.Hosts) == 3 && b.Late == 0 && !b.Learning
				})
				g.full(t, "restarted")
				s.Kill()
				g.rescued(t, "killed")
				for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
					if sum := g.sum(); sum > budget/10 || sum < budget/10-rounding {
						t.Fatalf("without a store they may use %d", sum)
					}
				}
				s.Restart()
				g.full(t, "restarted after many leases")
				if n := g.count(0, Reset); n > test.resets || test.resets == 0 && n > 0 {
					t.Errorf("%d Reset events, want %d", n, test.resets)
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
				g := join(t, 1, Server{URL: "redis://" + p.Addr})
				for range 2 {
					g.add(t, terms(), Server{URL: s.URL()})
				}
				g.full(t, "at first")
				storetest.Until(t, "equal shares", func() bool { return g.meters[0].rate() > budget*33/100 })
				test.fault(p)
				rescue := budget / 30
				storetest.Until(t, "the host falls to its rescue share", func() bool { return g.meters[0].rate() == rescue })
				storetest.Until(t, "the others have the rest", func() bool { return g.sum(1, 2) > (budget-rescue)*99/100 })
				if sum := g.sum(1, 2); sum > budget-rescue {
					t.Errorf("the other hosts may use %d", sum)
				}
				p.Heal()
				storetest.Until(t, "equal shares again", func() bool { return g.meters[0].rate() > budget*33/100 })
				g.full(t, "at the end")
			})
		})
	}
}

// TestShrinkFirst delays the answers to a host whose demand falls. Others may
// use the released amount as soon as the store knows of it, so the host must
// have released it before.
func TestShrinkFirst(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		p := storetest.Proxy(t, s.Addr)
		g := join(t, 1, Server{URL: "redis://" + p.Addr})
		g.add(t, terms(), Server{URL: s.URL()})
		p.Delay(storetest.ToClient, 60*time.Millisecond)
		for range 2 {
			g.shift(0)
			storetest.Until(t, "host 0 has it alone", func() bool { return g.meters[0].rate() > full })
			g.shift(1)
			for g.meters[1].rate() < budget/2 {
				b, err := ShowBudget(t.Context(), s.Client(), "b")
				must(t, err)
				if uses, says := g.meters[0].rate(), b.Hosts[0].Share.Rate[0]; uses > says {
					t.Fatalf("host 0 may use %d, but the store counts %d", uses, says)
				}
			}
			g.full(t, "both receive answers")
		}
	})
}

// TestStopped stops a host's process: its meter follows the last plan.
func TestStopped(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		g := join(t, 3, Server{URL: s.URL()})
		g.full(t, "at first")
		g.stop[0]()
		rescue := budget / 30
		storetest.Until(t, "it falls to its rescue share", func() bool { return g.meters[0].rate() == rescue })
		g.until(t, "the others have the rest", (budget-rescue)*99/100+rescue, budget)
	})
}

// TestClockJumps makes the store's clock jump, by a change of the script, so
// that only this budget is affected.
func TestClockJumps(t *testing.T) {
	t.Parallel()
	const read = "local time = redis.call('TIME')\n"
	text := layoutScript + storeScript
	if strings.Count(text, read) != 1 {
		t.Fatal("store.lua does not read the clock once")
	}
	script := redis.NewScript(strings.Replace(text, read, read+"time[1] = time[1] + (redis.call('GET', 'ahead') or 0)\n", 1))
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		g := &group{at: clock()}
		p := storetest.Proxy(t, s.Addr)
		for i := range 3 {
			way := s.Addr
			if i == 0 {
				way = p.Addr
			}
			a := g.make(t, fmt.Sprint("host-", i), terms(), Server{URL: "redis://" + way})
			a.script = script
			g.run(t, a)
		}
		g.full(t, "at first")
		for i, seconds := range []int{10, 0, 200_000, 199_999} {
			must(t, s.Client().Set(t.Context(), "ahead", seconds, 0).Err())
			g.shift(i % 3)
			storetest.Until(t, "one has it alone", func() bool { return g.meters[i%3].rate() > full })
			g.full(t, "after a jump")
		}
		if n := g.count(1, Reset); n > 0 {
			t.Error("the budget is lost")
		}
		// After a jump, the store does not know what a partitioned host holds.
		g.shift(0)
		storetest.Until(t, "host 0 has it alone", func() bool { return g.meters[0].rate() > full })
		p.Stall(storetest.Both)
		must(t, s.Client().Set(t.Context(), "ahead", 300_000, 0).Err())
		g.shift(1)
		rescue := budget / 30
		storetest.Until(t, "host 1 has the rest", func() bool { return g.meters[1].rate() > (budget-rescue)*99/100 })
		storetest.Until(t, "host 0 has its rescue share", func() bool { return g.meters[0].rate() == rescue })
		terms := terms()
		g.do(func() {
			if bound := float64(budget) / 8 * float64(terms.Lease()) / 1e9; g.excess > bound {
				t.Errorf("%.0f bytes beyond the budget, bound %.0f", g.excess, bound)
			}
			t.Logf("%.0f bytes beyond the budget", g.excess)
		})
	})
}

// TestAgentFaults causes all failures at random, while the store keeps its
// data. All hosts together must never use more than the budget.
func TestAgentFaults(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		r := rand.New(rand.NewPCG(seed, 1))
		g := &group{at: clock()}
		var ways []*storetest.TCPProxy
		for range 5 {
			p := storetest.Proxy(t, s.Addr)
			ways = append(ways, p)
			g.add(t, terms(), Server{URL: "redis://" + p.Addr})
		}
		g.full(t, "at first")
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
				g.meters[i].offer(r.Int64N(3) * budget / 2)
			case 11:
				switch r.IntN(3) {
				case 0:
					s.Restart()
				case 1:
					must(t, s.Client().ScriptFlush(t.Context()).Err())
				case 2:
					s.Pause()
					time.Sleep(time.Duration(r.IntN(400)) * time.Millisecond)
					s.Resume()
				}
			}
			time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond)
			g.do(func() {
				if g.most > budget {
					t.Fatalf("all hosts together could use %d", g.most)
				}
			})
		}
		for i, p := range ways {
			p.Heal()
			g.meters[i].offer(budget)
		}
		g.full(t, "at the end")
		storetest.Until(t, "equal shares", func() bool { return g.meters[0].rate() > budget*19/100 })
	}, storetest.Persist())
}
