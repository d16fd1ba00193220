package meter

import "sync"

// Locked is a Meter for several goroutines. Packets that share a time are
// cheapest in bursts: the lock is taken once for all of them.
//
// Read the clock just before the call. A goroutine that comes late with an
// old time is right never to get more tokens, but may get fewer.
type Locked struct {
	mu sync.Mutex
	m  Meter
}

// NewLocked returns a meter as New does. Do may give it another state, as
// *m = Restore(...).
func NewLocked(p *Profile) *Locked { return &Locked{m: New(p)} }

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
func (l *Locked) Colors(now int64, lengths []int, before, colors []Color) {
	l.mu.Lock()
	defer l.mu.Unlock() // it panics where a slice is too short
	l.m.Colors(now, lengths, before, colors)
}

// Tokens is Meter.Tokens.
func (l *Locked) Tokens(now int64) (tc, te int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.m.Tokens(now)
}

// SetProfile is Meter.SetProfile.
func (l *Locked) SetProfile(now int64, p *Profile) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.m.SetProfile(now, p)
}
