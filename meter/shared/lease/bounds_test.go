package lease_test

import (
	"testing"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease/world"
)

const (
	gbit   = 1_000_000_000
	ms     = 1_000_000
	second = 1000 * ms
)

// settled is a world of hosts that all want the whole budget, after two seconds.
func settled(hosts int, rescue int64, changes ...func(*world.Config)) *world.World {
	c := world.Config{
		Hosts: hosts, Delay: ms, Drift: 1e-4, Start: 100 * ms,
		Terms: lease.Terms{
			Size: lease.Amounts{Rate: [2]int64{gbit}, Burst: [2]int64{1 << 20}}, Weight: 1, Floor: 3028,
			Rescue: rescue, Hosts: 16, Interval: 100 * ms, Deadline: 50 * ms,
		},
	}
	for _, change := range changes {
		change(&c)
	}
	w := world.New(c)
	offer(w, w.Hosts, gbit)
	w.Run(2 * second)
	return w
}

func offer(w *world.World, hosts []*world.Host, rate int64) {
	for _, h := range hosts {
		w.Offer(h, rate)
	}
}

// wait runs a world on.
func wait(w *world.World, time int64) { w.Run(w.Now + time) }

// within checks that hosts let through no more than their bound.
func within(t *testing.T, w *world.World) {
	t.Helper()
	if w.Stats.Excess[0] > w.Stats.Bound[0] {
		t.Errorf("%.0f tokens beyond the budget, the bound is %.0f", w.Stats.Excess[0], w.Stats.Bound[0])
	}
}

// TestClockBack has a host vanish when the server's clock is an hour behind.
func TestClockBack(t *testing.T) {
	t.Parallel()
	w := settled(10, 500_000)
	w.Offer(w.Hosts[0], 0)
	wait(w, second)
	w.Jump(-3600 * second)
	wait(w, second)
	w.Hosts[0].Cut[1] = true
	wait(w, 3*second)
	if w.Stats.Excess != [2]float64{} {
		t.Errorf("excess %v", w.Stats.Excess)
	}
	if sum := w.Sum().Rate[0]; sum < gbit*98/100 {
		t.Errorf("the hosts have %d together", sum)
	}
}

// TestBoundGoneAfterLost has a store lose its data and then vanish: no host has got a
// larger rescue share because the store did not know the others.
func TestBoundGoneAfterLost(t *testing.T) {
	t.Parallel()
	for after := range int64(20) {
		w := settled(8, 500_000)
		w.Flush()
		wait(w, after*25*ms)
		w.Down = true
		wait(w, 3*second)
		if sum := w.Sum().Rate[0]; sum > gbit/2 {
			t.Errorf("%d ms after it lost its data: the hosts have %d together", after*25, sum)
		}
	}
}

// TestBoundKept has the sum stand at the budget, and never above, when part of the hosts
// are at their rescue shares.
func TestBoundKept(t *testing.T) {
	t.Parallel()
	w := settled(10, 500_000)
	for _, h := range w.Hosts[:4] {
		h.Cut = [2]bool{true, true}
	}
	wait(w, second/2)
	for _, h := range w.Hosts[4:6] {
		h.Cut[1] = true
	}
	w.Crash(w.Hosts[6])
	wait(w, 3*second)
	for _, h := range w.Hosts[:6] {
		if got := h.Allowed().Rate[0]; got != gbit/20 {
			t.Errorf("%s has %d at its rescue share", h.Name, got)
		}
	}
	least := int64(gbit - gbit/20) // the crashed host's rescue share is reserved
	if sum := w.Sum().Rate[0]; sum > least || sum < least*99/100 {
		t.Errorf("the hosts have %d together", sum)
	}
	if w.Stats.Excess != [2]float64{} {
		t.Errorf("excess %v", w.Stats.Excess)
	}
}
