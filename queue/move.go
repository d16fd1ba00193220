package queue

import (
	"math"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// moves are the nodes of a tree whose places or rates change.
type moves struct {
	list  []move
	rates []pace // by index in list; num is 0 for none
}

// addMove adds a node unless nothing changes for it.
func (l *Link[T]) addMove(to *moves, n int32, rate meter.Rate, p place) {
	next := ceilingOf(rate)
	if was := &l.nodes[n].ceiling; was.num != next.num || was.den != next.den || l.tree.places[n] != p {
		to.list, to.rates = append(to.list, move{n, p}), append(to.rates, next)
	}
}

// ceilingOf returns the pace of a valid maximum rate; its num is 0 for none.
func ceilingOf(rate meter.Rate) (p pace) {
	if rate != (meter.Rate{}) {
		p, _ = newPace(rate)
	}
	return p
}

// setCeiling changes the maximum rate of a node at now.
func (v *node) setCeiling(next pace, now int64) {
	if next.num == 0 {
		v.held = v.heldBy(now)
		v.ceiling = pace{}
		return
	}
	if v.ceiling.num == 0 {
		v.ceiling = pace{instant: instant{next: now}, begun: true}
	}
	v.ceiling.change(&next)
}

// plant puts the nodes of a new tree into their places.
func (l *Link[T]) plant(links []TreeLink, queues []LinkQueue) {
	l.tree = newDivider(newPlaces(links, queues), len(links))
	l.nodes[0].parent = -1
	for n := range l.nodes[1:] {
		v, p := &l.nodes[n+1], &l.tree.places[n+1]
		v.parent, v.priority, v.weight = p.parent, p.priority, int64(p.weight)
	}
	for i := range links[1:] {
		l.nodes[i+1].setCeiling(ceilingOf(links[i+1].Rate), math.MinInt64)
	}
	for i := range queues {
		l.nodes[l.queues[i].node].setCeiling(ceilingOf(queues[i].Rate), math.MinInt64)
	}
	for i := range l.links {
		l.links[i].touched = true
	}
	l.gatherAll(&l.tree.list, math.MinInt64)
}

// adopt moves nodes to other places at now. Nodes whose link and priority stay the same keep their turn;
// others start anew. The work is in proportion to the children of links of which a child moves or
// gets another part.
func (l *Link[T]) adopt(now int64, m moves) {
	elsewhere := func(to *move) bool {
		v := &l.nodes[to.node]
		return v.parent != to.parent || v.priority != to.priority
	}
	for i := range m.list {
		if to := &m.list[i]; elsewhere(to) && l.isSending(to.node) {
			l.finish() // the packet would end in another place
			break
		}
	}
	for i := range m.list {
		to := &m.list[i]
		v := &l.nodes[to.node]
		if to.node == 0 {
			continue
		}
		l.above(v).touched = true
		l.links[to.parent].touched = true
		v.setCeiling(m.rates[i], now)
		if v.queue >= 0 {
			q := &l.queues[v.queue]
			l.queuedOn(to.node, -q.packets, -q.bytes)
			l.links[to.parent].backlog.add(q.packets, q.bytes)
		}
		if elsewhere(to) {
			v.virtual = 0
			if v.state == ready {
				v.state = blocked // placed anew
			}
		}
		v.parent, v.priority, v.weight = to.parent, to.priority, int64(to.weight)
	}
	l.gatherAll(l.tree.moveEach(m.list), now)
}

// isSending reports whether a packet below a node is being sent.
func (l *Link[T]) isSending(n int32) bool {
	for at := l.sending; at > 0; at = l.nodes[at].parent {
		if at == n {
			return true
		}
	}
	return false
}

// gatherAll gives links their new guaranteed rates, and decides which nodes can send. marked are the links
// that a change may affect, by depth.
func (l *Link[T]) gatherAll(marked *[MaxLevels][]int32, now int64) {
	var woken [MaxLevels + 1][]int32 // by depth: links of which children may have woken or become idle
	for depth, list := range marked {
		for _, n := range list {
			if l.divided(&l.links[n], now); l.links[n].touched {
				woken[depth] = append(woken[depth], n)
			}
		}
	}
	for depth := MaxLevels - 1; depth >= 0; depth-- {
		slices.Sort(woken[depth])
		list := slices.Compact(woken[depth])
		for _, n := range list {
			if c := &l.links[n]; c.touched {
				c.clear()
				l.gather(l.tree.below[n], now)
			}
		}
		for _, n := range list {
			if n > 0 && !l.above(&l.nodes[n]).touched && l.reconsider(n, now) {
				woken[depth-1] = append(woken[depth-1], l.nodes[n].parent)
			}
		}
	}
	for depth := range woken {
		for _, n := range woken[depth] {
			l.links[n].touched = false
		}
	}
}

// divided gives the children of a link their parts. It touches the link if any of them changes.
func (l *Link[T]) divided(c *children, now int64) {
	timed, excess := l.tree.timed[c.node], l.tree.excess[c.node]
	turned := c.excess != excess
	c.touched = c.touched || turned || c.timed != timed
	if c.timed, c.excess = timed, excess; turned {
		c.clock, c.clockAt = now, now
	}
	for _, n := range l.tree.below[c.node] {
		v := &l.nodes[n]
		if served := l.tree.served(n); served != v.served {
			v.start, v.served, c.touched = instant{next: v.start.due()}, served, true
		}
		if turned {
			v.start.notBefore(now)
		}
	}
}

// clear removes all children of a link.
func (c *children) clear() {
	c.active, c.busy, c.blocked = 0, 0, c.blocked[:0]
	c.waiting.clear()
	for i := range c.levels {
		v := &c.levels[i]
		v.weight, v.count = 0, 0
		v.waiting.clear()
	}
}

func (w *waiting) clear() { w.future, w.ready = w.future[:0], w.ready[:0] }

// gather adds the children of a link to it. Their own children are gathered.
func (l *Link[T]) gather(list []int32, now int64) {
	var others []int32
	for _, n := range list {
		v := &l.nodes[n]
		v.timed, v.shared = nowhere, nowhere
		c := l.above(v)
		c.levels[v.priority].weight += v.weight
		has, since := l.outlook(v)
		switch {
		case !has:
			v.held, v.state = v.heldBy(now), idle
		case v.state == ready && since <= now:
			c.active++
			l.enter(n) // it keeps its turn
		default:
			c.active++
			others = append(others, n)
		}
	}
	for _, n := range others {
		v := &l.nodes[n]
		if v.state == idle {
			v.ceiling.notBefore(now)
			v.hold(v.free(), now)
		}
		_, since := l.outlook(v)
		l.place(n, max(since, now), now)
	}
}

// reconsider lets a link whose children changed join the link above or leave it. It reports
// whether that makes a difference there.
func (l *Link[T]) reconsider(n int32, now int64) bool {
	v := &l.nodes[n]
	c := l.above(v)
	has, since := l.outlook(v)
	switch v.state {
	case idle:
		if !has {
			return false
		}
		c.active++
		v.ceiling.notBefore(now)
		v.hold(v.free(), now)
		_, since = l.outlook(v)
	case blocked:
		if has && since == v.since {
			return false
		}
		c.blocked.remove(l.at[timedHeap], l.at[timedHeap][n])
	case ready:
		if has && since <= now {
			return false
		}
		l.leave(n)
	}
	if !has {
		v.held, v.state = v.heldBy(now), idle
		c.active--
		return true
	}
	v.state = idle
	l.place(n, max(since, now), now)
	return true
}
