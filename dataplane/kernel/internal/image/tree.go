package image

import (
	"fmt"
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

func (g *Image) priorities(q *compiled.Queue) (p priorities) {
	list := []int{q.Priority}
	for i := q.Link; g.Plan.Links[i].Above >= 0; i = g.Plan.Links[i].Above {
		list = append(list, g.Plan.Links[i].Priority)
	}
	slices.Reverse(list)
	copy(p[:], list)
	return p
}

// ranks returns the different priorities of the queues of a tree, in order. HTB compares the
// priorities of leaves wherever they borrow.
func (g *Image) ranks(t *compiled.Tree) (out []priorities) {
	for _, i := range t.Queues {
		out = append(out, g.priorities(&g.Plan.Queues[i]))
	}
	slices.SortFunc(out, func(a, b priorities) int { return slices.Compare(a[:], b[:]) })
	return slices.Compact(out)
}

// shares are the shares of links and queues in their trees.
type shares struct {
	ofLink   []uint64 // by link: the bytes per second that it can count on
	ofQueue  []uint64 // by queue: the bytes per second that its leaf sends before it borrows
	priority []uint32 // by queue: of its leaf
}

// shares computes the shares of links and queues.
//
// Queues that have their link for themselves share it by HTB's priorities and quantums, beyond their
// guarantees. Classes of links have neither, so a queue beside links gets the rate it can count on.
func (g *Image) shares() shares {
	p := g.Plan
	s := shares{make([]uint64, len(p.Links)), make([]uint64, len(p.Queues)), make([]uint32, len(p.Queues))}
	hasLinks := make([]bool, len(p.Links))
	for i := range p.Links {
		if above := p.Links[i].Above; above >= 0 {
			hasLinks[above] = true
		}
	}
	for i := range p.Trees {
		t := &p.Trees[i]
		ofLinks, ofQueues := queue.Guaranteed(p.Config(t, p.Customers.Service))
		ranks := g.ranks(t)
		for k, l := range t.Links {
			s.ofLink[l] = uint64(ofLinks[k].Bytes)
		}
		for k, n := range t.Queues {
			q := &p.Queues[n]
			s.priority[n] = uint32(q.Priority)
			if len(t.Links) > 1 {
				own := g.priorities(q)
				s.priority[n] = uint32(slices.Index(ranks, own))
			}
			switch {
			case hasLinks[q.Link]:
				s.ofQueue[n] = uint64(ofQueues[k].Bytes)
			case q.Guarantee != (meter.Rate{}):
				s.ofQueue[n] = min(bytesPerSecond(q.Guarantee), uint64(ofQueues[k].Bytes))
			}
		}
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
