package image

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/remedy"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// checkTrees rejects trees that HTB cannot run.
func (e *encoder) checkTrees() {
	for i := range e.Plan.Links {
		l := &e.Plan.Links[i]
		levels := 2 // of the link and its queues
		for above := l.Above; above >= 0; above = e.Plan.Links[above].Above {
			levels++
		}
		if levels > qdisc.MaxLevels {
			e.refuse(l.Source, "link", fmt.Sprintf(
				"makes a tree of %d levels with its queues: the kernel plane's limit is %d", levels, qdisc.MaxLevels),
				remedy.UseUserSpace)
		}
	}
	for i := range e.Plan.Trees {
		t := &e.Plan.Trees[i]
		if ranks := e.ranks(t); len(ranks) > queue.MaxPriority+1 {
			e.refuse(e.Plan.Links[t.Links[0]].Source, "priority", fmt.Sprintf(
				"of its queues and of the links above them has %d combinations: HTB has %d priorities",
				len(ranks), queue.MaxPriority+1), remedy.UseUserSpace)
		}
	}
}

// priorities are those of a queue and the links above it, from the root's children on.
type priorities [queue.MaxLevels]int

// prioritiesOf returns the priorities of a queue on a link, or on none: -1.
func (g *Image) prioritiesOf(q *queue.LinkQueue, link int) (p priorities) {
	depth := 0 // of links below the root
	for i := link; i >= 0 && g.Plan.Links[i].Above >= 0; i = g.Plan.Links[i].Above {
		depth++
	}
	p[depth] = q.Priority
	for i := link; depth > 0; i = g.Plan.Links[i].Above {
		depth--
		p[depth] = g.Plan.Links[i].Priority
	}
	return p
}

// leavesOf calls f for each queue of a tree, with its index in the tree and the index of its link, or -1.
func (g *Image) leavesOf(t *compiled.Tree, f func(i int, q *queue.LinkQueue, link int)) {
	for i, n := range t.Queues {
		f(i, &g.Plan.Queues[n].LinkQueue, g.Plan.Queues[n].Link)
	}
	for i, number := range t.Customers {
		s := g.Plan.Customers.Service(number)
		f(len(t.Queues)+i, &s.LinkQueue, g.Plan.LinkOf(s))
	}
}

// ranks returns the different priorities of the queues of a tree, in order. HTB compares the
// priorities of leaves wherever they borrow.
func (g *Image) ranks(t *compiled.Tree) []priorities {
	set := map[priorities]bool{}
	g.leavesOf(t, func(_ int, q *queue.LinkQueue, link int) { set[g.prioritiesOf(q, link)] = true })
	return slices.SortedFunc(maps.Keys(set),
		func(a, b priorities) int { return slices.Compare(a[:], b[:]) })
}

// share is what a leaf of HTB gets of its link.
type share struct {
	rate          uint64 // bytes per second that it sends before it borrows
	priority      uint32
	weight, least int // its weight, and the least one of its priority on the link
}

// quantum returns the bytes that a leaf may send in its turn. The leaf with the least weight may send
// longest, because HTB needs a quantum of at least the longest packet; the others send more, in
// proportion to their weights.
func (s share) quantum(longest int) uint32 {
	return uint32((s.weight*longest + s.least - 1) / s.least)
}

// shares are the shares of links, queues and customers.
type shares struct {
	ofLink     []uint64 // by link: the bytes per second that it can count on
	ofQueue    []share
	ofCustomer []share
}

// shares computes the shares of links, queues and customers.
//
// Queues that have their link for themselves share it by HTB's priorities and quantums, beyond their
// guarantees. Classes of links have neither, so a queue beside links gets the rate it can count on.
func (g *Image) shares() shares {
	p := g.Plan
	s := shares{ofLink: make([]uint64, len(p.Links)), ofQueue: make([]share, len(p.Queues))}
	var service func(uint32) *compiled.Service
	if p.Customers != nil {
		s.ofCustomer, service = make([]share, len(p.Customers.Of)), p.Customers.Service
	}
	hasLinks := make([]bool, len(p.Links))
	for i := range p.Links {
		if above := p.Links[i].Above; above >= 0 {
			hasLinks[above] = true
		}
	}
	for i := range p.Trees {
		t := &p.Trees[i]
		var ofLinks, ofQueues []meter.Rate
		if len(t.Links) > 0 {
			ofLinks, ofQueues = queue.Guaranteed(p.Config(t, service))
		}
		for k, l := range t.Links {
			s.ofLink[l] = uint64(ofLinks[k].Bytes)
		}
		rank := map[priorities]uint32{}
		for i, r := range g.ranks(t) {
			rank[r] = uint32(i)
		}
		type siblings struct{ link, priority int }
		least := map[siblings]int{}
		g.leavesOf(t, func(_ int, q *queue.LinkQueue, link int) {
			key := siblings{link, q.Priority}
			least[key] = min(cmp.Or(least[key], q.Weight), q.Weight)
		})
		g.leavesOf(t, func(k int, q *queue.LinkQueue, link int) {
			out := share{
				priority: uint32(q.Priority), weight: q.Weight, least: least[siblings{link, q.Priority}],
			}
			if len(t.Links) > 1 {
				out.priority = rank[g.prioritiesOf(q, link)]
			}
			switch {
			case link >= 0 && hasLinks[link]:
				out.rate = uint64(ofQueues[k].Bytes)
			case link >= 0 && q.Guarantee != (meter.Rate{}):
				out.rate = min(bytesPerSecond(q.Guarantee), uint64(ofQueues[k].Bytes))
			}
			if k < len(t.Queues) {
				s.ofQueue[t.Queues[k]] = out
			} else {
				s.ofCustomer[t.Customers[k-len(t.Queues)]-1] = out
			}
		})
	}
	return s
}

// link returns the class of a link.
func (g *Image) link(i int, s shares) qdisc.Link {
	l := &g.Plan.Links[i]
	out := qdisc.Link{ID: g.linkIDs[i]}
	if l.Rate != (meter.Rate{}) {
		out.Rate = bytesPerSecond(l.Rate)
	}
	if l.Above < 0 {
		out.Credit = LeafCredit
		return out
	}
	out.Parent, out.Guarantee = g.linkIDs[l.Above], s.ofLink[i]
	return out
}
