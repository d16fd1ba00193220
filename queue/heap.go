package queue

import "math/bits"

// heap is a binary heap of nodes by key, then by number. at gives the place of each node.
type heap []entry

type entry struct {
	key  int64
	node int32
}

func (a entry) less(b entry) bool { return a.before(b) != 0 }

// before returns 1 if a is before b, else 0. It has no branches, because a CPU cannot predict them.
func (a entry) before(b entry) int {
	_, borrow := bits.Sub64(uint64(a.node), uint64(b.node), 0)
	_, borrow = bits.Sub64(uint64(a.key)^1<<63, uint64(b.key)^1<<63, borrow)
	return int(borrow)
}

func (h *heap) push(at []int32, e entry) {
	*h = append(*h, e)
	h.up(at, len(*h)-1, e)
}

// remove removes the entry at a place.
func (h *heap) remove(at []int32, place int32) {
	last := len(*h) - 1
	e := (*h)[last]
	*h = (*h)[:last]
	if int(place) == last {
		return
	}
	h.up(at, h.down(at, int(place), e), e)
}

// pop removes the first entry.
func (h *heap) pop(at []int32) int32 {
	n := (*h)[0].node
	h.remove(at, 0)
	return n
}

// up puts e at a place or above.
func (h heap) up(at []int32, i int, e entry) {
	for i > 0 {
		parent := (i - 1) / 2
		if !e.less(h[parent]) {
			break
		}
		h[i] = h[parent]
		at[h[i].node] = int32(i)
		i = parent
	}
	h[i] = e
	at[e.node] = int32(i)
}

// down puts e at a place or below, and returns where.
func (h heap) down(at []int32, i int, e entry) int {
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) {
			child += h[child+1].before(h[child])
		}
		if !h[child].less(e) {
			break
		}
		h[i] = h[child]
		at[h[i].node] = int32(i)
		i = child
	}
	h[i] = e
	at[e.node] = int32(i)
	return i
}
