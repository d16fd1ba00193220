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

// NewLocked returns a meter that begins with the state of m.
func NewLocked(m Meter) *Locked { return &Locked{m: m} }

// Color is Meter.Color.
func (l *Locked) Color(now int64, n int, in Color) Color {
	l.mu.Lock()
	c := l.m.Color(now, n, in)
	l.mu.Unlock()
	return c
}

// Colors is Meter.Colors.
func (l *Locked) Colors(now int64, lengths []int, colors []Color) {
	l.mu.Lock()
	l.m.Colors(now, lengths, colors)
	l.mu.Unlock()
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
