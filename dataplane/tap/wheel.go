package tap

import "math/bits"

// wheel holds values until their time, in ns on any clock: a hierarchical
// timing wheel (Varghese and Lauck, 1987). Values leave in the order of their
// times, those of one time in the order of add. It spans all of int64, rounds
// nothing, and is for one goroutine at a time.
//
// A slot of level l is 4096^l ns wide, and a time waits at the level of the
// highest digit, to the base of 4096, that it does not share with base. So the
// first slot of the lowest level that is not empty holds the earliest time. Its
// values are spread over lower levels only where they came out of order: those
// of one queue never move.
type wheel[T any] struct {
	base    uint64 // a key before which nothing waits but what was late
	used    uint   // a bit for each level that is not empty
	levels  [wheelLevels]wheelLevel
	entries []wheelEntry[T]
	free    int32 // the first of the free entries, or -1
	n       int
}

const (
	wheelBits   = 12 // of a digit: a word says which of 64 words say which of 64 slots are used
	wheelLevels = (64 + wheelBits - 1) / wheelBits
)

type wheelLevel struct {
	words uint64     // a bit for each word of used that is not 0
	used  [64]uint64 // a bit for each slot that is not empty
	mixed [64]uint64 // a bit for each slot that is out of order behind its first entry
	slots [64][64]wheelSlot
}

// wheelSlot is a list of entries. The first has the earliest time, and those of
// one time are in the order of add.
type wheelSlot struct{ first, last int32 }

type wheelEntry[T any] struct {
	key   uint64 // the time, as an unsigned number of the same order
	next  int32  // of the slot, where this is not its last, or of the free ones
	value T
}

// newWheel returns an empty wheel for times from now on. A late one, before now
// or before one that has left, keeps its order, too, but where many wait out of
// order each of them costs time in proportion to how many there are.
func newWheel[T any](now int64) *wheel[T] {
	return &wheel[T]{base: wheelKey(now), free: -1}
}

// wheelKey and wheelTime are each other's inverse.

func wheelKey(at int64) uint64   { return uint64(at) ^ 1<<63 }
func wheelTime(key uint64) int64 { return int64(key ^ 1<<63) }

// len returns how many values wait.
func (w *wheel[T]) len() int { return w.n }

// add holds v until at. It allocates only where more values wait than ever
// before; there is room for 2^31.
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

// place puts entry i into the slot of its time.
func (w *wheel[T]) place(i int32, e *wheelEntry[T]) {
	key := max(e.key, w.base) // what is late waits with what is due first
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

// earliest returns where the entry is that leaves next. Some value waits.
func (w *wheel[T]) earliest() (l *wheelLevel, word, slot int) {
	l = &w.levels[bits.TrailingZeros(w.used)]
	word = bits.TrailingZeros64(l.words)
	return l, word, bits.TrailingZeros64(l.used[word])
}

// next returns the earliest time that a value waits for, or false without one.
func (w *wheel[T]) next() (at int64, ok bool) {
	if w.n == 0 {
		return 0, false
	}
	l, word, slot := w.earliest()
	return wheelTime(w.entries[l.slots[word][slot].first].key), true
}

// take returns the next value that is due by now, and its time, or false
// without one. It does not allocate, and keeps no reference to the value.
func (w *wheel[T]) take(now int64) (v T, at int64, ok bool) {
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
		w.empty(l, word, bit)
		// All levels below are empty, and no other slot depends on this digit.
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

// empty marks a slot of the lowest level in use as empty.
func (w *wheel[T]) empty(l *wheelLevel, word int, bit uint64) {
	if l.used[word] &^= bit; l.used[word] != 0 {
		return
	}
	if l.words &^= 1 << word; l.words == 0 {
		w.used &= w.used - 1
	}
}
