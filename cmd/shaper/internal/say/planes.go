package say

import (
	"fmt"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// What HTB supports: levels of links and queues, and priorities of leaves.
const (
	htbLevels     = 7
	htbPriorities = queue.MaxPriority + 1
)

// Planes describes how each plane schedules the flows or hosts of a fair queue. queues are those of the
// policy, and trees its trees.
func Planes(q *dataplane.Queue, queues []*dataplane.Queue, trees *Trees) string {
	kernel, refusal, hosts := "fq_codel", "", q.Hosts.By != dataplane.NoKey || q.Fair.By != dataplane.ByFlow
	switch n := trees.Nodes[q]; {
	case !fqKeys(q) && !cakeKeys(q):
		refusal = "fq_codel and cake lack these keys"
	case q.WRED != [3]queue.Early{}:
		refusal = "HTB does not report the backlog that wred needs"
	case n != nil:
		refusal = htbRefuses(trees.Root(n))
	}
	switch {
	case refusal != "":
		kernel = "not supported, because " + refusal
	case hosts && (!q.ECN || q.CoDel == (queue.CoDel{}) || q.Packets > 0):
		kernel = "cake, with ecn: true, with codel, and with a limit in bytes or time"
	case hosts:
		kernel = "cake"
	case q.Link != nil && q.Link.Link == nil && q.Rate == (meter.Rate{}) && alone(q, queues):
		kernel += "; in a kernel without it, HTB leaves by flow hash, without codel"
	}
	return "replay, tap: FQ-CoDel; run: " + kernel
}

// fqKeys reports whether fq_codel is fair by the keys of a queue.
func fqKeys(q *dataplane.Queue) bool {
	return q.Fair == dataplane.Key{By: dataplane.ByFlow} && q.Hosts.By == dataplane.NoKey
}

// cakeKeys reports whether cake can be fair by the keys of a queue: by whole addresses, and then by flow.
func cakeKeys(q *dataplane.Queue) bool {
	whole := func(k dataplane.Key, by ...dataplane.KeyField) bool {
		return k == dataplane.Key{By: k.By} && slices.Contains(by, k.By)
	}
	if q.Hosts.By == dataplane.NoKey {
		return whole(q.Fair, dataplane.BySrc, dataplane.ByDst, dataplane.ByHosts)
	}
	return whole(q.Hosts, dataplane.BySrc, dataplane.ByDst) && whole(q.Fair, dataplane.ByFlow)
}

// htbRefuses returns the reason why HTB cannot run a tree, or "".
func htbRefuses(root *Node) string {
	levels := 1
	ranks := map[[queue.MaxLevels]int]bool{}
	var add func(n *Node, above [queue.MaxLevels]int)
	add = func(n *Node, above [queue.MaxLevels]int) {
		if n.Level > 0 {
			above[n.Level-1] = n.Priority()
		}
		if n.Queue != nil {
			ranks[above] = true
			return
		}
		levels = max(levels, n.Level+2) // with its queues
		for _, c := range n.Children {
			add(c, above)
		}
		for _, r := range n.Customers.Ranks {
			own := above
			own[n.Level] = r.Priority
			ranks[own] = true
		}
	}
	add(root, [queue.MaxLevels]int{})
	switch {
	case levels > htbLevels:
		return fmt.Sprintf("HTB has %d levels, and the tree of link %s %d", htbLevels, root.Name(), levels)
	case len(ranks) > htbPriorities:
		return fmt.Sprintf("HTB has %d priorities, and the tree of link %s %d combinations of them",
			htbPriorities, root.Name(), len(ranks))
	}
	return ""
}
