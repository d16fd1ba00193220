package meter

import (
	"errors"
	"math"
	"math/bits"
	"time"
)

// FixedWindow is a two-color meter. It lets Limit bytes through in each Window. Windows are aligned
// to multiples of their length since time 0. Twice the limit may pass at once at the border of two
// windows.
type FixedWindow struct {
	Limit  int64
	Window time.Duration
}

// Kind returns the kind fixed-window.
func (FixedWindow) Kind() Kind { return kindFixedWindow }

// Buckets describes the window as one bucket. Its tokens are the unused part of the
// limit.
func (t FixedWindow) Buckets() []Bucket { return windowBuckets(t.Limit, t.Window) }

// Profile compiles the parameters. The error joins a FieldError for each invalid one.
func (t FixedWindow) Profile() (*Profile, error) {
	var f fieldErrors
	return f.window(t, fixedWindow{t.Limit, int64(t.Window)}, t.Window)
}

// SlidingCounter is a two-color meter. It lets about Limit bytes through in the Window ending now.
// It keeps two counts: the bytes in the current aligned window, and in the one before. Of the one
// before it counts the share still within the Window, as if its bytes were spread evenly.
type SlidingCounter struct {
	Limit  int64
	Window time.Duration
}

// Kind returns the kind sliding-counter.
func (SlidingCounter) Kind() Kind { return kindSlidingCounter }

// Buckets describes the window as one bucket. Its tokens are the unused part of the
// limit.
func (t SlidingCounter) Buckets() []Bucket { return windowBuckets(t.Limit, t.Window) }

// Profile compiles the parameters. The error joins a FieldError for each invalid one.
func (t SlidingCounter) Profile() (*Profile, error) {
	var f fieldErrors
	return f.window(t, slidingCounter{fixedWindow{t.Limit, int64(t.Window)}}, t.Window)
}

func (f *fieldErrors) window(params Params, r rule, length time.Duration) (*Profile, error) {
	limit, _ := r.bursts()
	f.limit(limit)
	f.span("Window", length, maxWindow)
	if *f != nil {
		return nil, errors.Join(*f...)
	}
	return &Profile{params: params, kind: params.Kind(), rule: r}, nil
}

// fixedWindow keeps the start of the window in epoch, and the bytes taken in it in first.
type fixedWindow struct {
	limit  int64
	length int64 // ns
}

func (w fixedWindow) start(tc, _ int64) (c, e int64) { return w.limit - min(max(tc, 0), w.limit), 0 }
func (w fixedWindow) bursts() (c, e int64)           { return w.limit, 0 }
func (w fixedWindow) span() int64                    { return w.length }
func (w fixedWindow) entries() int                   { return 0 }

// firstWindow stands for all earlier times, whose windows would begin before the smallest
// int64.
const firstWindow = math.MinInt64 + int64(maxWindow)

// begins returns the start of the window of a time, which must not be before firstWindow.
func (w fixedWindow) begins(now int64) int64 {
	into := now % w.length
	if into < 0 {
		into += w.length
	}
	return now - into
}

// advance brings the window of a state to now. It returns the number of windows begun since: 0, 1,
// or 2 for more.
func (w fixedWindow) advance(s *state, now int64) int64 {
	now = max(now, firstWindow)
	since := uint64(now) - uint64(s.epoch)
	switch {
	case s.epoch == notBegun:
		s.epoch = w.begins(now)
		return 0
	case since < uint64(w.length) || now < s.epoch:
		return 0
	}
	s.epoch = w.begins(now)
	return 1 + int64(min(since/uint64(w.length), 2))/2
}

func (w fixedWindow) look(s *state, now int64, n int, in Color) Color {
	if w.advance(s, now) > 0 {
		s.first = 0
	}
	return keeps(in != Red && uint64(n) <= uint64(w.limit-s.first), in)
}

func (w fixedWindow) tokens(s state, _ []entry, now int64) (tc, te int64) {
	w.look(&s, now, 0, Green)
	return w.limit - s.first, 0
}

func (w fixedWindow) rested(s state, _ []entry, now int64) bool {
	w.look(&s, now, 0, Green)
	return s.first == 0
}

func (w fixedWindow) valid(s state, _ []entry) bool {
	return s.first >= 0 && s.first <= w.limit && s.second == 0
}

// slidingCounter also keeps the bytes taken in the window before, in second.
type slidingCounter struct{ fixedWindow }

func (w slidingCounter) span() int64 { return 2 * w.length }

func (w slidingCounter) look(s *state, now int64, n int, in Color) Color {
	switch w.advance(s, now) {
	case 1:
		s.first, s.second = 0, s.first
	case 2:
		s.first, s.second = 0, 0
	}
	return keeps(
		in != Red && uint64(n) <= uint64(w.limit-s.first) && w.fits(s, now, w.limit-s.first-int64(n)), in)
}

// fits reports whether the share of the window before is at most left: second * inView /
// length <= left.
func (w slidingCounter) fits(s *state, now, left int64) bool {
	hi, lo := bits.Mul64(uint64(s.second), w.inView(s, now))
	leftHi, leftLo := bits.Mul64(uint64(left), uint64(w.length))
	return hi < leftHi || hi == leftHi && lo <= leftLo
}

// inView returns how many ns of the window before are within the Window at now, after
// advance.
func (w slidingCounter) inView(s *state, now int64) uint64 {
	return uint64(w.length) - (uint64(max(now, s.epoch)) - uint64(s.epoch))
}

func (w slidingCounter) tokens(s state, _ []entry, now int64) (tc, te int64) {
	w.look(&s, now, 0, Green)
	hi, lo := bits.Mul64(uint64(s.second), w.inView(&s, now))
	counts, rest := bits.Div64(hi, lo, uint64(w.length))
	if rest > 0 {
		counts++
	}
	return max(w.limit-s.first-int64(counts), 0), 0
}

func (w slidingCounter) valid(s state, _ []entry) bool {
	return min(s.first, s.second) >= 0 && s.first <= w.limit && s.second <= w.limit
}

func (w slidingCounter) rested(s state, _ []entry, now int64) bool {
	w.look(&s, now, 0, Green)
	return s.first == 0 && s.second == 0
}
