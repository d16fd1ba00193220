package queue

// flowNode is a queue, a host or a flow. The nodes of a queue are a tree: the queue is the root, its flows
// are the leaves, and the hosts of a queue that is fair to hosts are between them. A queue that is
// not fair is a leaf.
type flowNode struct {
	deficit int64
	bytes   int64 // backlog
	queued  int32 // number of packets in the backlog; a GSO packet is one
	parent  int32 // in forest.nodes; 0 for a queue
	next    int32 // next node in a list of turns; 0 outside the lists
	chained int32 // next node in the same bucket of the forest
	last    int32 // of a leaf: the last packet, in store.packets, whose next is the first; 0: none
	codel   int32 // of a leaf, in forest.codels; 0: the state of a new flow
	turns   int32 // of the children, in forest.turns; 0 for a leaf
	number  uint16
	place   uint16 // index in the heap of the parent, if the heap contains this node
}

// turns lets the children of a node take turns by deficit round robin, new ones before old ones
// (RFC 8290 §4).
type turns struct {
	fresh, old int32 // lists: the last node, whose next is the first; 0: empty
	head       int32 // child to serve next; 0 until one is selected
	heap       int32 // children by backlog, in forest.heaps; 0: none
	children   int32 // number of children, including those outside the lists
}

// forest holds the nodes of all queues of a link. A node is kept while it is in a list, or
// while its CoDel has to remember drops. So a queue without packets needs little memory.
type forest struct {
	nodes   slab[flowNode]
	turns   slab[turns]
	codels  slab[codel]
	heaps   slab[sizeHeap]
	buckets []int32 // hash table of the nodes with a parent: the first node of each bucket
	hashed  int     // number of nodes in buckets
}

// addRoot adds a queue, which is a leaf unless it is fair.
func (f *forest) addRoot(isFair bool) int32 {
	i := f.nodes.add()
	if isFair {
		f.nodes.at(i).turns = f.turns.add()
	}
	return i
}

// added adds a packet of n bytes, arriving at now, to a child of a node. It returns the child, which
// becomes new if it is in neither list.
func (f *forest) added(parent int32, number uint16, isLeaf bool, now, n int64) int32 {
	i := f.child(parent, number, isLeaf, now)
	to, t := f.nodes.at(i), f.turnsOf(parent)
	to.queued++
	to.bytes += n
	if to.next == 0 {
		to.deficit = Quantum
		f.append(&t.fresh, i)
	}
	if t.heap != 0 {
		f.raise(t, i, to)
	}
	return i
}

// turnsOf returns the turns of the children of a node.
func (f *forest) turnsOf(i int32) *turns { return f.turns.at(f.nodes.at(i).turns) }

// leaf returns the flow to serve next below a node that has packets.
func (f *forest) leaf(root int32) *flowNode {
	n := f.nodes.at(root)
	for n.turns != 0 {
		t := f.turns.at(n.turns)
		if t.head == 0 {
			f.selectHead(t)
		}
		n = f.nodes.at(t.head)
	}
	return n
}

// selectHead selects the child to serve next.
func (f *forest) selectHead(t *turns) {
	for t.head == 0 {
		from := &t.fresh
		if *from == 0 {
			from = &t.old
		}
		i := f.nodes.at(*from).next
		switch n := f.nodes.at(i); {
		case n.deficit <= 0:
			n.deficit += Quantum
			if from == &t.old {
				t.old = i // the first node of the list becomes the last one
				break
			}
			f.removeFirst(from)
			f.append(&t.old, i)
		case n.queued > 0:
			t.head = i
		case from == &t.fresh: // an emptied new child becomes old, or it would get priority each time
			f.removeFirst(from)
			f.append(&t.old, i)
		default:
			f.removeFirst(from)
			f.endTurns(i)
		}
	}
}

// charge subtracts a packet of n bytes from the deficits of a flow and its host, and ends their
// selection.
func (f *forest) charge(leaf *flowNode, n int64) {
	for at := leaf; at.parent != 0; {
		at.deficit -= n
		at = f.nodes.at(at.parent)
		f.turns.at(at.turns).head = 0
	}
}

// removed subtracts a packet of n bytes from a flow, its host and its queue. They are no longer
// selected if they have no packets left.
func (f *forest) removed(leaf *flowNode, n int64) {
	for at := leaf; ; {
		at.queued--
		at.bytes -= n
		if at.queued == 0 && at.turns != 0 {
			if t := f.turns.at(at.turns); t.heap != 0 {
				f.removeHeap(t)
			}
		}
		if at.parent == 0 {
			return
		}
		parent := f.nodes.at(at.parent)
		if at.queued == 0 {
			if t := f.turns.at(parent.turns); f.nodes.at(t.head) == at {
				t.head = 0
			}
		}
		at = parent
	}
}

// append adds a node to a list.
func (f *forest) append(to *int32, i int32) {
	n := f.nodes.at(i)
	if *to == 0 {
		n.next = i
	} else {
		last := f.nodes.at(*to)
		n.next, last.next = last.next, i
	}
	*to = i
}

// removeFirst removes the first node from a list.
func (f *forest) removeFirst(from *int32) {
	last := f.nodes.at(*from)
	first := f.nodes.at(last.next)
	if first == last {
		*from = 0
	}
	last.next, first.next = first.next, 0
}

// endTurns follows the removal of an empty node from its list. The flows of a host leave their lists
// with it.
func (f *forest) endTurns(i int32) {
	n := f.nodes.at(i)
	if t := f.turnsOf(n.parent); t.heap != 0 {
		f.removeEntry(t, i)
	}
	if n.turns != 0 {
		t := f.turns.at(n.turns)
		for _, from := range [...]*int32{&t.fresh, &t.old} {
			for *from != 0 {
				child := f.nodes.at(*from).next
				f.removeFirst(from)
				f.endTurns(child) // the last one may remove the host
			}
		}
	}
	f.forget(i)
}

// forget removes a node that makes no difference any more, and its host if that makes none.
func (f *forest) forget(i int32) {
	n := f.nodes.at(i)
	for n.next == 0 && n.codel == 0 && n.parent != 0 && (n.turns == 0 || f.turns.at(n.turns).children == 0) {
		at := f.bucket(n.parent, n.number)
		for *at != i {
			at = &f.nodes.at(*at).chained
		}
		*at = n.chained
		f.hashed--
		if n.turns != 0 {
			*f.turns.at(n.turns) = turns{}
			f.turns.remove(n.turns)
		}
		parent := n.parent
		*n = flowNode{}
		f.nodes.remove(i)
		i, n = parent, f.nodes.at(parent)
		f.turns.at(n.turns).children--
	}
}

// child returns a child of a node, and adds it if it is not known.
func (f *forest) child(parent int32, number uint16, isLeaf bool, now int64) int32 {
	if f.hashed >= len(f.buckets) {
		f.growBuckets()
	}
	stale := int32(0) // a flow that can be forgotten
	for i := *f.bucket(parent, number); i != 0; {
		n := f.nodes.at(i)
		if n.parent == parent && n.number == number {
			return i
		}
		if n.next == 0 && n.codel != 0 && f.codels.at(n.codel).isStale(now) {
			stale = i
		}
		i = n.chained
	}
	// Most such flows never return. Each new node makes up for one of them.
	if stale != 0 {
		f.removeCoDel(f.nodes.at(stale))
		f.forget(stale)
	}
	i := f.nodes.add()
	n := f.nodes.at(i)
	n.parent, n.number = parent, number
	if !isLeaf {
		n.turns = f.turns.add()
	}
	f.turnsOf(parent).children++
	f.hash(i, n)
	f.hashed++
	return i
}

// bucket returns the bucket of a child.
func (f *forest) bucket(parent int32, number uint16) *int32 {
	h := (uint64(parent)*Flows + uint64(number)) * 0x9e3779b97f4a7c15 // by 2^64 / the golden ratio
	return &f.buckets[h>>32&uint64(len(f.buckets)-1)]
}

// hash adds a node to its bucket.
func (f *forest) hash(i int32, n *flowNode) {
	first := f.bucket(n.parent, n.number)
	n.chained, *first = *first, i
}

// growBuckets doubles the number of buckets.
func (f *forest) growBuckets() {
	f.buckets = make([]int32, max(2*len(f.buckets), chunkSize))
	for i := range int32(len(f.nodes.chunks) * chunkSize) {
		if n := f.nodes.at(i); n.parent != 0 {
			f.hash(i, n)
		}
	}
}

// drops is codel.drops for a flow.
func (f *forest) drops(leaf *flowNode, c *CoDel, now, delay int64, packets int) bool {
	if leaf.codel == 0 {
		if c.Target == 0 || delay < int64(c.Target) {
			return false
		}
		leaf.codel = f.codels.add()
	}
	state := f.codels.at(leaf.codel)
	drop := state.drops(c, now, delay, packets)
	if state.isNew() {
		f.removeCoDel(leaf)
	}
	return drop
}

func (f *forest) removeCoDel(leaf *flowNode) {
	*f.codels.at(leaf.codel) = codel{}
	f.codels.remove(leaf.codel)
	leaf.codel = 0
}

// resetCoDel gives all flows of a queue the state of a new flow. It takes time in proportion to
// the nodes of all queues.
func (f *forest) resetCoDel(root int32) {
	for i := range int32(len(f.nodes.chunks) * chunkSize) {
		n := f.nodes.at(i)
		if n.codel == 0 {
			continue
		}
		of := i
		for parent := n.parent; parent != 0; parent = f.nodes.at(parent).parent {
			of = parent
		}
		if of == root {
			f.removeCoDel(n)
			f.forget(i)
		}
	}
}
