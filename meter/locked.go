package meter

import (
	"sync"
	"unsafe"
)

// Locked is a Meter for several goroutines. Do reaches the other methods of Meter. Colors is the
// cheapest: it takes the lock once for a burst.
//
// Read the clock just before the call. A goroutine arriving late with an old time never gets too
// many tokens, but may get too few.
type Locked struct {
	mu sync.Mutex
	m  Meter
	// Go aligns 64 bytes to 64, so the lock and the state share a cache line.
	_ [cacheLine - unsafe.Sizeof(sync.Mutex{}) - unsafe.Sizeof(Meter{})]byte
}

const cacheLine = 64 // bytes

// NewLocked returns a meter with the state of New. To give it another state, assign to the
// Meter in Do.
func NewLocked(p *Profile) *Locked { return &Locked{m: New(p)} }

// Do calls f with exclusive access to the meter.
func (l *Locked) Do(f func(*Meter)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.m)
}

// Color is Meter.Color.
func (l *Locked) Color(now int64, n int, in Color) Color {
	l.mu.Lock()
	c := l.m.Color(now, n, in)
	l.mu.Unlock()
	return c
}

// Allow is Meter.Allow.
func (l *Locked) Allow(now int64, n int) bool { return l.Color(now, n, Green) != Red }

// Decide is Meter.Decide.
func (l *Locked) Decide(now int64, n int) Decision {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.m.Decide(now, n)
}

// Colors is Meter.Colors.
func (l *Locked) Colors(now int64, lengths []int, in, colors []Color) {
	l.mu.Lock()
	defer l.mu.Unlock() // it panics if a slice is too short
	l.m.Colors(now, lengths, in, colors)
}
