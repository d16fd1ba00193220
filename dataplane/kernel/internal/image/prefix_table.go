package image

import (
	"encoding/binary"
	"iter"
	"math/rand/v2"
	"sync/atomic"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
)

// Constants of bpf/src/prefix.h.
const (
	bucketPrefixes = 3
	maxProbes      = 1024
	IPv4Prefix     = 192
	number         = 255
	anyLength      = 129
	noLength       = 255

	NeverUsed = 0
	Taken     = 1 << 31
	Removed   = 1<<31 + 1
)

// PrefixKey is the key by which the programs find a customer. Of a prefix all other bits are
// zero.
type PrefixKey struct {
	Addr bpf.ShaperAddr
	Kind uint8 // enum prefix_kind
}

// prefixesOf returns the keys of a customer. cgroups are those that its IDs are indexes of; nil if they are
// the numbers in packets.
func prefixesOf(c *dataplane.Customer, cgroups []cgroup) (out []PrefixKey) {
	for _, p := range c.Prefixes {
		key := PrefixKey{Kind: uint8(p.Bits())}
		if p.Addr().Is4() {
			b := p.Addr().As4()
			key.Kind += IPv4Prefix
			key.Addr.Lo = uint64(binary.BigEndian.Uint32(b[:]))
		} else {
			b := p.Addr().As16()
			key.Addr.Hi, key.Addr.Lo = binary.BigEndian.Uint64(b[:]), binary.BigEndian.Uint64(b[8:])
		}
		out = append(out, key)
	}
	for _, id := range c.IDs {
		if cgroups != nil {
			if id = cgroups[id].id; id == 0 {
				continue
			}
		}
		out = append(out, PrefixKey{bpf.ShaperAddr{Lo: id}, number})
	}
	return out
}

// shorterLengths are the lengths of prefixes: by family and length, the next shorter one in
// use, or noLength. Unlike a list, programs can read it while lengths are added and removed.
type shorterLengths = [2][anyLength + 1]uint8

// lengthsOf returns the lengths of the prefixes of customers, or the depths of their cgroups.
func lengthsOf(from *dataplane.Customers, cgroups []cgroup) (out shorterLengths) {
	var used [2][anyLength]bool
	for _, g := range cgroups {
		used[0][g.depth] = true
	}
	for i := range from.List {
		for _, p := range from.List[i].Prefixes {
			used[engine.Flag(p.Addr().Is6())][p.Bits()] = true
		}
	}
	for family := range used {
		below := uint8(noLength)
		for bits, has := range used[family] {
			out[family][bits] = below
			if has {
				below = uint8(bits)
			}
		}
		out[family][anyLength] = below
	}
	return out
}

// prefixTable is the hash table of the customers' prefixes, in the memory of a map. One process at
// a time changes it while programs search it. They find each unchanged key, and never the number of
// another key, because:
//
//   - Keys never move to other slots.
//   - A search ends at a bucket with an unused slot. A bucket without one gets one only if no search for a
//     key passes the bucket.
//   - A key is written to a free slot, and the slot gets a number when all programs that may
//     have read parts of the key have ended. The slot of a removed key is used again when all
//     programs that may have found it have ended.
type prefixTable struct {
	Buckets []bpf.ShaperPrefixBucket
	Search  bpf.ShaperPrefixSearch
	memory  engine.Memory[bpf.ShaperPrefixBucket]
	used    int // number of slots with a key or a removed key; below 0: not counted
}

// prefixSlot is a place in the table.
type prefixSlot struct {
	*bpf.ShaperPrefixBucket
	i int
}

func (s prefixSlot) Key() PrefixKey     { return PrefixKey{s.Addr[s.i], s.Kind[s.i]} }
func (s prefixSlot) Customer() uint32   { return atomic.LoadUint32(&s.Number[s.i]) }
func (s prefixSlot) SetNumber(n uint32) { atomic.StoreUint32(&s.Number[s.i], n) }
func (s prefixSlot) hasCustomer() bool  { n := s.Customer(); return n != NeverUsed && n < Taken }

// bucketsFor returns the number of buckets for n prefixes, with half of the slots used: with two
// thirds, look-ups of 100,000 customers take 10 ns longer.
func bucketsFor(n int) uint32 { return uint32((2*n+minSpare)/bucketPrefixes + 1) }

// mostUsed returns the number of usable slots, removed keys included. With more, searches would
// become long.
func (t *prefixTable) mostUsed() int { return len(t.Buckets) * bucketPrefixes * 3 / 4 }

// OpenPrefixes maps the table into memory. The caller must close it.
func (s *Maps) OpenPrefixes() (*prefixTable, error) {
	var search bpf.ShaperPrefixSearch
	if err := s.searches.Lookup(uint32(0), &search); err != nil {
		return nil, cause.Of(err)
	}
	memory, err := engine.MapMemory[bpf.ShaperPrefixBucket](s.prefixes)
	if err != nil {
		return nil, err
	}
	return &prefixTable{memory.Values, search, memory, -1}, nil
}

func (t *prefixTable) Close() { t.memory.Close() }

// putSearch makes the programs search these lengths.
func (t *prefixTable) putSearch(to *Maps, below shorterLengths) error {
	t.Search.Below = below
	return cause.Of(to.searches.Put(uint32(0), &t.Search))
}

// Home returns the bucket at which the search of a key starts: start_probe of
// bpf/src/customer.h.
func (t *prefixTable) Home(key PrefixKey) int {
	h := (key.Addr.Hi ^ t.Search.Seed) * 0xff51afd7ed558ccd
	h = (h ^ h>>32 ^ key.Addr.Lo ^ uint64(key.Kind)<<56) * 0xff51afd7ed558ccd
	h = (h ^ h>>32) * 0xc4ceb9fe1a85ec53
	return int(h >> 32 * uint64(len(t.Buckets)) >> 32)
}

// probes yields the slots in which a key can be, in the order of a search.
func (t *prefixTable) probes(key PrefixKey) iter.Seq[prefixSlot] {
	return func(yield func(prefixSlot) bool) {
		at := t.Home(key)
		for range maxProbes {
			b, end := &t.Buckets[at], false
			for i := range b.Number {
				if !yield(prefixSlot{b, i}) {
					return
				}
				end = end || prefixSlot{b, i}.Customer() == NeverUsed
			}
			if end {
				return
			}
			at = (at + 1) % len(t.Buckets)
		}
	}
}

// find returns the slot of a key with a customer.
func (t *prefixTable) find(key PrefixKey) (prefixSlot, bool) {
	for s := range t.probes(key) {
		if s.hasCustomer() && s.Key() == key {
			return s, true
		}
	}
	return prefixSlot{}, false
}

// Take writes a new key to a free slot. Programs find it when the slot gets a number.
func (t *prefixTable) Take(key PrefixKey) (prefixSlot, error) {
	for s := range t.probes(key) {
		if n := s.Customer(); n == NeverUsed || n == Removed {
			s.Addr[s.i], s.Kind[s.i] = key.Addr, key.Kind
			s.SetNumber(Taken)
			if n == NeverUsed && t.used >= 0 {
				t.used++
			}
			return s, nil
		}
	}
	return prefixSlot{}, ErrNoRoom
}

// remove removes the key of a slot. Then no search for it passes the buckets from its home to the slot, so
// some slots of removed keys there may become unused: if all remained, searches would become ever longer.
func (t *prefixTable) remove(s prefixSlot) {
	home := t.Home(s.Key())
	at := home
	for range maxProbes {
		if &t.Buckets[at] == s.ShaperPrefixBucket {
			break
		}
		at = (at + 1) % len(t.Buckets)
	}
	s.SetNumber(Removed)
	onPath := true // at is a bucket of the path
	for range t.Buckets {
		if tidied := t.tidy(at); !tidied && !onPath {
			return
		}
		onPath = onPath && at != home
		at = (at + len(t.Buckets) - 1) % len(t.Buckets)
	}
}

// tidy makes the slots of removed keys in a bucket unused if no search for a key passes it. It returns false
// if there are none, or not.
func (t *prefixTable) tidy(at int) bool {
	b, removed := &t.Buckets[at], 0
	for i := range b.Number {
		removed += int(engine.Flag(prefixSlot{b, i}.Customer() == Removed))
	}
	if removed == 0 || t.passed(at) {
		return false
	}
	for i := range b.Number {
		if s := (prefixSlot{b, i}); s.Customer() == Removed {
			s.SetNumber(NeverUsed)
		}
	}
	if t.used >= 0 {
		t.used -= removed
	}
	return true
}

// passed reports whether the search for some key passes a bucket: it starts there or before, and ends behind.
func (t *prefixTable) passed(at int) bool {
	n := len(t.Buckets)
	for distance := range min(maxProbes, n) {
		b, end := &t.Buckets[(at+distance)%n], false
		for i := range b.Number {
			s := prefixSlot{b, i}
			switch s.Customer() {
			case NeverUsed:
				end = true
			case Removed:
			default:
				searched := ((at+distance)%n - t.Home(s.Key()) + n) % n
				if distance > 0 && searched >= distance {
					return true
				}
			}
		}
		if end {
			return false
		}
	}
	return true
}

// countUsed returns the number of slots with a key or a removed key.
func (t *prefixTable) countUsed() int {
	if t.used < 0 {
		t.used = 0
		for s := range t.Slots() {
			t.used += int(engine.Flag(s.Customer() != NeverUsed))
		}
	}
	return t.used
}

// Slots yields all slots.
func (t *prefixTable) Slots() iter.Seq[prefixSlot] {
	return func(yield func(prefixSlot) bool) {
		for at := range t.Buckets {
			for i := range bucketPrefixes {
				if !yield(prefixSlot{&t.Buckets[at], i}) {
					return
				}
			}
		}
	}
}

// fits reports whether the table has room for the keys of customers beside its own.
func (t *prefixTable) fits(list []dataplane.Customer, cgroups []cgroup) bool {
	used := t.countUsed()
	for i := range list {
		for _, key := range prefixesOf(&list[i], cgroups) {
			if _, has := t.find(key); !has {
				used++
			}
		}
	}
	return used <= t.mostUsed()
}

// fillPrefixes writes the keys of customers to a new table that no program reads.
func (s *Maps) fillPrefixes(list []dataplane.Customer, cgroups []cgroup, below shorterLengths) error {
	t, err := s.OpenPrefixes()
	if err != nil {
		return err
	}
	defer t.Close()
	t.Search.Seed, t.Search.Buckets = rand.Uint64(), uint32(len(t.Buckets))
	for i := range list {
		for _, key := range prefixesOf(&list[i], cgroups) {
			if _, has := t.find(key); has {
				continue // a customer may have a prefix twice
			}
			slot, err := t.Take(key)
			if err != nil {
				return err
			}
			slot.SetNumber(uint32(i + 1))
		}
	}
	return t.putSearch(s, below)
}
