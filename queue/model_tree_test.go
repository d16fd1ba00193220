package queue

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// modelTree is a model of a tree of links whose values are packet numbers. It computes in fractions,
// and looks at all nodes at each step.
type modelTree struct {
	rate    meter.Rate
	free    *big.Rat
	nodes   []*modelNode // the links, the first of which is the root, then the queues
	queues  []*modelNode
	longest int64
	path    []*modelNode // of the packet being sent
	decided []Decision[int]
}

// modelNode is a link or a queue.
type modelNode struct {
	number    int
	above     *modelNode
	kids      []*modelNode
	queue     *modelShare // nil for a link
	rate      meter.Rate  // zero for none
	guarantee meter.Rate
	priority  int
	weight    int64

	next    *big.Rat // time at which its rate is free
	present bool     // has packets
	ready   bool     // can send
	since   int64

	served   int64 // bytes/s
	start    *big.Rat
	eligible bool
	deadline int64
	byTime   bool

	virtual int64
	reached bool // its start is
	finish  int64

	// of a link
	timed, excess  bool
	clock, clockAt int64
	levels         [MaxPriority + 1]modelTurn
}

type modelTurn struct{ now, latest, bytes int64 }

func wholeBytes(r meter.Rate) int64 {
	n := new(big.Int).Mul(big.NewInt(r.Bytes), big.NewInt(1e9))
	n.Quo(n, big.NewInt(int64(r.Period)))
	if n.Cmp(big.NewInt(1<<45)) > 0 {
		return 1 << 45
	}
	return n.Int64()
}

// wants is the demand of a node if all queues are busy, in bytes per second.
func (v *modelNode) wants() int64 {
	most := int64(1 << 45)
	if v.rate != (meter.Rate{}) {
		most = wholeBytes(v.rate)
	}
	if v.queue != nil || len(v.kids) == 0 {
		return most
	}
	sum := int64(0)
	for _, k := range v.kids {
		sum += k.wants()
	}
	return min(most, sum)
}

// pour divides total in proportion to weights, to none more than its limit, and rounds down.
func pour(total int64, weights, limits []int64) (given []int64, left int64) {
	given = make([]int64, len(weights))
	full := make([]bool, len(weights))
	for {
		sum := int64(0)
		for i, w := range weights {
			if !full[i] && limits[i] > 0 {
				sum += w
			}
		}
		if sum == 0 {
			return given, total
		}
		again := false
		shares := make([]*big.Rat, len(weights))
		for i, w := range weights {
			if full[i] || limits[i] <= 0 || w == 0 {
				continue
			}
			shares[i] = new(big.Rat).Mul(big.NewRat(total, 1), big.NewRat(w, sum))
			if shares[i].Cmp(big.NewRat(limits[i], 1)) >= 0 && !again {
				again, full[i] = true, true
				given[i] = limits[i]
				total -= limits[i]
			}
		}
		if again {
			continue
		}
		for i, s := range shares {
			if s != nil {
				given[i] = new(big.Int).Quo(s.Num(), s.Denom()).Int64()
			}
		}
		return given, 0
	}
}

// share gives the children of a node their parts of total.
func (v *modelNode) share(total int64) {
	v.timed, v.excess = false, false
	wanted, limits := make([]int64, len(v.kids)), make([]int64, len(v.kids))
	sum := int64(0)
	for i, k := range v.kids {
		v.timed = v.timed || k.rate != meter.Rate{} || k.guarantee != meter.Rate{}
		if k.guarantee != (meter.Rate{}) {
			wanted[i] = wholeBytes(k.guarantee)
		}
		limits[i] = min(wanted[i], k.wants())
		sum += limits[i]
	}
	v.excess = sum > total
	parts, left := pour(total, wanted, limits)
	for priority := range MaxPriority + 1 {
		weights, room := make([]int64, len(v.kids)), make([]int64, len(v.kids))
		for i, k := range v.kids {
			if k.priority == priority {
				weights[i], room[i] = k.weight, k.wants()-parts[i]
			}
		}
		var more []int64
		more, left = pour(left, weights, room)
		for i, n := range more {
			parts[i] += n
		}
	}
	for i, k := range v.kids {
		served := parts[i]
		if v.excess {
			served = wanted[i]
		}
		if k.served != served && k.start != nil {
			k.start = ratOf(ceilOf(k.start))
		}
		k.served = served
		k.share(parts[i])
	}
}

func newModelTree(links []TreeLink, queues []LinkQueue) *modelTree {
	m := &modelTree{rate: links[0].Rate}
	for i := range links {
		m.nodes = append(m.nodes, &modelNode{number: i, clock: -1 << 62, clockAt: -1 << 62})
	}
	for range queues {
		v := &modelNode{number: len(m.nodes), queue: &modelShare{}}
		m.nodes, m.queues = append(m.nodes, v), append(m.queues, v)
	}
	m.place(links, queues)
	for i, v := range m.queues {
		s := queues[i]
		v.queue = &modelShare{
			modelEarly: limitsOf(v.reach(m), s), LinkQueue: s, level: &modelLevel{},
		}
	}
	m.nodes[0].share(min(wholeBytes(m.rate), m.nodes[0].wants()))
	return m
}

// reach is the lowest rate on the way from a node to the root.
func (v *modelNode) reach(m *modelTree) meter.Rate {
	least := m.rate
	for ; v.above != nil; v = v.above {
		if v.rate != (meter.Rate{}) && v.rate.Cmp(least) < 0 {
			least = v.rate
		}
	}
	return least
}

func (m *modelTree) place(links []TreeLink, queues []LinkQueue) {
	for _, v := range m.nodes {
		v.kids = nil
	}
	put := func(v *modelNode, link int, rate, guarantee meter.Rate, priority, weight int) {
		v.above = m.nodes[link]
		v.rate, v.guarantee, v.priority, v.weight = rate, guarantee, priority, int64(weight)
		v.above.kids = append(v.above.kids, v)
	}
	for i, s := range links[1:] {
		put(m.nodes[i+1], s.Parent, s.Rate, s.Guarantee, s.Priority, s.Weight)
	}
	for i, s := range queues {
		put(m.queues[i], s.Parent, s.Rate, s.Guarantee, s.Priority, s.Weight)
	}
}

// freeAt is the time at which the rate of a node is free.
func (v *modelNode) freeAt() int64 {
	if v.rate == (meter.Rate{}) || v.next == nil {
		return -1 << 62
	}
	return ceilOf(v.next)
}

func (v *modelNode) notBefore(now int64) {
	if v.rate != (meter.Rate{}) && (v.next == nil || v.next.Cmp(ratOf(now)) < 0) {
		v.next = ratOf(now)
	}
}

// below is the time from which a child of a link can send.
func (v *modelNode) below() int64 {
	if v.queue != nil {
		return -1 << 62
	}
	least := int64(1 << 62)
	for _, k := range v.kids {
		switch {
		case k.ready:
			return -1 << 62
		case k.present:
			least = min(least, k.since)
		}
	}
	return least
}

func (v *modelNode) hasPackets() bool {
	if v.queue != nil {
		return len(v.queue.backlog) > 0
	}
	return slices.ContainsFunc(v.kids, (*modelNode).hasPackets)
}

// release lets the children of a link join whose rates are free by now, in order of time.
func (v *modelNode) release(now int64) {
	var list []*modelNode
	for _, k := range v.kids {
		if k.present && !k.ready && k.since <= now {
			list = append(list, k)
		}
	}
	slices.SortFunc(list, func(a, b *modelNode) int {
		return cmp.Or(cmp.Compare(a.since, b.since), cmp.Compare(a.number, b.number))
	})
	for _, k := range list {
		k.join(k.since)
	}
}

// join makes a node one that can send, from a time on.
func (v *modelNode) join(since int64) {
	p := v.above
	p.tick(since)
	level := &p.levels[v.priority]
	if level.bytes == 0 &&
		!slices.ContainsFunc(p.kids, func(k *modelNode) bool { return k.ready && k.priority == v.priority }) {
		level.now = max(level.now, level.latest)
	}
	v.ready, v.since, v.eligible, v.reached = true, since, false, false
	v.virtual = max(v.virtual, level.now)
	from := since
	if p.excess {
		from = p.clock
	}
	if p.timed && v.served > 0 && (v.start == nil || v.start.Cmp(ratOf(from)) < 0) {
		v.start = ratOf(from)
	}
}

// due is the time of the next selection.
func (m *modelTree) due() (int64, bool) {
	if !m.nodes[0].hasPackets() {
		return 0, false
	}
	at := m.nodes[0].below()
	if m.free != nil {
		at = max(at, ceilOf(m.free))
	}
	return at, true
}

func (m *modelTree) advanceTo(now int64, all bool) {
	for m.free != nil && (all || ceilOf(m.free) <= now) {
		m.finish()
		at, ok := m.due()
		if !ok || !all && at > now {
			return
		}
		if at > ceilOf(m.free) {
			m.free = ratOf(at)
		}
		m.choose(at)
	}
}

// finish ends the packet being sent.
func (m *modelTree) finish() {
	for _, v := range m.path {
		if v.byTime {
			continue
		}
		weights := int64(0)
		for _, k := range v.above.kids {
			if k.priority == v.priority {
				weights += k.weight
			}
		}
		level := &v.above.levels[v.priority]
		level.now += level.bytes << 20 / weights
		level.bytes = 0
	}
	m.path = nil
}

func (m *modelTree) first(v *modelNode) int64 {
	if v.queue == nil {
		return m.longest
	}
	return int64(v.queue.packetsOf(v.queue.nextFlow())[0].Bytes)
}

// perSecond is the time of n bytes at whole bytes per second, in ns.
func perSecond(n, bytes int64) *big.Rat {
	return new(big.Rat).Mul(big.NewRat(n, 1), big.NewRat(1e9, bytes))
}

// tick advances the clock of a link.
func (v *modelNode) tick(now int64) {
	if now < v.clockAt {
		return
	}
	clock := now
	if v.excess {
		clock = v.clock + now - v.clockAt
		earliest := int64(1 << 62)
		for _, k := range v.kids {
			if k.ready && k.eligible {
				earliest = min(earliest, k.deadline)
			}
		}
		clock = min(clock, max(v.clock, earliest))
	}
	v.clock, v.clockAt = clock, now
}

// pick returns the child to serve at now.
func (m *modelTree) pick(p *modelNode, now int64) *modelNode {
	p.release(now)
	p.tick(now)
	var best *modelNode
	if p.timed {
		for _, k := range p.kids {
			if k.ready && k.served > 0 && !k.eligible && ceilOf(k.start) <= p.clock {
				k.eligible = true
				k.deadline = ceilOf(new(big.Rat).Add(k.start, perSecond(m.first(k), k.served)))
			}
		}
		for _, k := range p.kids {
			if k.ready && k.eligible && (best == nil || k.deadline < best.deadline ||
				k.deadline == best.deadline && k.number < best.number) {
				best = k
			}
		}
		if best != nil {
			best.byTime = true
			return best
		}
	}
	var list []*modelNode
	for _, k := range p.kids {
		if k.ready && (list == nil || k.priority < list[0].priority) {
			list = nil
		}
		if k.ready && (list == nil || k.priority == list[0].priority) {
			list = append(list, k)
		}
	}
	level := &p.levels[list[0].priority]
	least := slices.MinFunc(list, func(a, b *modelNode) int { return cmp.Compare(a.virtual, b.virtual) })
	level.now = max(level.now, least.virtual)
	for _, k := range list {
		if k.virtual > level.now {
			continue
		}
		if !k.reached {
			k.reached, k.finish = true, k.virtual+m.first(k)<<20/k.weight
		}
		if best == nil || k.finish < best.finish || k.finish == best.finish && k.number < best.number {
			best = k
		}
	}
	best.byTime = false
	return best
}

func (m *modelTree) choose(now int64) {
	v := m.nodes[0]
	var path []*modelNode
	for v.queue == nil {
		v = m.pick(v, now)
		path = append(path, v)
	}
	q := v.queue
	flow := q.nextFlow()
	w := q.remove(flow)
	delay := now - w.arrived
	if totalBytes(q.packetsOf(flow)) <= 1514 {
		delay = min(delay, int64(q.modelEarly.CoDel.Target)-1) // a single packet is not a queue
	}
	f := flow.early.stale(w.Packet, now, delay, w.fate)
	sent := !f.Dropped()
	n := int64(w.Bytes)
	if sent {
		m.free = new(big.Rat).Add(m.free, sendTime(m.rate, n))
		m.path = path
		flow.deficit -= w.Bytes
		flow.host.deficit -= w.Bytes
		flow.host.flows.chosen, q.hosts.chosen = nil, nil
		for _, v := range path {
			m.charge(v, n, now)
		}
	}
	v.eligible, v.reached = false, false // its first packet is another one
	for i := len(path) - 1; i >= 0; i-- {
		v := path[i]
		v.present = v.hasPackets()
		since := max(v.freeAt(), v.below())
		if v.present && since <= now {
			continue
		}
		v.ready = false
		if v.present {
			v.since = since
		}
	}
	m.decided = append(m.decided, Decision[int]{w.value, now, f})
}

// charge takes a packet from the rates of a node.
func (m *modelTree) charge(v *modelNode, n, now int64) {
	if v.rate != (meter.Rate{}) {
		levels := int64(0)
		for above := v.above; above != nil; above = above.above {
			levels++
		}
		missed := sendTime(v.rate, m.longest*levels)
		whole := new(big.Int).Quo(missed.Num(), missed.Denom()).Int64()
		v.notBefore(now - whole)
		v.next = new(big.Rat).Add(v.next, sendTime(v.rate, n))
	}
	if v.byTime {
		v.start = new(big.Rat).Add(v.start, perSecond(n, v.served))
		v.eligible = false
		return
	}
	v.virtual += n << 20 / v.weight
	v.reached = false
	level := &v.above.levels[v.priority]
	level.latest, level.bytes = max(level.latest, v.virtual), n
}

func (m *modelTree) admit(now int64, queue int, p Packet, value int) Fate {
	m.advanceTo(now, false)
	v := m.queues[queue]
	q := v.queue
	f := q.arrive(p)
	if f.Dropped() {
		return f
	}
	empty := len(q.backlog) == 0
	for q.over(p) {
		most := q.largest(q.largest(nil))
		m.decided = append(m.decided, Decision[int]{q.remove(most).value, now, Full})
		v.eligible, v.reached = false, false
	}
	q.push(modelQueued{p, now, f, value})
	m.longest = max(m.longest, int64(p.Bytes))
	if empty {
		m.wake(v, now)
	}
	if m.free == nil || m.free.Cmp(ratOf(now)) < 0 {
		m.free = ratOf(now)
	}
	m.advanceTo(now, false)
	return f
}

// wake tells the links above a queue of its first packet.
func (m *modelTree) wake(v *modelNode, now int64) {
	since := now
	for ; v.above != nil && !v.ready; v = v.above {
		if !v.present {
			v.notBefore(now)
			v.since = 1 << 62
		}
		v.present = true
		since = min(max(since, v.freeAt()), v.since)
		if v.since = since; since <= now {
			v.above.release(now)
		}
	}
}

// change moves the nodes to other places, and changes their rates.
func (m *modelTree) change(now int64, links []TreeLink, queues []LinkQueue) {
	m.advanceTo(now, false)
	if m.free != nil && sendTime(links[0].Rate, 1).Cmp(sendTime(m.rate, 1)) != 0 {
		m.free = ratOf(ceilOf(m.free))
	}
	before, excess := map[*modelNode]modelSettings{}, map[*modelNode]bool{}
	rates, served := map[*modelNode]meter.Rate{}, map[*modelNode]int64{}
	for _, v := range m.nodes {
		before[v], excess[v], rates[v], served[v] = v.settings(), v.excess, v.rate, v.served
	}
	moved := func(v *modelNode) bool {
		i := v.number - len(links)
		switch {
		case v.above == nil:
			return false
		case i < 0:
			return m.nodes[links[v.number].Parent] != v.above || links[v.number].Priority != v.priority
		}
		return m.nodes[queues[i].Parent] != v.above || queues[i].Priority != v.priority
	}
	if slices.ContainsFunc(m.path, moved) {
		m.finish()
	}
	anew := map[*modelNode]bool{}
	for _, v := range m.nodes {
		if anew[v] = moved(v); anew[v] {
			v.virtual = 0
		}
	}
	m.rate = links[0].Rate
	m.place(links, queues)
	for _, v := range m.nodes[1:] {
		was := rates[v]
		switch {
		case v.rate == (meter.Rate{}):
			v.next = nil
		case was == meter.Rate{}:
			v.next = ratOf(now)
		case v.next != nil && sendTime(v.rate, 1).Cmp(sendTime(was, 1)) != 0:
			v.next = ratOf(ceilOf(v.next))
		}
	}
	m.nodes[0].share(min(wholeBytes(m.rate), m.nodes[0].wants()))
	// A change touches the links whose children change, or get other parts.
	touched := map[*modelNode]bool{}
	for _, v := range m.nodes[1:] {
		if was := before[v]; was != v.settings() {
			touched[was.above], touched[v.above] = true, true
		}
		if v.served != served[v] {
			touched[v.above] = true
		}
	}
	for _, p := range m.nodes {
		if p.excess == excess[p] {
			continue
		}
		touched[p] = true
		p.clock, p.clockAt = now, now
		for _, k := range p.kids {
			if k.start == nil || k.start.Cmp(ratOf(now)) < 0 {
				k.start = ratOf(now)
			}
		}
	}
	for i, v := range m.queues {
		limits := limitsOf(v.reach(m), queues[i])
		v.queue.modelEarly.Bytes, v.queue.wred = limits.Bytes, limits.wred
		v.queue.modelEarly.Packets = queues[i].Packets
		v.queue.modelEarly.setCoDel(queues[i].CoDel)
		for _, f := range v.queue.known {
			f.early.setCoDel(queues[i].CoDel)
		}
	}
	m.gather(m.nodes[0], now, anew, touched)
	if m.nodes[0].hasPackets() && m.free.Cmp(ratOf(now)) < 0 {
		m.free = ratOf(now)
	}
	m.advanceTo(now, false)
}

// modelSettings are the settings of a node.
type modelSettings struct {
	above            *modelNode
	priority         int
	weight           int64
	limited          bool
	guarantee, pause string // of a byte at its rate
}

func (v *modelNode) settings() modelSettings {
	s := modelSettings{above: v.above, priority: v.priority, weight: v.weight}
	if v.guarantee != (meter.Rate{}) {
		s.limited, s.guarantee = true, fmt.Sprint(wholeBytes(v.guarantee))
	}
	if v.rate != (meter.Rate{}) {
		s.limited, s.pause = true, sendTime(v.rate, 1).String()
	}
	return s
}

// gather finds out which nodes below a link can send.
func (m *modelTree) gather(p *modelNode, now int64, anew, touched map[*modelNode]bool) {
	for _, k := range p.kids {
		m.gather(k, now, anew, touched)
	}
	if !touched[p] {
		for _, k := range p.kids {
			k.reconsider(now)
		}
		return
	}
	var others []*modelNode
	for _, k := range p.kids {
		before := k.present
		k.present, k.eligible, k.reached = k.hasPackets(), false, false
		if k.present && !before {
			k.notBefore(now)
		}
		since := max(k.freeAt(), k.below())
		switch {
		case !k.present:
			k.ready = false
		case k.ready && !anew[k] && since <= now:
			if p.timed && k.served > 0 {
				from := k.since
				if p.excess {
					from = p.clock
				}
				if k.start == nil || k.start.Cmp(ratOf(from)) < 0 {
					k.start = ratOf(from)
				}
			}
		default:
			k.ready = false
			others = append(others, k)
		}
	}
	for _, k := range others {
		k.since = max(k.freeAt(), k.below(), now)
		if k.since <= now {
			k.join(k.since)
		}
	}
}

// reconsider finds out whether a node can send after a change below it.
func (v *modelNode) reconsider(now int64) {
	before := v.present
	v.present = v.hasPackets()
	if v.present && !before {
		v.notBefore(now)
	}
	since := max(v.freeAt(), v.below())
	switch {
	case !v.present:
		v.ready = false
	case before && v.ready && since <= now, before && !v.ready && since == v.since:
	default:
		v.ready = false
		if v.since = max(since, now); v.since <= now {
			v.above.release(now)
		}
	}
}
