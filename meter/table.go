package meter

import (
	"fmt"
	"hash/maphash"
	"iter"
	"time"
	"unsafe"
)

// TableConfig configures a Table.
type TableConfig struct {
	Keys  int  // the largest number of keys: 1 to MaxKeys
	Empty bool // new keys begin empty instead of full
	// Idle evicts a key only if its meter is as good as new. If the least recently used key is not,
	// the packet of the new key is metered by one meter shared by all keys without room. Without
	// Idle, the least recently used key is always evicted.
	Idle bool
}

// MaxKeys is the largest number of keys in a Table.
const MaxKeys = 1 << 22

// maxTableEntries is the largest number of log entries in a Table, 16 bytes each. Shards may have
// more, but only if all their keys had such logs from the beginning.
const maxTableEntries = 1 << 26

// Table holds a meter for each key. All keys have the profile of the table, unless Set gave them
// one of their own. A Table is for one goroutine; see Shards for several. NewTable makes one; the
// methods of the zero Table panic.
//
// NewTable allocates all memory: for each key, the key, 24 bytes of state, 8 bytes of order
// and 8 bytes of index. The operating system provides the pages when keys first use them.
// The first call of Set allocates 8 more bytes for each key.
//
// A sender using many keys can fill the table. Without Idle the least recently used key is evicted,
// and a key returning after its eviction begins anew, with a full burst. To bound a sender's gain,
// make new keys begin Empty, or meter the packets of all keys by one more meter. With Idle no
// sender can displace a key short of tokens, but new keys may find no room.
type Table[K comparable] struct {
	// Written by each call, so apart from the read-only fields.
	late    int        // number of slots in lately
	lately  [32]uint32 // numbers of the slots used since order was last updated
	loaded  uint32     // a meaningless sum, which makes the CPU load its terms
	counts  TableStats
	rest    Meter  // meter of the packets of keys without a slot
	free    uint32 // number of the first slot emptied by Delete; its link leads to the next
	emptied int    // number of slots emptied by Delete

	profile *Profile
	own     []*Profile // by slot: the profile of Set, or nil; empty before the first Set
	config  TableConfig
	seed    maphash.Seed
	fresh   state // state of a new key
	slots   []slot[K]
	order   []link   // by slot number, from 1; number 0 is both ends of the list
	logs    []entry  // logs of all slots, and one for looking at a new key
	entries int      // length of a log
	index   []uint32 // by hash: tag and slot number; 0 is free
	beside  int      // keys of the other shards
}

// TableStats are the counts of a Table.
type TableStats struct {
	Keys    int    // keys in the table
	Evicted uint64 // keys evicted for a new one
	Refused uint64 // packets whose key found no room
}

type slot[K comparable] struct {
	key K
	state
}

// NewTable returns an empty table. The error is Validate's.
func NewTable[K comparable](p *Profile, config TableConfig) (*Table[K], error) {
	t := &Table[K]{}
	if err := t.init(p, config, maphash.MakeSeed()); err != nil {
		return nil, err
	}
	return t, nil
}

// Validate returns the error of NewTable. It is a FieldError.
func (c TableConfig) Validate(p *Profile) error {
	switch {
	case c.Keys < 1 || c.Keys > MaxKeys:
		return &FieldError{"keys", fmt.Sprintf("%d are not between 1 and %d", c.Keys, MaxKeys)}
	case p.made().entries() > maxTableEntries/c.Keys:
		return tooManyEntries(c.Keys, p)
	case c.Idle && c.Empty:
		return &FieldError{
			"new",
			"must be full if only idle keys are evicted: an evicted key would return with fewer tokens",
		}
	}
	return nil
}

func tooManyEntries(keys int, p *Profile) error {
	return &FieldError{"keys", fmt.Sprintf("%d with a log of %d entries each exceed %d entries in total",
		keys, p.entries(), maxTableEntries)}
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
		entries: p.entries(),
		index:   make([]uint32, config.Keys*15/8+2),
	}
	t.fresh = config.fresh(p)
	t.rest = Meter{profile: p.withLog(), state: t.fresh}
	return nil
}

// fresh returns the state of a new key.
func (c TableConfig) fresh(p *Profile) state {
	if c.Empty {
		return p.start(0, 0)
	}
	return p.start(p.Bursts())
}

// Color is Meter.Color for the meter of a key, which is added if it is new. A packet with the
// input color Red does not add or use a key.
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
	return t.profileOf(i).color(&t.slots[i].state, t.log(i), now, n, in)
}

// Prefetch brings the memory of keys into the CPU's cache and changes nothing, to overlap their
// cache misses. Call it before Color for a few dozen keys; ColorEach needs no call.
func (t *Table[K]) Prefetch(keys []K) {
	for len(keys) > 0 {
		n := min(len(keys), burst)
		t.load(keys[:n], new([burst]uint64))
		keys = keys[n:]
	}
}

// ColorEach meters packets of one time, each by the meter of the key of the same index, as a call
// of Color for each in order would. The cache misses of the keys overlap. in, colors and lengths
// are as for Meter.Colors, and at least as long as keys.
func (t *Table[K]) ColorEach(keys []K, now int64, lengths []int, in, colors []Color) {
	lengths, colors = lengths[:len(keys):len(lengths)], inputColors(in, colors, len(keys))
	for len(keys) > 0 {
		var hashes [burst]uint64
		n := min(len(keys), burst)
		t.load(keys[:n], &hashes)
		for i, key := range keys[:n] {
			if colors[i] != Red {
				colors[i] = t.color(hashes[i], key, now, lengths[i], colors[i])
			}
		}
		keys, lengths, colors = keys[n:], lengths[n:], colors[n:]
	}
}

// Explain is Meter.Explain for the meter of a key.
func (t *Table[K]) Explain(key K, now int64, n int, in Color) Explanation {
	hash := t.hash(key)
	if in == Red {
		p, _, _ := t.wouldUse(hash, key, now)
		return Explanation{Length: n, In: in, Color: Red, Clause: p.kind.Clause(in, Red)}
	}
	i, ok := t.take(hash, key, now)
	if !ok {
		return t.rest.Explain(now, n, in)
	}
	return t.profileOf(i).explain(&t.slots[i].state, t.log(i), now, n, in)
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
	return t.profileOf(i).decide(&t.slots[i].state, t.log(i), now, n)
}

// Peek returns the color that Color would return. It takes nothing, adds no key, and does not count
// as a use of the key.
func (t *Table[K]) Peek(key K, now int64, n int, in Color) Color {
	return t.peek(t.hash(key), key, now, n, in)
}

func (t *Table[K]) peek(hash uint64, key K, now int64, n int, in Color) Color {
	p, s, log := t.wouldUse(hash, key, now)
	return p.peek(s, log, now, n, in)
}

// RetryAfter is Meter.RetryAfter for the meter of a key, or for the meter of a new key. It does not
// add or use the key.
func (t *Table[K]) RetryAfter(key K, now int64, n int) (time.Duration, bool) {
	return t.retryAfter(t.hash(key), key, now, n)
}

func (t *Table[K]) retryAfter(hash uint64, key K, now int64, n int) (time.Duration, bool) {
	p, s, log := t.wouldUse(hash, key, now)
	return p.retryAfter(s, log, now, n)
}

// wouldUse returns the profile, state and log for a packet of the key.
func (t *Table[K]) wouldUse(hash uint64, key K, now int64) (*Profile, state, []entry) {
	switch _, i, known := t.find(hash, key); {
	case known:
		return t.profileOf(i), t.slots[i].state, t.log(i)
	case key != key || !t.room(now):
		return t.profile, t.rest.state, t.rest.profile.log
	}
	return t.profile, t.fresh, t.log(t.config.Keys)
}

// Delete removes a key, and reports whether it was in the table. It does not count as an
// eviction.
func (t *Table[K]) Delete(key K) bool { return t.delete(t.hash(key), key) }

func (t *Table[K]) delete(hash uint64, key K) bool {
	at, i, known := t.find(hash, key)
	if !known {
		return false
	}
	t.settle()
	t.remove(at)
	n := uint32(i + 1)
	if t.pinned(i) {
		t.own[i] = nil
	} else {
		t.unlink(n)
	}
	t.slots[i] = slot[K]{} // the key may hold a pointer
	t.order[n] = link{n, t.free}
	t.free = n
	t.emptied++
	return true
}

// Len returns the number of keys in the table.
func (t *Table[K]) Len() int { return len(t.slots) - t.emptied }

// All iterates over the keys in no particular order, each with a Clone of its meter. The body may
// change the table. A key in the table during the whole iteration is returned exactly once.
func (t *Table[K]) All() iter.Seq2[K, *Meter] {
	return func(yield func(K, *Meter) bool) {
		for i := 0; i < len(t.slots); i++ {
			if key, m := t.at(i); m != nil && !yield(key, m) {
				return
			}
		}
	}
}

// at returns the key of a slot and a clone of its meter, or nil if the slot is empty.
func (t *Table[K]) at(i int) (key K, m *Meter) {
	n := uint32(i + 1)
	if t.order[n].older == n {
		return key, nil
	}
	s := &t.slots[i]
	m = &Meter{profile: t.profileOf(i).withLog(), state: s.state}
	copy(m.profile.log, t.log(i))
	return s.key, m
}

// Rest returns the meter shared by all packets whose key found no room. You may use it for
// packets without a key.
func (t *Table[K]) Rest() *Meter { return &t.rest }

// Tokens is Meter.Tokens for the meter of a key. It returns false if the key is not in the
// table.
func (t *Table[K]) Tokens(key K, now int64) (tc, te int64, known bool) {
	_, i, known := t.find(t.hash(key), key)
	if !known {
		return 0, 0, false
	}
	tc, te = t.profileOf(i).tokens(t.slots[i].state, t.log(i), now)
	return tc, te, true
}

// Stats returns the counts.
func (t *Table[K]) Stats() TableStats {
	t.counts.Keys = t.Len()
	return t.counts
}

// Memory returns the bytes of the table when all its keys are in use.
func (t *Table[K]) Memory() int {
	return cap(t.slots)*int(unsafe.Sizeof(slot[K]{})) + len(t.order)*int(unsafe.Sizeof(link{})) +
		len(t.logs)*int(unsafe.Sizeof(entry{})) + len(t.index)*4 + len(t.own)*int(unsafe.Sizeof(t.profile))
}

// Rekey returns a table with the meters, order and counts of t, and the results of rekey for the
// keys of t. The new keys must differ from each other. t must not be used afterwards.
func Rekey[K, L comparable](t *Table[K], rekey func(K) L) *Table[L] {
	t.settle()
	out := &Table[L]{
		counts: t.counts, rest: Meter{profile: t.rest.profile, state: t.rest.state}, free: t.free,
		emptied: t.emptied, profile: t.profile, own: t.own, config: t.config, beside: t.beside, seed: t.seed,
		fresh: t.fresh, order: t.order, logs: t.logs, entries: t.entries,
		slots: make([]slot[L], len(t.slots), cap(t.slots)),
		index: make([]uint32, len(t.index)),
	}
	for i := range t.slots {
		n := uint32(i + 1)
		if t.order[n].older == n {
			continue // empty
		}
		key := rekey(t.slots[i].key)
		hash := out.hash(key)
		at, _, _ := out.find(hash, key)
		out.slots[i], out.index[at] = slot[L]{key, t.slots[i].state}, tag(hash)|n
	}
	return out
}
