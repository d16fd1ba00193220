package compiled

import (
	"cmp"
	"encoding/binary"
	"hash/maphash"
	"math/bits"
	"net/netip"
	"path"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// NewClassifier compiles at most MaxClasses matches. Earlier matches take precedence.
func NewClassifier(matches []dataplane.Match) *Classifier {
	b := builder{
		Classifier: &Classifier{}, count: len(matches), seed: maphash.MakeSeed(),
		offsets: map[uint64]uint32{},
	}
	b.Stride = 1 + max(1, (len(matches)+63)/64)
	for k := range b.Start {
		b.Start[k] = b.addVector(func(i int) bool {
			m := &matches[i]
			return (k&1 != 0 || m.MatchesNonIP()) && (k&2 != 0 || !m.Customer)
		})
	}
	for f := range b.Direct {
		b.Direct[f] = b.directTable(&dataplane.MatchFields[f], matches)
	}
	b.Mark = b.sweepField(&dataplane.MatchFields[numTables], matches)
	b.Length = b.sweepField(&dataplane.MatchFields[numTables+1], matches)
	b.Src = b.addressTables(matches, func(m *dataplane.Match) []netip.Prefix { return m.Src })
	b.Dst = b.addressTables(matches, func(m *dataplane.Match) []netip.Prefix { return m.Dst })
	for i := range b.Rare {
		b.Rare[i] = b.sweepRare(&dataplane.MatchFields[firstRare+i], matches)
		b.hasRare = b.hasRare || b.Rare[i].Bounds != nil
	}
	b.addCgroups(matches)
	if len(matches) > 0 {
		b.firstTakesAll, b.customersOnly = matches[0].MatchesAllIP(), matches[0].Customer
	}
	return b.Classifier
}

// builder fills a Classifier. Equal vectors are stored once.
type builder struct {
	*Classifier
	count   int               // number of matches
	offsets map[uint64]uint32 // vectors stored so far, by hash
	seed    maphash.Seed
	bytes   []byte // of the vector hashed by intern
}

// addVector stores the vector of the matches for which the function returns true.
func (b *builder) addVector(has func(i int) bool) uint32 {
	v := make([]uint64, b.Stride)
	for i := range b.count {
		if has(i) {
			v[1+i/64] |= 1 << (i % 64)
			v[0] |= 1 << (i / 64)
		}
	}
	return b.intern(v)
}

// intern stores a vector, or returns the offset of an equal one.
func (b *builder) intern(v []uint64) uint32 {
	b.bytes = b.bytes[:0]
	for _, w := range v {
		b.bytes = binary.LittleEndian.AppendUint64(b.bytes, w)
	}
	hash := maphash.Bytes(b.seed, b.bytes)
	offset, ok := b.offsets[hash]
	if !ok || !slices.Equal(b.Words[offset:int(offset)+len(v)], v) {
		offset = uint32(len(b.Words))
		b.Words = append(b.Words, v...)
		b.offsets[hash] = offset
	}
	return offset
}

// edge is the first value of a range of a match, or the first value after it.
type edge[K any] struct {
	bound  K
	match  int
	begins bool
}

// sweep returns the vectors of all values. It visits the edges in order: between two edges
// all values have the same vector. Matches in open accept every value.
func sweep[K comparable](b *builder, zero K, edges []edge[K], open []int, order func(a, b K) int) Ranged[K] {
	sorted := make([]*edge[K], len(edges)) // pointers, which share one sorting function
	for i := range edges {
		sorted[i] = &edges[i]
	}
	slices.SortFunc(sorted, func(x, y *edge[K]) int { return order(x.bound, y.bound) })
	v := make([]uint64, b.Stride)
	depth := make([]int, b.count) // number of ranges of each match that contain the current bound
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
	b.Words = slices.Grow(b.Words, (min(len(sorted), b.count)+1)*b.Stride) // usually one range for each match
	var r Ranged[K]
	bound := zero
	for k := 0; ; {
		for k < len(sorted) && sorted[k].bound == bound {
			if sorted[k].begins {
				add(sorted[k].match, 1)
			} else {
				add(sorted[k].match, -1)
			}
			k++
		}
		r.Bounds = append(r.Bounds, bound)
		r.Offset = append(r.Offset, b.intern(v))
		if k == len(sorted) {
			return r
		}
		bound = sorted[k].bound
	}
}

// sweep32 is sweep for numbers. It adds the jump table.
func (b *builder) sweep32(edges []edge[uint32], open []int) Ranged[uint32] {
	r := sweep(b, 0, edges, open, cmp.Compare[uint32])
	last := len(r.Bounds) - 1
	first, end := r.Bounds[min(1, last)], r.Bounds[last]
	for (end-first)>>r.Shift >= maxJumps-2 {
		r.Shift++
	}
	r.Low = first - min(first, 1<<r.Shift)
	r.Jump = make([]uint32, (end-r.Low)>>r.Shift+2)
	index := 0
	for i := range r.Jump {
		for index < last && uint64(r.Bounds[index+1]) <= uint64(r.Low)+uint64(i)<<r.Shift {
			index++
		}
		r.Jump[i] = uint32(index)
	}
	r.Jump[0], r.Jump[len(r.Jump)-1] = 0, uint32(last)
	return r
}

// sweepField returns the vectors of the values of a field, or the zero Ranged if no match
// uses the field.
func (b *builder) sweepField(f *dataplane.MatchField, matches []dataplane.Match) Ranged[uint32] {
	var edges []edge[uint32]
	var open []int
	for i := range matches {
		list := f.Ranges(&matches[i])
		if len(list) == 0 {
			open = append(open, i)
		}
		for _, r := range list {
			edges = append(edges, edge[uint32]{uint32(r.First), i, true})
			if r.Last < f.Max {
				edges = append(edges, edge[uint32]{uint32(r.Last) + 1, i, false})
			}
		}
	}
	if len(open) == len(matches) {
		return Ranged[uint32]{}
	}
	return b.sweep32(edges, open)
}

// sweepRare is sweepField for a rare field. Values above the largest have a vector too.
func (b *builder) sweepRare(f *dataplane.MatchField, matches []dataplane.Match) Ranged[uint64] {
	var edges []edge[uint64]
	var open []int
	for i := range matches {
		list := f.Ranges(&matches[i])
		if len(list) == 0 {
			open = append(open, i)
		}
		for _, r := range list {
			edges = append(edges, edge[uint64]{r.First, i, true}, edge[uint64]{r.Last + 1, i, false})
		}
	}
	if len(open) == len(matches) {
		return Ranged[uint64]{}
	}
	return sweep(b, 0, edges, open, cmp.Compare[uint64])
}

// addCgroups adds the vectors of all named cgroups: the matches that name it, or one above it.
func (b *builder) addCgroups(matches []dataplane.Match) {
	c := &b.Cgroups
	for i := range matches {
		c.Paths = append(c.Paths, matches[i].Cgroups...)
	}
	if c.Paths == nil {
		return
	}
	b.hasRare = true
	slices.Sort(c.Paths)
	c.Paths = slices.Compact(c.Paths)
	within := map[string][]int{} // matches by cgroup
	open := make([]bool, len(matches))
	for i := range matches {
		open[i] = len(matches[i].Cgroups) == 0
		for _, name := range matches[i].Cgroups {
			within[name] = append(within[name], i)
		}
	}
	for _, name := range c.Paths {
		accepts := slices.Clone(open)
		for at := name; ; at = path.Dir(at) {
			for _, i := range within[at] {
				accepts[i] = true
			}
			if at == "/" {
				break
			}
		}
		c.Vectors = append(c.Vectors, b.addVector(func(i int) bool { return accepts[i] }))
	}
	c.None = b.addVector(func(i int) bool { return open[i] })
}

// directTable returns the vector of each value of a field.
func (b *builder) directTable(f *dataplane.MatchField, matches []dataplane.Match) Direct {
	r := b.sweepField(f, matches)
	if r.Bounds == nil {
		return nil
	}
	t := make(Direct, f.Max+2)
	for v := range t[:f.Max+1] {
		t[v] = search32(&r, uint32(v))
	}
	t[len(t)-1] = b.addVector(func(i int) bool { return len(f.Ranges(&matches[i])) == 0 })
	return t
}

// addressTables returns the vectors of addresses, or the zero Addresses without prefixes.
func (b *builder) addressTables(
	matches []dataplane.Match, list func(*dataplane.Match) []netip.Prefix,
) Addresses {
	var open []int
	var v4 []edge[uint32]
	var v6 []edge[dataplane.Addr]
	for i := range matches {
		if len(list(&matches[i])) == 0 {
			open = append(open, i)
		}
		for _, prefix := range list(&matches[i]) {
			first, above := prefixBounds(prefix)
			if prefix.Addr().Is4() {
				v4 = append(v4, edge[uint32]{uint32(first.Lo), i, true})
				if above.Lo < 1<<32 {
					v4 = append(v4, edge[uint32]{uint32(above.Lo), i, false})
				}
				continue
			}
			v6 = append(v6, edge[dataplane.Addr]{first, i, true})
			if above != (dataplane.Addr{}) {
				v6 = append(v6, edge[dataplane.Addr]{above, i, false})
			}
		}
	}
	if len(open) == len(matches) {
		return Addresses{}
	}
	return Addresses{
		V4:   b.sweep32(v4, open),
		V6:   sweep(b, dataplane.Addr{}, v6, open, compareAddrs),
		None: b.addVector(func(i int) bool { return len(list(&matches[i])) == 0 }),
	}
}

// prefixBounds returns the first address of a prefix and the one after its last. The one
// after the last IPv6 address is zero.
func prefixBounds(p netip.Prefix) (first, above dataplane.Addr) {
	p = p.Masked()
	host := p.Addr().BitLen() - p.Bits()
	if p.Addr().Is4() {
		b := p.Addr().As4()
		first.Lo = uint64(binary.BigEndian.Uint32(b[:]))
	} else {
		b := p.Addr().As16()
		first = dataplane.Addr{Hi: binary.BigEndian.Uint64(b[:8]), Lo: binary.BigEndian.Uint64(b[8:])}
	}
	size := dataplane.Addr{Lo: 1 << host} // a shift by 64 or more gives 0
	if host >= 64 {
		size.Hi = 1 << (host - 64)
	}
	lo, carry := bits.Add64(first.Lo, size.Lo, 0)
	return first, dataplane.Addr{Hi: first.Hi + size.Hi + carry, Lo: lo}
}

func compareAddrs(a, b dataplane.Addr) int {
	return cmp.Or(cmp.Compare(a.Hi, b.Hi), cmp.Compare(a.Lo, b.Lo))
}
