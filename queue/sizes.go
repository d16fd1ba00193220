package queue

// sizeHeap is a binary heap of the children of a node, the one with the largest backlog first. A full queue
// makes it, and a queue without packets removes it. Packets that leave change only their node, so the
// size in an entry may be too large, but never too small.
type sizeHeap []sizeEntry

type sizeEntry struct {
	size uint64 // see sizeOf
	node int32
}

// sizeOf orders nodes by their bytes, and nodes of equal bytes by their numbers, the lowest last. It is 0
// for a node without packets. At most MaxPackets packets of MaxBytes are below 2^48 bytes.
func sizeOf(n *flowNode) uint64 {
	if n.queued == 0 {
		return 0
	}
	return uint64(n.bytes)*Flows + Flows - uint64(n.number)
}

// contains reports whether the heap contains node i.
func (h sizeHeap) contains(i int32, n *flowNode) bool {
	return int(n.place) < len(h) && h[n.place].node == i
}

// largest returns the child with the largest backlog. One must have packets.
func (f *forest) largest(t *turns) *flowNode {
	if t.heap == 0 {
		t.heap = f.heaps.add()
		for _, last := range [...]int32{t.fresh, t.old} {
			for i := last; i != 0; {
				i = f.nodes.at(i).next
				f.raise(t, i, f.nodes.at(i))
				if i == last {
					break
				}
			}
		}
	}
	h := *f.heaps.at(t.heap)
	for {
		n := f.nodes.at(h[0].node)
		size := sizeOf(n)
		if size == h[0].size {
			return n
		}
		f.place(h, 0, sizeEntry{size, h[0].node})
	}
}

// raise tells the heap that a child has more packets.
func (f *forest) raise(t *turns, i int32, n *flowNode) {
	h := f.heaps.at(t.heap)
	e := sizeEntry{sizeOf(n), i}
	switch {
	case !h.contains(i, n):
		*h = append(*h, e)
		f.place(*h, len(*h)-1, e)
	case (*h)[n.place].size < e.size:
		f.place(*h, int(n.place), e)
	}
}

// removeEntry removes a child from the heap, if it contains it.
func (f *forest) removeEntry(t *turns, i int32) {
	h, n := f.heaps.at(t.heap), f.nodes.at(i)
	if !h.contains(i, n) {
		return
	}
	last := len(*h) - 1
	moved := (*h)[last]
	*h = (*h)[:last]
	if k := int(n.place); k < last {
		f.place(*h, k, moved)
	}
}

// removeHeap removes the heap. Its memory is reused.
func (f *forest) removeHeap(t *turns) {
	h := f.heaps.at(t.heap)
	*h = (*h)[:0]
	f.heaps.remove(t.heap)
	t.heap = 0
}

// place puts an entry into the heap: at place k, above or below.
func (f *forest) place(h sizeHeap, k int, e sizeEntry) {
	for k > 0 && h[(k-1)/2].size < e.size {
		f.put(h, k, h[(k-1)/2])
		k = (k - 1) / 2
	}
	for {
		child := 2*k + 1
		if child+1 < len(h) && h[child+1].size > h[child].size {
			child++
		}
		if child >= len(h) || h[child].size <= e.size {
			break
		}
		f.put(h, k, h[child])
		k = child
	}
	f.put(h, k, e)
}

func (f *forest) put(h sizeHeap, k int, e sizeEntry) {
	h[k] = e
	f.nodes.at(e.node).place = uint16(k)
}
