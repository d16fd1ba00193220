package explain

import (
	"bytes"
	"errors"
	"math"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// ErrSeen ends a replay whose packet is settled.
var ErrSeen = errors.New("seen")

// Witness is a replay.Engine that remembers what one packet found when it came,
// and what became of it.
type Witness struct {
	*dataplane.Pipeline
	file    *policyfile.File
	plan    *dataplane.Plan
	number  int64
	until   func(now int64)     // is called before each packet, with its time
	first   int64               // ns, stamp of packet 1
	ahead   int64               // the packet whose stamp is the clock
	waiting []backlog           // by queue of the plan
	settled []dataplane.Verdict // that Settle has yet to return

	packet  dataplane.Packet // as it came, parsed
	steps   []dataplane.Step
	queues  []backlog // as the packet found them
	verdict dataplane.Verdict
	seen    bool // verdict is there
	ending  bool // nothing comes any more
}

// New returns the witness of a packet, by its number from 1. The file has the policy
// of the pipeline. until is called before each packet, with its time in ns.
func New(file *policyfile.File, pipeline *dataplane.Pipeline, number int64, until func(now int64)) *Witness {
	plan := pipeline.Plan()
	return &Witness{Pipeline: pipeline, file: file, plan: plan, number: number, until: until, waiting: make([]backlog, len(plan.Queues))}
}

// backlog is what waits in a queue.
type backlog struct {
	packets, bytes int64
	delay          time.Duration // of a packet that comes now, unless it is a link's
	leaving        []departing   // in order, unless it is a link's
}

type departing struct{ at, bytes int64 }

// leave forgets what has left by now.
func (b *backlog) leave(now int64) {
	for len(b.leaving) > 0 && b.leaving[0].at <= now {
		b.packets--
		b.bytes -= b.leaving[0].bytes
		b.leaving = b.leaving[1:]
	}
}

// Batch is 1.
func (*Witness) Batch() int { return 1 }

// Process takes packets through the pipeline, and looks at the one of interest.
func (w *Witness) Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error {
	for i := range packets {
		p, v := &packets[i], &verdicts[i]
		if p.ID == 1 {
			w.first = p.Time
		}
		if p.ID == 1 || p.Time > w.Now() {
			w.ahead = p.ID
		}
		w.until(p.Time)
		if p.ID == w.number {
			w.look(p, v)
		} else {
			w.Pipeline.Process(p, v)
		}
		w.queued(v)
	}
	return nil
}

// look settles what a link decides before the packet comes, so that the queues
// are as it finds them.
func (w *Witness) look(p *dataplane.Packet, v *dataplane.Verdict) {
	now := max(w.Now(), p.Time)
	for d := (dataplane.Verdict{}); w.settle(now, &d); {
		w.settled = append(w.settled, d)
	}
	for i, q := range w.Queues(now) {
		b := &w.waiting[i]
		b.leave(now)
		w.queues = append(w.queues, backlog{packets: b.packets, bytes: b.bytes, delay: q.Delay})
	}
	w.packet = *p
	w.packet.Data = bytes.Clone(p.Data)
	dataplane.Parse(&w.packet)
	w.steps = w.Pipeline.Explain(p, v)
}

// backlogOf is the backlog of the queue of a packet's action, which names one.
func (w *Witness) backlogOf(v *dataplane.Verdict) *backlog {
	return &w.waiting[w.plan.Classes[v.Class].Actions[v.Color].Queue]
}

// queued counts a packet that waits.
func (w *Witness) queued(v *dataplane.Verdict) {
	linked := v.Done&dataplane.Waiting != 0
	if v.Done&dataplane.Queued == 0 || !linked && v.Departure <= v.Now {
		return
	}
	b := w.backlogOf(v)
	b.packets++
	b.bytes += int64(v.Length)
	if !linked {
		b.leave(v.Now)
		b.leaving = append(b.leaving, departing{v.Departure, int64(v.Length)})
	}
}

// Settle returns what look has settled first.
func (w *Witness) Settle(now int64, v *dataplane.Verdict) bool {
	w.ending = now == math.MaxInt64
	if len(w.settled) > 0 {
		*v, w.settled = w.settled[0], w.settled[1:]
		return true
	}
	return w.settle(now, v)
}

func (w *Witness) settle(now int64, v *dataplane.Verdict) bool {
	if !w.Pipeline.Settle(now, v) {
		return false
	}
	b := w.backlogOf(v)
	b.packets--
	b.bytes -= int64(v.Length)
	return true
}

// Each ends the replay with the packet, unless it waits.
func (w *Witness) Each(p *dataplane.Packet, v *dataplane.Verdict) error {
	switch {
	case w.seen:
		return ErrSeen
	case p.ID == w.number && v.Done&dataplane.Waiting == 0:
		return w.Settled(v)
	}
	return nil
}

// Settled ends the replay where it was the packet that left, or was dropped. At the
// end of the capture it leaves the error to what ended that.
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
