package meter

import "sync"

// CreditWindow is a two-color meter without a clock, like the window of a TCP sender. A
// packet takes credit, and its departure or acknowledgment returns it. A packet conforms if
// the bytes in flight, its own included, are at most Window. It is safe for concurrent use.
// The zero CreditWindow lets only empty packets through.
type CreditWindow struct {
	Window int64 // bytes; do not change it during a call

	mu  sync.Mutex
	out int64 // bytes in flight
}

// Color meters one packet and takes its credit. The result is the input color in, or Red. A
// negative n never conforms.
func (w *CreditWindow) Color(n int, in Color) Color {
	w.mu.Lock()
	defer w.mu.Unlock()
	if in == Red || n < 0 || int64(n) > w.Window-w.out {
		return Red
	}
	w.out += int64(n)
	return in
}

// Return returns the credit of n bytes, at most the bytes in flight.
func (w *CreditWindow) Return(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.out -= min(max(int64(n), 0), w.out)
}

// Out returns the bytes in flight.
func (w *CreditWindow) Out() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.out
}
