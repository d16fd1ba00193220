// Package world runs the hosts and the store of one budget in virtual time, over a
// network that delays, loses and parts. It is deterministic: the same Config and the
// same faults give the same result.
package world

import (
	"fmt"
	"math/rand/v2"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// Config is a world as it begins. Times are in ns of virtual time.
type Config struct {
	Hosts   int
	Terms   lease.Terms
	Seed    uint64
	Delay   int64   // of a message, at most
	Loss    float64 // part of the messages that are lost, each way by itself
	Late    float64 // part of the messages that take up to 20 intervals
	Drift   float64 // by which hosts' clocks are fast or slow, at most, such as 1e-4
	Replica bool    // the store has one; hosts use an increase only if it has it
	Blind   bool    // the store does not see which server it is, nor whether it has replicas
	Start   int64   // hosts start by then, each at a time of its own
}

// World is a running world. No method may be called by two goroutines at once.
type World struct {
	Config
	Now   int64
	Hosts []*Host
	Store lease.Store
	Stats Stats
	Down  bool // nobody reaches the store
	// Travel is how long a message takes, ns, if it is not nil and messages do not take
	// a time at random.
	Travel func(h *Host, reply bool) int64
	Check  func() // after each call that the store has granted, nil for none

	rand     *rand.Rand
	events   events
	messages []message
	unused   []int32 // messages
	calls    []func()
	free     []int32 // calls
	serial   int64   // instances

	server  lease.Server
	clock   int64 // of the server, beyond Now
	former  former
	stalled bool             // the replica gets nothing any more
	replica lease.Store      // if it is stalled
	known   map[string]known // by name, whom the store's data has
	copied  map[string]known // whom the stalled replica's data has

	sum, strange lease.Amounts // what all hosts may use now, what strangers may
	over         [2]float64    // eighths of a token that could have passed beyond the budget
	bound        [2]float64    // tokens, of faults and by the rates of strangers so far
	burst        [2]int64      // most bursts of strangers so far
	peak         int64         // of sum's first rate
	wanted       int64         // what senders of hosts that are up offer, eighths per second
}

// Stats are what the world has seen.
type Stats struct {
	Calls, Lost, Refused int64
	// Excess is the most tokens that all hosts together could ever have let through
	// beyond the budget's burst and rate, by bucket: an upper bound, whatever they sent.
	Excess [2]float64
	// Bound is the most that Excess may be after the faults so far (lease.Terms.Bound).
	Bound [2]float64
	// Bytes passed; bytes offered to hosts that were up; and the most that could have
	// passed, by the smaller of the offered and the budget's rate.
	Passed, Offered, Could float64
}

// New makes a world.
func New(c Config) *World {
	w := &World{Config: c, rand: rand.New(rand.NewPCG(c.Seed, 1)), server: lease.Server{ID: "0"}, known: map[string]known{}}
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

// Join adds a host, which is not up before Boot. Without a name it gets one that no
// other host has.
func (w *World) Join(name string) *Host {
	h := &Host{Name: name, index: int32(len(w.Hosts))}
	if name == "" {
		h.Name = fmt.Sprintf("host-%d", h.index)
	}
	w.Hosts = append(w.Hosts, h)
	return h
}

// Sum is what all hosts may use now.
func (w *World) Sum() lease.Amounts { return w.sum }

// Peak is the most that all hosts could use at the same time since it was asked last:
// the first rate of Sum.
func (w *World) Peak() int64 {
	peak := max(w.peak, w.sum.Rate[0])
	w.peak = w.sum.Rate[0]
	return peak
}

// Rescued says whether a host has no lease.
func (w *World) Rescued(h *Host) bool { return h.Host.Rescued(w.now(h)) }

// upTo is a random number of 0 to n.
func (w *World) upTo(n int64) int64 { return w.rand.Int64N(n + 1) }

// At calls f at a time from now.
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

// Every calls f after each period until it returns false.
func (w *World) Every(period int64, f func() bool) {
	var again func()
	again = func() {
		if f() {
			w.At(period, again)
		}
	}
	w.At(period, again)
}

// Run runs the world until a time.
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

// Settle brings what passed up to date, within a function that the world calls.
func (w *World) Settle() {
	for _, h := range w.Hosts {
		w.flow(h)
	}
}

// pass lets time pass in which nothing changes.
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
