package queue

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Bounds of a LinkQueue's priority and weight.
const (
	MaxPriority = 7
	MaxWeight   = 1000
)

// LinkQueue configures a queue of a Link. Its Rate, if set, is its maximum; otherwise that of its
// link applies.
type LinkQueue struct {
	Config
	Parent    int        // index of its link among those of NewTree
	Guarantee meter.Rate // served before the excess is shared; unset for none
	Priority  int        // in the excess, 0 is served first, MaxPriority last
	Weight    int        // weight in the excess among its priority, 1 to MaxWeight
	Fair      Fair       // what shares the queue evenly
}

// TreeLink configures a link of a tree. The first link is the root: it has a Rate, and only that. The
// Rate meter.Unlimited is for a root whose queues have rates of their own.
type TreeLink struct {
	Parent    int        // index of its link, for all but the root
	Rate      meter.Rate // maximum; unset: that of its link
	Guarantee meter.Rate // as in LinkQueue, like the following
	Priority  int
	Weight    int
}

// Link is a rate shared by queues, and by links that are below it in a tree. A link serves each child
// up to its guarantee first, and shares the excess: lower priority numbers first, children of the
// same priority by weight (WF2Q+; Bennett and Zhang 1997). Bandwidth unused by a child goes to its
// siblings. T is the caller's value for a packet. A Link is for one goroutine at a time.
type Link[T any] struct {
	pace    pace // of the root
	nodes   []node
	tree    *divider
	reach   []meter.Rate // by link: the highest rate at which it can send
	links   []children
	queues  []queueState[T]
	at      [2][]int32 // by heap and node: the place in it
	sending int32      // node of the queue whose packet is being sent, or -1
	longest int        // longest packet so far, bytes
	decided ring[Decision[T]]
}

// queueState is a queue with its state. Its place in the tree is in its node.
type queueState[T any] struct {
	Config
	flows[T]
	capacity int
	dice     dice
	node     int32
}

// Decision is the outcome for an admitted packet.
type Decision[T any] struct {
	Value  T
	Depart int64 // ns, rounded up
	Fate   Fate
}

// NewLink returns an idle link with queues. The error joins all errors, as meter.FieldErrors of the
// link's rate and those of LinkQueue.Resolve.
func NewLink[T any](rate meter.Rate, queues []LinkQueue) (*Link[T], error) {
	if rate == meter.Unlimited {
		_, err := newPace(rate)
		return nil, err
	}
	return NewTree[T]([]TreeLink{{Rate: rate}}, queues)
}

// NewTree returns an idle tree of links with queues. The error joins all errors, as those of NewLink
// and meter.FieldErrors of link, rate, guarantee, priority and weight.
func NewTree[T any](links []TreeLink, queues []LinkQueue) (*Link[T], error) {
	reach, resolved, err := resolveTree(links, queues)
	if err != nil {
		return nil, err
	}
	l := &Link[T]{sending: -1, queues: make([]queueState[T], len(queues)), reach: reach}
	l.pace, _ = newRootPace(links[0].Rate)
	n := len(links) + len(queues)
	l.nodes, l.at = make([]node, 0, n), [2][]int32{make([]int32, n), make([]int32, n)}
	for i := range links {
		l.links = append(l.links, children{node: int32(i), clock: math.MinInt64, clockAt: math.MinInt64})
		l.addNode(node{link: int32(i), queue: -1})
	}
	backlogs := new(store[T])
	for i := range resolved {
		s := &resolved[i]
		l.queues[i] = queueState[T]{
			Config: s.Config, flows: newFlows(s, backlogs), capacity: s.Capacity(), dice: dice{seed: s.Seed},
			node: int32(len(l.nodes)),
		}
		l.addNode(node{link: -1, queue: int32(i)})
	}
	l.plant(links, resolved)
	return l, nil
}

func (l *Link[T]) addNode(n node) {
	l.nodes = append(l.nodes, n)
	l.nodes[len(l.nodes)-1].start.next = math.MinInt64
}

// Resolve converts limits in time to bytes at a rate, which must be valid: the highest rate at which
// the queue's link can send it. The error joins all errors, as meter.FieldErrors of rate, guarantee,
// limit, wred, codel, priority and weight.
func (s LinkQueue) Resolve(rate meter.Rate) (LinkQueue, error) {
	err := errors.Join(s.check(), checkShare(s.Rate, s.Guarantee, s.Priority, s.Weight))
	add := func(field, reason string) {
		err = errors.Join(err, &meter.FieldError{Field: field, Reason: reason})
	}
	if err != nil || s.Time == 0 {
		return s, err
	}
	rate = Lowest(s.Rate, rate)
	limit := bytesDuring(rate, s.Time)
	if limit == 0 {
		add("limit", fmt.Sprintf("of %v is less than a byte at the link's rate of %v", s.Time, rate))
	}
	if s.Bytes == 0 || limit < s.Bytes {
		s.Bytes = limit
	}
	s.Time = 0
	for i := range s.WRED {
		e := &s.WRED[i]
		if e.Max > 0 && bytesDuring(rate, time.Duration(e.Max)) == 0 {
			add("wred", fmt.Sprintf("max of %v is less than a byte at the link's rate of %v",
				time.Duration(e.Max), rate))
		}
		e.Min, e.Max = bytesDuring(rate, time.Duration(e.Min)), bytesDuring(rate, time.Duration(e.Max))
	}
	return s, err
}

// checkShare joins the errors of the place of a link or a queue among the children of its link.
func checkShare(rate, guarantee meter.Rate, priority, weight int) (err error) {
	add := func(field, reason string) {
		err = errors.Join(err, &meter.FieldError{Field: field, Reason: reason})
	}
	if rate != (meter.Rate{}) {
		if _, invalid := newPace(rate); invalid != nil {
			err = errors.Join(err, invalid)
		}
	}
	switch {
	case guarantee == meter.Rate{}:
	case guarantee.Bytes <= 0 || guarantee.Period <= 0:
		add("guarantee", "must be above zero")
	case rate != (meter.Rate{}) && err == nil && guarantee.Cmp(rate) > 0:
		add("guarantee", fmt.Sprintf("of %v is above the rate of %v", guarantee, rate))
	}
	if priority < 0 || priority > MaxPriority {
		add("priority", fmt.Sprintf("%d is not between 0 and %d", priority, MaxPriority))
	}
	if weight < 1 || weight > MaxWeight {
		add("weight", fmt.Sprintf("%d is not between 1 and %d", weight, MaxWeight))
	}
	return err
}

// bytesDuring returns the number of whole bytes in a time at a rate, at most 2^39-1. Both are above zero.
func bytesDuring(r meter.Rate, t time.Duration) int64 {
	hi, lo := bits.Mul64(uint64(r.Bytes), uint64(t))
	if hi >= uint64(r.Period) {
		return maxThreshold - 1
	}
	n, _ := bits.Div64(hi, lo, uint64(r.Period))
	return int64(min(n, uint64(maxThreshold-1)))
}

// Free returns the time from which the root is free for later packets, ns; math.MinInt64 before the first.
func (l *Link[T]) Free() int64 { return l.pace.free() }

// NotBefore makes the root free at a time, ns, if it was free before.
func (l *Link[T]) NotBefore(at int64) { l.pace.notBefore(at) }

// QueueFree is Free of the own rate of a queue.
func (l *Link[T]) QueueFree(queue int) int64 { return l.nodes[l.queues[queue].node].ceiling.free() }

// QueueNotBefore is NotBefore for a queue without packets that has a rate of its own.
func (l *Link[T]) QueueNotBefore(queue int, at int64) {
	l.nodes[l.queues[queue].node].ceiling.notBefore(at)
}

// Change changes the rates of a tree at now, in ns, and converts the queues' limits in time to bytes at
// these rates. links and queues are as many as those of NewTree. They may differ in all that is about
// rates, in the place in the tree, in limits, in ECN, and in CoDel, whose state continues unless it is
// switched on or off. The packet being sent ends when it would have ended. Queued packets stay
// queued, even above a smaller limit, and are sent at the new rates. Nothing changes on an error,
// which is one of NewTree.
func (l *Link[T]) Change(now int64, links []TreeLink, queues []LinkQueue) error {
	if len(links) != len(l.links) || len(queues) != len(l.queues) {
		return fmt.Errorf("%d links and %d queues instead of %d and %d", len(links), len(queues), len(l.links),
			len(l.queues))
	}
	reach, resolved, err := resolveTree(links, queues)
	if err != nil {
		return err
	}
	l.run(now)
	p, _ := newRootPace(links[0].Rate)
	l.pace.change(&p)
	l.reach = reach
	var m moves
	if p := newPlaces(links[:1], nil)[0]; p != l.tree.places[0] {
		m.list, m.rates = append(m.list, move{0, p}), append(m.rates, pace{})
	}
	for i := range links[1:] {
		l.addMove(&m, int32(i+1), links[i+1].Rate, links[i+1].place())
	}
	for i := range resolved {
		l.changeQueue(&m, i, &resolved[i])
	}
	l.move(now, m)
	return nil
}

// QueueChange is another configuration of a queue.
type QueueChange struct {
	Queue int // its index
	LinkQueue
}

// ChangeQueues is Change for some queues; everything else stays. It takes time in proportion to the
// children of the links whose queues change, or get other guaranteed rates by that, not to the size of
// the tree.
func (l *Link[T]) ChangeQueues(now int64, list []QueueChange) error {
	resolved := make([]LinkQueue, len(list))
	var errs []error
	for i := range list {
		var err error
		if resolved[i], err = list[i].below(l.reach); err != nil {
			errs = append(errs, err)
		}
	}
	if errs != nil {
		return errors.Join(errs...)
	}
	l.run(now)
	var m moves
	for i := range list {
		l.changeQueue(&m, list[i].Queue, &resolved[i])
	}
	l.move(now, m)
	return nil
}

// changeQueue changes a queue, apart from its place, which is added to m.
func (l *Link[T]) changeQueue(m *moves, i int, s *LinkQueue) {
	q := &l.queues[i]
	q.change(s)
	l.addMove(m, q.node, s.Rate, s.place())
}

// move moves nodes at now, up to which l has run.
func (l *Link[T]) move(now int64, m moves) {
	if m.list != nil {
		l.adopt(now, m)
	}
	if l.links[0].active > 0 {
		l.pace.notBefore(now) // it may have been idle for packets that can be sent from now on
	}
	l.run(now)
}

// change gives the queue other limits, WRED, CoDel and ECN.
func (q *queueState[T]) change(s *LinkQueue) {
	if q.CoDel.switches(s.CoDel) {
		q.resetCoDel()
	}
	q.Bytes, q.Packets, q.WRED, q.CoDel, q.ECN = s.Bytes, s.Packets, s.WRED, s.CoDel, s.ECN
	q.capacity = s.Capacity()
}

// SetRate is Change of a link without a tree.
func (l *Link[T]) SetRate(now int64, rate meter.Rate, queues []LinkQueue) error {
	return l.Change(now, []TreeLink{{Rate: rate}}, queues)
}

// Admit adds a packet arriving at now (ns, on a clock which never goes back) to a queue, or drops
// it. Only a drop is final: Decide returns the outcome of an admitted packet, including any mark.
// Admit allocates only if more packets or more flows are queued on the link than ever before.
//
// A full fair queue drops the first packet of the flow with the largest backlog
// in bytes, not the arriving packet. With FairHosts it is the flow of the host with the
// largest backlog.
func (l *Link[T]) Admit(now int64, queue int, p Packet, value T) Fate {
	l.run(now)
	q := &l.queues[queue]
	if q.refuses(&p) {
		return Full
	}
	depth := q.bytes
	if q.Axis() == ByPackets {
		depth = int64(q.packets)
	}
	f := q.applyWRED(p, depth, &q.dice)
	if f.Dropped() {
		return f
	}
	idle := q.packets == 0
	shed := false
	for q.full(&p) {
		victim := q.shed()
		shed = true
		l.decided.push(Decision[T]{victim.value, now, Full})
	}
	q.push(now, &p, f, value)
	l.longest = max(l.longest, p.Bytes)
	switch {
	case idle:
		if q.fair == FairNone {
			l.nodes[q.node].first = p.Bytes
		}
		l.wake(q.node, now)
	case shed && l.nodes[q.node].state == ready:
		l.restart(q.node, false, false)
	}
	l.pace.notBefore(now)
	l.run(now)
	return f
}

// Try returns the fate that Admit would give to a packet at now, without admitting it. It does not
// consider WRED.
func (l *Link[T]) Try(now int64, queue int, p *Packet) Fate {
	l.run(now)
	q := &l.queues[queue]
	if q.refuses(p) {
		return Full
	}
	return Admit
}

// refuses reports whether a full queue drops an arriving packet.
func (q *queueState[T]) refuses(p *Packet) bool {
	tooLarge := q.Bytes > 0 && int64(p.Bytes) > q.Bytes || p.packets() > q.capacity
	return int64(p.Bytes) > MaxBytes || q.full(p) && (q.fair == FairNone || tooLarge)
}

// full reports whether a packet would exceed a limit.
func (q *queueState[T]) full(p *Packet) bool {
	return q.Bytes > 0 && q.bytes+int64(p.Bytes) > q.Bytes || q.packets+p.packets() > q.capacity
}

// Decide returns the next decision made by now, in order of departure, or false if
// there is none. now must not be before the last Admit.
func (l *Link[T]) Decide(now int64) (d Decision[T], ok bool) {
	l.run(now)
	if l.decided.len == 0 {
		return d, false
	}
	return l.decided.pop(), true
}

// Due returns the time of the next decision, in ns, or false if none is pending.
func (l *Link[T]) Due() (at int64, ok bool) {
	if l.decided.len > 0 {
		return l.decided.item(0).Depart, true
	}
	return l.due()
}

// Backlog returns the backlog of a queue.
func (l *Link[T]) Backlog(queue int) (packets, bytes int64) {
	q := &l.queues[queue]
	return int64(q.packets), q.bytes
}

// run makes all selections due by now.
func (l *Link[T]) run(now int64) {
	for l.pace.due() <= now {
		if l.sending >= 0 {
			l.finish()
		}
		at, ok := l.due()
		if !ok || at > now {
			return
		}
		if at > l.pace.due() {
			l.pace.notBefore(at)
		}
		l.send(at)
	}
}

// send selects the next packet at now and sends it, unless CoDel drops it. A drop is not charged to
// its queue.
func (l *Link[T]) send(now int64) {
	n := int32(0)
	for l.nodes[n].link >= 0 {
		n = l.choose(&l.links[l.nodes[n].link], now)
	}
	q := &l.queues[l.nodes[n].queue]
	p, flow := q.pop()
	delay := now - p.arrived
	if flow.bytes <= Quantum {
		delay = 0 // CoDel spares the last frame of a flow (RFC 8289 §5)
	}
	d := Decision[T]{p.value, now, p.fate}
	next, ok := l.pace.after(int(p.bytes))
	switch {
	case !ok:
		d.Fate = Full
	case q.codelDrops(flow, &q.CoDel, now, delay, &p):
		d.Fate = q.markOrDrop(p.ecn, Stale)
	}
	sent := !d.Fate.Dropped()
	if sent {
		l.pace.instant, l.sending = next, n
		q.charge(flow, int64(p.bytes))
	}
	l.settle(n, int(p.bytes), now, sent)
	l.decided.push(d)
}
