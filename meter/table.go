package meter

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"math/bits"
	"slices"
	"unsafe"
)

// TableConfig says how a Table keeps its keys.
type TableConfig struct {
	Keys int // that it knows at most: 1 to MaxKeys
	// A new key begins empty, instead of full.
	Empty bool
	// Idle forgets a key for a new one only where that loses nothing: the key
	// that was used longest ago, if its meter is as good as new. Otherwise the
	// packet of the new key shares one meter with all that find no room. Without
	// it the key goes whatever its state.
	Idle bool
}

// MaxKeys bounds a Table.
const MaxKeys = 1 << 22

// maxTableEntries bounds the entries of all logs of a Table, of 16 bytes each.
const maxTableEntries = 1 << 26

// Table is a meter for each key, of one profile, for one goroutine; Shards is
// the form for several. It takes its memory when it is made: 24 bytes of state a
// key, beside the key itself, 8 bytes that say when it was used, 6 of the index and
// about 2 to find those used longest ago.
//
// Who sends from many keys cannot be kept from using them up. With Idle he takes
// nothing from those who are known: their keys stay while their meters lack
// tokens. Without it a key stays that comes again before Keys others did; what
// it forgets, a sender gains a new burst by, so put a meter for the sum behind it.
type Table[K comparable] struct {
	clock  uint64 // uses; what each writes is together, and apart from what each reads
	counts TableStats
	oldest []use // those to be forgotten next
	gone   int   // of them
	rest   Meter // of packets that have no key of their own

	profile *Profile
	config  TableConfig
	seed    maphash.Seed
	fresh   state // of a new key
	slots   []slot[K]
	logs    []entry  // of all slots
	index   []uint32 // by hash: tag and number of a slot, from 1; 0 is none
}

// TableStats counts what became of keys.
type TableStats struct {
	Keys    int    // known now
	Evicted uint64 // forgotten for a new one
	Refused uint64 // packets whose key found no room
}

type slot[K comparable] struct {
	key K
	state
	used uint64 // when, by the table's clock
}

// use is when a slot was used.
type use struct {
	used uint64
	slot uint32
}

// The index has tags of 8 bits and numbers of 24.
const (
	numberBits = 24
	numberMask = 1<<numberBits - 1
)

// NewTable returns an empty table.
func NewTable[K comparable](p *Profile, config TableConfig) (*Table[K], error) {
	t := &Table[K]{}
	if err := t.init(p, config, maphash.MakeSeed()); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *Table[K]) init(p *Profile, config TableConfig, seed maphash.Seed) error {
	switch {
	case config.Keys < 1 || config.Keys > MaxKeys:
		return &FieldError{"keys", fmt.Sprintf("%d are not between 1 and %d", config.Keys, MaxKeys)}
	case p.entries() > maxTableEntries/config.Keys:
		return &FieldError{"keys", fmt.Sprintf("%d with a log of %d entries each are more than %d entries", config.Keys, p.entries(), maxTableEntries)}
	case config.Idle && config.Empty:
		return &FieldError{"new", "must be full where only idle keys are forgotten: an empty bucket is not as good as new"}
	}
	*t = Table[K]{
		profile: p,
		config:  config,
		seed:    seed,
		slots:   make([]slot[K], 0, config.Keys),
		logs:    make([]entry, config.Keys*p.entries()),
		index:   make([]uint32, config.Keys*4/3+2),
		oldest:  make([]use, 0, config.Keys/oldestPart+1),
	}
	t.setFresh()
	t.rest = Meter{profile: p.withLog(), state: t.fresh}
	return nil
}

func (t *Table[K]) setFresh() {
	var tc, te int64
	if !t.config.Empty {
		tc, te = t.profile.Bursts()
	}
	t.fresh = t.profile.start(tc, te)
}

// Color is Meter.Color for the meter of a key. A red packet is not looked up,
// and makes no key.
func (t *Table[K]) Color(key K, now int64, n int, in Color) Color {
	if in == Red {
		return Red
	}
	return t.color(t.hash(key), key, now, n, in)
}

func (t *Table[K]) color(hash uint64, key K, now int64, n int, in Color) Color {
	i, ok := t.take(hash, key, now)
	if !ok {
		return t.rest.Color(now, n, in)
	}
	return t.profile.color(&t.slots[i].state, t.log(i), now, n, in)
}

// ColorEach meters packets that share one time, each by the meter of the key beside
// it, in order, as one call of Color for each would. The cache misses of a burst over
// many keys overlap. before, colors and lengths are as in Meter.Colors and at least as
// long as keys.
func (t *Table[K]) ColorEach(keys []K, now int64, lengths []int, before, colors []Color) {
	const burst = 32
	lengths, colors = lengths[:len(keys)], colorsBefore(before, colors, len(keys))
	for len(keys) > 0 {
		var hashes [burst]uint64
		var found [burst]int32 // slots, from 1
		n := min(len(keys), burst)
		for i, key := range keys[:n] {
			hashes[i] = t.hash(key)
		}
		for i, key := range keys[:n] {
			if _, slot, known := t.find(hashes[i], key); known {
				found[i] = int32(slot) + 1
			}
		}
		for i, key := range keys[:n] {
			in := colors[i]
			switch slot := int(found[i]) - 1; {
			case in == Red:
			case slot >= 0 && t.slots[slot].key == key: // it may have gone for one before it in the burst
				t.clock++
				t.slots[slot].used = t.clock
				colors[i] = t.profile.color(&t.slots[slot].state, t.log(slot), now, lengths[i], in)
			default:
				colors[i] = t.color(hashes[i], key, now, lengths[i], in)
			}
		}
		keys, lengths, colors = keys[n:], lengths[n:], colors[n:]
	}
}

// Explain is Color with the grounds of its verdict.
func (t *Table[K]) Explain(key K, now int64, n int, in Color) Explanation {
	if in == Red {
		return Explanation{Length: n, In: in, Color: Red, Clause: t.profile.kind.Clause(in, Red)}
	}
	i, ok := t.take(t.hash(key), key, now)
	if !ok {
		return t.rest.Explain(now, n, in)
	}
	return t.profile.explain(&t.slots[i].state, t.log(i), now, n, in)
}

// Rest is the meter that packets without a key share, and those that found no
// room.
func (t *Table[K]) Rest() *Meter { return &t.rest }

// Tokens is Meter.Tokens of a key's meter, or false where it is not known.
func (t *Table[K]) Tokens(key K, now int64) (tc, te int64, known bool) {
	_, i, known := t.find(t.hash(key), key)
	if !known {
		return 0, 0, false
	}
	tc, te = t.profile.tokens(t.slots[i].state, t.log(i), now)
	return tc, te, true
}

// Stats returns the counts.
func (t *Table[K]) Stats() TableStats {
	t.counts.Keys = len(t.slots)
	return t.counts
}

// Memory is how many bytes the table takes, all its keys in use.
func (t *Table[K]) Memory() int {
	return cap(t.slots)*int(unsafe.Sizeof(slot[K]{})) + len(t.logs)*int(unsafe.Sizeof(entry{})) +
		len(t.index)*4 + cap(t.slots)/oldestPart*int(unsafe.Sizeof(use{}))
}

// SetProfile is Meter.SetProfile for the meters of all keys. It takes its time
// for each, and is an error where the table has no memory for the new kind.
func (t *Table[K]) SetProfile(now int64, p *Profile) error {
	old := t.profile
	if old.sameRule(p) {
		return nil
	}
	if old.entries() > 0 || p.entries() > 0 {
		return &FieldError{"type", "of a table cannot become or cease to be one with a log"}
	}
	t.profile = p
	t.setFresh()
	t.rest.SetProfile(now, p)
	for i := range t.slots {
		s := &t.slots[i].state
		*s = p.adopt(nil, now, old, *s, nil)
	}
	return nil
}

func (t *Table[K]) hash(key K) uint64 { return maphash.Comparable(t.seed, key) }

func (t *Table[K]) log(i int) []entry {
	n := len(t.logs) / cap(t.slots)
	return t.logs[i*n : (i+1)*n]
}

// home is where the search for a hash begins. Its upper bits decide; the lowest
// are the tag.
func (t *Table[K]) home(hash uint64) int {
	hi, _ := bits.Mul64(hash, uint64(len(t.index)))
	return int(hi)
}

func tag(hash uint64) uint32 { return uint32(hash) << numberBits }

// find returns the place of a key in the index, and its slot; or the place where
// it belongs.
func (t *Table[K]) find(hash uint64, key K) (at, slot int, known bool) {
	at = t.home(hash)
	for {
		v := t.index[at]
		if v == 0 {
			return at, 0, false
		}
		if v&^numberMask == tag(hash) {
			if i := int(v&numberMask) - 1; t.slots[i].key == key {
				return at, i, true
			}
		}
		if at++; at == len(t.index) {
			at = 0
		}
	}
}

// take returns the slot of a key, which it may make; false where there is no
// room.
func (t *Table[K]) take(hash uint64, key K, now int64) (int, bool) {
	t.clock++
	at, i, known := t.find(hash, key)
	if known {
		t.slots[i].used = t.clock
		return i, true
	}
	if key != key { // NaN is in it, and would never be found again
		t.counts.Refused++
		return 0, false
	}
	if len(t.slots) < cap(t.slots) {
		i = len(t.slots)
		t.slots = t.slots[:i+1]
	} else {
		i = t.next()
		if t.config.Idle && !t.profile.rested(t.slots[i].state, t.log(i), now) {
			t.counts.Refused++
			return 0, false
		}
		t.counts.Evicted++
		t.remove(t.slots[i].key)
		at, _, _ = t.find(hash, key)
	}
	t.slots[i] = slot[K]{key, t.fresh, t.clock}
	t.index[at] = tag(hash) | uint32(i+1)
	return i, true
}

// remove takes a key out of the index, and moves those up whose search passed
// its place.
func (t *Table[K]) remove(key K) {
	hole, _, _ := t.find(t.hash(key), key)
	for at := hole; ; {
		if at++; at == len(t.index) {
			at = 0
		}
		v := t.index[at]
		if v == 0 {
			break
		}
		home := t.home(t.hash(t.slots[int(v&numberMask)-1].key))
		if t.distance(home, at) >= t.distance(hole, at) {
			t.index[hole] = v
			hole = at
		}
	}
	t.index[hole] = 0
}

func (t *Table[K]) distance(from, to int) int {
	if to < from {
		to += len(t.index)
	}
	return to - from
}

// oldestPart is how much of a table is looked out at once, to be forgotten next.
const oldestPart = 8

// next returns the slot that was used longest ago. Slots say when they were
// used, and are in no order: a hit writes nowhere else. So now and then the
// oldest are looked out. One that was used since has a later time, and what
// was not among them had one.
func (t *Table[K]) next() int {
	for {
		for ; t.gone < len(t.oldest); t.gone++ {
			if u := t.oldest[t.gone]; t.slots[u.slot].used == u.used {
				return int(u.slot)
			}
		}
		t.lookOut()
	}
}

func (t *Table[K]) lookOut() {
	const samples = 1024
	var sample [samples]uint64
	n := min(samples, len(t.slots))
	for i := range n {
		sample[i] = t.slots[i*len(t.slots)/n].used
	}
	slices.Sort(sample[:n])
	youngest := sample[n/oldestPart]
	list := t.oldest[:0]
	for i := range t.slots {
		if used := t.slots[i].used; used <= youngest {
			list = append(list, use{used, uint32(i)})
		}
	}
	slices.SortFunc(list, func(a, b use) int { return cmp.Compare(a.used, b.used) })
	t.oldest, t.gone = list, 0
}
