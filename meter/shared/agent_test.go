package shared

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

var began = time.Now()

func clock() int64 { return int64(time.Since(began)) }

func terms() lease.Terms {
	return lease.Terms{
		Size:   lease.Amounts{Rate: [2]int64{1_000_000_000}, Burst: [2]int64{1 << 20}},
		Weight: 1, Floor: 3028, Rescue: 100_000, Hosts: 16, Interval: 50e6, Deadline: 25e6,
	}
}

// fluid is a meter with senders that offer a rate all the time.
type fluid struct {
	mu     sync.Mutex
	plan   lease.Plan
	at     int64
	offers int64 // eighths per second
	counts [3]float64
}

func (f *fluid) pass() {
	now := clock()
	for f.at < now {
		end := now
		for _, u := range f.plan.Until {
			if u > f.at {
				end = min(end, u)
			}
		}
		dt := float64(end-f.at) / 8e9
		passed := min(float64(f.offers), float64(f.plan.At(f.at).Rate[0])) * dt
		f.counts[0] += passed
		f.counts[2] += float64(f.offers)*dt - passed
		f.at = end
	}
}

func (f *fluid) Apply(p lease.Plan) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pass()
	f.plan = p
	return nil
}

func (f *fluid) Counts() (lease.Counts, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pass()
	return lease.Counts{uint64(f.counts[0]), 0, uint64(f.counts[2])}, nil
}

func (f *fluid) offer(rate int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pass()
	f.offers = rate
}

// group is several hosts of one budget, each with an agent.
type group struct {
	agents []*Agent
	meters []*fluid
	stop   []context.CancelFunc // ends an agent's calls; its meter stays
	events chan Event
}

func join(t *testing.T, n int, terms lease.Terms, client func() redis.UniversalClient) *group {
	t.Helper()
	g := &group{events: make(chan Event, 1000)}
	for range n {
		g.add(t, terms, client())
	}
	return g
}

// add starts one more host.
func (g *group) add(t *testing.T, terms lease.Terms, client redis.UniversalClient) {
	t.Helper()
	name := fmt.Sprint("host-", len(g.agents))
	a, err := NewAgent(client, []Budget{{"b", name, terms}}, AgentConfig{clock, func(e Event) { g.events <- e }})
	if err != nil {
		t.Fatal(err)
	}
	m := &fluid{at: clock()}
	if err := a.Bind([]Meter{m}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { a.Run(ctx) })
	stop := func() { cancel(); running.Wait() }
	g.agents, g.meters, g.stop = append(g.agents, a), append(g.meters, m), append(g.stop, stop)
	t.Cleanup(stop)
}

// sum is what all hosts may use at this moment.
func (g *group) sum() (sum int64) {
	for _, m := range g.meters {
		m.mu.Lock()
	}
	now := clock()
	for _, m := range g.meters {
		sum += m.plan.At(now).Rate[0]
		m.mu.Unlock()
	}
	return sum
}

// until waits until all hosts together may use a rate of at least least and at most
// most, and looks all the time that they never may use more than the budget.
func (g *group) until(t *testing.T, what string, least, most int64) {
	t.Helper()
	storetest.Until(t, what, func() bool {
		sum := g.sum()
		if sum > terms().Size.Rate[0] {
			t.Fatalf("the hosts may use %d", sum)
		}
		return least <= sum && sum <= most
	})
}

func TestAgents(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		g := join(t, 5, terms(), func() redis.UniversalClient { return s.Client() })
		for _, m := range g.meters {
			m.offer(500_000_000)
		}
		g.until(t, "all share the budget", 990_000_000, 1_000_000_000)
		for _, m := range g.meters[1:] {
			m.offer(0)
		}
		g.meters[0].offer(2_000_000_000)
		storetest.Until(t, "one has it alone", func() bool {
			g.sum()
			m := g.meters[0]
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.plan.At(clock()).Rate[0] > 990_000_000
		})
		s.Pause()
		g.until(t, "the rescue share", 99_999_995, 100_000_000)
		if st := g.agents[0].Status()[0]; !st.Rescued || st.Err == nil || st.Hosts != 5 {
			t.Errorf("%+v", st)
		}
		s.Resume()
		g.until(t, "the store is back", 990_000_000, 1_000_000_000)
	})
}
