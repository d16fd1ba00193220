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
	sets   []uint64 // all vectors, one after the other
	isIP   [2]uint32
	direct [len(fields)]direct
	ranged [len(fields)]ranged[uint32]
	src    addresses
	dst    addresses
	active []int // indexes of fields that some match asks for
}

// direct finds a vector by value: one entry a value, and a last one for
// packets that do not have the field. Entries are offsets into sets.
type direct []uint32

// ranged finds a vector by binary search: a value belongs to the last bound
// that is not above it.
type ranged[K any] struct {
	bounds []K
	offset []uint32
	absent uint32
}

// addresses are apart by family: 192.0.2.1 and ::192.0.2.1 are not the same.
type addresses struct {
	used bool
	v4   ranged[uint32]
	v6   ranged[Addr]
	none uint32
}

// MaxClasses bounds a policy: the summary of a vector is one word of bits.
const MaxClasses = 64 * 64

// directMax is the largest value of a field that gets a table.
const directMax = 0xffff

// NewClassifier compiles matches, at most MaxClasses, in order of precedence.
func NewClassifier(matches []Match) *Classifier {
	b := builder{Classifier: &Classifier{count: len(matches)}, known: map[string]uint32{}}
	words := (len(matches) + 63) / 64
	b.stride = 1 + words
	b.isIP[1] = b.set(func(int) bool { return true })
	b.isIP[0] = b.set(func(i int) bool { return matches[i].below() })
	for f := range fields {
		b.field(f, matches)
	}
	b.src = b.addresses(matches, func(m *Match) []netip.Prefix { return m.Src })
	b.dst = b.addresses(matches, func(m *Match) []netip.Prefix { return m.Dst })
	return b.Classifier
}

// Classify returns the index of the first match that takes the packet, or -1.
// n is its metered length.
func (c *Classifier) Classify(p *Packet, n int) int {
	var found [3 + len(fields)]uint32
	k := 1
	found[0] = c.isIP[0]
	if p.IsIP() {
		found[0] = c.isIP[1]
	}
	for _, f := range c.active {
		found[k] = c.lookup(f, p, n)
		k++
	}
	if c.src.used {
		found[k] = c.src.lookup(p.Kind, p.Src)
		k++
	}
	if c.dst.used {
		found[k] = c.dst.lookup(p.Kind, p.Dst)
		k++
	}
	return c.first(found[:k])
}

// first is the lowest bit that all vectors have, or -1.
func (c *Classifier) first(vectors []uint32) int {
	summary := ^uint64(0)
	for _, v := range vectors {
		summary &= c.sets[v]
	}
	for ; summary != 0; summary &= summary - 1 {
		w := bits.TrailingZeros64(summary)
		word := ^uint64(0)
		for _, v := range vectors {
			word &= c.sets[int(v)+1+w]
		}
		if word != 0 {
			return 64*w + bits.TrailingZeros64(word)
		}
	}
	return -1
}

// lookup returns the offset of the vector for the packet's value of a field.
func (c *Classifier) lookup(f int, p *Packet, n int) uint32 {
	v, ok := fields[f].value(p, n)
	if table := c.direct[f]; table != nil {
		if !ok {
			v = uint32(len(table) - 1)
		}
		return table[v]
	}
	if !ok {
		return c.ranged[f].absent
	}
	return search32(&c.ranged[f], v)
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

// search32 finds the last bound that is not above v. The first bound is 0. The
// loop has no branch to mispredict: the compiler makes the choice a move.
func search32(r *ranged[uint32], v uint32) uint32 {
	bounds := r.bounds
	base, n := 0, len(bounds)
	for n > 1 {
		half := n / 2
		if bounds[base+half] <= v {
			base += half
		}
		n -= half
	}
	return r.offset[base]
}

func search128(r *ranged[Addr], v Addr) uint32 {
	base, n := 0, len(r.bounds)
	for n > 1 {
		half := n / 2
		if b := &r.bounds[base+half]; b.Hi < v.Hi || b.Hi == v.Hi && b.Lo <= v.Lo {
			base += half
		}
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
		offset = uint32(len(b.sets))
		b.sets = append(b.sets, v...)
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
// of accepting matches stays the same. Each match's own edges do not overlap.
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

func (b *builder) field(f int, matches []Match) {
	var edges []edge[uint32]
	var open []int
	for i := range matches {
		list := fields[f].ranges(&matches[i])
		if list == nil {
			open = append(open, i)
		}
		for _, r := range list {
			edges = append(edges, edge[uint32]{r.First, i, true})
			if r.Last < fields[f].max {
				edges = append(edges, edge[uint32]{r.Last + 1, i, false})
			}
		}
	}
	if len(open) == len(matches) {
		return
	}
	b.active = append(b.active, f)
	r := sweep(b, 0, edges, open, cmp.Compare[uint32])
	r.absent = b.set(func(i int) bool { return fields[f].ranges(&matches[i]) == nil })
	if fields[f].max > directMax {
		b.ranged[f] = r
		return
	}
	table := make(direct, fields[f].max+2)
	for v := range table[:fields[f].max+1] {
		table[v] = search32(&r, uint32(v))
	}
	table[len(table)-1] = r.absent
	b.direct[f] = table
}

func (b *builder) addresses(matches []Match, list func(*Match) []netip.Prefix) addresses {
	var open []int
	var v4 []edge[uint32]
	var v6 []edge[Addr]
	for i := range matches {
		if list(&matches[i]) == nil {
			open = append(open, i)
		}
		for _, prefix := range list(&matches[i]) {
			prefix = prefix.Masked()
			first, last, above := span(prefix)
			if prefix.Addr().Is4() {
				v4 = append(v4, edge[uint32]{uint32(first.Lo), i, true})
				if uint32(last.Lo) != 1<<32-1 {
					v4 = append(v4, edge[uint32]{uint32(last.Lo) + 1, i, false})
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
		v4:   sweep(b, 0, v4, open, cmp.Compare[uint32]),
		v6:   sweep(b, Addr{}, v6, open, Addr.compare),
		none: b.set(func(i int) bool { return list(&matches[i]) == nil }),
	}
}

// span returns the first and last address of a prefix and the one after it,
// which is zero where there is none.
func span(p netip.Prefix) (first, last, above Addr) {
	host := p.Addr().BitLen() - p.Bits()
	if p.Addr().Is4() {
		b := p.Addr().As4()
		first.Lo = uint64(be32(b[:]))
	} else {
		b := p.Addr().As16()
		first = Addr{be64(b[:]), be64(b[8:])}
	}
	mask := Addr{Lo: 1<<min(host, 64) - 1}
	if host > 64 {
		mask.Hi = 1<<(host-64) - 1
	}
	last = Addr{first.Hi | mask.Hi, first.Lo | mask.Lo}
	lo, carry := bits.Add64(last.Lo, 1, 0)
	above = Addr{last.Hi + carry, lo}
	return first, last, above
}

func (a Addr) compare(b Addr) int {
	return cmp.Or(cmp.Compare(a.Hi, b.Hi), cmp.Compare(a.Lo, b.Lo))
}
