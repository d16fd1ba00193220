package oracle

import (
	"cmp"
	"math/big"
	"slices"
)

// tree sends the packets of the queues below a root link, one at a time. At each link on the way to a
// queue, it chooses the next child: see choose.go.
type tree struct {
	root    *node
	free    *big.Rat // end of the transmission so far; nil before the first packet
	path    []*node  // from below the root to the queue whose packet is being sent
	longest int64    // packet so far, bytes
	divided bool     // the guaranteed rates of the nodes are computed

	links, queues int // numbers given so far

	dropped []*queued // whose tokens must go back
}

// node is a link, or a queue as its link sees it.
type node struct {
	tree      *tree // of a root
	above     *node // nil for a root
	kids      []*node
	queue     *queue // nil for a link
	number    int    // in the order in which actions name queues, from 1; 0: no action needs it
	rate      *big.Rat
	guarantee *big.Rat // nil: none, as for the rate, in bytes per nanosecond
	priority  int
	weight    int64

	nextFree *big.Rat // time at which its own rate is free; nil before the first packet
	present  bool     // has packets
	ready    bool     // can send
	since    *big.Int // time from which it can send, while it has packets

	// By the guaranteed rates.
	served   *big.Int // bytes per second
	start    *big.Rat // of its first packet; nil before the first one
	eligible bool     // its start is reached
	deadline *big.Int
	byTime   bool // its last packet was chosen by them

	// By weight, in virtual time: 1/2^20 of a byte per weight.
	virtual *big.Int // start of its first packet
	reached bool     // its start is reached
	finish  *big.Int

	// Of a link.
	timed, excess  bool     // children have rates or guarantees; their guarantees do not fit
	clock, clockAt *big.Int // clock of the guaranteed rates, and when it was set; nil at first
	levels         [8]level // by priority
}

// level holds the virtual time of the children of one priority.
type level struct {
	now, last *big.Int // last is the largest finish time
	sending   int64    // bytes
}

// newNode returns a link or a queue below another link.
func newNode(above *node) *node {
	n := &node{above: above, weight: 1, virtual: new(big.Int)}
	for i := range n.levels {
		n.levels[i].now, n.levels[i].last = new(big.Int), new(big.Int)
	}
	return n
}

// newRoot returns a link without a link above.
func newRoot(rate *big.Rat) *node {
	n := newNode(nil)
	n.rate = rate
	n.tree = &tree{root: n}
	return n
}

// share adds a queue to its link once.
func (q *queue) share() {
	if q.link == nil || q.place.number > 0 {
		return
	}
	t := q.link.enter()
	t.queues++
	q.place.number = t.queues
	q.link.kids = append(q.link.kids, q.place)
	t.divided = false
}

// enter adds a link to its tree once, after the links above, and returns the tree.
func (n *node) enter() *tree {
	if n.above == nil {
		return n.tree
	}
	t := n.above.enter()
	if n.number == 0 {
		t.links++
		n.number = t.links
		n.above.kids = append(n.above.kids, n)
	}
	return t
}

// before reports whether n wins a tie: links before queues, then by number.
func (n *node) before(other *node) bool {
	kind := func(n *node) int {
		if n.queue != nil {
			return 1
		}
		return 0
	}
	return cmp.Or(kind(n)-kind(other), n.number-other.number) < 0
}

// reach returns the lowest rate from a node up to its root.
func (n *node) reach() *big.Rat {
	least := n.rate
	for n = n.above; n != nil; n = n.above {
		if n.rate != nil && (least == nil || n.rate.Cmp(least) < 0) {
			least = n.rate
		}
	}
	return least
}

// grains converts a length to units of virtual time.
func grains(length int64) *big.Int { return new(big.Int).Lsh(big.NewInt(length), 20) }

func largest(a, b *big.Int) *big.Int {
	if a.Cmp(b) > 0 {
		return a
	}
	return b
}

// later returns the later time; nil is before all times.
func later(a, b *big.Int) *big.Int {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return largest(a, b)
}

// reach makes all choices up to a time.
func (t *tree) reach(now *big.Int) {
	if !t.divided {
		t.root.divide()
		t.divided = true
	}
	t.run(new(big.Rat).SetInt(now))
}

func (t *tree) offer(q *queue, p *queued) {
	t.reach(p.arrival)
	now := new(big.Rat).SetInt(p.arrival)
	if !q.room(p) || !q.early(p, q.backlog(q.waiting, nil)) {
		t.drop(p, p.arrival)
		return
	}
	empty := len(q.waiting) == 0
	for q.breaks(p, q.backlog(q.waiting, nil), len(q.waiting)) {
		t.drop(q.shed(), p.arrival)
		q.place.eligible, q.place.reached = false, false
	}
	q.take(p)
	t.longest = max(t.longest, p.length)
	if empty {
		q.place.wake(p.arrival)
	}
	if t.free == nil || t.free.Cmp(now) < 0 { // idle
		t.free = now
	}
	t.run(now)
}

// drop remembers a dropped packet and the time of its drop.
func (t *tree) drop(p *queued, now *big.Int) {
	p.droppedAt = now
	t.dropped = append(t.dropped, p)
}

// room reports whether a packet fits into a queue of a link. A fair queue makes room, unless the
// packet alone is too long.
func (q *queue) room(p *queued) bool {
	backlog, packets := q.backlog(q.waiting, nil), len(q.waiting)
	if q.key != nil {
		backlog, packets = new(big.Rat), 0
	}
	if q.breaks(p, backlog, packets) {
		p.drop("queue-full")
		return false
	}
	return true
}

// run makes all choices up to a time; nil: all choices.
func (t *tree) run(until *big.Rat) {
	for t.free != nil && (until == nil || t.free.Cmp(until) <= 0) {
		t.finish()
		if !t.root.hasPackets() {
			return
		}
		if since := t.root.below(); since != nil {
			from := new(big.Rat).SetInt(since)
			if until != nil && from.Cmp(until) > 0 {
				return
			}
			if since.Cmp(ceil(t.free)) > 0 {
				t.free = from
			}
		}
		t.send(ceil(t.free))
	}
}

// finish ends the transmission of a packet: virtual time advances where it was chosen by weight.
func (t *tree) finish() {
	for _, n := range t.path {
		if n.byTime {
			continue
		}
		sum := int64(0)
		for _, k := range n.above.kids {
			if k.priority == n.priority {
				sum += k.weight
			}
		}
		v := &n.above.levels[n.priority]
		passed := grains(v.sending)
		v.now = new(big.Int).Add(v.now, passed.Div(passed, big.NewInt(sum)))
		v.sending = 0
	}
	t.path = nil
}

// send removes the next packet at a time, and sends it unless CoDel drops it.
func (t *tree) send(now *big.Int) {
	var path []*node
	n := t.root
	for n.queue == nil {
		n = t.choose(n, now)
		path = append(path, n)
	}
	q := n.queue
	f := q.flow()
	p := f.waiting[0]
	q.remove(p)
	if q.control(p, now, f) {
		p.leave(now)
		t.free = new(big.Rat).Add(t.free, sending(p.length, t.root.rate))
		f.pay(p.length)
		t.path = path
		for _, n := range path {
			t.charge(n, p.length, now)
		}
	} else {
		t.drop(p, now)
	}
	n.eligible, n.reached = false, false // its first packet is another one
	for _, n := range slices.Backward(path) {
		n.present = n.hasPackets()
		if !n.present {
			n.ready = false
			continue
		}
		if since := later(n.freeAt(), n.below()); since != nil && since.Cmp(now) > 0 {
			n.ready, n.since = false, since
		}
	}
}
