package tc

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// tcLeaf is a class of htb without classes below it to which packets are sent.
type tcLeaf struct {
	*tcClass
	queue *dataplane.Queue
}

// tcNode is a class of htb in the tree of the classes that packets use.
type tcNode struct {
	*tcClass
	above    *tcNode // nil below the root qdisc
	children []*tcNode
	queue    *dataplane.Queue // of a leaf, or nil
	link     *dataplane.Link  // of another class, or nil

	limit     *tcRate // ceil, or the rate of the leaf's own qdisc
	reach     int64   // maximum rate, bytes per second: that of the class and those above
	guarantee int64   // bytes per second
	priority  uint32
	quantum   int64
}

// tree makes the links of htb's classes, and the parameters of their queues.
func (b *tcQueues) tree(root *tcQdisc) {
	nodes := map[uint32]*tcNode{}
	var roots []*tcNode
	add := func(k *tcClass) *tcNode {
		n := &tcNode{tcClass: k}
		nodes[k.id] = n
		return n
	}
	for _, l := range b.leaves {
		n := add(l.tcClass)
		n.queue = l.queue
		levels := 1
		for n.parent != tcRoot && n.above == nil {
			above := nodes[n.parent]
			if levels++; above == nil {
				above = add(b.device.find(n.parent))
			}
			above.children = append(above.children, n)
			n.above = above
			n = above
		}
		for ; n.above != nil; n = n.above {
			levels++
		}
		if levels > queue.MaxLevels {
			b.Cannot(l.Line, "class %s is at level %d: htb has at most %d", handleName(l.id), levels,
				queue.MaxLevels)
		}
		if n.parent == tcRoot && !slices.Contains(roots, n) {
			roots = append(roots, n)
		}
	}
	deep := false
	for _, n := range roots {
		n.reach = min(n.rate.bytes, n.ceil.bytes)
		if n.queue != nil {
			b.From(n.queue, "", n.Line, "class %s%s", handleName(n.id), n.withoutEffect())
			b.own(n.queue, b.below(n.id, n.maximum()), n.Line, b.discipline(n.id))
			continue
		}
		b.prepare(n, root.perQuantum)
		b.links(n)
		deep = deep || slices.ContainsFunc(n.children, func(c *tcNode) bool { return c.queue == nil })
	}
	if deep {
		b.Note(root.Line,
			"htb shares the excess among all classes without classes below them, by prio and quantum; a link shares it among its own children")
	}
	burst := func(k *tcClass) bool { return k.burst != "" && nodes[k.id] != nil }
	if i := slices.IndexFunc(b.device.classes, burst); i >= 0 {
		b.Note(b.device.classes[i].Line,
			"burst and cburst of classes are left out: our queues send at their rates, without bursts")
	}
}

// below returns the rate of the qdisc of a class, if it has a lower one than the class.
func (b *tcQueues) below(id uint32, rate *tcRate) *tcRate {
	d := b.discipline(id)
	if d == nil || d.rate == nil || d.rate.bytes >= rate.bytes {
		return rate
	}
	return &tcRate{d.rate.bytes, d.rate.text + " of " + d.kind}
}

// maximum returns the maximum rate of a class below the root qdisc.
func (n *tcNode) maximum() *tcRate {
	if n.ceil.bytes < n.rate.bytes {
		return n.ceil
	}
	return n.rate
}

// withoutEffect names the options without effect of a class below the root qdisc.
func (n *tcNode) withoutEffect() (s string) {
	if n.ceil.bytes > n.rate.bytes {
		s += fmt.Sprintf("; ceil %s has no effect: there is no class to borrow from", n.ceil.text)
	}
	if n.prio > 0 {
		s += fmt.Sprintf("; prio %d has no effect: it is for classes that borrow", n.prio)
	}
	return s
}

// prepare sets the maximum rates, the priorities and the quanta of the nodes below a class.
func (b *tcQueues) prepare(n *tcNode, r2q uint32) {
	n.priority = queue.MaxPriority
	for _, c := range n.children {
		if c.limit = c.ceil; c.queue != nil {
			c.limit = b.below(c.id, c.ceil)
		}
		c.reach = min(n.reach, c.limit.bytes)
		c.guarantee = min(c.rate.bytes, c.reach)
		c.quantum = int64(c.tcClass.quantum)
		computed := c.rate.bytes / int64(max(r2q, 1))
		stored := min(max(computed, minQuantum), maxQuantum)
		switch {
		case c.queue != nil:
			c.priority, c.quantum = c.prio, cmp.Or(c.quantum, stored)
			if c.rate.bytes == 1 { // export writes it for a queue without guarantee
				c.guarantee = 0
			}
		default:
			if c.quantum == 0 || c.quantum == stored {
				c.quantum = max(computed, 1) // htb limits it, but only leaves use it
			}
			b.prepare(c, r2q)
		}
		n.priority = min(n.priority, c.priority)
		c.declared()
	}
}

// declared takes the guarantee from the comment that export writes if it is not the rate.
func (n *tcNode) declared() {
	if n.labels.guarantee == "none" {
		n.guarantee = 0
	}
	if r, err := policyfile.ParseRate(n.labels.guarantee); err == nil {
		if bits, ok := r.Bits(); ok && bits/8 <= n.reach {
			n.guarantee = bits / 8
		}
	}
}

// links makes the link of a class with classes below it, and those of the classes below.
func (b *tcQueues) links(n *tcNode) {
	id := handleName(n.id)
	n.link = b.addLink(n.labels.link, id, n.Line, "class %s", id)
	if n.above == nil {
		n.link.Rate = n.maximum().rate()
		b.From(n.link, "rate", n.Line, "rate %s", n.maximum().text)
		b.From(n.link, "", n.Line, "class %s%s", id, n.withoutEffect())
	} else {
		l := n.link
		b.place(n, l, &l.Link, &l.Rate, &l.Guarantee, &l.Priority, &l.Weight)
	}
	b.fit(n)
	b.weigh(n)
	for _, c := range n.children {
		if c.queue == nil {
			b.links(c)
			continue
		}
		q := c.queue
		b.place(c, q, &q.Link, &q.Rate, &q.Guarantee, &q.Priority, &q.Weight)
		b.limits(q, b.discipline(c.id))
	}
}

// fit compares the rates of the classes below a class with its own. Guarantees of queues must fit
// the link.
func (b *tcQueues) fit(n *tcNode) {
	var rates, queues int64
	for _, c := range n.children {
		rates += c.rate.bytes
		if c.queue != nil {
			queues += c.guarantee
		}
	}
	reduced := ""
	if queues > n.reach {
		reduced = "; those of the queues are reduced to fit"
		for _, c := range n.children {
			if c.queue != nil {
				c.guarantee = part(n.reach, c.guarantee, queues)
			}
		}
	}
	if own := min(n.rate.bytes, n.reach); rates > own {
		b.Note(n.Line,
			"the rates of the classes below class %s add up to %v, above its %v: htb sends them all, and here guarantees share the link's rate%s",
			handleName(n.id), meter.ByteRate(rates), meter.ByteRate(own), reduced)
	}
}

// weigh replaces the quanta of the classes below a class by weights: whole numbers in the same
// ratio among classes of one priority.
func (b *tcQueues) weigh(n *tcNode) {
	for p := range uint32(queue.MaxPriority + 1) {
		var peers []*tcNode
		for _, c := range n.children {
			if c.priority == p {
				peers = append(peers, c)
			}
		}
		if unitOf(peers) == 0 && len(peers) > 0 {
			byQuantum := func(a, b *tcNode) int { return cmp.Compare(a.quantum, b.quantum) }
			largest := slices.MaxFunc(peers, byQuantum).quantum
			for _, c := range peers {
				c.quantum = max((c.quantum*queue.MaxWeight+largest/2)/largest, 1)
			}
			b.Note(n.Line, "the quanta of the classes below class %s are rounded to weights of 1 to %d",
				handleName(n.id), queue.MaxWeight)
			continue
		}
		unit := unitOf(peers)
		for _, c := range peers {
			c.quantum /= unit
		}
	}
}

// unitOf returns the quantum of a unit of weight, or 0 if the weights would be too large.
func unitOf(peers []*tcNode) (unit int64) {
	exported := true
	for _, c := range peers {
		unit = gcd(unit, c.quantum)
		exported = exported && c.quantum%quantumUnit == 0 && c.quantum/quantumUnit <= queue.MaxWeight
	}
	switch {
	case exported:
		return quantumUnit
	case slices.ContainsFunc(peers, func(c *tcNode) bool { return c.quantum/unit > queue.MaxWeight }):
		return 0
	}
	return unit
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// place sets the parameters of a part, the queue or link of a node, as a child of its link.
func (b *tcQueues) place(
	n *tcNode, part any, link **dataplane.Link, rate, guarantee *meter.Rate, priority, weight *int,
) {
	*link = n.above.link
	b.From(part, "link", n.Line, "parent %s", handleName(n.parent))
	if n.reach < n.above.reach {
		*rate = meter.ByteRate(n.reach)
		b.From(part, "rate", n.Line, "ceil %s", n.limit.text)
	}
	if n.guarantee > 0 {
		*guarantee = meter.ByteRate(n.guarantee)
		b.From(part, "guarantee", n.Line, "rate %s", n.rate.text)
	}
	*priority = int(n.priority)
	b.From(part, "priority", n.Line, "prio %d", n.priority)
	if n.quantum > 1 {
		from := "rate/r2q"
		if n.tcClass.quantum > 0 {
			from = fmt.Sprintf("quantum %d", n.tcClass.quantum)
		}
		*weight = int(n.quantum)
		b.From(part, "weight", n.Line, "by %s", from)
	}
}
