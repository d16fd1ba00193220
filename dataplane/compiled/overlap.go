package compiled

import (
	"iter"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// MayCover returns the matches possibly covering m, in order: all accepting the first entry of each
// list of m. It is much faster than to compare m with each match.
func (c *Classifier) MayCover(m *dataplane.Match) iter.Seq[int] {
	var found vectorSet
	found.add(c.Start[len(c.Start)-1]) // all matches
	for f, t := range c.Direct {
		if list := dataplane.MatchFields[f].Ranges(m); t != nil && len(list) > 0 {
			found.add(t.vector(uint32(list[0].First), true))
		} else if t != nil {
			found.add(t.vector(0, false)) // matches without such a list
		}
	}
	if len(m.Mark) > 0 && c.Mark.Bounds != nil {
		found.add(search32(&c.Mark, uint32(m.Mark[0].First)))
	}
	if len(m.Length) > 0 && c.Length.Bounds != nil {
		found.add(search32(&c.Length, uint32(m.Length[0].First)))
	}
	found.addPrefixes(&c.Src, m.Src)
	found.addPrefixes(&c.Dst, m.Dst)
	c.addFirstRare(&found, m)
	return func(yield func(int) bool) {
		for w := 1; w < c.Stride; w++ {
			word := ^uint64(0)
			for _, v := range found.list[:found.n] {
				word &= c.Words[int(v)+w]
			}
			for ; word != 0; word &= word - 1 {
				if !yield(64*(w-1) + bits.TrailingZeros64(word)) {
					return
				}
			}
		}
	}
}

// addFirstRare adds the vectors of the first entries of the rare fields and of the cgroups of a match, or of
// the matches without one.
func (c *Classifier) addFirstRare(found *vectorSet, m *dataplane.Match) {
	for i := range c.Rare {
		if c.Rare[i].Bounds == nil {
			continue
		}
		v := uint64(NoValue)
		if list := *dataplane.MatchFields[firstRare+i].List(m); len(list) > 0 {
			v = list[0].First
		}
		found.add(search64(&c.Rare[i], v))
	}
	g := &c.Cgroups
	switch at, known := 0, false; {
	case g.Paths == nil:
	case len(m.Cgroups) == 0:
		found.add(g.None)
	default:
		if at, known = slices.BinarySearch(g.Paths, m.Cgroups[0]); known {
			found.add(g.Vectors[at])
		}
	}
}

// addPrefixes adds the vector of the first address of a list, or of the matches without one.
func (s *vectorSet) addPrefixes(a *Addresses, list []netip.Prefix) {
	switch {
	case a.V4.Bounds == nil: // no match with a list
	case len(list) == 0:
		s.add(a.None)
	default:
		kind := dataplane.IPv6
		if list[0].Addr().Is4() {
			kind = dataplane.IPv4
		}
		first, _ := prefixBounds(list[0])
		s.add(a.vector(kind, first))
	}
}
