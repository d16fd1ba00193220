package nettest

import (
	"testing"
	"time"
)

// Steady repeats a measurement until it succeeds, at most eight times, with longer and longer
// pauses. A busy machine makes some attempts fail, a defect all of them.
func Steady(t *testing.T, measure func() error) {
	t.Helper()
	var err error
	for attempt := range 8 {
		time.Sleep(time.Duration(attempt) * 2 * time.Second)
		if err = measure(); err == nil {
			return
		}
		t.Log(err)
	}
	t.Error(err)
}
