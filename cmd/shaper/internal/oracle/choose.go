package oracle

import (
	"math/big"
	"slices"
)

// most is the rate, in bytes per second, that a link or queue without a rate wants.
const most = 1 << 45

// perSecond returns a rate in whole bytes per second.
func perSecond(rate *big.Rat) int64 {
	n := floor(new(big.Rat).Mul(rate, whole(1e9)))
	if !n.IsInt64() {
		return most
	}
	return min(most, n.Int64())
}

// wants returns the rate of a node, or less if the nodes below it cannot use it.
func (n *node) wants() int64 {
	own := int64(most)
	if n.rate != nil {
		own = perSecond(n.rate)
	}
	if n.queue != nil || len(n.kids) == 0 {
		return own
	}
	sum := int64(0)
	for _, k := range n.kids {
		sum += k.wants()
	}
	return min(own, sum)
}

// divide computes the guaranteed rates of all nodes below a root.
func (n *node) divide() { n.share(n.wants()) }

// share divides a rate among the children of a link: first up to the guarantees, in proportion to
// them if they do not all fit; then by priority, and by weight within a priority.
func (n *node) share(total int64) {
	n.timed = false
	guarantees, fit := make([]int64, len(n.kids)), make([]int64, len(n.kids))
	sum := int64(0)
	for i, k := range n.kids {
		n.timed = n.timed || k.rate != nil || k.guarantee != nil
		if k.guarantee != nil {
			guarantees[i] = perSecond(k.guarantee)
		}
		fit[i] = min(guarantees[i], k.wants())
		sum += fit[i]
	}
	n.excess = sum > total
	parts, rest := pour(total, guarantees, fit)
	for priority := range n.levels {
		weights, room := make([]int64, len(n.kids)), make([]int64, len(n.kids))
		for i, k := range n.kids {
			if k.priority == priority {
				weights[i], room[i] = k.weight, k.wants()-parts[i]
			}
		}
		var more []int64
		more, rest = pour(rest, weights, room)
		for i := range parts {
			parts[i] += more[i]
		}
	}
	for i, k := range n.kids {
		k.served = big.NewInt(parts[i])
		if n.excess {
			k.served = big.NewInt(guarantees[i])
		}
		k.share(parts[i])
	}
}

// pour divides total in proportion to weights, to none more than it takes. Parts are rounded down. It
// also returns what none takes.
func pour(total int64, weights, takes []int64) (parts []int64, rest int64) {
	parts = make([]int64, len(weights))
	open := map[int]bool{}
	for i, w := range weights {
		open[i] = w > 0 && takes[i] > 0
	}
	for {
		sum := int64(0)
		for i, w := range weights {
			if open[i] {
				sum += w
			}
		}
		if sum == 0 {
			return parts, total
		}
		portion := func(i int) *big.Rat {
			return new(big.Rat).Mul(whole(total), big.NewRat(weights[i], sum))
		}
		full := -1
		for i := range takes {
			if open[i] && portion(i).Cmp(whole(takes[i])) >= 0 {
				full = i
				break
			}
		}
		if full < 0 {
			for i := range parts {
				if open[i] {
					parts[i] = floor(portion(i)).Int64()
				}
			}
			return parts, 0
		}
		parts[full], open[full] = takes[full], false
		total -= takes[full]
	}
}

// freeAt returns the time at which a node's own rate is free; nil without one.
func (n *node) freeAt() *big.Int {
	if n.rate == nil || n.nextFree == nil || n.above == nil {
		return nil
	}
	return ceil(n.nextFree)
}

// notBefore makes a node's own rate free at a time if it was free earlier.
func (n *node) notBefore(now *big.Rat) {
	if n.rate != nil && (n.nextFree == nil || n.nextFree.Cmp(now) < 0) {
		n.nextFree = now
	}
}

// hasPackets reports whether packets are queued in a node or below it.
func (n *node) hasPackets() bool {
	if n.queue != nil {
		return len(n.queue.waiting) > 0
	}
	return slices.ContainsFunc(n.kids, (*node).hasPackets)
}

// below returns the time from which a child of a link with packets can send; nil if one can already.
func (n *node) below() (at *big.Int) {
	for _, k := range n.kids {
		switch {
		case k.ready:
			return nil
		case k.present && (at == nil || k.since.Cmp(at) < 0):
			at = k.since
		}
	}
	return at
}

// wake tells the links above a queue of its first packet.
func (n *node) wake(now *big.Int) {
	since := now
	for ; n.above != nil && !n.ready; n = n.above {
		since = later(since, n.freeAt())
		if !n.present {
			n.notBefore(new(big.Rat).SetInt(now))
		} else if n.since.Cmp(since) < 0 {
			since = n.since
		}
		n.present, n.since = true, since
		if since.Cmp(now) <= 0 {
			n.above.release(now)
		}
	}
}

// release lets the children of a link join that can send by now, in the order of these times.
func (n *node) release(now *big.Int) {
	var list []*node
	for _, k := range n.kids {
		if k.present && !k.ready && k.since.Cmp(now) <= 0 {
			list = append(list, k)
		}
	}
	slices.SortFunc(list, func(a, b *node) int {
		order := a.since.Cmp(b.since)
		if order == 0 && a != b {
			order = 1
			if a.before(b) {
				order = -1
			}
		}
		return order
	})
	for _, k := range list {
		k.join(k.since)
	}
}

// join lets a node send from a time on.
func (n *node) join(since *big.Int) {
	up := n.above
	up.tick(since)
	v := &up.levels[n.priority]
	if v.sending == 0 && !slices.ContainsFunc(up.kids,
		func(k *node) bool { return k.ready && k.priority == n.priority }) {
		v.now = largest(v.now, v.last)
	}
	n.ready, n.since, n.eligible, n.reached = true, since, false, false
	n.virtual = largest(n.virtual, v.now)
	from := since
	if up.excess {
		from = up.clock
	}
	if t := new(big.Rat).SetInt(from); up.timed && n.served.Sign() > 0 &&
		(n.start == nil || n.start.Cmp(t) < 0) {
		n.start = t
	}
}

// tick advances the clock of the guaranteed rates of a link. If the guarantees do not fit, it waits at
// the earliest deadline.
func (n *node) tick(now *big.Int) {
	if n.clock != nil && now.Cmp(n.clockAt) < 0 {
		return
	}
	clock := now
	if n.excess && n.clock != nil {
		clock = new(big.Int).Add(n.clock, new(big.Int).Sub(now, n.clockAt))
		for _, k := range n.kids {
			if k.ready && k.eligible && k.deadline.Cmp(clock) < 0 {
				clock = largest(k.deadline, n.clock)
			}
		}
	}
	n.clock, n.clockAt = clock, now
}

// choose returns the child of a link to serve: the one with the earliest deadline by the guaranteed
// rates among those whose start is reached, else one by priority and weight.
func (t *tree) choose(n *node, now *big.Int) (best *node) {
	n.release(now)
	n.tick(now)
	if best = t.earliest(n); best == nil {
		best = t.fairest(n)
	} else {
		best.byTime = true
	}
	return best
}

// earliest returns the child with the earliest deadline, or nil.
func (t *tree) earliest(n *node) (best *node) {
	if !n.timed {
		return nil
	}
	for _, k := range n.kids {
		if !k.ready || k.served.Sign() == 0 {
			continue
		}
		if !k.eligible && ceil(k.start).Cmp(n.clock) <= 0 {
			k.eligible, k.deadline = true, ceil(new(big.Rat).Add(k.start, k.time(t.first(k))))
		}
		if !k.eligible {
			continue
		}
		if best == nil {
			best = k
			continue
		}
		if order := k.deadline.Cmp(best.deadline); order < 0 || order == 0 && k.before(best) {
			best = k
		}
	}
	return best
}

// time returns the time of a length at the guaranteed rate of a node, in ns.
func (n *node) time(length int64) *big.Rat {
	return new(big.Rat).SetFrac(new(big.Int).Mul(big.NewInt(length), big.NewInt(1e9)), n.served)
}

// first returns the length of the next packet of a node. For a link, it is the longest so far.
func (t *tree) first(n *node) int64 {
	if n.queue == nil {
		return t.longest
	}
	return n.queue.flow().waiting[0].length
}

// fairest returns the child of the first priority whose packet finishes first in virtual time, among
// those whose start is reached.
func (t *tree) fairest(n *node) (best *node) {
	var list []*node
	for _, k := range n.kids {
		if k.ready && (list == nil || k.priority < list[0].priority) {
			list = nil
		}
		if k.ready && (list == nil || k.priority == list[0].priority) {
			list = append(list, k)
		}
	}
	v := &n.levels[list[0].priority]
	least := list[0].virtual
	for _, k := range list {
		if k.virtual.Cmp(least) < 0 {
			least = k.virtual
		}
	}
	v.now = largest(v.now, least)
	for _, k := range list {
		if k.virtual.Cmp(v.now) > 0 {
			continue
		}
		if !k.reached {
			length := grains(t.first(k))
			k.reached, k.finish = true, length.Div(length, big.NewInt(k.weight)).Add(length, k.virtual)
		}
		if best == nil {
			best = k
			continue
		}
		if order := k.finish.Cmp(best.finish); order < 0 || order == 0 && k.before(best) {
			best = k
		}
	}
	best.byTime = false
	return best
}

// charge takes a packet sent at a time from the rates of a node. A node may make up for the time that it
// waited after its own rate was free: for up to the longest packet per link above.
func (t *tree) charge(n *node, length int64, now *big.Int) {
	if n.rate != nil {
		missed := floor(sending(t.longest*int64(n.above.level()), n.rate))
		n.notBefore(new(big.Rat).SetInt(missed.Sub(now, missed)))
		n.nextFree = new(big.Rat).Add(n.nextFree, sending(length, n.rate))
	}
	if n.byTime {
		n.start, n.eligible = new(big.Rat).Add(n.start, n.time(length)), false
		return
	}
	part := grains(length)
	n.virtual, n.reached = part.Div(part, big.NewInt(n.weight)).Add(part, n.virtual), false
	v := &n.above.levels[n.priority]
	v.last, v.sending = largest(v.last, n.virtual), length
}
