package meter

import (
	"fmt"
	"math"
	"time"
)

// SlidingLog is a two-color meter. It lets Limit bytes through in any Window, wherever it begins.
// It logs each packet let through. Packets with the same time share an entry. If all Entries are in
// use, a packet is red.
type SlidingLog struct {
	Limit   int64
	Window  time.Duration
	Entries int // size of the log, 16 bytes each; at most 2^20
}

// Kind returns the kind sliding-log.
func (SlidingLog) Kind() Kind { return kindSlidingLog }

// Buckets describes the window as one bucket. Its tokens are the unused part of the
// limit.
func (t SlidingLog) Buckets() []Bucket { return windowBuckets(t.Limit, t.Window) }

// Profile compiles the parameters. The error joins a FieldError for each invalid one.
func (t SlidingLog) Profile() (*Profile, error) {
	var f fieldErrors
	if t.Entries < 1 || t.Entries > maxEntries {
		f.add("Entries", fmt.Sprintf("%d are not between 1 and %d", t.Entries, maxEntries))
	}
	return f.window(t, slidingLog{t.Limit, int64(t.Window), 1, t.Entries}, t.Window)
}

// SlidingWindow is a two-color meter. It lets Limit bytes through in a Window: the current slot and
// the Slots - 1 before it. Slots are aligned to multiples of their length since time 0, and must
// divide the Window.
type SlidingWindow struct {
	Limit  int64
	Window time.Duration
	Slots  int // number of slots, 16 bytes each; at most 4096
}

// Kind returns the kind sliding-window.
func (SlidingWindow) Kind() Kind { return kindSlidingWindow }

// Buckets describes the window as one bucket. Its tokens are the unused part of the
// limit.
func (t SlidingWindow) Buckets() []Bucket { return windowBuckets(t.Limit, t.Window) }

// Profile compiles the parameters. The error joins a FieldError for each invalid one.
func (t SlidingWindow) Profile() (*Profile, error) {
	var f fieldErrors
	if t.Slots < 1 || t.Slots > maxSlots {
		f.add("Slots", fmt.Sprintf("%d are not between 1 and %d", t.Slots, maxSlots))
		t.Slots = 1
	}
	slot := int64(t.Window) / int64(t.Slots)
	if t.Window >= minWindow && slot*int64(t.Slots) != int64(t.Window) {
		f.add("Slots",
			fmt.Sprintf("%d do not divide a window of %v into whole nanoseconds", t.Slots, t.Window))
	}
	slot = max(slot, 1)
	return f.window(t, slidingLog{t.Limit, int64(t.Window) / slot, slot, t.Slots}, t.Window)
}

const (
	maxEntries = 1 << 20
	maxSlots   = 4096
)

// entry is the bytes taken in a slot.
type entry struct {
	slot int64
	n    int64 // bytes
}

// slidingLog implements both. It counts time in slots, of a nanosecond each for SlidingLog. The log
// is a ring. A state holds the latest slot in epoch and the sum of all entries in first. The upper
// half of second is the index of the oldest entry, the lower half the number of entries.
type slidingLog struct {
	limit  int64
	length int64 // slots
	slot   int64 // ns
	size   int   // entries of the log
}

func (w slidingLog) start(tc, _ int64) (c, e int64) { return w.limit - min(max(tc, 0), w.limit), 0 }
func (w slidingLog) bursts() (c, e int64)           { return w.limit, 0 }
func (w slidingLog) span() int64                    { return (w.length + 1) * w.slot }
func (w slidingLog) entries() int                   { return w.size }

func (w slidingLog) slotOf(now int64) int64 {
	if w.slot == 1 {
		return now
	}
	return fixedWindow{length: w.slot}.begins(now) / w.slot
}

// at returns the index of the i-th entry from the oldest.
func (w slidingLog) at(s *state, i int) int {
	i += int(s.second >> 32)
	if i >= w.size {
		i -= w.size
	}
	return i
}

func inUse(s *state) int { return int(uint32(s.second)) }

func (w slidingLog) look(s *state, log []entry, now int64, n int, in Color) Color {
	now = max(now, firstWindow)
	slot := s.epoch
	if w.slot == 1 {
		slot = now
	} else if s.epoch == notBegun || uint64(now)-uint64(slot)*uint64(w.slot) >= uint64(w.slot) {
		slot = w.slotOf(now)
	}
	if s.epoch == notBegun {
		s.epoch = slot
		if s.first > 0 {
			log[0] = entry{slot, s.first}
			s.second = 1
		}
	}
	s.epoch = max(s.epoch, slot)
	first, used := int(s.second>>32), inUse(s)
	for used > 0 && uint64(s.epoch)-uint64(log[first].slot) >= uint64(w.length) {
		s.first -= log[first].n
		if first++; first == w.size {
			first = 0
		}
		used--
	}
	s.second = int64(first)<<32 | int64(used)
	fits := uint64(n) <= uint64(w.limit-s.first)
	room := n == 0 || used < w.size || log[w.at(s, used-1)].slot == s.epoch
	return keeps(in != Red && fits && room, in)
}

func (w slidingLog) take(s *state, log []entry, n int) {
	if n == 0 {
		return
	}
	s.first += int64(n)
	used := inUse(s)
	if used > 0 {
		if last := &log[w.at(s, used-1)]; last.slot == s.epoch {
			last.n += int64(n)
			return
		}
	}
	log[w.at(s, used)] = entry{s.epoch, int64(n)}
	s.second++
}

func (w slidingLog) tokens(s state, log []entry, now int64) (tc, te int64) {
	if s.epoch == notBegun {
		return w.limit - s.first, 0
	}
	if w.look(&s, log, now, 1, Green) == Red {
		return 0, 0 // the limit or the log is used up
	}
	return w.limit - s.first, 0
}

func (w slidingLog) valid(s state, log []entry) bool {
	if s.epoch == notBegun {
		return s.first >= 0 && s.first <= w.limit && s.second == 0
	}
	left := s.first
	for i, e := range log {
		if e.n <= 0 || e.n > left || e.slot > s.epoch || i > 0 && e.slot <= log[i-1].slot {
			return false
		}
		left -= e.n
	}
	return left == 0 && s.first <= w.limit && s.second == int64(len(log)) &&
		s.epoch >= math.MinInt64/w.slot && s.epoch <= math.MaxInt64/w.slot
}

func (w slidingLog) rested(s state, log []entry, now int64) bool {
	if s.epoch != notBegun {
		w.look(&s, log, now, 0, Green)
	}
	return s.first == 0
}
