package queue

import (
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestGuaranteed checks the rates of a tree whose queues are all busy.
func TestGuaranteed(t *testing.T) {
	t.Parallel()
	mbit := func(n int64) meter.Rate { return meter.BitRate(n * 1_000_000) }
	links := []TreeLink{
		{Rate: mbit(100)},
		{Parent: 0, Rate: mbit(60), Guarantee: mbit(30), Weight: 1},
		{Parent: 0, Weight: 3},
		{Parent: 1, Rate: mbit(20), Priority: 1, Weight: 1},
	}
	queues := []LinkQueue{
		{Parent: 1, Weight: 1, Config: Config{Rate: mbit(5)}},
		{Parent: 1, Weight: 1, Priority: 1},
		{Parent: 2, Weight: 2},
		{Parent: 2, Weight: 1, Priority: 1, Guarantee: mbit(9)},
		{Parent: 3, Weight: 1},
	}
	ofLinks, ofQueues := Guaranteed(links, queues)
	// 70 of excess at the root, 1:3. 47.5 at link 1: 5 for queue 0, then 42.5 shared by queue 1 and
	// link 3, which takes at most 20.
	bits := func(list ...int64) (out []meter.Rate) {
		for _, n := range list {
			out = append(out, meter.ByteRate(n/8))
		}
		return out
	}
	wantLinks := bits(100_000_000, 47_500_000, 52_500_000, 20_000_000)
	wantQueues := bits(5_000_000, 22_500_000, 43_500_000, 9_000_000, 20_000_000)
	if !slices.Equal(ofLinks, wantLinks) || !slices.Equal(ofQueues, wantQueues) {
		t.Errorf("got %v, %v, want %v, %v", ofLinks, ofQueues, wantLinks, wantQueues)
	}
}
