package lease

import (
	"fmt"
	"math/bits"
)

// Terms are the parameters of a budget at one of its hosts. Times are in ns.
type Terms struct {
	Size   Amounts
	Beside bool  // the second rate is in addition to the first (RFC 4115)
	Weight int64 // weight of this host's share
	Floor  int64 // burst left to a host without demand if the budget allows it, tokens
	Rescue int64 // part of the budget shared by all hosts without the store, millionths
	// Packet is the number of tokens of this host's largest packet. A host on its rescue share,
	// unless its rate is zero, keeps a burst of at least a packet: a smaller one would pass
	// nothing. See Bound.Packet. 0: rescue shares can be smaller than a packet.
	Packet   int64
	Hosts    int64 // number of hosts assumed until the store reports it
	Interval int64 // time between calls
	Deadline int64 // time limit of a call
}

// Lease returns the validity of a share, counted from before its call.
func (t *Terms) Lease() int64 { return 3*t.Interval + 2*t.Deadline }

// Grow returns the time from the end of its lease until a host may rise to its rescue share. The
// store considers a host late at most four intervals after the last call whose reply the host
// received. By the end of Grow, earlier leases of other hosts have ended. A quarter of an interval
// allows for clocks running at different speeds.
func (t *Terms) Grow() int64 { return 4*t.Interval + t.Deadline + t.Interval/4 }

// rescue returns this host's part of the rescue share of n hosts with equal
// weights.
func (t *Terms) rescue(n int64) Amounts {
	return t.Size.Part(t.Rescue, million).Part(1, max(n, 1))
}

const million = 1_000_000

// Request is a call of one host for one budget.
type Request struct {
	Host     string
	Instance int64 // distinguishes processes with the same name
	Sequence int64 // increases with each request of an instance
	Seen     int64 // Reply.Time of the last reply received, µs; 0: none
	Terms    Terms
	Holds    Amounts  // maximum used by the host, except for its rescue share after the lease
	Rescue   Amounts  // rescue share
	Demand   [2]int64 // rates the host could use
	Leave    bool     // the host uses nothing any more and exits
}

// Counts are the tokens requested from a host's meter since it started, by the
// color of the packets.
type Counts [3]uint64

// Plan is the amounts that a host may use from now on if it receives no further reply: Phase[i]
// until Until[i], the last phase to the end. Times are on the host's monotonic clock, in ns.
type Plan struct {
	Phase [3]Amounts
	Until [2]int64
}

// At returns the amounts at a time.
func (p *Plan) At(now int64) Amounts {
	switch {
	case now < p.Until[0]:
		return p.Phase[0]
	case now < p.Until[1]:
		return p.Phase[1]
	}
	return p.Phase[2]
}

// Host is the state of one host of one budget. The caller provides the time, ns
// on one monotonic clock, and alternates between Request and either Reply or
// Lost. After each call it applies Plan before anything else.
type Host struct {
	terms    Terms
	request  Request // the last request
	plan     Plan
	size     Amounts // budget in the last reply, or in terms; the smaller one if terms changed since
	rescues  Amounts // part of size shared by all hosts without the store
	rescue   Amounts // part of rescues
	last     Reply   // the last reply received
	heard    bool
	sent     int64 // time of the last request, ns
	counts   Counts
	counted  int64 // time at which counts were read, ns
	measured bool
}

// NewHost returns a host that holds nothing. Instance must differ between processes.
func NewHost(name string, instance int64, t Terms) *Host {
	return &Host{
		terms:   t,
		request: Request{Host: name, Instance: instance, Terms: t},
		size:    t.Size,
		rescues: t.Size.Part(t.Rescue, million),
		rescue:  t.rescue(t.Hosts),
	}
}

// SetTerms changes the terms between calls. Interval and Deadline must not change. Smaller amounts
// apply at once, also without the store: the rescue share shrinks with the budget's. Nothing grows
// before a call reported it, and after the first reply only the store grants more.
func (h *Host) SetTerms(t Terms) {
	held, same := h.plan.Phase, t.Size == h.terms.Size && t.Rescue == h.terms.Rescue
	h.terms, h.request.Terms = t, t
	rescues := t.Size.Part(t.Rescue, million)
	switch {
	case !h.heard:
		h.size, h.rescues, h.rescue = t.Size, rescues, t.rescue(t.Hosts)
	case same:
		return // an operator may have set a larger size
	default:
		rescues = rescues.Min(h.rescues)
		h.rescue = h.rescue.scale(rescues, h.rescues).Min(rescues)
		h.size, h.rescues = h.size.Min(t.Size), rescues
	}
	h.plan.Phase[0] = held[0].Min(t.Size)
	h.fallBack()
	for i, a := range held {
		h.plan.Phase[i] = h.plan.Phase[i].Min(a)
	}
}

// Plan returns the amounts allowed to the host.
func (h *Host) Plan() Plan { return h.plan }

// Heard returns the last reply received, and whether there was one.
func (h *Host) Heard() (Reply, bool) { return h.last, h.heard }

// Rescued reports whether the lease is over.
func (h *Host) Rescued(now int64) bool { return now >= h.plan.Until[0] }

// Request begins a call. It first releases the amounts that the host does not need.
func (h *Host) Request(now int64, counts Counts) Request {
	demand := h.demand(now, counts)
	if share := &h.plan.Phase[0]; !h.Rescued(now) {
		for i, d := range demand {
			share.Rate[i] = min(share.Rate[i], d+h.last.Spare[i])
		}
		h.fallBack()
	}
	h.request.Holds = h.plan.At(now)
	h.request.Sequence++
	h.request.Demand = demand
	h.request.Rescue = h.rescue
	h.sent = now
	return h.request
}

// fallBack sets the phases after the lease.
func (h *Host) fallBack() {
	for phase, a := range []Amounts{h.plan.Phase[0].Min(h.rescue), h.rescue} {
		for i := range a.Burst {
			if a.Rate != [2]int64{} {
				a.Burst[i] = max(a.Burst[i], min(h.terms.Packet, h.size.Burst[i]))
			}
		}
		h.plan.Phase[phase+1] = a
	}
}

// demand returns the rates needed by the packets since the last request. If a bucket lacked tokens,
// the demand is at least one and a half times the share: senders adapting to the share never show
// how much more they could send.
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

// perSecond returns the rate of n tokens in a time, in eighths per second, at
// most MaxRate.
func perSecond(n uint64, ns int64) int64 {
	hi, lo := bits.Mul64(n, 8_000_000_000)
	if hi >= uint64(ns) {
		return MaxRate
	}
	q, _ := bits.Div64(hi, lo, uint64(ns))
	return int64(min(q, MaxRate))
}

// Reply ends a call. increase reports whether enough replicas have stored an
// increase; if not, the host does not use it yet. A refusal counts as a lost
// call. A granted reply must pass Check.
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
	h.size, h.rescues, h.rescue = r.Size, r.Size.Part(h.terms.Rescue, million), r.Rescue
	ends := h.sent + h.terms.Lease()
	h.plan = Plan{Phase: [3]Amounts{r.Share}, Until: [2]int64{ends, ends + h.terms.Grow()}}
	h.fallBack()
}

// Lost ends a call without a reply. A host without any reply so far uses its rescue share after its
// first failed call.
func (h *Host) Lost(int64) {
	if !h.heard {
		h.fallBack()
	}
}

// Leave returns the last request. The host uses nothing any more.
func (h *Host) Leave() Request {
	h.plan = Plan{}
	h.request.Sequence++
	h.request.Holds, h.request.Leave = Amounts{}, true
	return h.request
}

// Check returns an error if the terms are invalid.
func (t *Terms) Check() error {
	if err := t.Size.Check(); err != nil {
		return err
	}
	switch {
	case t.Weight < 1 || t.Weight > MaxWeight:
		return fmt.Errorf("weight %d is not between 1 and %d", t.Weight, MaxWeight)
	case t.Rescue < 0 || t.Rescue > million:
		return fmt.Errorf("rescue of %d millionths is not between 0 and %d", t.Rescue, million)
	case t.Floor < 0 || t.Floor > MaxBurst || t.Packet < 0 || t.Packet > MaxBurst:
		return fmt.Errorf("a floor of %d or a packet of %d tokens is not between 0 and %d", t.Floor, t.Packet,
			int64(MaxBurst))
	case t.Interval < 1e6 || t.Interval > maxInterval || t.Deadline < 1e5 || t.Deadline > t.Interval:
		return fmt.Errorf("interval %d ns, deadline %d ns: the interval must be 1ms to 1m, the deadline at least 100µs and at most the interval",
			t.Interval, t.Deadline)
	}
	return nil
}

// MaxWeight is the largest Terms.Weight.
const MaxWeight = 1000

const maxInterval = 60e9 // ns
