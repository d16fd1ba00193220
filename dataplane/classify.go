package dataplane

import "math/bits"

// Classifier finds the first of many matches that takes a packet.
//
// Every field has, for each of its values, the set of matches that accept it,
// as a bit vector. The intersection of the packet's sets has the first match
// as its lowest bit. Time grows with the fields in use and the logarithm of
// the addresses, hardly with the number of matches: each vector begins with a
// summary of its words, so that only words that may hold the answer are read.
type Classifier struct {
	stride int      // words of a vector, the summary first
	words  []uint64 // all vectors, one after the other
	isIP   [2]uint32
	direct [numFields]direct // nil where no match asks for the field
	mark   ranged[uint32]
	length ranged[uint32]
	src    addresses
	dst    addresses
}

// direct finds a vector by value: one entry a value, and a last one for
// packets that do not have the field. Entries are offsets into words.
type direct []uint32

// ranged finds a vector by binary search: a value belongs to the last bound
// that is not above it.
type ranged[K any] struct {
	bounds []K
	offset []uint32
	jump   []uint32 // of search32: by the highest bits of a value, the last bound not above them
}

// jumpBits are as many of the highest bits of a 32-bit value as make a search
// among a thousand prefixes short, in 16 KiB.
const jumpBits = 12

// addresses are apart by family: 192.0.2.1 and ::192.0.2.1 are not the same.
// Like all ranges they have no bounds where no match asks for them.
type addresses struct {
	v4   ranged[uint32]
	v6   ranged[Addr]
	none uint32
}

// MaxClasses bounds a policy: the summary of a vector is one word of bits.
const MaxClasses = 64 * 64

// Classify returns the index of the first match that takes the packet, or -1.
// n is its metered length.
func (c *Classifier) Classify(p *Packet, n int) int {
	var found sets
	ip := p.IsIP()
	if ip {
		found.add(c.isIP[1])
	} else {
		found.add(c.isIP[0])
	}
	if t := c.direct[proto]; t != nil {
		found.add(t.at(uint32(p.Proto), ip))
	}
	if t := c.direct[sport]; t != nil {
		found.add(t.at(uint32(p.SrcPort), p.HasPorts))
	}
	if t := c.direct[dport]; t != nil {
		found.add(t.at(uint32(p.DstPort), p.HasPorts))
	}
	if t := c.direct[dscp]; t != nil {
		v, ok := p.DSCP()
		found.add(t.at(uint32(v), ok))
	}
	if t := c.direct[vlan]; t != nil {
		v, ok := p.vlan()
		found.add(t.at(uint32(v), ok))
	}
	if t := c.direct[pcp]; t != nil {
		v, ok := p.pcp()
		found.add(t.at(uint32(v), ok))
	}
	if t := c.direct[ethertype]; t != nil {
		found.add(t.at(uint32(p.EtherType), p.HasEtherType))
	}
	if r := &c.mark; r.bounds != nil {
		found.add(search32(r, p.Mark))
	}
	if r := &c.length; r.bounds != nil {
		found.add(search32(r, uint32(n)))
	}
	if c.src.v4.bounds != nil {
		found.add(c.src.lookup(p.Kind, p.Src))
	}
	if c.dst.v4.bounds != nil {
		found.add(c.dst.lookup(p.Kind, p.Dst))
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
	if c.stride > 2 { // a single word needs no summary
		for _, v := range vectors {
			summary &= c.words[v]
		}
	} else {
		summary = 1
	}
	for ; summary != 0; summary &= summary - 1 {
		w := bits.TrailingZeros64(summary)
		word := ^uint64(0)
		for _, v := range vectors {
			word &= c.words[int(v)+1+w]
		}
		if word != 0 {
			return 64*w + bits.TrailingZeros64(word)
		}
	}
	return -1
}

// at returns the vector of a value, or that of packets without the field.
func (t direct) at(v uint32, ok bool) uint32 {
	if !ok {
		v = uint32(len(t) - 1)
	}
	return t[v]
}

func (a *addresses) lookup(k Kind, addr Addr) uint32 {
	switch k {
	case IPv4:
		return search32(&a.v4, uint32(addr.Lo))
	case IPv6:
		return search128(&a.v6, addr)
	}
	return a.none
}

// search32 finds the last bound that is not above v. The first bound is 0. A
// branch would be mispredicted at every other step, so the choice is a mask:
// -1 where v is below the bound in the middle.
func search32(r *ranged[uint32], v uint32) uint32 {
	top := v >> (32 - jumpBits)
	base := int(r.jump[top])
	for n := int(r.jump[top+1]) - base + 1; n > 1; {
		half := n / 2
		below := int64(v) - int64(r.bounds[base+half])
		base += half &^ int(below>>63)
		n -= half
	}
	return r.offset[base]
}

// search128 is search32 for addresses of IPv6.
func search128(r *ranged[Addr], v Addr) uint32 {
	base, n := 0, len(r.bounds)
	for n > 1 {
		half := n / 2
		bound := &r.bounds[base+half]
		_, borrow := bits.Sub64(v.Lo, bound.Lo, 0)
		_, borrow = bits.Sub64(v.Hi, bound.Hi, borrow)
		base += half &^ -int(borrow)
		n -= half
	}
	return r.offset[base]
}
