package lease_test

import (
	"math/rand/v2"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease/world"
)

// TestRoomForSilentHost checks that other hosts shrink at once for a host that
// reaches the store but receives no replies.
func TestRoomForSilentHost(t *testing.T) {
	t.Parallel()
	w := settled(10, 500_000)
	h := w.Join("")
	h.Cut[1] = true
	w.Boot(h)
	runFor(w, 210*ms)
	if sum := w.Sum().Rate[0]; sum > gbit {
		t.Errorf("after two calls of each host: got %d in all, want at most %d", sum, gbit)
	}
}

// TestRescueShares makes hosts join and lose the store one after the other.
// Each is granted a rescue share for fewer hosts than there are in the end.
func TestRescueShares(t *testing.T) {
	t.Parallel()
	w := settled(0, 500_000)
	for range 20 {
		h := w.Join("")
		w.Boot(h)
		w.Offer(h, gbit)
		runFor(w, second)
		h.Cut = [2]bool{true, true}
	}
	runFor(w, 2*second)
	if sum := w.Sum().Rate[0]; sum > gbit || sum < gbit*9/10 {
		t.Errorf("got %d in all, want 90 to 100 %% of %d", sum, gbit)
	}
	if w.Stats.Excess != [2]float64{} {
		t.Errorf("got excess %v, want none", w.Stats.Excess)
	}
}

// TestTwoSilentHosts makes a second host silent while others shrink for the first.
// The amount that it will not release must not be redistributed.
func TestTwoSilentHosts(t *testing.T) {
	t.Parallel()
	for after := int64(0); after < 400*ms; after += 10 * ms {
		for gone := int64(200 * ms); gone < 320*ms; gone += 20 * ms {
			w := settled(6, 500_000)
			offerRate(w, w.Hosts, 0)
			w.Offer(w.Hosts[5], 915_000_000)
			runFor(w, second)
			w.Hosts[0].Cut[1] = true
			runFor(w, after)
			w.Hosts[1].Cut[1] = true
			runFor(w, gone)
			w.Down = true
			runFor(w, 2*second)
			if w.Stats.Excess != [2]float64{} {
				t.Errorf(
					"second host silent after %d ms, store unreachable after %d ms: got excess %v, want none",
					after/ms, gone/ms, w.Stats.Excess)
			}
		}
	}
}

// TestShiftingDemand changes demand continuously while a host joins and leaves.
func TestShiftingDemand(t *testing.T) {
	t.Parallel()
	for seed := range uint64(10) {
		w := settled(4, 500_000, func(c *world.Config) { c.Seed, c.Delay = seed, 20*ms })
		r := rand.New(rand.NewPCG(seed, 1))
		w.Every(20*ms, func() bool {
			w.Offer(w.Hosts[1+r.IntN(3)], r.Int64N(3)*r.Int64N(500_000_000))
			return true
		})
		w.Every(1300*ms, func() bool {
			w.Hosts[0].Cut[0] = !w.Hosts[0].Cut[0]
			w.Hosts[1+r.IntN(3)].Cut[1] = r.IntN(2) == 0
			return true
		})
		runFor(w, 60*second)
		if w.Stats.Excess != [2]float64{} {
			t.Errorf("seed %d: got excess %v, want none", seed, w.Stats.Excess)
		}
	}
}

// TestSlowMessages delays calls such that the store notices as late as possible
// that a host is late.
func TestSlowMessages(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := settled(2, 500_000, func(c *world.Config) { c.Seed, c.Drift = seed, 1e-3 })
		first := w.Hosts[0]
		w.Offer(first, 0)
		late := int64(0)
		w.Travel = func(h *world.Host, reply bool) int64 {
			switch {
			case reply:
				return 0
			case h == first:
				return 49 * ms // its lease ends early
			}
			late = 49*ms - late // every other call is soon after the previous one
			return late
		}
		runFor(w, second+r.Int64N(200*ms))
		first.Cut[1] = true
		runFor(w, 250*ms+r.Int64N(200*ms))
		w.Down = true // the second host is not told
		runFor(w, 2*second)
		if w.Stats.Excess != [2]float64{} {
			t.Errorf("seed %d: got excess %v, want none", seed, w.Stats.Excess)
		}
	}
}

// TestHungProcess stops a host's process: packets continue by its last plan.
func TestHungProcess(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		w := settled(4, 500_000, func(c *world.Config) { c.Seed = seed })
		w.Offer(w.Hosts[0], int64(seed%2)*gbit)
		runFor(w, second)
		w.Hosts[0].Hung = true
		runFor(w, int64(seed)*15*ms)
		w.Down = true
		runFor(w, second)
		w.Down = false
		runFor(w, 2*second)
		if w.Stats.Excess != [2]float64{} {
			t.Errorf("seed %d: got excess %v, want none", seed, w.Stats.Excess)
		}
		if got := w.Hosts[0].Allowed().Rate[0]; got != gbit/8 {
			t.Errorf("seed %d: got %d, want the rescue share %d", seed, got, gbit/8)
		}
	}
}

// TestOtherServer replaces a store by an empty one with another clock while a
// host receives no replies. The new store must ignore times of the old one.
func TestOtherServer(t *testing.T) {
	t.Parallel()
	size := lease.Amounts{Rate: [2]int64{gbit}, Burst: [2]int64{1 << 20}}
	h := lease.NewHost("a", 1,
		lease.Terms{Size: size, Weight: 1, Rescue: 500_000, Hosts: 2, Interval: 100 * ms, Deadline: 50 * ms})
	h.Request(0, lease.Counts{})
	h.Reply(ms, lease.Reply{Time: 2_000_000_000, Share: size.Part(1, 10), Rescue: size.Part(1, 2)}, true)
	var s lease.Store
	for i := range int64(3) {
		r := h.Request((i+1)*100*ms, lease.Counts{})
		s.Call(1_000_000_000+i*100_000, lease.Server{ID: "b"}, &r)
		if held, _ := s.Sums(); held.Rate[0] != gbit/2 {
			t.Errorf("call %d: got %d held at the store, want %d, to which the host may rise", i,
				held.Rate[0], gbit/2)
		}
	}
}

// TestInterval changes a budget's interval after no host with another interval
// has called for a lease.
func TestInterval(t *testing.T) {
	t.Parallel()
	var s lease.Store
	server := lease.Server{ID: "a"}
	size := lease.Amounts{Rate: [2]int64{gbit}, Burst: [2]int64{1 << 20}}
	old := lease.NewHost("old", 1,
		lease.Terms{Size: size, Weight: 1, Rescue: 500_000, Interval: 100 * ms, Deadline: 50 * ms})
	other := lease.NewHost("other", 2,
		lease.Terms{Size: size, Weight: 1, Interval: 200 * ms, Deadline: 50 * ms})
	call := func(h *lease.Host, now int64) lease.Reply {
		r := h.Request(now, lease.Counts{})
		return s.Call(now/1000, server, &r)
	}
	now := int64(100 * second)
	for range 10 {
		now += 100 * ms
		if r := call(old, now); r.Refused != lease.Granted {
			t.Fatalf("got %v, want Granted", r.Refused)
		}
		if r := call(other, now+ms); r.Refused != lease.Interval {
			t.Fatalf("got %v, want a refusal for its interval", r.Refused)
		}
	}
	for after := int64(25 * ms); after < second; after += 25 * ms {
		want := lease.Interval
		if after >= 425*ms {
			want = lease.Granted
		}
		r := call(other, now+after)
		if r.Refused != want {
			t.Fatalf("after %d ms: got %v, want %v", after/ms, r.Refused, want)
		}
		if r.Share.Rate[0] > 0 {
			t.Fatalf(
				"after %d ms: got %v for the new host while the old one may use its rescue share, want none",
				after/ms, r.Share)
		}
	}
}

// TestIncrease checks that a host does not use an increase that no replica has.
func TestIncrease(t *testing.T) {
	t.Parallel()
	size := lease.Amounts{Rate: [2]int64{gbit}, Burst: [2]int64{1 << 20}}
	half := size.Part(1, 2)
	h := lease.NewHost("a", 1,
		lease.Terms{Size: size, Weight: 1, Rescue: 100_000, Hosts: 10, Interval: 100 * ms, Deadline: 50 * ms})
	for i, tt := range []struct {
		reply         lease.Reply
		increase      bool
		share, rescue lease.Amounts
	}{
		{lease.Reply{Time: 1, Share: half, Rescue: half}, false, lease.Amounts{}, size.Part(1, 100)},
		{lease.Reply{Time: 2, Share: half, Rescue: half}, true, half, half},
		{lease.Reply{Time: 3, Share: size, Rescue: size}, false, lease.Amounts{Burst: half.Burst}, half},
		{lease.Reply{Time: 4, Share: size.Part(1, 4), Rescue: size.Part(1, 4)}, false, lease.Amounts{Burst: size.Part(1, 4).Burst}, size.Part(1, 4)},
	} {
		now := int64(i) * 100 * ms
		h.Request(now, lease.Counts{})
		h.Reply(now+ms, tt.reply, tt.increase)
		if p := h.Plan(); p.At(now+2*ms) != tt.share || p.Phase[2] != tt.rescue {
			t.Errorf("reply %d: share %v and rescue share %v, want %v and %v", i, p.At(now+2*ms), p.Phase[2],
				tt.share, tt.rescue)
		}
	}
}

// TestDeadline checks that a reply after the deadline changes nothing.
func TestDeadline(t *testing.T) {
	t.Parallel()
	size := lease.Amounts{Rate: [2]int64{gbit}, Burst: [2]int64{1 << 20}}
	for _, tt := range []struct {
		after int64
		rate  int64
	}{{50 * ms, gbit}, {50*ms + 1, gbit / 20}} {
		h := lease.NewHost("a", 1, lease.Terms{
			Size: size, Weight: 1, Rescue: 100_000, Hosts: 2, Interval: 100 * ms, Deadline: 50 * ms,
		})
		h.Request(0, lease.Counts{})
		h.Reply(tt.after, lease.Reply{Time: 1, Share: size, Rescue: size}, true)
		if got := h.Plan(); got.At(60 * ms).Rate[0] != tt.rate {
			t.Errorf("after %d ns: got %v, want a rate of %d", tt.after, got, tt.rate)
		}
	}
}
