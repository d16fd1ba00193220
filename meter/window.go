package meter

import (
	"errors"
	"math"
	"math/bits"
	"time"
)

// FixedWindow is a two-color meter that lets Limit bytes through in each Window.
// Windows are aligned to multiples of their length since time 0. At the border
// of two windows twice the limit may pass at once.
type FixedWindow struct {
	Limit  int64
	Window time.Duration
}

// Kind returns KindFixedWindow.
func (FixedWindow) Kind() Kind { return KindFixedWindow }

// Buckets describes the window as one bucket. Its tokens are the unused part of the
// limit.
func (t FixedWindow) Buckets() []Bucket { return windowBuckets(t.Limit, t.Window) }

// Profile compiles the parameters. The error joins a FieldError for each that is invalid.
func (t FixedWindow) Profile() (*Profile, error) {
	var f faults
	return f.window(t.Kind(), fixedWindow{t.Limit, int64(t.Window)}, t.Window)
}

// SlidingCounter is a two-color meter that lets Limit bytes through in a Window
// that ends now, as far as two counts tell: of the aligned window before, as
// much counts as is still in view.
type SlidingCounter struct {
	Limit  int64
	Window time.Duration
}

// Kind returns KindSlidingCounter.
func (SlidingCounter) Kind() Kind { return KindSlidingCounter }

// Buckets describes the window as one bucket. Its tokens are the unused part of the
// limit.
func (t SlidingCounter) Buckets() []Bucket { return windowBuckets(t.Limit, t.Window) }

// Profile compiles the parameters. The error joins a FieldError for each that is invalid.
func (t SlidingCounter) Profile() (*Profile, error) {
	var f faults
	return f.window(t.Kind(), slidingCounter{fixedWindow{t.Limit, int64(t.Window)}}, t.Window)
}

func (f *faults) window(k Kind, r rule, length time.Duration) (*Profile, error) {
	limit, _ := r.bursts()
	f.limit(limit)
	f.span("Window", length, maxWindow)
	if *f != nil {
		return nil, errors.Join(*f...)
	}
	return &Profile{kind: k, rule: r}, nil
}

// fixedWindow keeps the start of its window in epoch, and what was taken in
// it in c.
type fixedWindow struct {
	limit  int64
	length int64 // ns
}

func (w fixedWindow) start(tc, _ int64) (c, e int64) { return w.limit - min(max(tc, 0), w.limit), 0 }
func (w fixedWindow) bursts() (c, e int64)           { return w.limit, 0 }
func (w fixedWindow) span() int64                    { return w.length }
func (w fixedWindow) entries() int                   { return 0 }

// firstWindow is the time that earlier ones count as: no number is where their
// window begins.
const firstWindow = math.MinInt64 + int64(maxWindow)

// begins is where the window of a time starts, which is not before firstWindow.
func (w fixedWindow) begins(now int64) int64 {
	into := now % w.length
	if into < 0 {
		into += w.length
	}
	return now - into
}

// advance brings the window of a state to now and returns how many have begun
// since: 0, 1, or 2 for more.
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

// slidingCounter keeps what was taken in the window before in e.
type slidingCounter struct{ fixedWindow }

func (w slidingCounter) span() int64 { return 2 * w.length }

func (w slidingCounter) look(s *state, now int64, n int, in Color) Color {
	switch w.advance(s, now) {
	case 1:
		s.first, s.second = 0, s.first
	case 2:
		s.first, s.second = 0, 0
	}
	return keeps(in != Red && uint64(n) <= uint64(w.limit-s.first) && w.fits(s, now, w.limit-s.first-int64(n)), in)
}

// fits says whether what still counts of the window before is no more than
// left: e*(length-f)/length <= left.
func (w slidingCounter) fits(s *state, now, left int64) bool {
	hi, lo := bits.Mul64(uint64(s.second), w.inView(s, now))
	leftHi, leftLo := bits.Mul64(uint64(left), uint64(w.length))
	return hi < leftHi || hi == leftHi && lo <= leftLo
}

// inView is how many ns of the window before are, at a time that advance has seen.
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

func (w slidingCounter) rested(s state, _ []entry, now int64) bool {
	w.look(&s, now, 0, Green)
	return s.first == 0 && s.second == 0
}
