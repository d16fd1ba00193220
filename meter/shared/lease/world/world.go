// Package world runs the hosts and the store of one budget in virtual time, over a
// network that delays, loses and parts. It is deterministic: the same Config gives the
// same result.
package world

import (
	"container/heap"
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
	Loss    float64 // of messages, each way by itself
	Drift   float64 // by which hosts' clocks are fast or slow, at most, such as 1e-4
	Replica bool    // the store has one; increases wait until it has them
	Start   int64   // hosts start by then, each at a time of its own
}

// World is a running world.
type World struct {
	Config
	Now   int64
	Hosts []*Host
	Store lease.Store
	Stats Stats

	rand   *rand.Rand
	events events
	order  int64
	serial int64 // instances

	Down   bool  // nobody reaches the store
	Jump   int64 // of the store's clock, ns
	Server lease.Server

	sum  lease.Amounts // what all hosts may use now
	over [2]float64    // eighths of a token that could have passed beyond the budget
}

// Stats are what the world has seen.
type Stats struct {
	Calls, Lost int64
	// Excess is the most tokens that all hosts together could ever have let through
	// beyond the budget's burst and rate, by bucket: an upper bound, whatever they sent.
	Excess [2]float64
}

// Host is a host in the world.
type Host struct {
	*lease.Host
	Name    string
	Up      bool
	Offered int64   // rate, eighths per second
	Cut     [2]bool // its requests, its replies are lost
	Passed  float64 // tokens
	Refused float64

	begins  int64   // of its clock
	speed   float64 // of its clock
	calls   int64   // that began; an event of an earlier one is void
	open    bool    // a call is under way
	until   int64   // accounted until
	allowed lease.Amounts
	level   float64 // tokens in its bucket
	counts  [3]float64
}

// New makes a world.
func New(c Config) *World {
	w := &World{Config: c, rand: rand.New(rand.NewPCG(c.Seed, 1)), Server: lease.Server{ID: "a"}}
	if c.Replica {
		w.Server.Replicas = 1
	}
	for i := range c.Hosts {
		h := &Host{Name: fmt.Sprintf("host-%d", i)}
		w.Hosts = append(w.Hosts, h)
		w.At(w.upTo(c.Start), func() { w.Boot(h) })
	}
	return w
}

// upTo is a random number of 0 to n.
func (w *World) upTo(n int64) int64 { return w.rand.Int64N(n + 1) }

// At calls f at a time from now.
func (w *World) At(after int64, f func()) {
	w.order++
	heap.Push(&w.events, event{w.Now + after, w.order, f})
}

// Run runs the world until a time.
func (w *World) Run(until int64) {
	for len(w.events) > 0 && w.events[0].at <= until {
		e := heap.Pop(&w.events).(event)
		w.pass(e.at)
		e.f()
	}
	w.pass(until)
}

// pass lets time pass in which nothing changes.
func (w *World) pass(now int64) {
	dt := float64(now - w.Now)
	w.Now = now
	for i := range 2 {
		more := float64(w.sum.Rate[i]-w.Terms.Size.Rate[i]) * dt / 1e9
		w.over[i] = max(w.over[i]+more, 0)
		burst := max(w.sum.Burst[i]-w.Terms.Size.Burst[i], 0)
		w.Stats.Excess[i] = max(w.Stats.Excess[i], w.over[i]/8+float64(burst))
	}
}

// Boot starts a host, or starts it again with nothing in its memory.
func (w *World) Boot(h *Host) {
	w.serial++
	h.Host = lease.NewHost(h.Name, w.serial, w.Terms)
	h.Up, h.open = true, false
	h.begins, h.speed = w.Now-w.upTo(1e12), 1+w.Drift*(2*w.rand.Float64()-1)
	h.counts, h.level = [3]float64{}, 0
	w.settle(h)
	w.call(h)
}

// Crash ends a host, and what it let through.
func (w *World) Crash(h *Host) {
	h.Up = false
	w.settle(h)
}

// clock is the host's own.
func (w *World) clock(h *Host) int64 { return int64(float64(w.Now-h.begins) * h.speed) }

// call has a host begin its next call.
func (w *World) call(h *Host) {
	if !h.Up {
		return
	}
	h.calls++
	this, host := h.calls, h.Host
	mine := func() bool { return h.Up && h.Host == host && h.calls == this }
	w.settle(h)
	r := h.Request(w.clock(h), lease.Counts{uint64(h.counts[0]), uint64(h.counts[1]), uint64(h.counts[2])})
	h.open = true
	w.settle(h)
	w.Stats.Calls++
	w.At(w.local(h, w.Terms.Deadline), func() {
		if mine() && h.open {
			w.Stats.Lost++
			h.open = false
			h.Lost(w.clock(h))
			w.settle(h)
		}
	})
	w.At(w.local(h, w.Terms.Interval-w.upTo(w.Terms.Interval/20)), func() {
		if mine() {
			w.call(h)
		}
	})
	if h.Cut[0] || w.lost() {
		return
	}
	w.At(w.upTo(w.Delay), func() {
		if w.Down {
			return
		}
		reply := w.Store.Call((w.Now+w.Jump)/1000+1, w.Server, &r)
		if h.Cut[1] || w.lost() {
			return
		}
		w.At(w.upTo(w.Delay), func() {
			if mine() && h.open {
				h.open = false
				h.Reply(w.clock(h), reply, true)
				w.settle(h)
			}
		})
	})
}

// local is how long it takes until a host's clock has gone on by d.
func (w *World) local(h *Host, d int64) int64 { return int64(float64(d)/h.speed) + 1 }

func (w *World) lost() bool { return w.Loss > 0 && w.rand.Float64() < w.Loss }

// settle brings what a host may use up to date, and sees to it at the next change.
func (w *World) settle(h *Host) {
	w.flow(h)
	w.sum = w.sum.Minus(h.allowed)
	h.allowed = lease.Amounts{}
	if h.Up {
		now := w.clock(h)
		plan := h.Plan()
		h.allowed = plan.At(now)
		for _, until := range plan.Until {
			if host := h.Host; until > now {
				w.At(w.local(h, until-now), func() {
					if h.Host == host && h.Up {
						w.settle(h)
					}
				})
				break
			}
		}
	}
	w.sum = w.sum.Plus(h.allowed)
	h.level = min(h.level, float64(h.allowed.Burst[0]))
}

// flow is the host's traffic since it was last looked at, as a fluid through its
// bucket.
func (w *World) flow(h *Host) {
	dt := float64(w.Now-h.until) / 8e9
	h.until = w.Now
	rate, burst := float64(h.allowed.Rate[0]), float64(h.allowed.Burst[0])
	offered := float64(h.Offered) * dt
	if !h.Up {
		h.Refused += offered
		return
	}
	passed := min(offered, h.level+rate*dt)
	h.level = min(h.level+rate*dt-passed, burst)
	h.counts[0] += passed
	h.counts[2] += offered - passed
	h.Passed += passed
	h.Refused += offered - passed
}

// Offer changes what a host's senders offer, a rate in eighths per second.
func (w *World) Offer(h *Host, rate int64) {
	w.flow(h)
	h.Offered = rate
}

type event struct {
	at, order int64
	f         func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].order < e[j].order
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(v any)   { *e = append(*e, v.(event)) }
func (e *events) Pop() any {
	old := *e
	v := old[len(old)-1]
	*e = old[:len(old)-1]
	return v
}
