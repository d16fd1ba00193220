package meter

import (
	"fmt"
	"hash/maphash"
	"iter"
	"math/bits"
	"time"
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
// the form for several. It allocates its memory when it is made, and never after: 24
// bytes of state a key, beside the key itself, 8 that say which were used before and
// after it, and 5 of the index. What no key has used yet is only reserved: the
// operating system gives it page by page. NewTable makes one; the methods of the zero
// Table panic.
//
// Who sends from many keys cannot be kept from using them up. A key stays that comes
// again before Keys others did; what is forgotten, a sender gains a new burst by. With
// Empty it gains nothing, and the first bytes of a new key are lost; with Idle a key
// stays while its meter lacks tokens, and a new one may find no room.
type Table[K comparable] struct {
	late    int        // slots in lately; what each call writes is together, and apart from what each reads
	lately  [32]uint32 // those used since the order was last brought up to date
	loaded  uint32     // of no meaning: a sum of what is only to be in the cache
	counts  TableStats
	rest    Meter  // of packets that have no key of their own
	free    uint32 // the first slot that Delete emptied; its link has the next one
	emptied int    // of them

	profile *Profile
	config  TableConfig
	seed    maphash.Seed
	fresh   state // of a new key
	slots   []slot[K]
	order   []link   // by number of a slot, from 1; number 0 stands for both ends
	logs    []entry  // of all slots, and one to look at a new key
	index   []uint32 // by hash: tag and number of a slot; 0 is none
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
}

// link has the numbers of the slots used just before and just after one. An empty
// slot is its own older one.
type link struct{ older, newer uint32 }

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

// Validate returns the error of NewTable, if any, and allocates no table.
func (c TableConfig) Validate(p *Profile) error {
	switch {
	case c.Keys < 1 || c.Keys > MaxKeys:
		return &FieldError{"keys", fmt.Sprintf("%d are not between 1 and %d", c.Keys, MaxKeys)}
	case p.made().entries() > maxTableEntries/c.Keys:
		return &FieldError{"keys", fmt.Sprintf("%d with a log of %d entries each are more than %d entries", c.Keys, p.entries(), maxTableEntries)}
	case c.Idle && c.Empty:
		return &FieldError{"new", "must be full where only idle keys are forgotten: an empty bucket is not as good as new"}
	}
	return nil
}

func (t *Table[K]) init(p *Profile, config TableConfig, seed maphash.Seed) error {
	if err := config.Validate(p); err != nil {
		return err
	}
	*t = Table[K]{
		profile: p,
		config:  config,
		seed:    seed,
		slots:   make([]slot[K], 0, config.Keys),
		order:   make([]link, config.Keys+1),
		logs:    make([]entry, (config.Keys+1)*p.entries()),
		index:   make([]uint32, config.Keys*4/3+2),
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
	lengths, colors = lengths[:len(keys):len(lengths)], colorsBefore(before, colors, len(keys))
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
				t.use(slot)
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

// Decide is Meter.Decide for the meter of a key.
func (t *Table[K]) Decide(key K, now int64, n int) Decision {
	return t.decide(t.hash(key), key, now, n)
}

func (t *Table[K]) decide(hash uint64, key K, now int64, n int) Decision {
	i, ok := t.take(hash, key, now)
	if !ok {
		return t.rest.Decide(now, n)
	}
	return t.profile.decide(&t.slots[i].state, t.log(i), now, n)
}

// Peek is the color that Color would return. It changes nothing: it makes no key,
// and is no use of one.
func (t *Table[K]) Peek(key K, now int64, n int, in Color) Color {
	return t.peek(t.hash(key), key, now, n, in)
}

func (t *Table[K]) peek(hash uint64, key K, now int64, n int, in Color) Color {
	s, log := t.finds(hash, key, now)
	return t.profile.peek(s, log, now, n, in)
}

// RetryAfter is Meter.RetryAfter for the meter of a key; for a key that is not
// known, that of the meter it would get. It changes nothing.
func (t *Table[K]) RetryAfter(key K, now int64, n int) (time.Duration, bool) {
	return t.retryAfter(t.hash(key), key, now, n)
}

func (t *Table[K]) retryAfter(hash uint64, key K, now int64, n int) (time.Duration, bool) {
	s, log := t.finds(hash, key, now)
	return t.profile.retryAfter(s, log, now, n)
}

// finds returns what a packet of a key would be metered by.
func (t *Table[K]) finds(hash uint64, key K, now int64) (state, []entry) {
	switch _, i, known := t.find(hash, key); {
	case known:
		return t.slots[i].state, t.log(i)
	case key != key || !t.room(now):
		return t.rest.state, t.rest.profile.log
	}
	return t.fresh, t.log(t.config.Keys)
}

// Delete forgets a key, and says whether it was known. It does not count as
// Evicted.
func (t *Table[K]) Delete(key K) bool { return t.delete(t.hash(key), key) }

func (t *Table[K]) delete(hash uint64, key K) bool {
	at, i, known := t.find(hash, key)
	if !known {
		return false
	}
	t.settle()
	t.remove(at)
	n := uint32(i + 1)
	t.unlink(n)
	t.slots[i] = slot[K]{} // the key may point to memory
	t.order[n] = link{n, t.free}
	t.free = n
	t.emptied++
	return true
}

// Len is how many keys are known.
func (t *Table[K]) Len() int { return len(t.slots) - t.emptied }

// All returns the keys that are known, in no order, each with a Clone of its meter.
// What is known from the first to the last is returned once, whatever becomes of
// other keys meanwhile.
func (t *Table[K]) All() iter.Seq2[K, *Meter] {
	return func(yield func(K, *Meter) bool) {
		for i := 0; i < len(t.slots); i++ {
			if key, m := t.at(i); m != nil && !yield(key, m) {
				return
			}
		}
	}
}

// at returns the key of a slot and a clone of its meter, nil where it is empty.
func (t *Table[K]) at(i int) (key K, m *Meter) {
	n := uint32(i + 1)
	if t.order[n].older == n {
		return key, nil
	}
	s := &t.slots[i]
	m = &Meter{profile: t.profile.withLog(), state: s.state}
	copy(m.profile.log, t.log(i))
	return s.key, m
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
	t.counts.Keys = t.Len()
	return t.counts
}

// Memory is how many bytes the table takes, all its keys in use.
func (t *Table[K]) Memory() int {
	return cap(t.slots)*int(unsafe.Sizeof(slot[K]{})) + len(t.order)*int(unsafe.Sizeof(link{})) +
		len(t.logs)*int(unsafe.Sizeof(entry{})) + len(t.index)*4
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
	n := len(t.logs) / len(t.order)
	return t.logs[i*n : (i+1)*n]
}

// home is where the search for a hash begins. Its upper bits decide; the lowest
// are the tag.
func (t *Table[K]) home(hash uint64) int {
	hi, _ := bits.Mul64(hash, uint64(len(t.index)))
	return int(hi)
}

func tag(hash uint64) uint32 { return uint32(hash) << numberBits }

const zeroTable = "meter: a Table is made by NewTable"

// find returns the place of a key in the index, and its slot; or the place where
// it belongs.
func (t *Table[K]) find(hash uint64, key K) (at, slot int, known bool) {
	at = t.home(hash)
	if at >= len(t.index) {
		panic(zeroTable)
	}
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
	at, i, known := t.find(hash, key)
	if known {
		t.use(i)
		return i, true
	}
	if key != key || !t.room(now) { // NaN is in the key, and would never be found again
		t.counts.Refused++
		return 0, false
	}
	t.settle()
	n := t.free
	switch {
	case n != 0:
		t.free = t.order[n].newer
		t.emptied--
	case len(t.slots) < cap(t.slots):
		t.slots = t.slots[:len(t.slots)+1]
		n = uint32(len(t.slots))
	default:
		n = t.order[0].newer
		t.counts.Evicted++
		gone, _, _ := t.find(t.hash(t.slots[n-1].key), t.slots[n-1].key)
		t.remove(gone)
		t.unlink(n)
		at, _, _ = t.find(hash, key)
	}
	t.append(n)
	t.slots[n-1] = slot[K]{key, t.fresh}
	t.index[at] = tag(hash) | n
	return int(n - 1), true
}

// room says whether a new key would get a meter of its own.
func (t *Table[K]) room(now int64) bool {
	if !t.config.Idle || t.Len() < t.config.Keys {
		return true
	}
	t.settle()
	oldest := int(t.order[0].newer) - 1
	return t.profile.rested(t.slots[oldest].state, t.log(oldest), now)
}

// use makes a slot the one used last. To change the order costs the cache lines of
// its neighbors, so it is done for many at once, whose misses overlap.
func (t *Table[K]) use(i int) {
	t.lately[t.late] = uint32(i + 1)
	if t.late++; t.late == len(t.lately) {
		t.settle()
	}
}

// settle brings the order of slots up to date.
func (t *Table[K]) settle() {
	lately := t.lately[:t.late]
	t.late = 0
	var links [len(t.lately)]link
	for i, n := range lately {
		links[i] = t.order[n]
	}
	for i := range lately {
		t.loaded += t.order[links[i].older].older + t.order[links[i].newer].older
	}
	for _, n := range lately {
		if t.order[n].newer != 0 {
			t.unlink(n)
			t.append(n)
		}
	}
}

// unlink takes a slot out of the order, and append puts it at its end.
func (t *Table[K]) unlink(n uint32) {
	l := t.order[n]
	t.order[l.older].newer = l.newer
	t.order[l.newer].older = l.older
}

func (t *Table[K]) append(n uint32) {
	last := t.order[0].older
	t.order[n] = link{last, 0}
	t.order[last].newer = n
	t.order[0].older = n
}

// remove empties a place of the index, and moves those up whose search passed it.
func (t *Table[K]) remove(hole int) {
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
