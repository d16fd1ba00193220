package queue

import (
	"math"
	"math/bits"
)

// node is a link or a queue as its link sees it.
type node struct {
	parent   int32 // the link, as a node; -1 for the root
	link     int32 // index among the links, or -1
	queue    int32 // index among the queues, or -1
	priority uint8
	state    state
	timed    spot // among the children of the link by their guaranteed rates
	shared   spot // among those by priority and weight
	byTime   bool // its last packet was selected by the guaranteed rates
	first    int  // length of the first packet of a FIFO, in bytes; 0 for other nodes
	weight   int64
	served   int64 // guaranteed rate, bytes per second; 0 for none
	ceiling  pace  // maximum rate; num is 0 for none
	since    int64 // time from which it can send, ns; valid unless idle
	start    instant
	// start of its first packet by the guaranteed rate; if it cannot send, the finish of its last one
	virtual int64 // the same by weight, in virtual time
}

// state tells whether a node can send.
type state uint8

const (
	idle    state = iota // without packets
	blocked              // its rate, or those of all children with packets, are not free yet
	ready                // can send
)

// spot is the heap of waiting that contains a node.
type spot uint8

const (
	nowhere spot = iota
	inFuture
	inReady
)

// children is the state of a link. Its children are selected in two steps: first by their guaranteed
// rates in time, earliest deadline first, then by priority and weight, see level.
type children struct {
	node    int32
	active  int   // children with packets
	busy    uint8 // priorities of children that can send, by bit
	timed   bool  // some child has a guarantee or a rate of its own
	excess  bool  // the guarantees do not fit, so the clock waits for them
	touched bool  // a change of the tree concerns its children; false between changes
	clock   int64 // of the guaranteed rates, ns
	clockAt int64 // time of the last tick, ns
	waiting       // by the guaranteed rates
	levels  [MaxPriority + 1]level
	blocked heap // by the time from which they can send
}

// Heaps of a node: a node is in one of waiting of its link or in blocked, and in one of a level.
const (
	timedHeap = iota
	sharedHeap
)

// free returns the time at which the rate of a node is free, rounded up to a ns.
func (v *node) free() int64 {
	if v.ceiling.num == 0 {
		return math.MinInt64
	}
	return v.ceiling.due()
}

// per returns the terms of a pace of bytes per second.
func per(bytes int64) (num, den uint64) { return 1e9, uint64(bytes) }

// tick advances the clock of a link to a time. If the guarantees do not fit, it does not
// pass the earliest deadline.
func (c *children) tick(now int64) {
	if now <= c.clockAt {
		return
	}
	next := now
	if c.excess {
		next = c.clock + now - c.clockAt
		if len(c.waiting.ready) > 0 {
			next = min(next, max(c.clock, c.waiting.ready[0].key))
		}
	}
	c.clock, c.clockAt = next, now
}

// choose returns the child of a link to serve at now.
func (l *Link[T]) choose(c *children, now int64) int32 {
	l.release(c, now)
	c.tick(now)
	if c.timed {
		if n := l.chooseTimed(c); n >= 0 {
			l.nodes[n].byTime = true
			return n
		}
	}
	n := l.chooseShared(&c.levels[bits.TrailingZeros8(c.busy)])
	l.nodes[n].byTime = false
	return n
}

// release lets the children of a link join it whose rates are free by now, in order of time.
func (l *Link[T]) release(c *children, now int64) {
	for len(c.blocked) > 0 && c.blocked[0].key <= now {
		n := c.blocked.pop(l.at[timedHeap])
		l.join(n, l.nodes[n].since)
	}
}

// chooseTimed returns the child with the earliest deadline of those whose start is reached, or -1.
// A deadline is rounded up to a ns. Among equal ones, the child with the lowest number wins.
func (l *Link[T]) chooseTimed(c *children) int32 {
	w, at := &c.waiting, l.at[timedHeap]
	for len(w.future) > 0 && w.future[0].key <= c.clock {
		n := w.future.pop(at)
		v := &l.nodes[n]
		w.ready.push(at, entry{l.deadline(v), n})
		v.timed = inReady
	}
	if len(w.ready) == 0 {
		return -1
	}
	return w.ready[0].node
}

// chooseShared returns the child of a level to serve. Among equal finishes, the child with the lowest
// number wins.
func (l *Link[T]) chooseShared(v *level) int32 {
	at := l.at[sharedHeap]
	if len(v.ready) == 0 {
		v.now = max(v.now, v.future[0].key)
	}
	for len(v.future) > 0 && v.future[0].key <= v.now {
		n := v.future.pop(at)
		child := &l.nodes[n]
		v.ready.push(at, entry{l.finishOf(child), n})
		child.shared = inReady
	}
	return v.ready[0].node
}

// deadline returns the time by which the first packet of a node should start, by its guaranteed rate.
func (l *Link[T]) deadline(v *node) int64 {
	num, den := per(v.served)
	return v.start.orNever(l.firstOf(v), num, den).due()
}

// finishOf returns the virtual time at which the first packet of a node finishes.
func (l *Link[T]) finishOf(v *node) int64 {
	return v.virtual + virtualTime(int64(l.firstOf(v)), v.weight)
}

// firstOf returns the length of a node's first packet. That of a link is not selected yet; the longest
// packet so far stands for it.
func (l *Link[T]) firstOf(v *node) int {
	switch {
	case v.queue < 0:
		return l.longest
	case v.first > 0:
		return v.first
	}
	return int(l.queues[v.queue].peek().bytes)
}

// join adds a node to its link that can send from a time on.
func (l *Link[T]) join(n int32, since int64) {
	v := &l.nodes[n]
	c := l.above(v)
	v.state, v.since = ready, since
	c.tick(since)
	v.virtual = c.levels[v.priority].activate(v.virtual)
	l.enter(n)
}

// enter adds a node that can send to the heaps of its link.
func (l *Link[T]) enter(n int32) {
	v := &l.nodes[n]
	c := l.above(v)
	if c.timed && v.served > 0 {
		if c.excess {
			v.start.notBefore(c.clock)
		} else {
			v.start.notBefore(v.since)
		}
		l.queueTimed(n, v, c)
	}
	level := &c.levels[v.priority]
	level.count++
	c.busy |= 1 << v.priority
	l.queueShared(n, v, level)
}

// queueTimed adds a node to waiting of its link. A FIFO whose start is reached gets its deadline at
// once: its first packet stays the same until it is sent. Others get it at a selection, as do all
// children of a link whose guarantees do not fit, because deadlines stop its clock.
func (l *Link[T]) queueTimed(n int32, v *node, c *children) {
	if due := v.start.due(); due > c.clock || v.first == 0 || c.excess {
		v.timed = inFuture
		c.waiting.future.push(l.at[timedHeap], entry{due, n})
		return
	}
	v.timed = inReady
	c.waiting.ready.push(l.at[timedHeap], entry{l.deadline(v), n})
}

// queueShared adds a node to its level, as queueTimed does.
func (l *Link[T]) queueShared(n int32, v *node, c *level) {
	if v.virtual > c.now || v.first == 0 {
		v.shared = inFuture
		c.future.push(l.at[sharedHeap], entry{v.virtual, n})
		return
	}
	v.shared = inReady
	c.ready.push(l.at[sharedHeap], entry{l.finishOf(v), n})
}

// above returns the link of a node.
func (l *Link[T]) above(v *node) *children { return &l.links[l.nodes[v.parent].link] }

// leave removes a node that can send from its link.
func (l *Link[T]) leave(n int32) {
	v := &l.nodes[n]
	c := l.above(v)
	v.timed = c.waiting.take(l.at[timedHeap], n, v.timed)
	level := &c.levels[v.priority]
	v.shared = level.take(l.at[sharedHeap], n, v.shared)
	if level.count--; level.count == 0 {
		c.busy &^= 1 << v.priority
	}
}

// take removes a node from its heap.
func (w *waiting) take(at []int32, n int32, from spot) spot {
	switch from {
	case inFuture:
		w.future.remove(at, at[n])
	case inReady:
		w.ready.remove(at, at[n])
	}
	return nowhere
}

// restart puts a node back into its heaps. timed and shared tell whether its start changed there. The first
// packet of a queue changed in any case.
func (l *Link[T]) restart(n int32, timed, shared bool) {
	v := &l.nodes[n]
	c := l.above(v)
	first := v.queue >= 0 // changed; only entries of ready depend on it
	if timed && v.timed != nowhere || first && v.timed == inReady {
		c.waiting.take(l.at[timedHeap], n, v.timed)
		l.queueTimed(n, v, c)
	}
	if shared || first && v.shared == inReady {
		level := &c.levels[v.priority]
		level.take(l.at[sharedHeap], n, v.shared)
		l.queueShared(n, v, level)
	}
}

// wake tells the links above a queue of its first packet, which arrived at now.
func (l *Link[T]) wake(n int32, now int64) {
	since := now
	for n > 0 {
		v := &l.nodes[n]
		c := l.above(v)
		since = max(since, v.free())
		switch v.state {
		case ready:
			return
		case idle:
			c.active++
			v.ceiling.notBefore(now)
		case blocked:
			c.blocked.remove(l.at[timedHeap], l.at[timedHeap][n])
			since = min(since, v.since)
		}
		l.place(n, since, now)
		n = v.parent
	}
}

// place adds a node with packets to its link: it can send from a time on.
func (l *Link[T]) place(n int32, since, now int64) {
	v := &l.nodes[n]
	c := l.above(v)
	if since <= now && (len(c.blocked) == 0 || c.blocked[0].key > now) {
		l.join(n, since)
		return
	}
	v.state, v.since = blocked, since
	c.blocked.push(l.at[timedHeap], entry{since, n})
	if since <= now {
		l.release(c, now)
	}
}

// settle updates the links above a queue from which a packet of n bytes was removed at now: sent, or
// dropped.
func (l *Link[T]) settle(n int32, bytes int, now int64, sent bool) {
	for n > 0 {
		v := &l.nodes[n]
		c := l.above(v)
		if sent {
			l.charge(v, c, bytes, now)
		}
		has, since := l.outlook(v)
		if v.first > 0 && has {
			v.first = int(l.queues[v.queue].peek().bytes)
		}
		switch {
		case has && since <= now:
			l.restart(n, sent && v.byTime, sent && !v.byTime)
			if !sent {
				return
			}
		default:
			l.leave(n)
			if v.state = idle; has {
				l.place(n, since, now)
			} else {
				c.active--
			}
		}
		n = v.parent
	}
}

// outlook reports whether a node has packets, and the time from which it can send them.
func (l *Link[T]) outlook(v *node) (has bool, since int64) {
	since = v.free()
	if v.queue >= 0 {
		return l.queues[v.queue].packets > 0, since
	}
	c := &l.links[v.link]
	if c.active > 0 && c.busy == 0 {
		since = max(since, c.blocked[0].key)
	}
	return c.active > 0, since
}

// charge takes a packet sent at now from the rates of a node.
func (l *Link[T]) charge(v *node, c *children, bytes int, now int64) {
	if p := &v.ceiling; p.num > 0 {
		if p.next < now { // what it missed while it waited, up to the longest packet per level, is not lost
			links := uint64(l.tree.depth[c.node]) + 1
			p.notBefore(now - instant{}.orNever(l.longest, p.num*links, p.den).next)
		}
		p.instant = p.orNever(bytes, p.num, p.den)
	}
	if v.byTime {
		num, den := per(v.served)
		v.start = v.start.orNever(bytes, num, den)
		return
	}
	v.virtual += virtualTime(int64(bytes), v.weight)
	c.levels[v.priority].startPacket(int64(bytes), v.virtual)
}

// finish ends the sending of a packet: virtual time advances.
func (l *Link[T]) finish() {
	for n := l.sending; n > 0; n = l.nodes[n].parent {
		v := &l.nodes[n]
		if v.byTime {
			continue
		}
		c := l.above(v)
		level := &c.levels[v.priority]
		level.finishPacket()
		l.rewind(c, v.priority)
	}
	l.sending = -1
}

// rewind subtracts the virtual time of a level from all its times before they overflow. Only
// differences matter.
func (l *Link[T]) rewind(c *children, priority uint8) {
	level := &c.levels[priority]
	by := level.now
	if by < rewindAt {
		return
	}
	for _, n := range l.tree.below[c.node] {
		if v := &l.nodes[n]; v.priority == priority {
			v.virtual = max(v.virtual-by, -rewindAt)
		}
	}
	for _, h := range []heap{level.future, level.ready} {
		for i := range h {
			h[i].key -= by
		}
	}
	level.latest -= by
	level.now = 0
}

// due returns the time of the next selection, in ns, or false if no packet is queued.
func (l *Link[T]) due() (at int64, ok bool) {
	root := &l.links[0]
	switch {
	case root.active == 0:
		return l.pace.due(), false
	case root.busy == 0:
		return max(l.pace.due(), root.blocked[0].key), true
	}
	return l.pace.due(), true
}
