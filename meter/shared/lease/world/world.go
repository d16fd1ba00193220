// Package world runs the hosts and the store of one budget in virtual time, over a network with
// delays, losses and partitions. It is deterministic: the same Config and the same failures give
// the same result.
//
// The package is for tests and for shaper simulate. Any version may change it incompatibly.
package world

import (
	"fmt"
	"math/rand/v2"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// Config is the initial state of a world. Times are in ns of virtual time.
type Config struct {
	Hosts   int
	Terms   lease.Terms
	Seed    uint64
	Delay   int64   // maximum delay of a message
	Loss    float64 // part of the messages lost, in each direction
	Late    float64 // part of the messages delayed by up to 20 intervals
	Drift   float64 // maximum relative error of the hosts' clocks, such as 1e-4
	Replica bool    // there is a replica; hosts use an increase only after it reached the replica
	Blind   bool    // the store knows neither its server's identity nor its replicas
	Start   int64   // hosts start at random times up to this one
}

// World is a running world. It is for one goroutine at a time.
type World struct {
	Config
	Now   int64
	Hosts []*Host
	Store lease.Store
	Stats Stats
	Down  bool // no host reaches the store
	// Travel returns the delay of a message in ns. nil: random delays.
	Travel func(h *Host, reply bool) int64
	Check  func() // called after each call granted by the store; nil: none

	rand     *rand.Rand
	events   events
	messages []message
	unused   []int32 // indexes of free messages
	calls    []func()
	free     []int32 // indexes of free calls
	serial   int64   // last instance

	server  lease.Server
	clock   int64 // difference of the server's clock from Now, ns
	former  former
	stalled bool             // replication is stopped
	replica lease.Store      // the replica's data while stalled
	known   map[string]known // hosts known to the store, by name
	copied  map[string]known // hosts known to the stalled replica, by name

	sum, strange lease.Amounts // amounts now allowed to all hosts, and to strangers among them
	over         [2]float64    // tokens allowed beyond the budget, in eighths
	bound        [2]float64    // tokens allowed by failures and by the rates of strangers so far
	burst        [2]int64      // largest sum of strangers' bursts so far
	peak         int64         // maximum of sum's first rate since the last call of Peak
	wanted       int64         // rate offered to running hosts, eighths per second
}

// Stats are the measurements of a world.
type Stats struct {
	Calls, Lost, Refused int64
	// Excess is an upper bound for the tokens passed by all hosts together beyond the budget's
	// burst and rate, by bucket. It holds for any traffic.
	Excess [2]float64
	// Bound is the maximum allowed for Excess after the failures so far
	// (lease.Terms.Bound).
	Bound [2]float64
	// Bytes passed, bytes offered to running hosts, and bytes allowed at the smaller of the offered
	// and the budget's rate.
	Passed, Offered, Could float64
}

// New returns a world at time 0.
func New(c Config) *World {
	w := &World{
		Config: c, rand: rand.New(rand.NewPCG(c.Seed, 1)), server: lease.Server{ID: "0"},
		known: map[string]known{},
	}
	w.Resume()
	if c.Blind {
		w.server = lease.Server{Replicas: -1}
	}
	for range c.Hosts {
		h := w.Join("")
		w.At(w.upTo(c.Start), func() { w.Boot(h) })
	}
	return w
}

// Join adds a host, which Boot starts. An empty name is replaced by a unique
// one.
func (w *World) Join(name string) *Host {
	h := &Host{Name: name, index: int32(len(w.Hosts))}
	if name == "" {
		h.Name = fmt.Sprintf("host-%d", h.index)
	}
	w.Hosts = append(w.Hosts, h)
	return h
}

// Sum returns the amounts now allowed to all hosts together.
func (w *World) Sum() lease.Amounts { return w.sum }

// Peak returns the maximum of Sum's first rate since the last call of Peak.
func (w *World) Peak() int64 {
	peak := max(w.peak, w.sum.Rate[0])
	w.peak = w.sum.Rate[0]
	return peak
}

// Rescued reports whether a host is without a lease.
func (w *World) Rescued(h *Host) bool { return h.Host.Rescued(w.now(h)) }

// upTo returns a random number from 0 to n.
func (w *World) upTo(n int64) int64 { return w.rand.Int64N(n + 1) }

// At calls f after a time.
func (w *World) At(after int64, f func()) {
	i := int32(len(w.calls))
	if n := len(w.free); n > 0 {
		i, w.free = w.free[n-1], w.free[:n-1]
		w.calls[i] = f
	} else {
		w.calls = append(w.calls, f)
	}
	w.events.push(event{at: w.Now + after, kind: call, index: i})
}

// Every calls f after each period until f returns false.
func (w *World) Every(period int64, f func() bool) {
	var again func()
	again = func() {
		if f() {
			w.At(period, again)
		}
	}
	w.At(period, again)
}

// Run advances the world to a time.
func (w *World) Run(until int64) {
	for len(w.events.heap) > 0 && w.events.heap[0].at <= until {
		e := w.events.pop()
		w.pass(e.at)
		switch e.kind {
		case call:
			f := w.calls[e.index]
			w.calls[e.index], w.free = nil, append(w.free, e.index)
			f()
		case timer:
			if h := w.Hosts[e.host]; h.Up && h.calls == e.call {
				w.call(h)
			}
		case arrival:
			w.arrive(e)
		case answer:
			w.answer(e)
		case lost:
			w.giveUp(e)
		case expiry:
			if h := w.Hosts[e.host]; h.wakes == e.at {
				h.wakes = 0
				w.flow(h)
				w.apply(h)
			}
		}
	}
	w.pass(until)
	w.Settle()
}

// Settle brings the statistics up to date, within a function called by the
// world.
func (w *World) Settle() {
	for _, h := range w.Hosts {
		w.flow(h)
	}
}

// pass advances time without events.
func (w *World) pass(now int64) {
	dt := float64(now-w.Now) / 1e9
	w.Now = now
	w.peak = max(w.peak, w.sum.Rate[0])
	w.Stats.Offered += float64(w.wanted) * dt / 8
	w.Stats.Could += float64(min(w.wanted, w.Terms.Size.Rate[0])) * dt / 8
	strange := w.strange
	if w.former.hosts > 0 {
		strange = strange.Plus(w.Terms.Size)
	}
	for i := range 2 {
		w.over[i] = max(w.over[i]+float64(w.sum.Rate[i]-w.Terms.Size.Rate[i])*dt, 0)
		burst := max(w.sum.Burst[i]-w.Terms.Size.Burst[i], 0)
		w.Stats.Excess[i] = max(w.Stats.Excess[i], w.over[i]/8+float64(burst))
		w.bound[i] += float64(strange.Rate[i]) * dt / 8
		w.burst[i] = max(w.burst[i], strange.Burst[i])
		w.Stats.Bound[i] = w.bound[i] + float64(w.burst[i])
	}
}
