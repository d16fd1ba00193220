package nettest

import "testing"

// Steady repeats a measurement until it succeeds, at most five times. A stall of a busy machine
// makes some attempts fail, a defect all of them.
func Steady(t *testing.T, measure func() error) {
	t.Helper()
	var err error
	for range 5 {
		if err = measure(); err == nil {
			return
		}
		t.Log(err)
	}
	t.Error(err)
}
