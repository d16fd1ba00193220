package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/a-seed-32e5a53f/shaper/meter/shared"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// A budget shared by hosts with leases. Each host is an agent with a meter through which traffic
// flows like a fluid.
const (
	shareRate     = 1_000_000_000 // bit/s
	shareBurst    = 1_000_000     // bytes
	shareInterval = 100 * time.Millisecond
	shareRescue   = 100_000 // millionths of the budget
	shareHosts    = 10
	shareRounds   = 5 // a round takes several seconds
)

// sharing holds the hosts of a budget on a server.
type sharing struct {
	client *redis.Client
	kill   func()
	end    func() // stops the agents
	agents []*shared.Agent
	begin  time.Time

	mu    sync.Mutex
	hosts []*sharer
	at    int64   // time, ns
	most  float64 // largest sum of the rates of all hosts at one time
}

// sharer is the meter of a host.
type sharer struct {
	*sharing
	plan   lease.Plan
	offers float64 // offered rate, bit/s
	level  float64 // tokens, bytes
	passed float64
	counts [3]float64
}

func shareTerms() lease.Terms {
	return lease.Terms{
		Size:   lease.Amounts{Rate: [2]int64{shareRate}, Burst: [2]int64{shareBurst}},
		Weight: 1, Floor: 3028, Rescue: shareRescue, Hosts: 1 << 40,
		Interval: int64(shareInterval), Deadline: int64(shareInterval / 2),
	}
}

// startSharing starts a server and hosts. each is the number of hosts per agent. All hosts
// offerPackets the whole budget.
func startSharing(program string, hosts, each int, terms lease.Terms) (*sharing, error) {
	client, kill, err := startServer(program)
	if err != nil {
		return nil, err
	}
	s := &sharing{client: client, kill: kill, begin: time.Now()}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	s.end = func() { cancel(); running.Wait() }
	for i := 0; i < hosts; i += each {
		own, err := shared.Open(shared.Server{URL: "redis://" + client.Options().Addr})
		if err != nil {
			return nil, err
		}
		var budgets []shared.Budget
		var meters []shared.LeasedMeter
		for k := range each {
			h := &sharer{sharing: s, offers: shareRate}
			s.do(func() { s.hosts = append(s.hosts, h) })
			budgets = append(budgets, shared.Budget{Name: "b", Host: fmt.Sprint("host-", i+k), Terms: terms})
			meters = append(meters, h)
		}
		a, err := shared.NewAgent(own, budgets, shared.AgentConfig{Clock: s.clock})
		if err == nil {
			err = a.Bind(meters)
		}
		if err != nil {
			return nil, err
		}
		s.agents = append(s.agents, a)
		running.Go(func() {
			a.Run(ctx)
			_ = own.Close()
		})
	}
	return s, s.until(full, math.Inf(1))
}

const full = 0.98 * shareRate

func (s *sharing) stop() {
	s.end()
	s.kill()
	_ = s.client.Close()
}

func (s *sharing) clock() int64 { return int64(time.Since(s.begin)) }

// do calls f after some time.
func (s *sharing) do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for now := s.clock(); s.at < now; {
		end, sum := now, int64(0)
		for _, h := range s.hosts {
			sum += h.plan.At(s.at).Rate[0]
			for _, u := range h.plan.Until {
				if u > s.at {
					end = min(end, u)
				}
			}
		}
		s.most = max(s.most, float64(sum))
		dt := float64(end-s.at) / 8e9
		for _, h := range s.hosts {
			may := h.plan.At(s.at)
			offered, refilled := h.offers*dt, float64(may.Rate[0])*dt
			passed := min(offered, h.level+refilled)
			h.level = min(h.level+refilled-passed, float64(may.Burst[0]))
			h.passed += passed
			h.counts[0] += passed
			h.counts[2] += offered - passed
		}
		s.at = end
	}
	f()
}

func (h *sharer) Apply(p lease.Plan) error {
	h.do(func() { h.plan = p })
	return nil
}

func (h *sharer) Counts() (c lease.Counts, err error) {
	h.do(func() { c = lease.Counts{uint64(h.counts[0]), 0, uint64(h.counts[2])} })
	return c, nil
}

// rate returns the rate now allowed to all hosts, or to one host.
func (s *sharing) rate(which ...int) (sum float64) {
	s.do(func() {
		for i, h := range s.hosts {
			if len(which) == 0 || i == which[0] {
				sum += float64(h.plan.At(s.at).Rate[0])
			}
		}
	})
	return sum
}

func (s *sharing) passed() (bytes float64, at int64) {
	s.do(func() {
		for _, h := range s.hosts {
			bytes += h.passed
		}
		at = s.at
	})
	return bytes, at
}

func (s *sharing) offer(host int, rate float64) { s.do(func() { s.hosts[host].offers = rate }) }

// until waits until all hosts together may use a rate between least and most.
func (s *sharing) until(least, most float64, which ...int) error {
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if rate := s.rate(which...); least <= rate && rate <= most {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("the hosts may use %.0f bit/s", s.rate(which...))
		}
	}
}

// sharesRun holds the figures of one run.
type sharesRun struct {
	lacks, excess float64 // largest lack and excess of bytes in a window of 1 s, percent of the budget
	used          float64 // used part of the budget if all hosts want it, percent
	freed         float64 // time until freed bandwidth is used, intervals
	calls         float64 // calls per host and interval
	err           error
}

// runShares runs ten hosts with a shared budget for some seconds.
func runShares() (r sharesRun) {
	s, err := startSharing("redis-server", shareHosts, 1, shareTerms())
	if err != nil {
		return sharesRun{err: err}
	}
	defer s.stop()
	fail := func(err error) sharesRun { return sharesRun{err: err} }

	time.Sleep(5 * shareInterval)
	const second = float64(shareRate) / 8 // bytes per second
	before, begin := s.passed()
	if err := s.client.ConfigResetStat(context.Background()).Err(); err != nil {
		return fail(err)
	}
	time.Sleep(10 * shareInterval)
	calls, _, err := commandStat(s.client, "evalsha")
	if err != nil {
		return fail(err)
	}
	after, end := s.passed()
	seconds := float64(end-begin) / 1e9
	r.used = 100 * (after - before) / (second * seconds)
	r.calls = math.Round(100*calls/shareHosts/(seconds/shareInterval.Seconds())) / 100

	r.lacks, r.excess = s.windows()

	for i := range s.hosts {
		s.offer(i, shareRate)
	}
	if err := s.until(full, math.Inf(1)); err != nil {
		return fail(err)
	}
	freeing := time.Now()
	for i := range shareHosts - 1 {
		s.offer(i, 0)
	}
	if err := s.until(full, math.Inf(1), shareHosts-1); err != nil {
		return fail(err)
	}
	r.freed = float64(time.Since(freeing)) / float64(shareInterval)
	if s.most > shareRate {
		return fail(fmt.Errorf("all hosts together might use %.0f bit/s", s.most))
	}
	return r
}

// windows shifts the demand: every second one host starts to offer the whole budget, or stops.
// It returns the largest lack and the largest excess of bytes in a window of 1 s, in percent of
// the budget.
func (s *sharing) windows() (lacks, excess float64) {
	type point struct {
		at    int64
		bytes float64
	}
	var points []point
	r := rand.New(rand.NewPCG(1, 1))
	excess = math.Inf(-1)
	next := time.Now()
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(next) {
			next = next.Add(time.Second)
			i := r.IntN(shareHosts)
			s.offer(i, float64(r.IntN(2)*shareRate))
			s.offer((i+1)%shareHosts, shareRate)
		}
		bytes, at := s.passed()
		points = append(points, point{at, bytes})
		for len(points) > 1 && at-points[1].at >= 1e9 {
			points = points[1:]
		}
		if took := float64(at-points[0].at) / 1e9; took >= 1 {
			budget := shareRate / 8 * took
			passed := bytes - points[0].bytes
			lacks, excess = max(lacks, 100*(1-passed/budget)), max(excess, 100*((passed-shareBurst)/budget-1))
		}
	}
	return lacks, excess
}

// manyAgents returns the CPU time per call, in µs, of 200 agents in this process, and the
// number of calls per agent and interval.
func manyAgents() (us, calls float64, err error) {
	s, err := startSharing("redis-server", 200, 1, shareTerms())
	if err != nil {
		return 0, 0, err
	}
	defer s.stop()
	if err := s.client.ConfigResetStat(context.Background()).Err(); err != nil {
		return 0, 0, err
	}
	begin := time.Now()
	before, err1 := processTime(os.Getpid())
	time.Sleep(10 * shareInterval)
	after, err2 := processTime(os.Getpid())
	took := time.Since(begin)
	n, _, err := commandStat(s.client, "evalsha")
	err = errors.Join(err, err1, err2)
	if s.most > shareRate {
		err = errors.Join(err, fmt.Errorf("all hosts together might use %.0f bit/s", s.most))
	}
	return float64(after-before) / 1e3 / n,
		math.Round(100*n/200/(float64(took)/float64(shareInterval))) / 100, err
}

// hostTime returns the server's time per request of a host, in ns, for a budget with a number
// of hosts. Ten hosts share a call, to need fewer connections.
func hostTime(hosts int) (float64, error) {
	const each = 10
	terms := shareTerms()
	terms.Interval = int64(time.Duration(hosts) * time.Millisecond / 4) // 400 calls per second
	terms.Interval = max(terms.Interval, int64(20*time.Millisecond))
	terms.Deadline = terms.Interval
	s, err := startSharing("redis-server", hosts, each, terms)
	if err != nil {
		return 0, err
	}
	defer s.stop()
	if err := s.client.ConfigResetStat(context.Background()).Err(); err != nil {
		return 0, err
	}
	time.Sleep(max(4*time.Duration(terms.Interval), 500*time.Millisecond))
	calls, us, err := commandStat(s.client, "evalsha")
	return us * 1e3 / calls / each, err
}

func shareFigures() []figure {
	var runs []sharesRun
	// of returns a figure of the runs. All figures use the same runs.
	of := func(what string, bar, aim float64, unit string, more bool, value func(*sharesRun) float64) figure {
		i := 0
		f := amount("shares of 10 hosts: "+what, bar, aim, unit, func() (float64, error) {
			if i == len(runs) {
				runs = append(runs, runShares())
			}
			i++
			return value(&runs[i-1]), runs[i-1].err
		}, nil)
		f.more, f.most = more, shareRounds
		return f
	}
	agents := amount("shares of 200 hosts, agents of one process: CPU of a call", math.Inf(1), noAim, " µs",
		func() (float64, error) {
			us, calls, err := manyAgents()
			if err == nil && calls > 1.02 {
				err = fmt.Errorf("each calls %.3g times in an interval", calls)
			}
			return us, err
		}, nil)
	agents.most = shareRounds
	cost := timeRatio("shares: server time of a host's call, 1,000 hosts against 10", 1.5, 1.1,
		func() (float64, error) { return hostTime(1000) }, func() (float64, error) { return hostTime(10) })
	cost.most = shareRounds
	return []figure{
		of("bytes in 1 s beyond burst + rate * t, demand shifts", 0, 0, " %", false,
			func(r *sharesRun) float64 { return r.excess }),
		of("bytes in 1 s less than rate * t, demand shifts", 5, 1, " %", false,
			func(r *sharesRun) float64 { return r.lacks }),
		of("of the budget used, all want it", 98, 99, " %", true,
			func(r *sharesRun) float64 { return r.used }),
		of("until freed bandwidth is used, intervals", 3, 2, "", false,
			func(r *sharesRun) float64 { return r.freed }),
		of("calls of a host in an interval", 1, 1, "", false, func(r *sharesRun) float64 { return r.calls }),
		agents, cost,
	}
}
