package world

import (
	"testing"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

const (
	ms     = 1_000_000
	second = 1000 * ms
)

func testTerms() lease.Terms {
	return lease.Terms{
		Size:   lease.Amounts{Rate: [2]int64{1_000_000_000}, Burst: [2]int64{1 << 20}},
		Weight: 1, Floor: 3028, Rescue: 100_000, Hosts: 16, Interval: 100 * ms, Deadline: 50 * ms,
	}
}

// TestWithoutFailures runs hosts that all want more than the budget, and then a
// single one.
func TestWithoutFailures(t *testing.T) {
	t.Parallel()
	w := New(Config{Hosts: 10, Terms: testTerms(), Seed: 1, Delay: 2 * ms, Drift: 1e-4})
	for _, h := range w.Hosts {
		w.Offer(h, 500_000_000)
	}
	w.Run(2 * second)
	before := w.Stats.Passed
	w.Run(12 * second)
	if used := (w.Stats.Passed - before) / (125e6 * 10); used < 0.99 {
		t.Errorf("all hosts together: got %.4f of the budget, want at least 0.99", used)
	}
	for _, h := range w.Hosts[1:] {
		w.Offer(h, 0)
	}
	w.Offer(w.Hosts[0], 2_000_000_000)
	w.Run(13 * second)
	before = w.Stats.Passed
	w.Run(23 * second)
	if used := (w.Stats.Passed - before) / (125e6 * 10); used < 0.99 {
		t.Errorf("a single host: got %.4f of the budget, want at least 0.99", used)
	}
	if w.Stats.Excess != [2]float64{} {
		t.Errorf("got excess %v, want none", w.Stats.Excess)
	}
}
