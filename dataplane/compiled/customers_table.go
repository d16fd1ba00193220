package compiled

import (
	"math/bits"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// customerTable finds the customers of packets.
type customerTable struct {
	v4   []byLength[uint32]         // the longest first
	v6   []byLength[dataplane.Addr] // of more than 64 bits
	nets []byLength[uint64]         // IPv6 prefixes of at most 64 bits
	ids  numberTable[uint64]        // by Customer.IDs
}

// byLength holds the customers' prefixes of one length.
type byLength[K comparable] struct {
	bits   int
	mask   K
	number numberTable[K] // of the customer
}

// find returns the number of the customer with the longest prefix that contains an address.
func (t *customerTable) find(kind dataplane.PacketKind, a dataplane.Addr) uint32 {
	switch kind {
	case dataplane.IPv4:
		for i := range t.v4 {
			l := &t.v4[i]
			key := uint32(a.Lo) & l.mask
			if n := l.number.find(key, hash32(key)); n != 0 {
				return n
			}
		}
	case dataplane.IPv6:
		for i := range t.v6 {
			l := &t.v6[i]
			key := dataplane.Addr{Hi: a.Hi & l.mask.Hi, Lo: a.Lo & l.mask.Lo}
			if n := l.number.find(key, hashAddr(key)); n != 0 {
				return n
			}
		}
		for i := range t.nets {
			l := &t.nets[i]
			key := a.Hi & l.mask
			if n := l.number.find(key, mix(key)); n != 0 {
				return n
			}
		}
	}
	return 0
}

// numberTable maps keys to numbers above 0. A key is in the slot of its hash, or in the next free
// one. A look-up usually reads one cache line; one in a map reads three.
type numberTable[K comparable] struct {
	slots []numberSlot[K] // a power of two; at most half of them are used
	shift uint8           // the slot of a hash is its upper bits
	count int             // number of keys; below 0: they were not counted
}

type numberSlot[K comparable] struct {
	key    K
	number uint32 // 0: free
}

// newNumberTable returns a table with room for n keys.
func newNumberTable[K comparable](n int) numberTable[K] {
	size := bits.Len(uint(max(n, 1)*2 - 1))
	return numberTable[K]{make([]numberSlot[K], 1<<size), uint8(64 - size), -1}
}

// find returns the number of a key with a hash, or 0.
func (t *numberTable[K]) find(key K, hash uint64) uint32 {
	return t.slots[t.place(key, hash)].number
}

// set adds a key with a hash, or changes its number.
func (t *numberTable[K]) set(key K, hash uint64, number uint32) {
	t.slots[t.place(key, hash)] = numberSlot[K]{key, number}
}

// place returns the slot of a key, or the free one for it.
func (t *numberTable[K]) place(key K, hash uint64) uint64 {
	last := uint64(len(t.slots) - 1)
	i := hash >> t.shift & last
	for t.slots[i].number != 0 && t.slots[i].key != key {
		i = (i + 1) & last
	}
	return i
}

// hash32 and hashAddr spread keys with few different bits over the upper bits. The table is the
// operator's, so they need not resist an attack.
func hash32(key uint32) uint64 { return mix(uint64(key)) }

func hashAddr(a dataplane.Addr) uint64 { return mix(mix(a.Hi) ^ a.Lo) }

// mix is part of the finalizer of MurmurHash3.
func mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	return (h ^ h>>33) * 0xc4ceb9fe1a85ec53
}
