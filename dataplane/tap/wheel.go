package tap

import "math/bits"

// wheel holds values until their time, in ns on any clock: a hierarchical
// timing wheel (Varghese and Lauck, 1987). Values are removed in the order of
// their times, and values of the same time in the order of add. The wheel spans
// all of int64, rounds nothing, and is for one goroutine at a time.
//
// A slot of level l is 4096^l ns wide. A time is stored at the level of its
// highest base-4096 digit that differs from base. So the first nonempty slot of
// the lowest nonempty level holds the earliest time. Its values move to lower
// levels only if they were added out of order; the values of one queue never
// move.
type wheel[T any] struct {
	base    uint64 // all keys are at or after base, except those added late
	used    uint   // bit set of the nonempty levels
	levels  [wheelLevels]wheelLevel
	entries []wheelEntry[T]
	free    int32 // first of the free entries, or -1
	n       int
}

const (
	wheelBits   = 12 // bits of a digit: two words of 64 bits select a slot
	wheelLevels = (64 + wheelBits - 1) / wheelBits
)

type wheelLevel struct {
	words uint64     // bit set of the nonzero words in used
	used  [64]uint64 // bit set of the nonempty slots
	mixed [64]uint64 // bit set of the slots that are out of order after their first entry
	slots [64][64]wheelSlot
}

// wheelSlot is a list of entries. The first has the earliest time, and entries
// of the same time are in the order of add.
type wheelSlot struct{ first, last int32 }

type wheelEntry[T any] struct {
	key   uint64 // time, mapped to an unsigned number in the same order
	next  int32  // next entry of the slot, if this is not its last, or next free entry
	value T
}

// newWheel returns an empty wheel for times from now on. Late values, before
// now or before a value already removed, keep their order too. But if many are
// added out of order, each costs time in proportion to their number.
func newWheel[T any](now int64) *wheel[T] {
	return &wheel[T]{base: wheelKey(now), free: -1}
}

// wheelKey and wheelTime are inverse functions.

func wheelKey(at int64) uint64   { return uint64(at) ^ 1<<63 }
func wheelTime(key uint64) int64 { return int64(key ^ 1<<63) }

// len returns the number of values.
func (w *wheel[T]) len() int { return w.n }

// add holds v until at. It allocates only if the wheel contains more values
// than ever before. The limit is 2^31 values.
func (w *wheel[T]) add(at int64, v T) {
	i := w.free
	if i >= 0 {
		w.free = w.entries[i].next
	} else {
		i = int32(len(w.entries))
		w.entries = append(w.entries, wheelEntry[T]{})
	}
	e := &w.entries[i]
	e.key, e.value = wheelKey(at), v
	w.place(i, e)
	w.n++
}

// place adds entry i to the slot of its time.
func (w *wheel[T]) place(i int32, e *wheelEntry[T]) {
	key := max(e.key, w.base) // a late value shares the slot of the earliest time
	level := uint(bits.Len64((key^w.base)|1)-1) / wheelBits
	digit := uint(key >> (level * wheelBits))
	word, bit := digit/64%64, uint64(1)<<(digit%64)
	l := &w.levels[level]
	s := &l.slots[word][digit%64]
	if l.used[word]&bit == 0 {
		w.used |= 1 << level
		l.words |= 1 << word
		l.used[word] |= bit
		l.mixed[word] &^= bit
		s.first, s.last = i, i
		return
	}
	if e.key < w.entries[s.first].key {
		e.next, s.first = s.first, i
		return
	}
	last := &w.entries[s.last]
	if e.key < last.key {
		l.mixed[word] |= bit
	}
	last.next, s.last = i, i
}

// earliest returns the slot with the next value. The wheel must not be empty.
func (w *wheel[T]) earliest() (l *wheelLevel, word, slot int) {
	l = &w.levels[bits.TrailingZeros(w.used)]
	word = bits.TrailingZeros64(l.words)
	return l, word, bits.TrailingZeros64(l.used[word])
}

// next returns the earliest time of a value, or false if the wheel is empty.
func (w *wheel[T]) next() (at int64, ok bool) {
	if w.n == 0 {
		return 0, false
	}
	l, word, slot := w.earliest()
	return wheelTime(w.entries[l.slots[word][slot].first].key), true
}

// pop removes and returns the next value that is due by now, and its time, or
// false if there is none. It does not allocate and keeps no reference to the
// value.
func (w *wheel[T]) pop(now int64) (v T, at int64, ok bool) {
	if w.n == 0 {
		return v, 0, false
	}
	l, word, slot := w.earliest()
	s := &l.slots[word][slot]
	i, last := s.first, s.last
	e := &w.entries[i]
	if e.key > wheelKey(now) {
		return v, 0, false
	}
	v, at = e.value, wheelTime(e.key)
	if bit := uint64(1) << slot; i != last && l.mixed[word]&bit == 0 {
		s.first = e.next
	} else {
		w.clearSlot(l, word, bit)
		// All lower levels are empty, and no other slot depends on this digit.
		w.base = max(w.base, e.key)
		for j, next := i, e.next; j != last; {
			j = next
			moved := &w.entries[j]
			next = moved.next
			w.place(j, moved)
		}
	}
	*e = wheelEntry[T]{next: w.free}
	w.free = i
	w.n--
	return v, at, true
}

// clearSlot marks a slot of the lowest nonempty level as empty.
func (w *wheel[T]) clearSlot(l *wheelLevel, word int, bit uint64) {
	if l.used[word] &^= bit; l.used[word] != 0 {
		return
	}
	if l.words &^= 1 << word; l.words == 0 {
		w.used &= w.used - 1
	}
}
