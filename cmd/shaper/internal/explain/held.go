package explain

import (
	"fmt"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// hold is the state of all links and of the packet's queue at one time.
type hold struct {
	links []dataplane.LinkState
	own   time.Duration // how long the own rate of the queue held its packets
}

// holdAt returns the state at a time, ns, of the links and of the queue of a packet in a link.
func (w *Witness) holdAt(v *dataplane.Verdict, now int64) hold {
	own := 0
	if a, ownQueue := w.plan.ActionOf(v); !ownQueue {
		own = a.Queue
	}
	return hold{w.Links(now), time.Duration(w.Held(w.queueOwner(v), own, now))}
}

// queueOwner returns the number of the customer whose own queue gets a packet, or 0.
func (w *Witness) queueOwner(v *dataplane.Verdict) uint32 {
	if _, own := w.plan.ActionOf(v); own {
		return v.Customer
	}
	return 0
}

// linkOf returns the index of the link of the packet's queue, or -1, and whether the queue has a rate of its
// own there.
func (w *Witness) linkOf(v *dataplane.Verdict) (link int, rated bool) {
	none := meter.Rate{}
	a, own := w.plan.ActionOf(v)
	if !own {
		if a.Queue < 0 {
			return -1, false
		}
		q := &w.plan.Queues[a.Queue]
		return q.Link, q.Rate != none
	}
	s := w.service(v)
	if s.Tree < 0 || len(w.plan.Trees[s.Tree].Links) == 0 {
		return -1, false
	}
	return w.plan.Trees[s.Tree].Links[s.LinkQueue.Parent], s.LinkQueue.Rate != none
}

// path describes the links from that of the packet's queue up to the root, and how long each held the packet
// back.
func (w *Witness) path(link int) (out []linkJSON) {
	v := &w.verdict
	for i := link; i >= 0; i = w.plan.Links[i].Above {
		l, before := &w.plan.Links[i], &w.before.links[i]
		row := linkJSON{
			Name: l.Name, Path: say.Path(l.Source),
			Packets: before.Backlog.Packets, Bytes: before.Backlog.Bytes,
		}
		if l.Source.Rate != (meter.Rate{}) {
			row.Rate = l.Source.Rate.String()
		}
		if w.after != nil {
			after := &w.after.links[i]
			row.HeldNS = int64(after.Held - before.Held)
			row.SentPackets = after.Sent.Packets - before.Sent.Packets
			row.SentBytes = after.Sent.Bytes - before.Sent.Bytes
			if !v.Done.Dropped() {
				row.SentPackets -= int64(v.Packets)
				row.SentBytes -= int64(v.Length)
			}
		}
		out = append(out, row)
	}
	return out
}

// holder fills in which rate held the packet back: that of its queue or of a link, whichever was not free
// for the longest part of its delay; of several, the lowest.
func (q *QueuedJSON) holder(own time.Duration, rated bool, links []linkJSON) {
	longest := int64(0)
	if rated {
		q.OwnHeldNS, longest = new(int64(own)), int64(own)
	}
	if longest > 0 {
		q.HeldBy = "queue " + q.Name
	}
	for i := range links {
		if links[i].HeldNS > longest {
			q.HeldBy, longest = "link "+links[i].Path, links[i].HeldNS
		}
	}
	q.heldNS = longest
}

// heldText names what held the packet back, or returns "".
func (q *QueuedJSON) heldText() string {
	if q == nil || q.HeldBy == "" {
		return ""
	}
	return fmt.Sprintf("; %s held it back: its rate was not free for %v", q.HeldBy, time.Duration(q.heldNS))
}
