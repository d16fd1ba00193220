package compiled

import (
	"math/bits"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Classifier finds the first match of a list for a packet.
//
// For each value of each field there is a bit vector of the matches accepting the value. A packet
// selects one vector per field. The lowest bit set in all of them is the first match. The first
// word of a vector is a summary: its bit i is set if word i of the rest is not zero. So only words
// that can contain the result are read, and the time depends on the number of fields and the
// logarithm of the number of addresses, and hardly on the number of matches.
type Classifier struct {
	Tables
	firstTakesAll bool // the first match takes all IP packets, as in a policy with one class
	customersOnly bool // of customers
}

// Tables is a Classifier as plain numbers, for planes in another language. Vectors are given as
// offsets into Words.
type Tables struct {
	Stride int      // length of a vector, words, the summary included
	Words  []uint64 // all vectors, one after the other
	// Start contains the vectors by whether packets are IP (1) and have a customer (2).
	Start [4]uint32
	// Direct contains a table for proto, sport, dport, dscp, vlan, pcp and ethertype;
	// nil if no match uses the field.
	Direct [numTables]Direct
	Mark   Ranged[uint32]
	Length Ranged[uint32]
	Src    Addresses
	Dst    Addresses
	// Rare contains the vectors of the fields of dataplane.MatchFields after mark and length. Packets
	// without the field have the value NoValue.
	Rare    [NumRare]Ranged[uint64]
	Cgroups Cgroups
	hasRare bool
}

// NoValue is the value of a rare field of packets without it, above all values.
const NoValue = 1<<64 - 1

// Cgroups contains the vectors of cgroups, by path. A packet has the vector of the innermost cgroup that
// contains its socket. Paths is nil if no match names a cgroup.
type Cgroups struct {
	Paths   []string
	Vectors []uint32
	None    uint32 // vector of packets without a cgroup, or with another one
}

// Indexes of Tables.Direct, which are those of dataplane.MatchFields. Mark and length follow: they have
// 32 bits, so the classifier searches them. Then the rare fields follow.
const (
	protoTable = iota
	sportTable
	dportTable
	dscpTable
	vlanTable
	pcpTable
	ethertypeTable
	numTables

	firstRare = numTables + 2
	// NumRare is the number of rare fields.
	NumRare = 8
)

// Direct contains the vector of each value of a field, and a last one for packets without the
// field.
type Direct []uint32

// Ranged contains the vectors of ranges of values, for binary search. Offset[i] is the
// vector of the values from Bounds[i] to below Bounds[i+1], or to the largest value. The
// first bound is 0. Bounds is nil if no match uses the field.
type Ranged[K any] struct {
	Bounds []K
	Offset []uint32

	// Jump shortens the search for numbers: Jump[i] is the index of the last bound not above Low +
	// i<<Shift. Jump[0] is 0, for all values below Low.
	Low   uint32
	Shift uint8
	Jump  []uint32
}

// maxJumps bounds the length of a jump table, which is then at most 16 KiB. The table
// covers the values from the second bound to the last.
const maxJumps = 1 << 12

// Addresses contains the vectors of addresses. The families are separate: 192.0.2.1 and
// ::192.0.2.1 are different addresses.
type Addresses struct {
	V4   Ranged[uint32]
	V6   Ranged[dataplane.Addr]
	None uint32 // vector of non-IP packets
}

// MaxClasses is the maximum number of classes of a policy. The summary of a vector is one
// word, with a bit for each of 64 words of 64 classes.
const MaxClasses = 64 * 64

// Classify returns the index of the first match of a parsed packet with metered length n,
// or -1.
func (c *Classifier) Classify(p *dataplane.Packet, n int) int {
	if c.firstTakesAll && p.IsIP() && (p.Customer != 0 || !c.customersOnly) {
		return 0
	}
	return c.search(p, n)
}

// search is Classify by the tables.
func (c *Classifier) search(p *dataplane.Packet, n int) int {
	var found vectorSet
	ip := p.IsIP()
	start := 0
	if ip {
		start = 1
	}
	if p.Customer != 0 {
		start |= 2
	}
	found.add(c.Start[start])
	// A loop reading the fields through matchFields would take 4 ns longer.
	if t := c.Direct[protoTable]; t != nil {
		found.add(t.vector(uint32(p.Proto), ip))
	}
	if t := c.Direct[sportTable]; t != nil {
		found.add(t.vector(uint32(p.SrcPort), p.HasPorts))
	}
	if t := c.Direct[dportTable]; t != nil {
		found.add(t.vector(uint32(p.DstPort), p.HasPorts))
	}
	if t := c.Direct[dscpTable]; t != nil {
		v, ok := p.DSCP()
		found.add(t.vector(uint32(v), ok))
	}
	if t := c.Direct[vlanTable]; t != nil {
		v, ok := p.VLAN()
		found.add(t.vector(uint32(v), ok))
	}
	if t := c.Direct[pcpTable]; t != nil {
		v, ok := p.PCP()
		found.add(t.vector(uint32(v), ok))
	}
	if t := c.Direct[ethertypeTable]; t != nil {
		found.add(t.vector(uint32(p.EtherType), p.HasEtherType))
	}
	if r := &c.Mark; r.Bounds != nil {
		found.add(search32(r, p.Mark))
	}
	if r := &c.Length; r.Bounds != nil {
		found.add(search32(r, uint32(n)))
	}
	if c.Src.V4.Bounds != nil {
		found.add(c.Src.vector(p.Kind, p.Src))
	}
	if c.Dst.V4.Bounds != nil {
		found.add(c.Dst.vector(p.Kind, p.Dst))
	}
	if c.hasRare {
		c.addRare(&found, p, n)
	}
	return c.firstMatch(found.list[:found.n])
}

// addRare adds the vectors of the rare fields, and of the cgroup, which packets of user space lack.
func (c *Classifier) addRare(found *vectorSet, p *dataplane.Packet, n int) {
	for i := range c.Rare {
		r := &c.Rare[i]
		if r.Bounds == nil {
			continue
		}
		v, ok := dataplane.MatchFields[firstRare+i].Value(p, n)
		if !ok {
			v = NoValue
		}
		found.add(search64(r, v))
	}
	if c.Cgroups.Paths != nil {
		found.add(c.Cgroups.None)
	}
}

// maxVectors is the maximum number of vectors selected by a packet: one of Start, one for each
// direct table, mark and length, two addresses, one for each rare field, and the cgroup.
const maxVectors = 1 + int(numTables) + 2 + 2 + NumRare + 1

// vectorSet contains the vectors selected by a packet.
type vectorSet struct {
	list [maxVectors]uint32
	n    int
}

func (s *vectorSet) add(offset uint32) {
	s.list[s.n] = offset
	s.n++
}

// firstMatch returns the lowest bit set in all vectors, or -1.
func (c *Classifier) firstMatch(vectors []uint32) int {
	summary := ^uint64(0)
	if c.Stride > 2 { // a vector of one word needs no summary
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

// vector returns the vector of value v, or the one for packets without the field.
func (t Direct) vector(v uint32, ok bool) uint32 {
	if !ok {
		v = uint32(len(t) - 1)
	}
	return t[v]
}

// vector returns the vector of an address of a packet of kind k.
func (a *Addresses) vector(k dataplane.PacketKind, addr dataplane.Addr) uint32 {
	switch k {
	case dataplane.IPv4:
		return search32(&a.V4, uint32(addr.Lo))
	case dataplane.IPv6:
		return search128(&a.V6, addr)
	}
	return a.None
}

// search32 returns the vector of v: that of the last bound not above v. A branch would be
// mispredicted at every other step. Instead, each comparison makes a mask, which is -1 if v is
// below Low or below the middle bound, and 0 otherwise.
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

// search64 is search32 for rare fields, without a jump table.
func search64(r *Ranged[uint64], v uint64) uint32 {
	i, found := slices.BinarySearch(r.Bounds, v)
	if !found {
		i--
	}
	return r.Offset[i]
}

// search128 is search32 for IPv6 addresses, without a jump table.
func search128(r *Ranged[dataplane.Addr], v dataplane.Addr) uint32 {
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
