package say

import (
	"fmt"

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
	kernel, refusal := "fq_codel", kernelRefuses(q)
	if n := trees.Nodes[q]; n != nil && refusal == "" {
		refusal = htbRefuses(trees.Root(n))
	}
	switch {
	case refusal != "":
		kernel = "not supported, because " + refusal
	case q.Hosts.By != dataplane.NoKey || q.Fair.By != dataplane.ByFlow:
		kernel = "cake"
	case q.Link != nil && q.Link.Link == nil && q.Rate == (meter.Rate{}) && alone(q, queues):
		kernel += "; in a kernel without it, HTB leaves by flow hash, without codel"
	}
	return "replay, tap: FQ-CoDel; run: " + kernel
}

// kernelRefuses returns the reason why the kernel plane cannot run a fair queue, or "".
func kernelRefuses(q *dataplane.Queue) string {
	plain := func(k dataplane.Key) bool { return k == dataplane.Key{By: k.By} }
	known, hosts := false, q.Fair.By
	switch q.Hosts.By {
	case dataplane.NoKey:
		known = hosts == dataplane.ByFlow || hosts == dataplane.BySrc || hosts == dataplane.ByDst ||
			hosts == dataplane.ByHosts
	case dataplane.BySrc, dataplane.ByDst:
		known = hosts == dataplane.ByFlow
		hosts = q.Hosts.By
	}
	cake := hosts != dataplane.ByFlow
	switch {
	case !known || !plain(q.Fair) || !plain(q.Hosts):
		return "fq_codel knows flows, and cake whole addresses"
	case q.WRED != [3]queue.Early{}:
		return "HTB does not report the backlog that wred needs"
	case cake && q.CoDel == (queue.CoDel{}):
		return "cake always has codel"
	case cake && !q.ECN:
		return "cake always sets CE instead of an early drop"
	case cake && q.Packets > 0:
		return "cake has no limit in packets"
	}
	return ""
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
