// Package simulate runs many shapers with a shared budget on one store, in virtual time, and
// measures excess, utilization and fairness.
package simulate

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease/world"
)

// Config describes a simulation.
type Config struct {
	Hosts    int // number of hosts at the start
	Terms    lease.Terms
	Duration time.Duration
	Seed     uint64
	Delay    time.Duration // maximum delay of a message
	Loss     float64       // part of the messages to be lost
	Demand   policyfile.Demand
	Events   []policyfile.Event
	Progress func(time.Duration) // called with the simulated time; may be nil
}

// Result is the result of a simulation.
type Result struct {
	Excess      float64 // bytes allowed beyond the budget
	Bound       float64 // upper bound of Excess for the past events, bytes
	Utilization float64 // bytes passed, divided by the most allowed
	Fairness    float64 // Jain's index of each host's bytes divided by its max-min fair share
	Calls       int64   // calls to the store
	Lost        int64   // calls without a reply; at most Calls, although a few may be from before the start
	Refused     int64   // calls rejected by the store
	Passed      float64 // bytes
	Hosts       int     // number of hosts, those joining later included
	Time        time.Duration
	Series      Series
}

// CallsPerSecond returns the rate of calls to the store.
func (r *Result) CallsPerSecond() float64 { return float64(r.Calls) / r.Time.Seconds() }

// maxHosts bounds the memory of joining hosts. A store admits at most lease.MaxHosts at a time.
const maxHosts = 4 * lease.MaxHosts

// warmUp is the number of leases for which the world runs before a simulation begins. A new
// store learns the hosts' shares for one.
const warmUp = 3

// simulation is a simulation in progress.
type simulation struct {
	Config
	*world.World
	rand   *rand.Rand
	begin  int64 // time of the world at the start, ns
	err    error
	fair   fairness
	record recorder
}

// Run runs a simulation to its end. If ctx ends before, it returns an error. The same Config
// gives the same result.
func Run(ctx context.Context, c Config) (*Result, error) {
	s := &simulation{Config: c, rand: rand.New(rand.NewPCG(c.Seed, 2))}
	s.World = world.New(world.Config{
		Hosts: c.Hosts, Terms: c.Terms, Seed: c.Seed, Delay: int64(c.Delay), Loss: c.Loss, Drift: 1e-4,
		Start:   c.Terms.Interval,
		Replica: slices.ContainsFunc(c.Events, func(e policyfile.Event) bool { return e.Does == "failover" }),
	})
	for _, h := range s.World.Hosts {
		s.Offer(h, s.drawRate(c.Demand))
	}
	s.World.Run(warmUp * c.Terms.Lease())
	s.begin = s.Now
	before := s.Stats
	for i := range c.Events {
		s.schedule(&c.Events[i])
	}
	s.record.start(s)
	s.fair.start(s)
	for end := s.begin + int64(c.Duration); s.Now < end; {
		s.World.Run(min(s.Now+int64(time.Second), end))
		switch {
		case s.err != nil:
			return nil, s.err
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case c.Progress != nil:
			c.Progress(time.Duration(s.Now - s.begin))
		}
	}
	r := &Result{
		Excess: s.Stats.Excess[0], Bound: s.Stats.Bound[0], Utilization: 1, Fairness: s.fair.index(s),
		Hosts: len(s.World.Hosts), Calls: s.Stats.Calls - before.Calls,
		Lost:    min(s.Stats.Lost-before.Lost, s.Stats.Calls-before.Calls),
		Refused: s.Stats.Refused - before.Refused, Passed: s.Stats.Passed - before.Passed, Time: c.Duration,
		Series: s.record.Series,
	}
	if could := s.Stats.Could - before.Could; could > 0 {
		r.Utilization = min(r.Passed/could, 1)
	}
	return r, nil
}

// drawRate draws a rate of a demand, in bit/s.
func (s *simulation) drawRate(d policyfile.Demand) int64 {
	least, most := bitRate(d.Least), bitRate(d.Most)
	return least + s.rand.Int64N(most-least+1)
}

// bitRate returns a rate in bit/s, rounded down, but at most the maximum of a budget.
func bitRate(r meter.Rate) int64 {
	if r.Period == 0 {
		return 0
	}
	return int64(min(math.Floor(float64(r.Bytes)*8e9/float64(r.Period)), lease.MaxRate))
}

// schedule schedules all occurrences of an event.
func (s *simulation) schedule(e *policyfile.Event) {
	until := s.Duration
	if e.Until > 0 {
		until = min(until, e.Until)
	}
	var next func(at time.Duration)
	next = func(at time.Duration) {
		if at > until || at >= s.Duration {
			return
		}
		if e.Does == "failover" && e.Behind > 0 {
			s.after(at-e.Behind, func() { s.Stall(e.Blind) })
		}
		s.after(at, func() {
			s.apply(e)
			if e.Every > 0 {
				next(at + e.Every)
			}
		})
	}
	next(e.At)
}

// after calls f at a time of the simulation, or now if that time has passed.
func (s *simulation) after(at time.Duration, f func()) {
	s.At(max(s.begin+int64(at)-s.Now, 0), f)
}

// apply applies an event now.
func (s *simulation) apply(e *policyfile.Event) {
	if s.err != nil {
		return // Run returns the error after this step
	}
	s.record.note(s, e)
	switch e.Does {
	case "join":
		if len(s.World.Hosts)+e.Who.Number > maxHosts {
			s.err = fmt.Errorf("%s: more than %d hosts at %v", e.Place, maxHosts,
				time.Duration(s.Now-s.begin))
			return
		}
		for range e.Who.Number {
			h := s.Join("")
			s.Offer(h, s.drawRate(s.Demand))
			s.Boot(h)
		}
	case "down":
		s.Down = true
		s.undo(e, func() { s.Down = false })
	case "flush":
		s.Flush()
	case "failover":
		s.Failover()
	case "clock":
		s.Jump(int64(e.Jump))
	default:
		for _, h := range s.selectHosts(e) {
			s.applyTo(e, h)
		}
	}
}

// applyTo applies an event to a host.
func (s *simulation) applyTo(e *policyfile.Event, h *world.Host) {
	switch e.Does {
	case "demand":
		before := h.Offered
		s.Offer(h, s.drawRate(e.Demand))
		s.undo(e, func() { s.Offer(h, before) })
	case "crash":
		instance := h.Instance()
		s.Crash(h)
		s.undo(e, func() {
			if !h.Up && h.Instance() == instance {
				s.Boot(h)
			}
		})
	case "leave":
		s.Leave(h)
	case "hang":
		h.Hung = true
		s.undo(e, func() { h.Hung = false })
	case "partition":
		h.Cut = [2]bool{h.Cut[0] || e.Ways[0], h.Cut[1] || e.Ways[1]}
		s.undo(e, func() { h.Cut = [2]bool{} })
	case "heal":
		h.Cut = [2]bool{}
	case "stray":
		s.Stray(h, true)
		s.undo(e, func() { s.Stray(h, false) })
	}
}

// undo calls f after the event's For. If For is 0, the event is never undone.
func (s *simulation) undo(e *policyfile.Event, f func()) {
	if e.For > 0 {
		s.At(int64(e.For), f)
	}
}

// selectHosts selects the hosts of an event at random, among the running hosts. heal selects only
// partitioned hosts.
func (s *simulation) selectHosts(e *policyfile.Event) []*world.Host {
	var candidates []*world.Host
	for _, h := range s.World.Hosts {
		switch {
		case e.Who.Name == h.Name:
			return []*world.Host{h}
		case h.Up && (e.Does != "heal" || h.Cut[0] || h.Cut[1]):
			candidates = append(candidates, h)
		}
	}
	n := e.Who.Number
	switch part := e.Who.Part; {
	case e.Who.Name != "":
		s.err = fmt.Errorf("%s: no host is named %s at %v", e.Place, e.Who.Name, time.Duration(s.Now-s.begin))
		return nil
	case part != nil:
		n = int(part.Of(int64(len(candidates))))
		if n == 0 && part.Of(math.MaxInt64) > 0 {
			n = 1
		}
	}
	n = min(n, len(candidates))
	for i := range n {
		j := i + s.rand.IntN(len(candidates)-i)
		candidates[i], candidates[j] = candidates[j], candidates[i]
	}
	return candidates[:n]
}
