package dataplane

import "math/bits"

// Classifier finds the first of many matches that takes a packet.
//
// Every field has, for each of its values, the set of matches that accept it,
// as a bit vector. The intersection of the packet's sets has the first match
// as its lowest bit. Time grows with the fields in use and the logarithm of
// the addresses, hardly with the number of matches: each vector begins with a
// summary of its words, so that only words that may hold the answer are read.
type Classifier struct{ Tables }

// Tables are a Classifier in plain numbers, for planes that search them in
// another language.
type Tables struct {
	Stride int      // words of a vector, the summary first
	Words  []uint64 // all vectors, one after the other
	IsIP   [2]uint32
	Direct [numFields]Direct // proto, sport, dport, dscp, vlan, pcp, ethertype; nil where no match asks for it
	Mark   Ranged[uint32]
	Length Ranged[uint32]
	Src    Addresses
	Dst    Addresses
}

// Direct finds a vector by value: one entry a value, and a last one for
// packets that do not have the field. Entries are offsets into Words.
type Direct []uint32

// Ranged finds a vector by binary search: a value belongs to the last bound
// that is not above it. The first bound is 0; there is none where no match
// asks for the field.
type Ranged[K any] struct {
	Bounds []K
	Offset []uint32
	// Of numbers: Jump[i] is the last bound that is not above Low + i<<Shift.
	// It is 0 for i = 0, and what is below Low belongs there.
	Low   uint32
	Shift uint8
	Jump  []uint32
}

// jumps is how many steps a jump table has at most: it covers the values from
// the second bound to the last, however close they are, in 16 KiB.
const jumps = 1 << 12

// Addresses are apart by family: 192.0.2.1 and ::192.0.2.1 are not the same.
type Addresses struct {
	V4   Ranged[uint32]
	V6   Ranged[Addr]
	None uint32 // the vector of packets without an address
}

// MaxClasses bounds a policy: the summary of a vector is one word of bits.
const MaxClasses = 64 * 64

// Classify returns the index of the first match that takes the packet, or -1.
// n is its metered length.
func (c *Classifier) Classify(p *Packet, n int) int {
	var found sets
	ip := p.IsIP()
	if ip {
		found.add(c.IsIP[1])
	} else {
		found.add(c.IsIP[0])
	}
	for f, t := range &c.Direct {
		if t != nil {
			found.add(t.at(matchFields[f].value(p, n)))
		}
	}
	if r := &c.Mark; r.Bounds != nil {
		found.add(search32(r, p.Mark))
	}
	if r := &c.Length; r.Bounds != nil {
		found.add(search32(r, uint32(n)))
	}
	if c.Src.V4.Bounds != nil {
		found.add(c.Src.lookup(p.Kind, p.Src))
	}
	if c.Dst.V4.Bounds != nil {
		found.add(c.Dst.lookup(p.Kind, p.Dst))
	}
	return c.first(found.list[:found.n])
}

// maxVectors is how many vectors a packet may select: one by being IP or not,
// one a field with a table, mark, length, and both addresses.
const maxVectors = 1 + int(numFields) + 2 + 2

// sets are the vectors that a packet's values select: offsets into words.
type sets struct {
	list [maxVectors]uint32
	n    int
}

func (s *sets) add(offset uint32) {
	s.list[s.n] = offset
	s.n++
}

// first is the lowest bit that all vectors have, or -1.
func (c *Classifier) first(vectors []uint32) int {
	summary := ^uint64(0)
	if c.Stride > 2 { // a single word needs no summary
		for _, v := range vectors {
			summary &= c.Words[v]
		}
	} else {
		summary = 1
	}
	for ; summary != 0; summary &= summary - 1 {
		w := bits.TrailingZeros64(summary)
		word := ^uint64(0)
		for _, v := range vectors {
			word &= c.Words[int(v)+1+w]
		}
		if word != 0 {
			return 64*w + bits.TrailingZeros64(word)
		}
	}
	return -1
}

// at returns the vector of a value, or that of packets without the field.
func (t Direct) at(v uint32, ok bool) uint32 {
	if !ok {
		v = uint32(len(t) - 1)
	}
	return t[v]
}

func (a *Addresses) lookup(k Kind, addr Addr) uint32 {
	switch k {
	case IPv4:
		return search32(&a.V4, uint32(addr.Lo))
	case IPv6:
		return search128(&a.V6, addr)
	}
	return a.None
}

// search32 finds the last bound that is not above v. The first bound is 0. A
// branch would be mispredicted at every other step, so the choice is a mask:
// -1 where v is below the bound in the middle, or below Low.
func search32(r *Ranged[uint32], v uint32) uint32 {
	above := int64(v) - int64(r.Low)
	above &^= above >> 63
	top := int(min(above>>(r.Shift&63), int64(len(r.Jump)-2)))
	base := int(r.Jump[top])
	for n := int(r.Jump[top+1]) - base + 1; n > 1; {
		half := n / 2
		below := int64(v) - int64(r.Bounds[base+half])
		base += half &^ int(below>>63)
		n -= half
	}
	return r.Offset[base]
}

// search128 is search32 for addresses of IPv6.
func search128(r *Ranged[Addr], v Addr) uint32 {
	base, n := 0, len(r.Bounds)
	for n > 1 {
		half := n / 2
		bound := &r.Bounds[base+half]
		_, borrow := bits.Sub64(v.Lo, bound.Lo, 0)
		_, borrow = bits.Sub64(v.Hi, bound.Hi, borrow)
		base += half &^ -int(borrow)
		n -= half
	}
	return r.Offset[base]
}
