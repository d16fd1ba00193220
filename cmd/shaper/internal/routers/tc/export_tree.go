package tc

import (
	"cmp"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// exportedNode is a link or a queue in the tree of its link.
type exportedNode struct {
	counts int64 // rate it can count on if all queues are busy, bytes per second
	lowest int   // lowest priority number of the queues below a link
}

// tree writes HTB with its classes and filters.
func (x *tcExport) tree(p *dataplane.Policy) {
	x.line("%s htb", x.root())
	used := map[*dataplane.Queue]bool{}
	var queues []*dataplane.Queue
	for i := range p.Classes {
		c := &p.Classes[i]
		for _, color := range colors(c.Meter) {
			if q := c.Action(color).Queue; q != nil && !used[q] {
				used[q] = true
				queues = append(queues, q)
			}
		}
	}
	x.measure(queues)
	for _, q := range queues {
		x.queue(q)
	}
	for _, q := range p.Queues {
		if !used[q] {
			x.Note("queue %s is left out: no class uses it", q.Name)
		}
	}
	for i := range p.Classes {
		x.class(&p.Classes[i])
	}
	if x.index >= firstIndex {
		x.Note("indexes of police actions, here from %d on, belong to the network namespace: change them if other filters use the same",
			firstIndex)
	}
	if x.pref > 1<<16-1 {
		x.Cannot("%d filters: tc has 65535 priorities", x.pref)
	}
}

// measure finds the rates that the nodes of the trees of links can count on.
func (x *tcExport) measure(queues []*dataplane.Queue) {
	type tree struct {
		links  []*dataplane.Link
		places []queue.TreeLink
		queues []*dataplane.Queue
		shares []queue.LinkQueue
	}
	trees, index := map[*dataplane.Link]*tree{}, map[*dataplane.Link]int{}
	var list []*tree
	var add func(l *dataplane.Link) *tree
	add = func(l *dataplane.Link) *tree {
		if l.Link == nil {
			if trees[l] == nil {
				trees[l] = &tree{links: []*dataplane.Link{l}, places: []queue.TreeLink{{Rate: l.Rate}}}
				list = append(list, trees[l])
				x.nodes[l] = &exportedNode{lowest: queue.MaxPriority}
			}
			return trees[l]
		}
		t := add(l.Link)
		if x.nodes[l] == nil {
			x.nodes[l] = &exportedNode{lowest: queue.MaxPriority}
			t.places = append(t.places, queue.TreeLink{
				Parent: index[l.Link], Rate: l.Rate, Guarantee: l.Guarantee, Priority: l.Priority,
				Weight: cmp.Or(l.Weight, 1),
			})
			index[l] = len(t.links)
			t.links = append(t.links, l)
		}
		return t
	}
	for _, q := range queues {
		if q.Link == nil {
			continue
		}
		t := add(q.Link)
		share := q.LinkQueue()
		share.Parent = index[q.Link]
		t.queues, t.shares = append(t.queues, q), append(t.shares, share)
		for l := q.Link; l != nil; l = l.Link {
			x.nodes[l].lowest = min(x.nodes[l].lowest, q.Priority)
		}
	}
	for _, t := range list {
		links, shares := queue.Guaranteed(t.places, t.shares)
		for i, l := range t.links {
			x.nodes[l].counts = max(bytesOf(links[i]), 1)
		}
		for i, q := range t.queues {
			x.nodes[q] = &exportedNode{counts: bytesOf(shares[i])}
		}
	}
}

// bytesOf returns a rate in bytes per second, rounded down.
func bytesOf(r meter.Rate) int64 {
	n, _ := r.Burst(second)
	return n
}

// link writes the class of a link, and before it those of the links above. It returns the ID.
func (x *tcExport) link(l *dataplane.Link) string {
	if id, ok := x.links[l]; ok {
		return id
	}
	what := "link " + l.Name
	x.Unsaid(what, l, notOfTC, "Name", "Rate", "Link", "Guarantee", "Priority", "Weight")
	if l.Link == nil {
		rate, _ := x.rate(what, l.Rate)
		x.links[l] = x.next()
		x.label("link", l.Name)
		x.line("tc class add dev %s parent 1: classid %s htb rate %s%s", x.device, x.links[l], rate, x.sizes())
		return x.links[l]
	}
	parent := x.link(l.Link)
	x.links[l] = x.next()
	x.label("link", l.Name)
	node := x.nodes[l]
	x.guarantee(what, l.Guarantee, l.Reach(), node.counts)
	if l.Priority != node.lowest {
		x.Cannot("%s: priority %d: htb has priorities of queues only: write %d, the lowest number of its queues", what,
			l.Priority, node.lowest)
	}
	x.Note("htb shares the excess of a link among all queues below it, by their priority and weight, and not among links")
	x.line("tc class add dev %s parent %s classid %s htb rate %v ceil %s quantum %d%s", x.device, parent, x.links[l],
		meter.ByteRate(node.counts), x.ceil(what, l.Rate, l.Link), quantumUnit*cmp.Or(l.Weight, 1), x.sizes())
	return x.links[l]
}

// guarantee writes a comment with a guarantee that is not the rate of the class.
func (x *tcExport) guarantee(what string, r, reach meter.Rate, rate int64) {
	if r == (meter.Rate{}) {
		x.line("# guarantee: none")
		return
	}
	if r.Cmp(reach) > 0 {
		x.Cannot("%s: guarantee %v is above the rate of its link: write %v", what, r, reach)
	}
	if text, bytes := x.rate(what+": guarantee", r); bytes != rate || rate == 1 {
		x.line("# guarantee: %s", text)
	}
}

// ceil returns the maximum rate of a child of a link. Without one it is twice that of the link: a ceil
// above the rate of the link keeps lower priorities from being served in between.
func (x *tcExport) ceil(what string, r meter.Rate, above *dataplane.Link) string {
	if r == (meter.Rate{}) {
		return meter.ByteRate(2 * bytesOf(above.Reach())).String()
	}
	if r.Cmp(above.Reach()) >= 0 {
		x.Cannot("%s: rate %v is not below that of link %s: leave it out", what, r, above.Name)
	}
	text, _ := x.rate(what, r)
	return text
}

// queue writes a class for a queue, and those for its links.
func (x *tcExport) queue(q *dataplane.Queue) {
	what := "queue " + q.Name
	x.Unsaid(what, q, notOfTC,
		"Name", "Rate", "Time", "Bytes", "Packets", "WRED", "Seed", "CoDel", "ECN", "TargetAtRate",
		"IntervalAtRate", "Link", "Guarantee", "Priority", "Weight", "Fair", "Hosts")
	x.line("")
	if q.Link == nil {
		rate, _ := x.rate(what, q.Rate)
		x.queues[q] = x.next()
		x.label("queue", q.Name)
		x.line("tc class add dev %s parent 1: classid %s htb rate %s quantum %d%s", x.device, x.queues[q],
			rate, quantumUnit, x.sizes())
		x.leaf(q)
		return
	}
	link := x.link(q.Link)
	x.queues[q] = x.next()
	x.label("queue", q.Name)
	// Without a guarantee nearly all of the rate is borrowed, so that only prio and quantum decide.
	rate := int64(1)
	if q.Guarantee != (meter.Rate{}) && x.nodes[q] != nil {
		rate = max(min(bytesOf(q.Guarantee), x.nodes[q].counts), 1)
		x.guarantee(what, q.Guarantee, q.Drain(), rate)
	}
	x.line("tc class add dev %s parent %s classid %s htb rate %v ceil %s prio %d quantum %d%s", x.device, link,
		x.queues[q], meter.ByteRate(rate), x.ceil(what, q.Rate, q.Link), q.Priority,
		quantumUnit*cmp.Or(q.Weight, 1), x.sizes())
	x.leaf(q)
}
