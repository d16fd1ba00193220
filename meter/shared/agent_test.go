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

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

var began = time.Now()

func clock() int64 { return int64(time.Since(began)) }

const budget = int64(1_000_000_000) // bit/s

func terms() lease.Terms {
	return lease.Terms{
		Size:   lease.Amounts{Rate: [2]int64{budget}, Burst: [2]int64{1 << 20}},
		Weight: 1, Floor: 3028, Rescue: 100_000, Interval: 100e6, Deadline: 90e6,
		Hosts: 1 << 40, // a host that was never heard has no rescue share, which would be beyond the budget
	}
}

// group is several hosts of budget b, each with an agent and senders that offer a rate
// all the time. It looks at every instant at what all together may use.
type group struct {
	agents []*Agent
	meters []*fluid
	stop   []func() // ends an agent's calls; its meter stays
	first  int      // host's number

	mu     sync.Mutex // of the meters, too
	at     int64
	most   int64   // rate that all together might use at an instant
	over   float64 // tokens that could have passed beyond the budget by now
	excess float64 // the most of it
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

// pass lets time pass. The caller has the lock.
func (g *group) pass() {
	now := clock()
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

// do calls f at an instant.
func (g *group) do(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pass()
	f()
}

func (f *fluid) Apply(p lease.Plan) (err error) {
	f.do(func() {
		if err = f.fail; err == nil {
			f.plan = p
		}
	})
	return err
}

func (f *fluid) Counts() (c lease.Counts, err error) {
	f.do(func() {
		c, err = lease.Counts{uint64(f.counts[0]), 0, uint64(f.counts[2])}, f.fail
	})
	return c, err
}

func (f *fluid) offer(rate int64) { f.do(func() { f.offers = rate }) }

// rate is what the host may use now.
func (f *fluid) rate() (rate int64) {
	f.do(func() { rate = f.plan.At(f.at).Rate[0] })
	return rate
}

// sum is what all hosts, or some, may use now.
func (g *group) sum(which ...int) (sum int64) {
	g.do(func() {
		for i, m := range g.meters {
			if len(which) == 0 || slices.Contains(which, i) {
				sum += m.plan.At(g.at).Rate[0]
			}
		}
	})
	return sum
}

// join has n hosts share the budget at a server.
func join(t *testing.T, n int, server Server) *group {
	t.Helper()
	g := &group{at: clock()}
	for range n {
		g.add(t, terms(), server)
	}
	return g
}

// add has one more host run, whose senders offer the whole budget.
func (g *group) add(t *testing.T, terms lease.Terms, server Server) *Agent {
	t.Helper()
	a := g.make(t, fmt.Sprint("host-", g.first+len(g.agents)), terms, server)
	g.run(t, a)
	return a
}

// run has an agent call the store.
func (g *group) run(t *testing.T, a *Agent) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { a.Run(ctx) })
	stop := func() { cancel(); running.Wait() }
	g.stop = append(g.stop, stop)
	t.Cleanup(stop)
}

// make is add without Run.
func (g *group) make(t *testing.T, name string, terms lease.Terms, server Server) *Agent {
	t.Helper()
	client, err := Open(server)
	must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	notify := func(e Event) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.events = append(g.events, e)
	}
	a, err := NewAgent(client, []Budget{{"b", name, terms}}, AgentConfig{Clock: clock, Notify: notify, Store: server.String()})
	must(t, err)
	m := &fluid{group: g, offers: budget}
	g.do(func() { g.agents, g.meters = append(g.agents, a), append(g.meters, m) })
	must(t, a.Bind([]Meter{m}))
	return a
}

// until waits until all hosts together may use between least and most, and fails if they
// may use more than the budget meanwhile.
func (g *group) until(t *testing.T, what string, least, most int64) {
	t.Helper()
	storetest.Until(t, what, func() bool {
		sum, top := g.sum(), int64(0)
		if g.do(func() { top = g.most }); top > budget {
			t.Fatalf("%s: all together might use %d", what, top)
		}
		return least <= sum && sum <= most
	})
}

const full = budget * 99 / 100

// rescued is how much rescue shares of all hosts are off by rounding.
const rounding = 20

// full waits until all of the budget is shared out.
func (g *group) full(t *testing.T, what string) {
	t.Helper()
	g.until(t, what, full, budget)
}

// rescued waits until all hosts have their rescue share.
func (g *group) rescued(t *testing.T, what string) {
	t.Helper()
	g.until(t, what, budget/10-rounding, budget/10)
}

// told counts the events of a kind of a host.
func (g *group) told(host int, kind EventKind) (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range g.events {
		if e.Host == g.agents[host].members[0].Host && e.Kind == kind {
			n++
		}
	}
	return n
}

// says waits until a host's status has an error with these words.
func (g *group) says(t *testing.T, host int, words ...string) {
	t.Helper()
	var err error
	storetest.Until(t, words[0], func() bool {
		err = g.agents[host].Status()[0].Err
		return err != nil && strings.Contains(err.Error(), words[0])
	})
	says(t, err, words...)
}

// starts calls Start until a host has a share.
func (g *group) starts(t *testing.T, host int) {
	t.Helper()
	storetest.Until(t, "Start", func() bool { return g.agents[host].Start(t.Context()) == nil })
}

// tells waits for an event of a host.
func (g *group) tells(t *testing.T, host int, kind EventKind) (e Event) {
	t.Helper()
	storetest.Until(t, kind.String(), func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		at := slices.IndexFunc(g.events, func(e Event) bool { return e.Host == g.agents[host].members[0].Host && e.Kind == kind })
		if at >= 0 {
			e = g.events[at]
		}
		return at >= 0
	})
	return e
}

// TestMain has more tests run at once than usual: they wait for servers most of the time.
func TestMain(m *testing.M) {
	flag.Parse()
	if p := flag.Lookup("test.parallel"); p.Value.(flag.Getter).Get().(int) < 8 {
		_ = p.Value.Set("8")
	}
	os.Exit(m.Run())
}

func TestAgents(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		g := join(t, 5, Server{URL: s.URL()})
		g.full(t, "all share the budget")
		for _, m := range g.meters[1:] {
			m.offer(0)
		}
		g.meters[0].offer(2 * budget)
		storetest.Until(t, "one has it alone", func() bool { return g.meters[0].rate() > full })
		s.Pause()
		g.rescued(t, "the store stands still")
		storetest.Until(t, "all say so", func() bool {
			st := g.agents[0].Status()[0]
			return st.Rescued && st.Err != nil && st.Hosts == 5
		})
		s.Resume()
		g.full(t, "the store is back")
		for i := range g.agents {
			g.tells(t, i, Joined)
			g.tells(t, i, Lost)
			g.tells(t, i, Found)
		}
	})
}

// write writes a file for a test.
func write(t *testing.T, text string) string {
	t.Helper()
	name := t.TempDir() + "/file"
	must(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

// TestManyAgents has 100 agents in one process. Each calls once in an interval, and the
// server sees no other calls.
func TestManyAgents(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		terms := terms()
		terms.Interval, terms.Deadline = 400e6, 400e6
		begin := time.Now()
		g := &group{at: clock()}
		for range 100 {
			g.add(t, terms, Server{URL: s.URL()})
		}
		g.full(t, "all share the budget")
		for _, stop := range g.stop {
			stop()
		}
		took := time.Since(begin)
		var calls uint64
		for i, a := range g.agents {
			n := a.Status()[0].Calls
			if most := uint64(took/(400*time.Millisecond)) + 1; n == 0 || n > most {
				t.Errorf("agent %d called %d times in %v", i, n, took)
			}
			calls += n
		}
		var served uint64
		if _, err := fmt.Sscanf(s.Info("commandstats", "cmdstat_evalsha"), "calls=%d", &served); err != nil || served > calls || served < calls*9/10 { // the last may be under way
			t.Errorf("the server had %d calls, the agents made %d: %v", served, calls, err)
		}
	})
}
