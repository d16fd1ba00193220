package lease

import (
	"fmt"
	"math/bits"
)

// Terms are what a budget is to one of its hosts. Times are in ns.
type Terms struct {
	Size     Amounts
	Beside   bool  // the second rate comes on top of the first (RFC 4115)
	Weight   int64 // of this host's share
	Floor    int64 // burst that a host without demand keeps if the budget has room for it, tokens
	Rescue   int64 // part of the budget that all hosts have together without the store, millionths
	Hosts    int64 // number of hosts assumed until the store has reported it
	Interval int64 // between calls
	Deadline int64 // of a call
}

// Lease is how long a share is valid, counted from before the call that brought it.
func (t *Terms) Lease() int64 { return 3*t.Interval + 2*t.Deadline }

// Grow is how long after the end of its lease a host may rise to its rescue share. A
// store takes a host for late no more than four intervals after the last call whose
// reply the host has heard; leases of others that were granted before that have ended
// by then. A quarter of an interval is for clocks that run at different speeds.
func (t *Terms) Grow() int64 { return 4*t.Interval + t.Deadline + t.Interval/4 }

// rescue is this host's part of the rescue share, of n hosts of equal weight.
func (t *Terms) rescue(n int64) Amounts {
	return t.Size.Part(t.Rescue, million).Part(1, max(n, 1))
}

const million = 1_000_000

// Request is a call of one host for one budget. Times are in µs, as the store's.
type Request struct {
	Host     string
	Instance int64 // tells processes apart that have the same name
	Sequence int64 // rises with each request of an instance
	Seen     int64 // Reply.Time of the last reply that was heard, 0 for none
	Terms    Terms
	Holds    Amounts  // the most that the host uses, but for its rescue share after the lease
	Rescue   Amounts  // share
	Demand   [2]int64 // rates that it could use
	Leave    bool     // the host uses nothing any more and ends
}

// Reply is the store's answer.
type Reply struct {
	Refused  Refusal
	Time     int64 // of the store, µs
	Epoch    int64 // changes if the store lost its state
	Share    Amounts
	Rescue   Amounts
	Spare    [2]int64 // rates that the host may keep beside its demand
	Size     Amounts  // of the budget: the smallest that a host gave, or what an operator set
	Hosts    int64    // that the store knows
	Late     int64    // those of them that it has not heard of
	Learning bool
	Replicas int64  // of the server, -1 if it does not say
	Smallest string // the host that gave the smallest size, "" if all agree
}

// Refusal is why a store gives a host nothing.
type Refusal int64

// Refusals.
const (
	Granted  Refusal = iota
	NameUsed         // another process uses the host's name
	Interval         // the hosts of the budget have another Interval or Deadline
	TooMany          // hosts
	Stale            // a later request of the host was there before
)

var refusals = [...]string{
	"granted", "another shaper uses the same host name", "other hosts of the budget use another interval or deadline",
	"the budget has too many hosts", "a later request arrived before",
}

func (r Refusal) String() string { return refusals[r] }

// MaxHosts is the most hosts that a budget has.
const MaxHosts = 4096

// Counts are the tokens that packets asked a host's meter for, by their color, since it
// began.
type Counts [3]uint64

// Plan is what a host may use from now on if it hears nothing: Phase i until Until[i],
// the last from then on. Times are in ns of the host's monotonic clock.
type Plan struct {
	Phase [3]Amounts
	Until [2]int64
}

// At is what the plan allows at a time.
func (p *Plan) At(now int64) Amounts {
	switch {
	case now < p.Until[0]:
		return p.Phase[0]
	case now < p.Until[1]:
		return p.Phase[1]
	}
	return p.Phase[2]
}

// Host is the state of one host of one budget. The caller gives it the time, ns of one
// monotonic clock, and calls Request, and then Reply or Lost, in turn. After each of
// them it applies Plan before it does anything else.
type Host struct {
	terms    Terms
	request  Request // the last one
	plan     Plan
	rescue   Amounts
	last     Reply // the last that was heard
	heard    bool
	sent     int64 // ns, when the last request was made
	counts   Counts
	counted  int64 // ns, when counts were read
	measured bool
}

// NewHost returns a host that holds nothing. Instance must differ between processes.
func NewHost(name string, instance int64, t Terms) *Host {
	return &Host{
		terms:   t,
		request: Request{Host: name, Instance: instance, Terms: t},
		rescue:  t.rescue(t.Hosts),
	}
}

// SetTerms changes the terms. Interval and Deadline must be the same.
func (h *Host) SetTerms(t Terms) {
	h.terms, h.request.Terms = t, t
	for i, a := range h.plan.Phase {
		h.plan.Phase[i] = a.Min(t.Size)
	}
}

// Plan is what the host may use.
func (h *Host) Plan() Plan { return h.plan }

// Heard returns the last reply, and whether there was one.
func (h *Host) Heard() (Reply, bool) { return h.last, h.heard }

// Rescued reports whether the lease is over.
func (h *Host) Rescued(now int64) bool { return now >= h.plan.Until[0] }

// Request begins a call. What the host does not need is given up before.
func (h *Host) Request(now int64, counts Counts) Request {
	demand := h.demand(now, counts)
	if share := &h.plan.Phase[0]; !h.Rescued(now) {
		for i, d := range demand {
			share.Rate[i] = min(share.Rate[i], d+h.last.Spare[i])
		}
		h.plan.Phase[1] = share.Min(h.rescue)
	}
	h.request.Holds = h.plan.At(now)
	h.request.Sequence++
	h.request.Demand = demand
	h.request.Rescue = h.rescue
	h.sent = now
	return h.request
}

// demand is what the packets since the last request would have needed, as rates. A
// bucket that refused some is asked for half more than the share: senders that adapt
// to the share never show what they could send.
func (h *Host) demand(now int64, counts Counts) (demand [2]int64) {
	elapsed, before := now-h.counted, h.counts
	h.counted, h.counts = now, counts
	if !h.measured || elapsed <= 0 {
		h.measured = true
		return demand
	}
	share := h.plan.At(now)
	green, yellow, red := counts[0]-before[0], counts[1]-before[1], counts[2]-before[2]
	offered := perSecond(green+yellow+red, elapsed)
	for i, size := range h.terms.Size.Rate {
		lacked := red > 0 || i == 0 && yellow > 0
		d := offered
		if i == 1 && h.terms.Beside {
			d = max(d-share.Rate[0], 0)
		}
		if lacked {
			d = max(d, share.Rate[i]+share.Rate[i]/2)
		}
		demand[i] = min(d, size)
	}
	return demand
}

// perSecond is the rate of n tokens in a time, in eighths per second, at most MaxRate.
func perSecond(n uint64, ns int64) int64 {
	hi, lo := bits.Mul64(n, 8_000_000_000)
	if hi >= uint64(ns) {
		return MaxRate
	}
	q, _ := bits.Div64(hi, lo, uint64(ns))
	return int64(min(q, MaxRate))
}

// Reply ends a call. An increase is used only if increase is set, which says that
// enough replicas have it; it is in the next request again. A refusal is no share.
func (h *Host) Reply(now int64, r Reply, increase bool) {
	if now-h.sent > h.terms.Deadline || r.Refused != Granted {
		h.Lost(now)
		return
	}
	h.last, h.heard = r, true
	h.request.Seen = r.Time
	if !increase {
		r.Share, r.Rescue = r.Share.Min(h.request.Holds), r.Rescue.Min(h.rescue)
	}
	h.rescue = r.Rescue
	ends := h.sent + h.terms.Lease()
	h.plan = Plan{
		Phase: [3]Amounts{r.Share, r.Share.Min(h.rescue), h.rescue},
		Until: [2]int64{ends, ends + h.terms.Grow()},
	}
}

// Lost ends a call without a reply. A host that never heard of the store has its
// rescue share from the first failure on.
func (h *Host) Lost(int64) {
	if !h.heard {
		h.plan.Phase[2] = h.rescue
	}
}

// Leave is the last request: the host uses nothing any more.
func (h *Host) Leave() Request {
	h.plan = Plan{}
	h.request.Sequence++
	h.request.Holds, h.request.Leave = Amounts{}, true
	return h.request
}

// Check returns what is wrong with the terms.
func (t *Terms) Check() error {
	if err := t.Size.Check(); err != nil {
		return err
	}
	switch {
	case t.Weight < 1 || t.Weight > maxWeight:
		return fmt.Errorf("weight %d is not between 1 and %d", t.Weight, maxWeight)
	case t.Rescue < 0 || t.Rescue > million:
		return fmt.Errorf("rescue of %d millionths is not between 0 and all", t.Rescue)
	case t.Interval < 1e6 || t.Deadline < 1e5 || t.Deadline > t.Interval:
		return fmt.Errorf("an interval of %d ns and a deadline of %d ns do not go together", t.Interval, t.Deadline)
	}
	return nil
}

const maxWeight = 1000
