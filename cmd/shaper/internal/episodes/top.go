package episodes

import (
	"cmp"
	"sort"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

const ways = 8 // keys of a set

// Top counts the packets of the keys with the most bytes, in bounded memory and in a few ns. Each
// key belongs to a set of ways keys. If the set is full, a new key competes with the smallest key
// of the set by the majority vote of Boyer and Moore: it takes that key's place once new keys had
// more bytes. Its count lacks the packets from before. So counts are exact as long as no set
// overflows.
type Top[K comparable] struct {
	hash  func(K) uint64
	items []Item[K] // set by set; an item with packets is in use
	begun int64     // number of items ever begun
}

// Item is a key with its packets.
type Item[K comparable] struct {
	Key K
	dataplane.Count
	Dropped dataplane.Count // counted by the caller
	Partial bool            // the counts may lack packets
	votes   int64           // its bytes less the bytes of keys without room
	hash    uint64
	number  int64 // in the order of the items' beginnings
}

// NewTop returns a Top with a number of sets, a power of 2.
func NewTop[K comparable](sets int, hash func(K) uint64) Top[K] {
	return Top[K]{hash: hash, items: make([]Item[K], sets*ways)}
}

// Add adds packets of a key. It returns its item, which is valid until the next call, or nil if
// there is no room for it.
func (t *Top[K]) Add(key K, n dataplane.Count) *Item[K] {
	hash := t.hash(key)
	set := t.set(hash)
	least := &set[0]
	for i := range set {
		item := &set[i]
		if item.is(key, hash) {
			item.add(n)
			return item
		}
		if item.Packets == 0 {
			return t.begin(item, Item[K]{Key: key, hash: hash}, n)
		}
		if item.votes < least.votes {
			least = item
		}
	}
	if least.votes >= n.Bytes {
		least.votes -= n.Bytes
		return nil
	}
	return t.begin(least, Item[K]{Key: key, hash: hash, Partial: true}, n)
}

// begin begins an item with its first packets, in a place.
func (t *Top[K]) begin(place *Item[K], item Item[K], n dataplane.Count) *Item[K] {
	t.begun++
	item.number = t.begun
	*place = item
	place.add(n)
	return place
}

// Find returns the item of a key, or nil.
func (t *Top[K]) Find(key K) *Item[K] {
	hash := t.hash(key)
	set := t.set(hash)
	for i := range set {
		if set[i].is(key, hash) {
			return &set[i]
		}
	}
	return nil
}

// set returns the set of a key.
func (t *Top[K]) set(hash uint64) []Item[K] {
	first := int(hash) & (len(t.items) - 1) &^ (ways - 1)
	return t.items[first : first+ways]
}

// is reports whether the item is in use for a key.
func (i *Item[K]) is(key K, hash uint64) bool {
	return i.hash == hash && i.Packets > 0 && i.Key == key
}

func (i *Item[K]) add(n dataplane.Count) {
	i.Count = i.Plus(n)
	i.votes += n.Bytes
}

// join adds the items of another Top.
func (t *Top[K]) join(o *Top[K]) {
	for _, item := range o.Sorted() {
		if to := t.Add(item.Key, item.Count); to != nil {
			to.Partial = to.Partial || item.Partial
		}
	}
}

// Sorted returns the items, the one with most bytes first, and of equal ones the one begun first.
func (t *Top[K]) Sorted() []Item[K] {
	var out []Item[K]
	for _, item := range t.items {
		if item.Packets > 0 {
			out = append(out, item)
		}
	}
	sort.Slice(out, func(i, j int) bool { // one function for all K
		a, b := &out[i], &out[j]
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.number, b.number)) < 0
	})
	return out
}
