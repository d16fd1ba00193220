package world

import "github.com/a-seed-32e5a53f/shaper/meter/shared/lease"

// Host is a host of a World.
type Host struct {
	*lease.Host
	Name    string
	Up      bool
	Offered int64   // offered rate, eighths per second; set by World.Offer
	Cut     [2]bool // whether its requests, its replies are lost
	Hung    bool    // its process is stopped: it makes no calls, and packets pass by its last plan
	Passed  float64 // tokens
	Refused float64 // tokens

	index    int32
	instance int64
	strays   bool    // it calls the replaced server
	begins   int64   // start of its clock, ns of World.Now
	speed    float64 // of its clock, relative to World.Now
	calls    uint32  // number of calls started; events of earlier calls are void
	open     bool    // a call is in progress
	ends     int64   // deadline of the call
	wakes    int64   // time of its next expiry event, 0: none
	until    int64   // traffic is accounted up to then
	allowed  lease.Amounts
	extra    lease.Amounts // part of allowed counted as a stranger's
	unknown  int64         // time from which it is a stranger unless the store knows it again
	strange  bool          // the store does not count its amounts
	initial  lease.Amounts // its rescue share when it became a stranger
	level    float64       // tokens in its bucket
	counts   [3]float64
}

// Instance distinguishes processes with the same name.
func (h *Host) Instance() int64 { return h.instance }

// Allowed returns the amounts now allowed to the host.
func (h *Host) Allowed() lease.Amounts { return h.allowed }

// message is a request in transit, and later its reply.
type message struct {
	request  lease.Request
	reply    lease.Reply
	increase bool
}

// Boot starts a host, or restarts it with empty memory.
func (w *World) Boot(h *Host) {
	w.flow(h)
	if !h.Up {
		w.wanted += h.Offered
	}
	w.serial++
	h.Host, h.instance = lease.NewHost(h.Name, w.serial, w.Terms), w.serial
	h.Up, h.open, h.wakes, h.strange, h.unknown = true, false, 0, false, 0
	h.begins, h.speed = w.Now-w.upTo(1e12), 1+w.Drift*(2*w.rand.Float64()-1)
	h.counts, h.level = [3]float64{}, 0
	w.apply(h)
	w.call(h)
}

// Crash stops a host and its traffic.
func (w *World) Crash(h *Host) {
	if !h.Up {
		return
	}
	w.flow(h)
	h.Up = false
	w.wanted -= h.Offered
	w.apply(h)
}

// Leave stops a host, which tells the store if its message arrives.
func (w *World) Leave(h *Host) {
	if !h.Up {
		return
	}
	w.Crash(h)
	if request := h.Host.Leave(); !h.Cut[0] && !w.drops() {
		w.At(w.travel(h, false), func() {
			if !w.Down {
				w.Store.Call(w.storeTime(), w.server, &request)
			}
		})
	}
}

// Offer changes the rate offered by a host's senders, in eighths per second.
func (w *World) Offer(h *Host, rate int64) {
	w.flow(h)
	if h.Up {
		w.wanted += rate - h.Offered
	}
	h.Offered = rate
}

// now returns the time of the host's own clock.
func (w *World) now(h *Host) int64 { return int64(float64(w.Now-h.begins) * h.speed) }

// local returns the time in which a host's clock advances by d.
func (w *World) local(h *Host, d int64) int64 { return int64(float64(d)/h.speed) + 1 }

func (w *World) drops() bool { return w.Loss > 0 && w.rand.Float64() < w.Loss }

// travel returns the delay of a message of a host.
func (w *World) travel(h *Host, reply bool) int64 {
	if w.Travel != nil {
		return w.Travel(h, reply)
	}
	if w.Late > 0 && w.rand.Float64() < w.Late {
		return w.upTo(20 * w.Terms.Interval)
	}
	return w.upTo(w.Delay)
}

// call starts a host's next call.
func (w *World) call(h *Host) {
	h.calls++
	w.push(h, timer, w.Now+w.local(h, w.Terms.Interval-w.upTo(w.Terms.Interval/20)), 0)
	if h.Hung {
		return
	}
	w.flow(h)
	request := h.Request(w.now(h),
		lease.Counts{uint64(h.counts[0]), uint64(h.counts[1]), uint64(h.counts[2])})
	w.apply(h)
	h.open = true
	h.ends = w.Now + w.local(h, w.Terms.Deadline)
	w.Stats.Calls++
	if h.Cut[0] || w.drops() {
		w.push(h, lost, h.ends, 0)
		return
	}
	at := w.Now + w.travel(h, false)
	if at >= h.ends {
		w.push(h, lost, h.ends, 0)
	}
	i := w.message()
	w.messages[i].request = request
	w.push(h, arrival, at, i)
}

func (w *World) push(h *Host, k kind, at int64, index int32) {
	w.events.push(event{at: at, kind: k, host: h.index, call: h.calls, index: index})
}

// message allocates a message and returns its index.
func (w *World) message() int32 {
	if n := len(w.unused); n > 0 {
		i := w.unused[n-1]
		w.unused = w.unused[:n-1]
		return i
	}
	w.messages = append(w.messages, message{})
	return int32(len(w.messages) - 1)
}

// arrive makes the store answer a request.
func (w *World) arrive(e event) {
	h, m := w.Hosts[e.host], &w.messages[e.index]
	open := h.Up && h.open && h.calls == e.call && w.Now < h.ends // the host still expects the reply
	if !w.Down {
		store, server := &w.Store, w.server
		if h.strays {
			store, server = &w.former.Store, w.former.Server
		}
		m.reply = store.Call(w.storeTime(), server, &m.request)
		m.increase = server.Replicas > 0 && !w.stalled && !h.strays || m.reply.Replicas <= 0
		w.granted(h, m)
		if at := w.Now + w.travel(h, true); open && !h.Cut[1] && !w.drops() && at <= h.ends {
			w.push(h, answer, at, e.index)
			return
		}
	}
	w.unused = append(w.unused, e.index)
	if open {
		w.push(h, lost, h.ends, 0)
	}
}

// answer delivers a reply to a host.
func (w *World) answer(e event) {
	w.unused = append(w.unused, e.index)
	if h := w.Hosts[e.host]; h.Up && h.open && h.calls == e.call {
		m := &w.messages[e.index]
		h.open = false
		w.flow(h)
		h.Reply(w.now(h), m.reply, m.increase)
		w.apply(h)
	}
}

// giveUp ends a host's call without a reply.
func (w *World) giveUp(e event) {
	if h := w.Hosts[e.host]; h.Up && h.open && h.calls == e.call {
		h.open = false
		w.Stats.Lost++
		w.flow(h)
		h.Lost(w.now(h))
		w.apply(h)
	}
}

// apply updates the amounts allowed to a host, and schedules the next change.
func (w *World) apply(h *Host) {
	w.sum, w.strange = w.sum.Minus(h.allowed), w.strange.Minus(h.extra)
	h.allowed, h.extra = lease.Amounts{}, lease.Amounts{}
	if h.Up {
		now := w.now(h)
		plan := h.Plan()
		h.allowed = plan.At(now)
		for _, until := range plan.Until {
			if until <= now {
				continue
			}
			if at := w.Now + w.local(h, until-now); h.wakes == 0 || at < h.wakes {
				h.wakes = at
				w.push(h, expiry, at, 0)
			}
			break
		}
		h.extra = w.stranger(h)
	}
	w.sum, w.strange = w.sum.Plus(h.allowed), w.strange.Plus(h.extra)
	h.level = min(h.level, float64(h.allowed.Burst[0]))
}

// flow accounts a host's traffic since the last time, as a fluid through its
// bucket.
func (w *World) flow(h *Host) {
	dt := float64(w.Now-h.until) / 8e9
	h.until = w.Now
	offered := float64(h.Offered) * dt
	if !h.Up {
		h.Refused += offered
		return
	}
	rate, burst := float64(h.allowed.Rate[0]), float64(h.allowed.Burst[0])
	passed := min(offered, h.level+rate*dt)
	h.level = min(h.level+rate*dt-passed, burst)
	h.counts[0] += passed
	h.counts[2] += offered - passed
	h.Passed += passed
	h.Refused += offered - passed
	w.Stats.Passed += passed
}
