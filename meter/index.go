package meter

import (
	"hash/maphash"
	"math/bits"
)

// This file holds the index of a Table, a hash table with linear probing, and the order of its
// slots from the least to the most recently used, a linked list.

// link holds the slot numbers of the neighbors in the order. The link of an empty slot holds its
// own number in older, and the next empty slot in newer. A pinned slot is not in the order; its
// link is zero.
type link struct{ older, newer uint32 }

// An entry of the index is a tag of 8 bits and a slot number of 24 bits.
const (
	numberBits = 24
	numberMask = 1<<numberBits - 1
)

func (t *Table[K]) hash(key K) uint64 { return maphash.Comparable(t.seed, key) }

// log returns the log of a slot.
func (t *Table[K]) log(i int) []entry {
	n := t.entries
	return t.logs[i*n : (i+1)*n]
}

// home returns the place in the index at which the search for a hash begins. It depends on
// the upper bits; the lowest are the tag.
func (t *Table[K]) home(hash uint64) int {
	hi, _ := bits.Mul64(hash, uint64(len(t.index)))
	return int(hi)
}

func tag(hash uint64) uint32 { return uint32(hash) << numberBits }

const zeroTable = "meter: make a Table with NewTable"

// find returns the place of a key in the index, and its slot. If the key is not known, it
// returns the free place at which the search ended.
func (t *Table[K]) find(hash uint64, key K) (at, slot int, known bool) {
	at = t.home(hash)
	if at >= len(t.index) {
		panic(zeroTable)
	}
	for {
		v := t.index[at]
		if v == 0 {
			return at, 0, false
		}
		if v&^numberMask == tag(hash) {
			if i := int(v&numberMask) - 1; t.slots[i].key == key {
				return at, i, true
			}
		}
		if at++; at == len(t.index) {
			at = 0
		}
	}
}

// burst is the number of keys whose memory is loaded at once.
const burst = 32

// load hashes up to burst keys and makes the CPU load their memory, in steps of independent loads:
// first the index, then the slots, then the profiles given by Set.
func (t *Table[K]) load(keys []K, hashes *[burst]uint64) {
	sum := uint32(0)
	for i, key := range keys {
		hashes[i] = t.hash(key)
	}
	for _, hash := range hashes[:len(keys)] {
		if at := t.home(hash); at < len(t.index) {
			sum += t.index[at]
		}
	}
	for _, hash := range hashes[:len(keys)] {
		if i, ok := t.candidate(hash); ok {
			sum += uint32(t.slots[i].second) + t.order[i+1].older
		}
	}
	if t.own != nil {
		for _, hash := range hashes[:len(keys)] {
			if i, ok := t.candidate(hash); ok {
				sum += uint32(t.profileOf(i).den)
			}
		}
	}
	t.loaded += sum
}

// candidate returns the first slot with the tag of a hash, which is most likely its own.
func (t *Table[K]) candidate(hash uint64) (slot int, ok bool) {
	at := t.home(hash)
	if at >= len(t.index) {
		panic(zeroTable)
	}
	for {
		v := t.index[at]
		if v == 0 {
			return 0, false
		}
		if v&^numberMask == tag(hash) {
			return int(v&numberMask) - 1, true
		}
		if at++; at == len(t.index) {
			at = 0
		}
	}
}

// take returns the slot of a key, which it adds if it is new. It returns false if there is no
// room.
func (t *Table[K]) take(hash uint64, key K, now int64) (int, bool) {
	at, i, known := t.find(hash, key)
	if known {
		t.use(i)
		return i, true
	}
	if key != key || !t.room(now) { // a key with a NaN would never be found again
		t.counts.Refused++
		return 0, false
	}
	return t.add(at, hash, key), true
}

// add adds a new key at the free place found by find, and returns its slot. If the table is full,
// it evicts the least recently used key, and there must be an unpinned one.
func (t *Table[K]) add(at int, hash uint64, key K) int {
	t.settle()
	n := t.free
	switch {
	case n != 0:
		t.free = t.order[n].newer
		t.emptied--
	case len(t.slots) < cap(t.slots):
		t.slots = t.slots[:len(t.slots)+1]
		n = uint32(len(t.slots))
	default:
		n = t.order[0].newer
		t.counts.Evicted++
		evicted, _, _ := t.find(t.hash(t.slots[n-1].key), t.slots[n-1].key)
		t.remove(evicted)
		t.unlink(n)
		at, _, _ = t.find(hash, key)
	}
	t.append(n)
	t.slots[n-1] = slot[K]{key, t.fresh}
	t.index[at] = tag(hash) | n
	return int(n - 1)
}

// room reports whether there is room for a new key.
func (t *Table[K]) room(now int64) bool {
	if t.full() {
		return false
	}
	if !t.config.Idle || t.Len() < t.config.Keys {
		return true
	}
	t.settle()
	oldest := int(t.order[0].newer) - 1
	return t.profile.rested(t.slots[oldest].state, t.log(oldest), now)
}

// use makes a slot the most recently used one. To change the order touches the cache lines
// of its neighbors, so settle does it for many slots at once, and their cache misses
// overlap.
func (t *Table[K]) use(i int) {
	t.lately[t.late] = uint32(i + 1)
	if t.late++; t.late == len(t.lately) {
		t.settle()
	}
}

// settle updates the order of the slots.
func (t *Table[K]) settle() {
	lately := t.lately[:t.late]
	t.late = 0
	var links [len(t.lately)]link
	for i, n := range lately {
		links[i] = t.order[n]
	}
	for i := range lately {
		t.loaded += t.order[links[i].older].older + t.order[links[i].newer].older
	}
	for _, n := range lately {
		if t.order[n].newer != 0 { // neither the last of the order, nor pinned
			t.unlink(n)
			t.append(n)
		}
	}
}

// unlink removes a slot from the order.
func (t *Table[K]) unlink(n uint32) {
	l := t.order[n]
	t.order[l.older].newer = l.newer
	t.order[l.newer].older = l.older
}

// append adds a slot to the end of the order, as the most recently used one.
func (t *Table[K]) append(n uint32) {
	last := t.order[0].older
	t.order[n] = link{last, 0}
	t.order[last].newer = n
	t.order[0].older = n
}

// remove frees a place in the index. It moves entries up if their search passed the place.
func (t *Table[K]) remove(hole int) {
	for at := hole; ; {
		if at++; at == len(t.index) {
			at = 0
		}
		v := t.index[at]
		if v == 0 {
			break
		}
		home := t.home(t.hash(t.slots[int(v&numberMask)-1].key))
		if t.distance(home, at) >= t.distance(hole, at) {
			t.index[hole] = v
			hole = at
		}
	}
	t.index[hole] = 0
}

// distance returns the number of steps of a search from one place to another.
func (t *Table[K]) distance(from, to int) int {
	if to < from {
		to += len(t.index)
	}
	return to - from
}
