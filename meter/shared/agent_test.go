package shared

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

var began = time.Now()

func testClock() int64 { return int64(time.Since(began)) }

const budget = int64(1_000_000_000) // bit/s

func testTerms() lease.Terms {
	return lease.Terms{
		Size:   lease.Amounts{Rate: [2]int64{budget}, Burst: [2]int64{1 << 20}},
		Weight: 1, Floor: 3028, Rescue: 100_000, Interval: 100e6, Deadline: 90e6,
		// the rescue share of a host that never received a reply would be in addition to the budget
		Hosts: 1 << 40,
	}
}

// openUnreachable opens a server that refuses connections.
func openUnreachable(t *testing.T) redis.UniversalClient {
	t.Helper()
	client, err := Open(Server{URL: "redis://127.0.0.1:1"})
	noError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// newLonelyAgent returns an agent of one of two hosts, without a server, and the terms of its budget.
func newLonelyAgent(t *testing.T) (*Agent, lease.Terms) {
	t.Helper()
	terms := testTerms()
	terms.Hosts = 2
	a, err := NewAgent(openUnreachable(t), []Budget{{"a", "host", terms}}, AgentConfig{Clock: testClock})
	noError(t, err)
	return a, terms
}

// group is several hosts of budget b, each with an agent and senders that offer
// a constant rate. It records the sum of the amounts that the hosts may use, at
// every instant.
type group struct {
	agents []*Agent
	meters []*fluid
	stop   []func() // end an agent's calls; its meter stays
	first  int      // number of the first host

	mu     sync.Mutex // also guards the meters
	at     int64
	most   int64   // largest rate that all hosts together could use at an instant
	over   float64 // tokens that could have passed beyond the budget by now
	excess float64 // maximum of over
	events []Event
}

// fluid is the meter of a host.
type fluid struct {
	*group
	plan   lease.Plan
	offers int64 // eighths per second
	counts [3]float64
	passed float64
	fail   error
}

// passUntilNow advances time. The caller must hold the lock.
func (g *group) passUntilNow() {
	now := testClock()
	for g.at < now {
		end, sum := now, int64(0)
		for _, m := range g.meters {
			sum += m.plan.At(g.at).Rate[0]
			for _, u := range m.plan.Until {
				if u > g.at {
					end = min(end, u)
				}
			}
		}
		dt := float64(end-g.at) / 8e9
		g.most = max(g.most, sum)
		g.over = max(g.over+float64(sum-budget)*dt, 0)
		g.excess = max(g.excess, g.over)
		for _, m := range g.meters {
			passed := min(float64(m.offers), float64(m.plan.At(g.at).Rate[0])) * dt
			m.passed += passed
			m.counts[0] += passed
			m.counts[2] += float64(m.offers)*dt - passed
		}
		g.at = end
	}
}

// doAtOnce calls f at one instant.
func (g *group) doAtOnce(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.passUntilNow()
	f()
}

func (f *fluid) Apply(p lease.Plan) (err error) {
	f.doAtOnce(func() {
		if err = f.fail; err == nil {
			f.plan = p
		}
	})
	return err
}

func (f *fluid) Counts() (c lease.Counts, err error) {
	f.doAtOnce(func() {
		c, err = lease.Counts{uint64(f.counts[0]), 0, uint64(f.counts[2])}, f.fail
	})
	return c, err
}

func (f *fluid) offerRate(rate int64) { f.doAtOnce(func() { f.offers = rate }) }

// allowedRate returns the rate that the host may use now.
func (f *fluid) allowedRate() (rate int64) {
	f.doAtOnce(func() { rate = f.plan.At(f.at).Rate[0] })
	return rate
}

// sumRates returns the rate that all hosts, or some, may use now.
func (g *group) sumRates(which ...int) (sum int64) {
	g.doAtOnce(func() {
		for i, m := range g.meters {
			if len(which) == 0 || slices.Contains(which, i) {
				sum += m.plan.At(g.at).Rate[0]
			}
		}
	})
	return sum
}

// joinHosts makes n hosts share the budget at a server.
func joinHosts(t *testing.T, n int, server Server) *group {
	t.Helper()
	g := &group{at: testClock()}
	for range n {
		g.addAgent(t, testTerms(), server)
	}
	return g
}

// addAgent adds a host whose senders offer the whole budget, and runs its agent.
func (g *group) addAgent(t *testing.T, terms lease.Terms, server Server) *Agent {
	t.Helper()
	a := g.newAgent(t, fmt.Sprint("host-", g.first+len(g.agents)), terms, server)
	g.runAgent(t, a)
	return a
}

// runAgent makes an agent call the store.
func (g *group) runAgent(t *testing.T, a *Agent) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { a.Run(ctx) })
	stop := func() { cancel(); running.Wait() }
	g.stop = append(g.stop, stop)
	t.Cleanup(stop)
}

// newAgent adds a host with an agent that does not run yet.
func (g *group) newAgent(t *testing.T, name string, terms lease.Terms, server Server) *Agent {
	t.Helper()
	client, err := Open(server)
	noError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	notify := func(e Event) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.events = append(g.events, e)
	}
	a, err := NewAgent(client, []Budget{{"b", name, terms}},
		AgentConfig{Clock: testClock, Notify: notify, Store: server.String()})
	noError(t, err)
	m := &fluid{group: g, offers: budget}
	g.doAtOnce(func() { g.agents, g.meters = append(g.agents, a), append(g.meters, m) })
	noError(t, a.Bind([]LeasedMeter{m}))
	return a
}

// await waits until a condition holds for the rates that all hosts together may use, now
// and after their leases have ended, and fails if they may use more than the budget before
// that.
func (g *group) await(t *testing.T, name string, condition func(sum int64, rescue []int64) bool) {
	t.Helper()
	storetest.Until(t, name, func() bool {
		var sum, top int64
		var rescue []int64
		g.doAtOnce(func() {
			for _, m := range g.meters {
				sum += m.plan.At(g.at).Rate[0]
				rescue = append(rescue, m.plan.Phase[2].Rate[0])
			}
			top = g.most
		})
		if top > budget {
			t.Fatalf("%s: all hosts together could use %d, want at most %d", name, top, budget)
		}
		return condition(sum, rescue)
	})
}

// awaitSum waits until all hosts together may use between least and most.
func (g *group) awaitSum(t *testing.T, name string, least, most int64) {
	t.Helper()
	g.await(t, name, func(sum int64, _ []int64) bool { return least <= sum && sum <= most })
}

const full = budget * 99 / 100

// rounding is the rounding error of the sum of all rescue shares.
const rounding = 20

// awaitFull waits until the whole budget is granted.
func (g *group) awaitFull(t *testing.T, name string) {
	t.Helper()
	g.awaitSum(t, name, full, budget)
}

// rescued waits until all hosts are at their rescue shares.
func (g *group) rescued(t *testing.T, name string) {
	t.Helper()
	g.awaitSum(t, name, budget/10-rounding, budget/10)
}

// awaitSettled waits until the whole budget of a size is granted and every host has its
// rescue share. A budget can be full before: a host that joins while the store learns
// gets nothing at first, and the others share the whole budget.
func (g *group) awaitSettled(t *testing.T, name string, size int64) {
	t.Helper()
	share := size / 10 / int64(len(g.meters))
	g.await(t, name, func(sum int64, rescue []int64) bool {
		return size/100*99 <= sum && sum <= size && share-rounding <= slices.Min(rescue) &&
			slices.Max(rescue) <= share
	})
}

// countEvents returns the number of a host's events of a kind.
func (g *group) countEvents(host int, kind EventKind) (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range g.events {
		if e.Host == g.agents[host].members[0].Host && e.Kind == kind {
			n++
		}
	}
	return n
}

// hasError waits until a host's status has an error with these words.
func (g *group) hasError(t *testing.T, host int, words ...string) {
	t.Helper()
	var err error
	storetest.Until(t, words[0], func() bool {
		err = g.agents[host].Status()[0].Err
		return err != nil && strings.Contains(err.Error(), words[0])
	})
	checkWords(t, err, words...)
}

// starts calls Start until a host has a share.
func (g *group) starts(t *testing.T, host int) {
	t.Helper()
	a := g.agents[host]
	storetest.Until(t, "Start",
		func() bool { return a.Start(t.Context()) == nil && a.Status()[0].Share != (lease.Amounts{}) })
}

// awaitEvent waits for an event of a host.
func (g *group) awaitEvent(t *testing.T, host int, kind EventKind) (e Event) {
	t.Helper()
	storetest.Until(t, kind.String(), func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		at := slices.IndexFunc(g.events,
			func(e Event) bool { return e.Host == g.agents[host].members[0].Host && e.Kind == kind })
		if at >= 0 {
			e = g.events[at]
		}
		return at >= 0
	})
	return e
}

// TestMain runs more tests in parallel than usual, because they mostly wait for
// servers. On a busy machine, a TLS handshake can take longer than 2 s.
func TestMain(m *testing.M) {
	flag.Parse()
	dialTimeout = 10 * time.Second
	if p := flag.Lookup("test.parallel"); p.Value.(flag.Getter).Get().(int) < 8 {
		_ = p.Value.Set("8")
	}
	os.Exit(m.Run())
}

func TestAgents(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		g := joinHosts(t, 5, Server{URL: s.URL()})
		g.awaitSettled(t, "all share the budget", budget)
		for _, m := range g.meters[1:] {
			m.offerRate(0)
		}
		g.meters[0].offerRate(2 * budget)
		storetest.Until(t, "one has it alone", func() bool { return g.meters[0].allowedRate() > full })
		s.Pause()
		g.rescued(t, "the store is stopped")
		storetest.Until(t, "all statuses have the error", func() bool {
			st := g.agents[0].Status()[0]
			return st.Rescued && st.Err != nil && st.Hosts == 5
		})
		s.Resume()
		g.awaitFull(t, "the store is back")
		for i := range g.agents {
			g.awaitEvent(t, i, Joined)
			g.awaitEvent(t, i, Lost)
			g.awaitEvent(t, i, Found)
		}
	})
}

// write writes a file for a test.
func write(t *testing.T, text string) string {
	t.Helper()
	name := t.TempDir() + "/file"
	noError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

// TestManyAgents runs 100 agents in one process. Each makes one call per
// interval, and the server receives no other calls.
func TestManyAgents(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		terms := testTerms()
		terms.Interval, terms.Deadline = 400e6, 400e6
		begin := time.Now()
		g := &group{at: testClock()}
		for range 100 {
			g.addAgent(t, terms, Server{URL: s.URL()})
		}
		g.awaitFull(t, "all share the budget")
		for _, stop := range g.stop {
			stop()
		}
		took := time.Since(begin)
		var calls uint64
		for i, a := range g.agents {
			n := a.Status()[0].Calls
			if most := uint64(took/(400*time.Millisecond)) + 1; n == 0 || n > most {
				t.Errorf("agent %d: got %d calls in %v, want 1 to %d", i, n, took, most)
			}
			calls += n
		}
		var served uint64
		// the last call of each may be in progress
		if _, err := fmt.Sscanf(s.Info("commandstats", "cmdstat_evalsha"), "calls=%d", &served); err != nil ||
			served > calls || served+100 < calls {
			t.Errorf("got %d calls at the server, %v, want the %d of the agents", served, err, calls)
		}
	})
}
