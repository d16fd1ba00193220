package world

import (
	"testing"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

const (
	ms     = 1_000_000
	second = 1000 * ms
)

func terms() lease.Terms {
	return lease.Terms{
		Size:   lease.Amounts{Rate: [2]int64{1_000_000_000}, Burst: [2]int64{1 << 20}},
		Weight: 1, Floor: 3028, Rescue: 100_000, Hosts: 16, Interval: 100 * ms, Deadline: 50 * ms,
	}
}

// TestNothingFails has all hosts want more than there is, and then one alone.
func TestNothingFails(t *testing.T) {
	t.Parallel()
	w := New(Config{Hosts: 10, Terms: terms(), Seed: 1, Delay: 2 * ms, Drift: 1e-4})
	for _, h := range w.Hosts {
		w.Offer(h, 500_000_000)
	}
	w.Run(2 * second)
	before := w.passed()
	w.Run(12 * second)
	if used := (w.passed() - before) / (125e6 * 10); used < 0.99 {
		t.Errorf("all together use %.4f of the budget", used)
	}
	for _, h := range w.Hosts[1:] {
		w.Offer(h, 0)
	}
	w.Offer(w.Hosts[0], 2_000_000_000)
	w.Run(13 * second)
	before = w.passed()
	w.Run(23 * second)
	if used := (w.passed() - before) / (125e6 * 10); used < 0.99 {
		t.Errorf("one alone uses %.4f of the budget", used)
	}
	if w.Stats.Excess != [2]float64{} {
		t.Errorf("excess %v", w.Stats.Excess)
	}
}

func (w *World) passed() (sum float64) {
	for _, h := range w.Hosts {
		w.flow(h)
		sum += h.Passed
	}
	return sum
}

// TestRandomFaults has hosts crash, lose the network in one direction or both, while the
// store keeps its data.
func TestRandomFaults(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		w := faulty(seed)
		w.Run(60 * second)
		if w.Stats.Excess != [2]float64{} {
			t.Errorf("seed %d: %v tokens beyond the budget", seed, w.Stats.Excess)
		}
	}
}

// faulty is a world in which hosts crash and lose the network, and the store keeps its data.
func faulty(seed uint64) *World {
	// Hosts that never heard of the store have nothing here: what they are allowed
	// to begin with is beyond the budget, and not what is looked for.
	terms := terms()
	terms.Hosts = 1 << 40
	c := Config{Hosts: 2 + int(seed%7), Terms: terms, Seed: seed, Delay: 45 * ms, Drift: 1e-3, Start: 2 * second}
	if seed%3 == 0 {
		c.Delay, c.Loss = 20*ms, 0.2
	}
	w := New(c)
	var trouble func()
	trouble = func() {
		h := w.Hosts[w.rand.IntN(len(w.Hosts))]
		switch w.rand.IntN(7) {
		case 0:
			h.Cut[0] = !h.Cut[0]
		case 1:
			h.Cut[1] = !h.Cut[1]
		case 2:
			h.Cut = [2]bool{}
		case 3:
			w.Offer(h, w.upTo(2_000_000_000))
		case 4:
			w.Offer(h, 0)
		case 5:
			if h.Up && w.rand.IntN(3) == 0 {
				w.Crash(h)
				w.At(6*c.Terms.Interval, func() { w.Boot(h) })
			}
		case 6:
			w.Down = !w.Down
			if w.Down {
				w.At(w.upTo(3*second), func() { w.Down = false })
			}
		}
		w.At(w.upTo(second/4), trouble)
	}
	w.At(3*second, trouble)
	return w
}
