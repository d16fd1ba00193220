package explain

import (
	"bytes"
	"errors"
	"math"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
)

// ErrSeen ends a replay once the packet is decided.
var ErrSeen = errors.New("seen")

// Witness is a replay.Engine. It records the state of the pipeline at the arrival of one packet,
// and the packet's verdict.
type Witness struct {
	*pipeline.Pipeline
	file   *policyfile.File
	plan   *compiled.Plan
	number int64           // number of the packet, from 1
	until  func(now int64) // called before each packet with its time, ns
	// number of the first packet with a timestamp, or of the latest if there is none
	firstID int64
	first   int64               // its timestamp, ns
	ahead   int64               // number of the packet with the latest time, which is the clock
	shift   int64               // its time minus its timestamp, ns
	backlog []backlog           // by queue of the plan
	own     map[uint32]*backlog // of the queues of customers, by number
	settled []dataplane.Verdict // verdicts not yet returned by Settle

	packet  dataplane.Packet // parsed, before any change
	steps   []pipeline.Step  // through the meters
	queues  []backlog        // backlogs at the packet's arrival
	ownAt   backlog          // of the queue of the packet's customer, at its arrival
	before  hold             // at the packet's arrival
	after   *hold            // when a link sent it, or CoDel dropped it; nil without such a delay
	verdict dataplane.Verdict
	seen    bool // verdict is set
	ending  bool // the end of the capture was reached
}

// New returns the witness of a packet, by its number from 1. file is the policy of the
// pipeline. until is called before each packet, with its time in ns.
func New(file *policyfile.File, pl *pipeline.Pipeline, number int64, until func(now int64)) *Witness {
	plan := pl.Plan()
	return &Witness{
		Pipeline: pl, file: file, plan: plan, number: number, until: until,
		backlog: make([]backlog, len(plan.Queues)), own: map[uint32]*backlog{},
	}
}

// backlog is the backlog of a queue. Delay and departures are unknown for a queue of a link.
type backlog struct {
	packets, bytes int64
	delay          time.Duration // of a packet arriving now
	departures     []departure   // in order
}

type departure struct{ at, packets, bytes int64 } // ns, and the packet as a queue counts it

// removeDeparted removes the packets sent by now.
func (b *backlog) removeDeparted(now int64) {
	for len(b.departures) > 0 && b.departures[0].at <= now {
		b.packets -= b.departures[0].packets
		b.bytes -= b.departures[0].bytes
		b.departures = b.departures[1:]
	}
}

// Seen reports whether the packet was decided.
func (w *Witness) Seen() bool { return w.seen }

// Batch is 1.
func (*Witness) Batch() int { return 1 }

// Process runs packets through the pipeline.
func (w *Witness) Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error {
	for i := range packets {
		p, v := &packets[i], &verdicts[i]
		if w.first == 0 { // at 0 are packets before the first timestamp
			w.firstID, w.first = p.ID, p.Time
		}
		if w.ahead == 0 || p.Time > w.Now() {
			w.ahead, w.shift = p.ID, p.Shift
		}
		w.until(p.Time)
		w.decideLinks(max(w.Now(), p.Time))
		if p.ID == w.number {
			w.observe(p, v)
		} else {
			w.Pipeline.Process(p, v)
		}
		w.countQueued(v)
	}
	return nil
}

// observe records the packet and the queues at its arrival.
func (w *Witness) observe(p *dataplane.Packet, v *dataplane.Verdict) {
	now := max(w.Now(), p.Time)
	w.before.links = w.Links(now)
	for i, q := range w.Queues(now) {
		b := &w.backlog[i]
		b.removeDeparted(now)
		w.queues = append(w.queues, backlog{packets: b.packets, bytes: b.bytes, delay: q.Delay})
	}
	w.packet = *p
	w.packet.Data = bytes.Clone(p.Data)
	dataplane.Parse(&w.packet)
	w.packet.Direction = w.plan.Direction
	if w.plan.Customers != nil {
		w.packet.Customer = w.plan.Customers.CustomerOf(&w.packet)
		w.observeCustomer(now)
	}
	w.steps = w.Pipeline.Explain(p, v)
	if v.Done&dataplane.Waiting != 0 {
		w.before.own = w.holdAt(v, now).own
	}
}

// decideLinks lets links decide by now, one packet at a time.
func (w *Witness) decideLinks(now int64) {
	for d := (dataplane.Verdict{}); w.settle(now, &d); {
		w.settled = append(w.settled, d)
	}
}

// observeCustomer records the queue of the packet's customer, if any.
func (w *Witness) observeCustomer(now int64) {
	number := w.packet.Customer
	if number == 0 {
		return
	}
	if delay, queued := w.CustomerDelay(number, now); queued {
		b := w.ownBacklog(number)
		b.removeDeparted(now)
		w.ownAt = backlog{packets: b.packets, bytes: b.bytes, delay: delay}
	}
}

// ownBacklog returns the backlog of the queue of a customer.
func (w *Witness) ownBacklog(number uint32) *backlog {
	if w.own[number] == nil {
		w.own[number] = new(backlog)
	}
	return w.own[number]
}

// service returns the plan of a verdict's customer, or nil for none.
func (w *Witness) service(v *dataplane.Verdict) *compiled.Service {
	if v.Customer == 0 {
		return nil
	}
	return w.plan.Customers.Service(v.Customer)
}

// backlogOf returns the backlog of the queue in a packet's action, or of its customer's queue.
// There must be one.
func (w *Witness) backlogOf(v *dataplane.Verdict) *backlog {
	switch s := w.service(v); {
	case s == nil:
	case s.Profile == nil:
		return w.ownBacklog(v.Customer)
	case s.Actions[v.Color] != nil:
		return &w.backlog[s.Actions[v.Color].Queue]
	}
	return &w.backlog[w.plan.Classes[v.Class].Actions[v.Color].Queue]
}

// countQueued adds a packet to the backlog, if it is queued.
func (w *Witness) countQueued(v *dataplane.Verdict) {
	linked := v.Done&dataplane.Waiting != 0
	if v.Done&dataplane.Queued == 0 || !linked && v.Departure <= v.Now {
		return
	}
	b := w.backlogOf(v)
	b.packets += int64(v.Packets)
	b.bytes += int64(v.Length)
	if !linked {
		b.removeDeparted(v.Now)
		b.departures = append(b.departures, departure{v.Departure, int64(v.Packets), int64(v.Length)})
	}
}

// Settle returns the verdicts of links, beginning with the verdicts settled before the packet of
// interest arrived.
func (w *Witness) Settle(now int64, v *dataplane.Verdict) bool {
	w.ending = now == math.MaxInt64
	if len(w.settled) > 0 {
		*v, w.settled = w.settled[0], w.settled[1:]
		return true
	}
	return w.settle(now, v)
}

// settle returns the next decision of a link by now. Nothing after it is decided yet.
func (w *Witness) settle(now int64, v *dataplane.Verdict) bool {
	at, due := w.Due()
	if !due || at > now || !w.Pipeline.Settle(at, v) {
		return false
	}
	b := w.backlogOf(v)
	b.packets -= int64(v.Packets)
	b.bytes -= int64(v.Length)
	if v.ID == w.number && (!v.Done.Dropped() || v.Reason == dataplane.CoDel) {
		w.after = new(w.holdAt(v, at))
	}
	return true
}

// Each ends the replay after the packet, unless a link must still decide it.
func (w *Witness) Each(p *dataplane.Packet, v *dataplane.Verdict) error {
	switch {
	case w.seen:
		return ErrSeen
	case p.ID == w.number && v.Done&dataplane.Waiting == 0:
		return w.Settled(v)
	}
	return nil
}

// Settled ends the replay if the decided packet is the packet of interest. At the end of the
// capture it returns nil, so the replay can report an error of the capture.
func (w *Witness) Settled(v *dataplane.Verdict) error {
	if v.ID != w.number {
		return nil
	}
	w.verdict, w.seen = *v, true
	if w.ending {
		return nil
	}
	return ErrSeen
}
