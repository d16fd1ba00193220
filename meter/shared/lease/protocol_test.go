package lease_test

import (
	"testing"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// TestRoomForSilent has others make room at once for a host that the store hears and
// that does not hear the store.
func TestRoomForSilent(t *testing.T) {
	t.Parallel()
	w := settled(10, 500_000)
	h := w.Join("")
	h.Cut[1] = true
	w.Boot(h)
	wait(w, 210*ms)
	if sum := w.Sum().Rate[0]; sum > gbit {
		t.Errorf("after two calls of each the hosts have %d together", sum)
	}
}

// TestOtherServer has a store replaced by an empty one with a clock of its own, while a
// host hears nothing: what it heard before means nothing to the new one.
func TestOtherServer(t *testing.T) {
	t.Parallel()
	size := lease.Amounts{Rate: [2]int64{gbit}, Burst: [2]int64{1 << 20}}
	h := lease.NewHost("a", 1, lease.Terms{Size: size, Weight: 1, Rescue: 500_000, Hosts: 2, Interval: 100 * ms, Deadline: 50 * ms})
	h.Request(0, lease.Counts{})
	h.Reply(ms, lease.Reply{Time: 2_000_000_000, Share: size.Part(1, 10), Rescue: size.Part(1, 2)}, true)
	var s lease.Store
	for i := range int64(3) {
		r := h.Request((i+1)*100*ms, lease.Counts{})
		s.Call(1_000_000_000+i*100_000, lease.Server{ID: "b"}, &r)
		if held := s.Sums(); held.Rate[0] != gbit/2 {
			t.Errorf("call %d: the store counts %d, the host may rise to %d", i, held.Rate[0], gbit/2)
		}
	}
}

// TestRescueShares has hosts join and lose the store one after the other: each is told a
// rescue share for fewer hosts than there are in the end.
func TestRescueShares(t *testing.T) {
	t.Parallel()
	w := settled(0, 500_000)
	for range 20 {
		h := w.Join("")
		w.Boot(h)
		w.Offer(h, gbit)
		wait(w, second)
		h.Cut = [2]bool{true, true}
	}
	wait(w, 2*second)
	if sum := w.Sum().Rate[0]; sum > gbit || sum < gbit*9/10 {
		t.Errorf("the hosts have %d together", sum)
	}
	if w.Stats.Excess != [2]float64{} {
		t.Errorf("excess %v", w.Stats.Excess)
	}
}
