package dataplane

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"
)

// Classifier finds the first of many matches that takes a packet.
//
// Every field has, for each of its values, the set of matches that accept it,
// as a bit vector. The intersection of the packet's sets has the first match
// as its lowest bit. Time grows with the fields in use and the logarithm of
// the addresses, hardly with the number of matches: each vector begins with a
// summary of its words, so that only words that may hold the answer are read.
type Classifier struct {
	count  int
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
type addresses struct {
	used bool
	v4   ranged[uint32]
	v6   ranged[Addr]
	none uint32
}

// MaxClasses bounds a policy: the summary of a vector is one word of bits.
const MaxClasses = 64 * 64

// NewClassifier compiles matches, at most MaxClasses, in order of precedence.
func NewClassifier(matches []Match) *Classifier {
	b := builder{Classifier: &Classifier{count: len(matches)}, known: map[string]uint32{}}
	b.stride = 1 + max(1, (len(matches)+63)/64)
	b.isIP[1] = b.set(func(int) bool { return true })
	b.isIP[0] = b.set(func(i int) bool { return matches[i].below() })
	for f := range b.direct {
		b.direct[f] = b.table(field(f), matches)
	}
	b.mark, _ = b.sweepField(mark, matches)
	b.length, _ = b.sweepField(length, matches)
	b.src = b.addresses(matches, func(m *Match) []netip.Prefix { return m.Src })
	b.dst = b.addresses(matches, func(m *Match) []netip.Prefix { return m.Dst })
	return b.Classifier
}

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
	if c.src.used {
		found.add(c.src.lookup(p.Kind, p.Src))
	}
	if c.dst.used {
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

// builder fills a Classifier. Equal vectors are stored once.
type builder struct {
	*Classifier
	known map[string]uint32
}

// set stores the vector of the matches for which has is true.
func (b *builder) set(has func(i int) bool) uint32 {
	v := make([]uint64, b.stride)
	for i := range b.count {
		if has(i) {
			v[1+i/64] |= 1 << (i % 64)
			v[0] |= 1 << (i / 64)
		}
	}
	return b.intern(v)
}

func (b *builder) intern(v []uint64) uint32 {
	key := make([]byte, 0, 8*len(v))
	for _, w := range v {
		key = binary.LittleEndian.AppendUint64(key, w)
	}
	offset, ok := b.known[string(key)]
	if !ok {
		offset = uint32(len(b.words))
		b.words = append(b.words, v...)
		b.known[string(key)] = offset
	}
	return offset
}

// edge says that match i begins or ends to accept values at a bound.
type edge[K any] struct {
	at     K
	match  int
	begins bool
}

// sweep walks the edges in order and returns the bounds between which the set
// of accepting matches stays the same.
func sweep[K comparable](b *builder, zero K, edges []edge[K], open []int, order func(a, b K) int) ranged[K] {
	slices.SortFunc(edges, func(x, y edge[K]) int { return order(x.at, y.at) })
	v := make([]uint64, b.stride)
	depth := make([]int, b.count) // ranges of a match that cover the place
	add := func(i, n int) {
		depth[i] += n
		w, bit := 1+i/64, uint64(1)<<(i%64)
		if depth[i] > 0 {
			v[w] |= bit
		} else {
			v[w] &^= bit
		}
		v[0] &^= 1 << (i / 64)
		if v[w] != 0 {
			v[0] |= 1 << (i / 64)
		}
	}
	for _, i := range open {
		add(i, 1)
	}
	var r ranged[K]
	at := zero
	for k := 0; ; {
		for k < len(edges) && edges[k].at == at {
			if edges[k].begins {
				add(edges[k].match, 1)
			} else {
				add(edges[k].match, -1)
			}
			k++
		}
		r.bounds = append(r.bounds, at)
		r.offset = append(r.offset, b.intern(v))
		if k == len(edges) {
			return r
		}
		at = edges[k].at
	}
}

// sweep32 is sweep for numbers, with the jump table that speeds their search.
func (b *builder) sweep32(edges []edge[uint32], open []int) ranged[uint32] {
	r := sweep(b, 0, edges, open, cmp.Compare[uint32])
	r.jump = make([]uint32, 1<<jumpBits+1)
	last := 0
	for i := range r.jump[:1<<jumpBits] {
		for last+1 < len(r.bounds) && r.bounds[last+1] <= uint32(i)<<(32-jumpBits) {
			last++
		}
		r.jump[i] = uint32(last)
	}
	r.jump[1<<jumpBits] = uint32(len(r.bounds) - 1)
	return r
}

// sweepField returns the ranges of a field's values, and false where no match
// asks for it.
func (b *builder) sweepField(f field, matches []Match) (ranged[uint32], bool) {
	var edges []edge[uint32]
	var open []int
	for i := range matches {
		list := f.ranges(&matches[i])
		if len(list) == 0 {
			open = append(open, i)
		}
		for _, r := range list {
			edges = append(edges, edge[uint32]{r.First, i, true})
			if r.Last < f.max() {
				edges = append(edges, edge[uint32]{r.Last + 1, i, false})
			}
		}
	}
	if len(open) == len(matches) {
		return ranged[uint32]{}, false
	}
	return b.sweep32(edges, open), true
}

// table spreads the ranges of a field out over all its values.
func (b *builder) table(f field, matches []Match) direct {
	r, ok := b.sweepField(f, matches)
	if !ok {
		return nil
	}
	t := make(direct, f.max()+2)
	for v := range t[:f.max()+1] {
		t[v] = search32(&r, uint32(v))
	}
	t[len(t)-1] = b.set(func(i int) bool { return len(f.ranges(&matches[i])) == 0 })
	return t
}

func (b *builder) addresses(matches []Match, list func(*Match) []netip.Prefix) addresses {
	var open []int
	var v4 []edge[uint32]
	var v6 []edge[Addr]
	for i := range matches {
		if len(list(&matches[i])) == 0 {
			open = append(open, i)
		}
		for _, prefix := range list(&matches[i]) {
			first, above := span(prefix)
			if prefix.Addr().Is4() {
				v4 = append(v4, edge[uint32]{uint32(first.Lo), i, true})
				if above.Lo < 1<<32 {
					v4 = append(v4, edge[uint32]{uint32(above.Lo), i, false})
				}
				continue
			}
			v6 = append(v6, edge[Addr]{first, i, true})
			if above != (Addr{}) {
				v6 = append(v6, edge[Addr]{above, i, false})
			}
		}
	}
	if len(open) == len(matches) {
		return addresses{}
	}
	return addresses{
		used: true,
		v4:   b.sweep32(v4, open),
		v6:   sweep(b, Addr{}, v6, open, Addr.compare),
		none: b.set(func(i int) bool { return len(list(&matches[i])) == 0 }),
	}
}

// span returns the first address of a prefix and the one after its last, which
// is zero behind the last of IPv6.
func span(p netip.Prefix) (first, above Addr) {
	p = p.Masked()
	host := p.Addr().BitLen() - p.Bits()
	if p.Addr().Is4() {
		b := p.Addr().As4()
		first.Lo = uint64(be32(b[:]))
	} else {
		b := p.Addr().As16()
		first = Addr{be64(b[:]), be64(b[8:])}
	}
	size := Addr{Lo: 1 << host} // a shift by 64 or more gives 0
	if host >= 64 {
		size.Hi = 1 << (host - 64)
	}
	lo, carry := bits.Add64(first.Lo, size.Lo, 0)
	return first, Addr{first.Hi + size.Hi + carry, lo}
}

func (a Addr) compare(b Addr) int {
	return cmp.Or(cmp.Compare(a.Hi, b.Hi), cmp.Compare(a.Lo, b.Lo))
}
