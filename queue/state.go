package queue

import (
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Count counts packets and their bytes. A GSO packet counts as its segments.
type Count struct{ Packets, Bytes int64 }

func (c *Count) add(packets int, bytes int64) {
	c.Packets += int64(packets)
	c.Bytes += bytes
}

// LinkState is the state of a link of a tree.
type LinkState struct {
	Sent       Count // since NewTree
	Backlog    Count // queued packets below the link
	Held       time.Duration
	Guaranteed meter.Rate // rate while all queues of the tree are busy, in whole bytes per second
}

// States returns the states of all links by now, in the order of NewTree. now must not be before the last
// call of Admit or Decide.
//
// Held is the total time during which packets were queued below the link and its own rate was not free,
// because of earlier packets. It is 0 for a link without a rate of its own.
func (l *Link[T]) States(now int64) []LinkState {
	out := make([]LinkState, len(l.links))
	for i := range l.links {
		c := &l.links[i]
		s := &out[i]
		s.Sent, s.Guaranteed = c.sent, meter.ByteRate(l.tree.counted[c.node])
		s.Held = time.Duration(l.heldBy(c.node, now))
		for n := c.node; n >= 0; n = l.nodes[n].parent {
			above := &out[l.nodes[n].link].Backlog
			above.Packets, above.Bytes = above.Packets+c.backlog.Packets, above.Bytes+c.backlog.Bytes
		}
	}
	return out
}

// Held is LinkState.Held of the own rate of a queue.
func (l *Link[T]) Held(queue int, now int64) time.Duration {
	return time.Duration(l.heldBy(l.queues[queue].node, now))
}

// Continue adds the packets sent and the time held of a link of another tree to those of a link.
func (l *Link[T]) Continue(link int, before LinkState) {
	c := &l.links[link]
	c.sent.add(int(before.Sent.Packets), before.Sent.Bytes)
	l.nodes[c.node].held += int64(before.Held)
}

// heldBy returns the time up to now during which a node with packets waited for its rate.
func (l *Link[T]) heldBy(n int32, now int64) int64 {
	v := &l.nodes[n]
	if free := l.pace.due(); n == 0 && l.links[0].active > 0 && free > now {
		return v.held - (free - now)
	}
	return v.heldBy(now)
}

// heldBy is Link.heldBy for other nodes than the root.
func (v *node) heldBy(now int64) int64 {
	if free := v.free(); v.state != idle && free > now {
		return v.held - (free - now)
	}
	return v.held
}

// hold counts the time from now on until the rate of a node with packets is free.
func (v *node) hold(free, now int64) {
	if free > now {
		v.held += free - now
	}
}

// queuedOn changes the backlog of the link of a queue by packets and bytes.
func (l *Link[T]) queuedOn(n int32, packets int, bytes int64) {
	l.above(&l.nodes[n]).backlog.add(packets, bytes)
}
