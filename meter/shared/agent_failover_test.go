package shared

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

// sentinelURL is the URL of a primary watched by Sentinels.
func sentinelURL(w *storetest.Sentinels) string {
	return "redis://" + w.Addrs()[0] + "?master_name=" + w.Name + "&addr=" +
		strings.Join(w.Addrs()[1:], "&addr=")
}

// TestAgentSentinel makes Sentinels replace a primary whose replica has all
// data.
func TestAgentSentinel(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, primary *storetest.Server) {
		storetest.Replica(t, primary)
		sentinels := storetest.Sentinel(t, primary, 3)
		g := joinHosts(t, 4, Server{URL: sentinelURL(sentinels)})
		g.awaitSettled(t, "the primary", budget)
		primary.Kill()
		g.rescued(t, "no primary")
		g.awaitFull(t, "the replica")
		for i := range g.agents {
			g.awaitEvent(t, i, Found)
		}
		if n := g.countEvents(0, Reset); n > 0 {
			t.Error("the replica lost the budget")
		}
	})
}

// TestWait checks that a call waits for a replica only if it has an increase.
func TestWait(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, primary *storetest.Server) {
		p := newPair(t, primary)
		g := &group{at: testClock()}
		terms := testTerms()
		terms.Interval, terms.Deadline = 1e9, 900e6 // a busy machine must send the requests within a lease
		a := g.newAgent(t, "host-0", terms, Server{URL: primary.URL()})
		g.starts(t, 0)
		m := a.members[0]
		request := m.host.Request(testClock(), lease.Counts{})
		request.Holds, request.Rescue, request.Demand = lease.Amounts{}, lease.Amounts{}, [2]int64{budget}
		send := func(wait time.Duration) *result {
			request.Sequence++
			c := newExchange(a.script, a.members, []lease.Request{request})
			c.wait = wait
			r := c.send(t.Context(), a.client)
			noError(t, r.answers[0].err)
			return r
		}
		r := send(time.Minute)
		if r.answers[0].kept || r.answers[0].Share.Rate[0] == 0 || r.replica == nil {
			t.Fatalf("got %+v, want an answer that waits for the replica", r)
		}
		if r.waited(<-r.replica); !r.answers[0].kept {
			t.Error("the increase was not kept although the replica has it")
		}
		p.link.Stall(storetest.Both)
		r = send(time.Minute)
		select {
		case err := <-r.replica:
			t.Errorf("the replica answered without replication: %v", err)
		default:
		}
		r = send(time.Millisecond)
		if err := <-r.replica; !errors.Is(err, errNoReplica) || r.answers[0].kept {
			t.Errorf("got %v and %+v, want errNoReplica and no kept increase", err, r)
		}
		if r = send(0); r.replica != nil || r.answers[0].kept {
			t.Errorf("got %+v, want no second call to the replica", r)
		}
		request.Holds, request.Rescue = testTerms().Size, testTerms().Size
		if r = send(time.Minute); r.replica != nil || !r.answers[0].kept {
			t.Errorf("without an increase: got %+v, want it kept without the replica", r)
		}
	})
}

// pair is a primary, a replica behind a link, and a proxy to either.
type pair struct {
	primary, replica *storetest.Server
	link             *storetest.TCPProxy
}

func newPair(t *testing.T, primary *storetest.Server) *pair {
	t.Helper()
	p := &pair{
		primary: primary, replica: storetest.Replica(t, primary), link: storetest.Proxy(t, primary.Addr),
	}
	_, port, _ := net.SplitHostPort(p.link.Addr)
	noError(t, p.replica.Client().Do(t.Context(), "REPLICAOF", "127.0.0.1", port).Err())
	p.follows(t)
	return p
}

// follows waits until the replica has all data.
func (p *pair) follows(t *testing.T) {
	t.Helper()
	storetest.Until(t, "the replica is back", func() bool {
		return p.replica.Info("replication", "master_link_status") == "up" &&
			strings.Contains(p.primary.Info("replication", "slave0"), "state=online") &&
			p.replica.Info("replication",
				"master_repl_offset") == p.primary.Info("replication", "master_repl_offset")
	})
}

// promote makes the replica a primary.
func (p *pair) promote(t *testing.T) {
	t.Helper()
	noError(t, p.replica.Client().Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
}

// shift makes one host want everything, and the others nothing.
func (g *group) shift(to int) {
	for i, m := range g.meters {
		m.offerRate(0)
		if i == to {
			m.offerRate(2 * budget)
		}
	}
}

// TestReplicaBehind stops replication: hosts use no increases, but keep their
// shares. Then the replica takes over, and the budget holds.
func TestReplicaBehind(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, primary *storetest.Server) {
		p := newPair(t, primary)
		way := storetest.Proxy(t, primary.Addr)
		g := joinHosts(t, 3, Server{URL: "redis://" + way.Addr})
		g.awaitFull(t, "a replica that follows")
		g.shift(0)
		storetest.Until(t, "host 0 has it alone", func() bool { return g.meters[0].allowedRate() > full })
		storetest.Until(t, "hosts know of the replica",
			func() bool { return g.agents[1].Status()[0].Replicas == 1 })

		p.link.Stall(storetest.Both)
		held := g.meters[1].allowedRate()
		g.shift(1)
		begin := g.agents[1].Status()[0].Calls
		for n := begin; n < begin+10; n = g.agents[1].Status()[0].Calls {
			if rate := g.meters[1].allowedRate(); rate > max(held, budget/30) {
				t.Fatalf("host 1 uses %d, want at most %d: no replica knows its share", rate,
					max(held, budget/30))
			}
			time.Sleep(time.Millisecond)
		}
		storetest.Until(t, "renewals go on",
			func() bool { st := g.agents[1].Status()[0]; return st.Err == nil && !st.Rescued })
		storetest.Until(t, "the increase is granted", func() bool {
			b, err := ShowBudget(t.Context(), primary.Client(), "b")
			return err == nil && b.Hosts[1].Share.Rate[0] > budget/2
		})
		p.link.Heal()
		storetest.Until(t, "the replica knows", func() bool { return g.meters[1].allowedRate() > full })

		p.link.Stall(storetest.Both)
		g.shift(2)
		storetest.Until(t, "host 1 has given it up",
			func() bool { return g.meters[1].allowedRate() < budget/10 })
		primary.Kill()
		p.promote(t)
		way.Redirect(p.replica.Addr)
		storetest.Until(t, "host 2 has it", func() bool { return g.meters[2].allowedRate() > full })
		g.awaitFull(t, "the replica is the primary")
	})
}

// TestUnguarded fails over to a replica that is behind, without the right to
// notice it. The excess must be within its bound: the budget for one lease.
func TestUnguarded(t *testing.T) {
	t.Parallel()
	rights := strings.Fields(strings.Replace(Rights, "+info ", "", 1))
	user := storetest.User("a", "s3cr3t", rights...)
	storetest.Each(t, func(t *testing.T, primary *storetest.Server) {
		p := newPair(t, primary)
		noError(t, p.replica.Client().Do(t.Context(),
			append([]any{"ACL", "SETUSER", "a", "on", ">s3cr3t"}, anySlice(rights)...)...).Err())
		way := storetest.Proxy(t, primary.Addr)
		g := joinHosts(t, 3, Server{URL: "redis://a:s3cr3t@" + way.Addr})
		g.awaitFull(t, "a replica that follows")
		g.shift(0)
		storetest.Until(t, "host 0 has it alone", func() bool { return g.meters[0].allowedRate() > full })
		p.follows(t)
		p.link.Stall(storetest.Both)
		g.shift(1)
		storetest.Until(t, "host 1 has it, unknown to the replica",
			func() bool { return g.meters[1].allowedRate() > full })
		p.promote(t)
		way.Redirect(p.replica.Addr)
		g.shift(2)
		storetest.Until(t, "host 2 has it", func() bool { return g.meters[2].allowedRate() > full })
		g.doAtOnce(func() {
			terms := testTerms()
			if bound := float64(budget) / 8 * float64(terms.Lease()) / 1e9; g.excess > bound {
				t.Errorf("got %.0f bytes beyond the budget, want at most %.0f", g.excess, bound)
			}
			t.Logf("%.0f bytes beyond the budget", g.excess)
		})
	}, user)
}

func anySlice(words []string) (out []any) {
	for _, w := range words {
		out = append(out, w)
	}
	return out
}

// TestSplitBrain runs two primaries, each with half of the hosts. Neither half
// exceeds the budget. If the old primary requires a replica, its half falls to
// the rescue share.
func TestSplitBrain(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, primary *storetest.Server) {
		p := newPair(t, primary)
		ways := [2]*storetest.TCPProxy{storetest.Proxy(t, primary.Addr), storetest.Proxy(t, primary.Addr)}
		var halves [2]*group
		for i := range halves {
			halves[i] = &group{at: testClock(), first: 2 * i}
			for range 2 {
				halves[i].addAgent(t, testTerms(), Server{URL: "redis://" + ways[i].Addr})
			}
		}
		old, other := halves[0], halves[1]
		half := func(sum int64, rescue []int64) bool {
			return budget*49/100 <= sum && sum <= budget*51/100 &&
				budget/40-rounding <= slices.Min(rescue) && slices.Max(rescue) <= budget/40
		}
		old.await(t, "half of the budget", half)
		other.await(t, "half of the budget", half)
		storetest.Until(t, "hosts know of the replica",
			func() bool { return old.agents[0].Status()[0].Replicas == 1 })

		p.link.Stall(storetest.Both)
		p.promote(t)
		ways[1].Redirect(p.replica.Addr)
		other.awaitSum(t, "the new primary's half has all but the rescue share of the others", budget*94/100,
			budget*95/100)
		noError(t, primary.Client().ConfigSet(t.Context(), "min-replicas-max-lag", "1").Err())
		noError(t, primary.Client().ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
		old.awaitSum(t, "the old primary accepts no writes", budget/20-rounding, budget/20)
		old.hasError(t, 0, "too few replicas")
		ways[0].Redirect(p.replica.Addr)
		old.awaitSum(t, "half of the budget again", budget*49/100, budget*51/100)
		other.awaitSum(t, "half of the budget again", budget*49/100, budget*51/100)
	})
}

// TestAgentCluster runs agents with budgets in three slots of a cluster. A
// primary fails, a slot moves, and another is being moved.
func TestAgentCluster(t *testing.T) {
	t.Parallel()
	for _, kind := range storetest.Kinds(t) {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			nodes := storetest.Cluster(t, kind, 3)
			names := spread(nodes)
			slices.Sort(names)
			server := Server{
				URL: "redis://" + nodes.Addrs()[0] + "?addr=" + strings.Join(nodes.Addrs()[1:], "&addr="),
			}
			groups := joinAll(t, 3, names, server)
			for i, g := range groups {
				g.awaitSettled(t, names[i], budget)
			}
			client, err := Open(server)
			noError(t, err)
			defer client.Close()
			if all, err := ListBudgets(t.Context(), client); err != nil ||
				strings.Join(all, " ") != strings.Join(names, " ") {
				t.Errorf("budgets %v, %v, want %v", all, err, names)
			}
			checkFailure(t, Server{URL: "redis://" + nodes.Primaries[(primaryOf(nodes, "b")+1)%3].Addr},
				"node of a cluster", "?addr=")

			slot := nodes.Slot(key(names[0]))
			_, to := nodes.Owner(slot)
			nodes.Move(slot, to)
			slot = nodes.Slot(key(names[1]))
			from, to := nodes.Owner(slot)
			nodes.Begin(slot, to)
			noError(t, from.Client().Do(t.Context(), "MIGRATE", "127.0.0.1", to.Port, key(names[1]), 0,
				10_000).Err())
			for i, g := range groups[:2] {
				before := g.agents[0].Status()[i].Calls
				storetest.Until(t, "calls are answered", func() bool {
					st := g.agents[0].Status()[i]
					return st.Calls > before+4 && st.Err == nil
				})
				g.awaitFull(t, "a slot that moves: "+names[i])
			}
			nodes.Move(slot, to)

			owner, _ := nodes.Owner(nodes.Slot(key(names[2])))
			owner.Kill()
			groups[2].rescued(t, "the primary is gone")
			groups[2].awaitFull(t, "its replica")
			for i, g := range groups {
				g.awaitFull(t, "at the end: "+names[i])
				storetest.Until(t, "status", func() bool {
					st := g.agents[0].Status()[i]
					return st.Err == nil && !st.Learning && st.Hosts == 3
				})
			}
		})
	}
}

// primaryOf returns the index of the primary that owns a budget's slot.
func primaryOf(nodes *storetest.Nodes, budget string) int {
	return nodes.Slot(key(budget)) * 3 / 16384
}

// spread returns the names of three budgets, one at each primary.
func spread(nodes *storetest.Nodes) []string {
	var names [3]string
	for i := 0; names[0] == "" || names[1] == "" || names[2] == ""; i++ {
		name := fmt.Sprintf("budget-%02d", i)
		if at := &names[primaryOf(nodes, name)]; *at == "" {
			*at = name
		}
	}
	return names[:]
}

// joinAll makes n hosts share several budgets. The groups have the same agents.
func joinAll(t *testing.T, n int, names []string, server Server) (groups []*group) {
	t.Helper()
	for range names {
		groups = append(groups, &group{at: testClock()})
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	for i := range n {
		client, err := Open(server)
		noError(t, err)
		t.Cleanup(func() { _ = client.Close() })
		var budgets []Budget
		var meters []LeasedMeter
		for k, g := range groups {
			budgets = append(budgets, Budget{names[k], fmt.Sprint("host-", i), testTerms()})
			m := &fluid{group: g, offers: budget}
			meters = append(meters, m)
			g.doAtOnce(func() { g.meters = append(g.meters, m) })
		}
		a, err := NewAgent(client, budgets, AgentConfig{Clock: testClock, Store: server.String()})
		noError(t, err)
		noError(t, a.Bind(meters))
		for _, g := range groups {
			g.agents = append(g.agents, a)
		}
		running.Go(func() { a.Run(ctx) })
	}
	return groups
}
