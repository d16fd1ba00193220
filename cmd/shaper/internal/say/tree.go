package say

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// Node is a link or a queue in a tree of links.
type Node struct {
	Link       *dataplane.Link  // nil for a queue
	Queue      *dataplane.Queue // nil for a link
	Level      int              // number of links above
	Guaranteed meter.Rate       // rate while all queues of the tree are busy, in whole bytes per second
	Reach      meter.Rate       // maximum rate: the lowest of its own and those of the links above
	Children   []*Node          // in the order of their priorities; queues before links
	Customers  Crowd            // customers with queues on the link
	parent     int              // index of its link in the tree
}

// Crowd describes the customers with queues on a link.
type Crowd struct {
	Count      int
	Guaranteed meter.Rate // the lowest of their rates while all queues of the tree are busy
	Reach      meter.Rate // the highest rate that one can reach
	Guarantees *big.Rat   // sum of their guarantees, bytes per ns; nil without customers
	Short      int        // customers whose guarantee is above what they can count on
	// guarantee of the first of them, and the rate that it can count on
	Promised, Gets meter.Rate
	Ranks          []Rank // in the order of their priorities
}

// Rank describes the customers of a link with one priority.
type Rank struct {
	Priority int
	Count    int
	Open     int                    // customers without a guarantee
	Unrated  int                    // customers without a rate of their own
	Rates    *big.Rat               // sum of the rates of the others, bytes per ns
	First    *dataplane.ServicePlan // of the first customer
}

// Trees lists the trees of a policy.
type Trees struct {
	Roots []*Node // links without a link above, without the own ones of queues
	Nodes map[any]*Node
}

// NewTrees returns the trees of a valid policy.
func NewTrees(p *dataplane.Policy) *Trees {
	t := &Trees{Nodes: map[any]*Node{}}
	links := map[*dataplane.Link][]*dataplane.Link{}
	queues := map[*dataplane.Link][]*dataplane.Queue{}
	seen := map[*dataplane.Link]bool{}
	list := func(l *dataplane.Link) {
		for ; l != nil && !seen[l]; l = l.Link {
			seen[l], links[l.Link] = true, append(links[l.Link], l)
		}
	}
	for _, l := range SharedLinks(p) {
		list(l)
	}
	for _, q := range p.Queues {
		if queues[q.Link] = append(queues[q.Link], q); !OwnLink(q, p.Queues) {
			list(q.Link) // Links need not contain it
		}
	}
	customers := map[*dataplane.Link][]*dataplane.ServicePlan{}
	if p.CustomersOnLinks() {
		for i := range p.Customers.List {
			if plan := p.Customers.List[i].Plan; plan.Queue != nil && plan.Link != nil {
				customers[plan.Link] = append(customers[plan.Link], plan)
			}
		}
	}
	for _, l := range links[nil] {
		t.Roots = append(t.Roots, t.add(l, links, queues, customers))
	}
	return t
}

// add adds a tree.
func (t *Trees) add(
	root *dataplane.Link, links map[*dataplane.Link][]*dataplane.Link,
	queues map[*dataplane.Link][]*dataplane.Queue, customers map[*dataplane.Link][]*dataplane.ServicePlan,
) *Node {
	all := []*Node{{Link: root, Reach: root.Rate}}
	var leaves []*Node
	for i := 0; i < len(all); i++ {
		n := all[i]
		for _, q := range queues[n.Link] {
			leaf := &Node{Queue: q, Level: n.Level + 1, Reach: q.Drain(), parent: i}
			n.Children, leaves = append(n.Children, leaf), append(leaves, leaf)
		}
		for _, l := range links[n.Link] {
			child := &Node{Link: l, Level: n.Level + 1, Reach: l.Reach(), parent: i}
			n.Children, all = append(n.Children, child), append(all, child)
		}
		slices.SortStableFunc(n.Children,
			func(a, b *Node) int { return cmp.Compare(a.Priority(), b.Priority()) })
	}
	treeLinks, treeQueues := make([]queue.TreeLink, len(all)), make([]queue.LinkQueue, len(leaves))
	for i, n := range all {
		treeLinks[i] = queue.TreeLink{
			Parent: n.parent, Rate: n.Rate(), Guarantee: n.Guarantee(), Priority: n.Priority(),
			Weight: n.Weight(),
		}
	}
	for i, n := range leaves {
		treeQueues[i] = n.Queue.LinkQueue()
		treeQueues[i].Parent = n.parent
	}
	for i, n := range all {
		for _, plan := range customers[n.Link] {
			q := plan.LinkQueue()
			q.Parent = i
			treeQueues = append(treeQueues, q)
		}
	}
	ofLinks, ofQueues := queue.Guaranteed(treeLinks, treeQueues)
	for i, n := range all {
		n.Guaranteed, t.Nodes[n.Link] = ofLinks[i], n
	}
	for i, n := range leaves {
		n.Guaranteed, t.Nodes[n.Queue] = ofQueues[i], n
	}
	ofQueues = ofQueues[len(leaves):]
	for _, n := range all {
		for i, plan := range customers[n.Link] {
			n.Customers.add(plan, ofQueues[i])
		}
		ofQueues = ofQueues[len(customers[n.Link]):]
	}
	return all[0]
}

// add adds a customer with its rate while all queues are busy.
func (c *Crowd) add(plan *dataplane.ServicePlan, guaranteed meter.Rate) {
	if c.Count++; c.Count == 1 {
		c.Guaranteed, c.Guarantees = guaranteed, new(big.Rat)
	}
	if guaranteed.Cmp(c.Guaranteed) < 0 {
		c.Guaranteed = guaranteed
	}
	if reach := plan.Drain(); reach.Cmp(c.Reach) > 0 {
		c.Reach = reach
	}
	c.rank(plan)
	if g := plan.Guarantee; g != (meter.Rate{}) {
		c.Guarantees.Add(c.Guarantees, big.NewRat(g.Bytes, int64(g.Period)))
		if Short(g, guaranteed) {
			if c.Short++; c.Short == 1 {
				c.Promised, c.Gets = g, guaranteed
			}
		}
	}
}

// rank adds a customer to those of its priority.
func (c *Crowd) rank(plan *dataplane.ServicePlan) {
	i, found := slices.BinarySearchFunc(c.Ranks, plan.Priority,
		func(r Rank, priority int) int { return cmp.Compare(r.Priority, priority) })
	if !found {
		c.Ranks = slices.Insert(c.Ranks, i, Rank{Priority: plan.Priority, Rates: new(big.Rat), First: plan})
	}
	r := &c.Ranks[i]
	r.Count++
	if plan.Guarantee == (meter.Rate{}) {
		r.Open++
	}
	if rate := plan.Queue.Rate; rate == (meter.Rate{}) {
		r.Unrated++
	} else {
		r.Rates.Add(r.Rates, big.NewRat(rate.Bytes, int64(rate.Period)))
	}
}

// Short reports whether a guarantee is above a rate in whole bytes per second.
func Short(guarantee, guaranteed meter.Rate) bool {
	n, fits := guarantee.Burst(time.Second)
	return !fits || meter.ByteRate(n).Cmp(guaranteed) > 0
}

// Root returns the root of a node's tree.
func (t *Trees) Root(n *Node) *Node {
	l := n.Link
	if n.Queue != nil {
		l = n.Queue.Link
	}
	return t.Nodes[Root(l)]
}

// Name returns the name of the link or the queue.
func (n *Node) Name() string {
	if n.Queue != nil {
		return n.Queue.Name
	}
	return n.Link.Name
}

// String returns the name after the word link or queue.
func (n *Node) String() string {
	if n.Queue != nil {
		return "queue " + n.Queue.Name
	}
	return "link " + n.Link.Name
}

// Source returns the link or the queue.
func (n *Node) Source() any {
	if n.Queue != nil {
		return n.Queue
	}
	return n.Link
}

// Rate returns the node's own rate; unset for none.
func (n *Node) Rate() meter.Rate {
	if n.Queue != nil {
		return n.Queue.Rate
	}
	return n.Link.Rate
}

// Guarantee returns the node's guarantee; unset for none.
func (n *Node) Guarantee() meter.Rate {
	if n.Queue != nil {
		return n.Queue.Guarantee
	}
	return n.Link.Guarantee
}

// Priority returns the node's priority among the children of its link.
func (n *Node) Priority() int {
	if n.Queue != nil {
		return n.Queue.Priority
	}
	return n.Link.Priority
}

// Weight returns the node's weight among the children of its link with its priority.
func (n *Node) Weight() int {
	if n.Queue != nil {
		return cmp.Or(n.Queue.Weight, 1)
	}
	return cmp.Or(n.Link.Weight, 1)
}

// Flat reports whether a root has only queues, without rates and guarantees of their own, and none of
// customers.
func (n *Node) Flat() bool {
	return n.Customers.Count == 0 && !slices.ContainsFunc(n.Children, func(c *Node) bool {
		return c.Link != nil || c.Rate() != meter.Rate{} || c.Guarantee() != meter.Rate{}
	})
}

// Walk calls f for a node and all nodes below it, each before those below it.
func (n *Node) Walk(f func(*Node)) {
	f(n)
	for _, c := range n.Children {
		c.Walk(f)
	}
}

// Root returns the link of a tree that has no link above.
func Root(l *dataplane.Link) *dataplane.Link {
	for l.Link != nil {
		l = l.Link
	}
	return l
}

// Path returns the names of a link and of the links above it, the root first, such as site/ap-7.
func Path(l *dataplane.Link) string {
	path := l.Name
	for l = l.Link; l != nil; l = l.Link {
		path = l.Name + "/" + path
	}
	return path
}

// Service describes the rates of a queue of a tree that is not flat.
func (n *Node) Service() Part {
	return Part{"service", fmt.Sprintf("at least %s while all queues of %s are busy, at most %v",
		AtLeast(n.Guaranteed), Root(n.Queue.Link).Name, n.Reach)}
}

// AtLeast writes a rate rounded down: from 1 Mbit/s on to whole kbit/s.
func AtLeast(r meter.Rate) string {
	bits, _ := r.Bits()
	if bits >= 1_000_000 {
		bits -= bits % 1000
	}
	return meter.BitRate(bits).String()
}

// LinkParts writes a link in exact units, without its name, for both directions.
func LinkParts(l *dataplane.Link) []Part {
	parts := linkParts(l)
	if up := l.Upward(); up != nil {
		parts = Both(parts, linkParts(up))
	}
	return parts
}

// linkParts writes a link for packets to the customers.
func linkParts(l *dataplane.Link) (parts []Part) {
	add := func(key string, value any) { parts = append(parts, Part{key, fmt.Sprint(value)}) }
	none := meter.Rate{}
	if l.Link != nil {
		add("link", l.Link.Name)
	}
	if l.Rate != none {
		add("rate", l.Rate)
	}
	if l.Guarantee != none {
		add("guarantee", l.Guarantee)
	}
	if l.Link != nil || l.Priority != 0 {
		add("priority", l.Priority)
	}
	if l.Link != nil || l.Weight != 0 {
		add("weight", cmp.Or(l.Weight, 1))
	}
	return append(parts, Rest(l, "Name", "Rate", "Link", "Guarantee", "Priority", "Weight", "Up")...)
}
