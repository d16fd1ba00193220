package lease_test

import (
	"testing"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease/world"
)

const gbit = 1_000_000_000

// settled returns a world after two seconds, in which all hosts want the whole
// budget.
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
	offerRate(w, w.Hosts, gbit)
	w.Run(2 * second)
	return w
}

func offerRate(w *world.World, hosts []*world.Host, rate int64) {
	for _, h := range hosts {
		w.Offer(h, rate)
	}
}

// runFor advances a world by a time.
func runFor(w *world.World, time int64) { w.Run(w.Now + time) }

// within checks that hosts pass no more than their bound.
func within(t *testing.T, w *world.World) {
	t.Helper()
	if w.Stats.Excess[0] > w.Stats.Bound[0] {
		t.Errorf("got %.0f tokens beyond the budget, want at most %.0f", w.Stats.Excess[0], w.Stats.Bound[0])
	}
}

// TestBoundKept checks that the sum reaches the budget, and never exceeds it,
// while some hosts are at their rescue shares.
func TestBoundKept(t *testing.T) {
	t.Parallel()
	w := settled(10, 500_000)
	for _, h := range w.Hosts[:4] {
		h.Cut = [2]bool{true, true}
	}
	runFor(w, second/2)
	for _, h := range w.Hosts[4:6] {
		h.Cut[1] = true
	}
	w.Crash(w.Hosts[6])
	runFor(w, 3*second)
	for _, h := range w.Hosts[:6] {
		if got := h.Allowed().Rate[0]; got != gbit/20 {
			t.Errorf("%s: got %d, want the rescue share %d", h.Name, got, gbit/20)
		}
	}
	least := int64(gbit - gbit/20) // the crashed host's rescue share is reserved
	if sum := w.Sum().Rate[0]; sum > least || sum < least*99/100 {
		t.Errorf("got %d in all, want %d or 1 %% less", sum, least)
	}
	if w.Stats.Excess != [2]float64{} {
		t.Errorf("got excess %v, want none", w.Stats.Excess)
	}
}

// TestBoundGone makes the store unreachable for half a minute.
func TestBoundGone(t *testing.T) {
	t.Parallel()
	w := settled(10, 100_000)
	bound := w.Terms.Bound(lease.Gone, 0)
	w.Down = true
	runFor(w, w.Terms.Lease()+ms)
	if sum := w.Sum().Rate[0]; sum > bound.Sum.Rate[0] {
		t.Errorf("after a lease: got %d in all, want at most %d", sum, bound.Sum.Rate[0])
	}
	runFor(w, second)
	passed := w.Stats.Passed
	runFor(w, 29*second)
	if rate := (w.Stats.Passed - passed) * 8 / 29; rate > gbit/10*1.0001 || rate < gbit/10*0.99 {
		t.Errorf("without the store: got %.0f bit/s, want the rescue share %d", rate, gbit/10)
	}
	w.Boot(w.Join(""))
	w.Boot(w.Join(""))
	runFor(w, second)
	if sum, most := w.Sum(), bound.Sum.Plus(bound.Stranger).Plus(bound.Stranger); sum.Min(most) != sum ||
		sum.Rate[0] <= bound.Sum.Rate[0] {
		t.Errorf("with two new hosts: got %v in all, want at most %v", sum, most)
	}
	w.Down = false
	runFor(w, second)
	if used := float64(w.Sum().Rate[0]) / gbit; used < 0.98 {
		t.Errorf("one second after the store is back: got %.4f of the budget, want at least 0.98", used)
	}
	within(t, w)
}

// TestBoundFailover fails over to a replica that lacks the latest data.
func TestBoundFailover(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name           string
		noticed, blind bool
		behind         int64
		least, most    float64
	}{
		// Hosts have not used the increases that the replica lacks.
		{"waits", false, false, 20 * ms, 0, 0},
		// The primary knows that it has no replica, and the replica that it
		// took over.
		{"noticed", true, false, 160 * ms, 0, 0},
		// Neither knows.
		{"blind", false, true, 50 * ms, gbit / 8 / 100, gbit},
	} {
		worst := 0.0
		for seed := range uint64(20) {
			w := settled(20, 100_000,
				func(c *world.Config) { c.Seed, c.Replica, c.Blind = seed, true, tt.blind })
			offerRate(w, w.Hosts, 0)
			runFor(w, second)
			if tt.noticed {
				w.Stall(true)
			}
			offerRate(w, w.Hosts, gbit)
			runFor(w, 20*ms)
			w.Stall(tt.noticed)
			runFor(w, tt.behind)
			w.Failover()
			runFor(w, 3*second)
			within(t, w)
			worst = max(worst, w.Stats.Excess[0])
		}
		if worst < tt.least || worst > tt.most {
			t.Errorf("%s: excess %.0f, want %.0f to %.0f", tt.name, worst, tt.least, tt.most)
		}
	}
}

// TestBoundSplit makes some hosts call a server that was replaced.
func TestBoundSplit(t *testing.T) {
	t.Parallel()
	w := settled(10, 100_000, func(c *world.Config) { c.Replica = true })
	w.Stall(true)
	runFor(w, second)
	w.Failover()
	for _, h := range w.Hosts[:5] {
		w.Stray(h, true)
	}
	runFor(w, 3*second)
	within(t, w)
	bound := w.Terms.Bound(lease.Split, 0)
	if sum := w.Sum(); sum.Min(bound.Sum) != sum || sum.Rate[0] < gbit*3/2 {
		t.Errorf("with two servers: got %v in all, want at most %v", sum, bound.Sum)
	}
	for _, h := range w.Hosts[:5] {
		w.Stray(h, false)
	}
	runFor(w, second)
	if sum := w.Sum().Rate[0]; sum > gbit {
		t.Errorf("with one server again: got %d in all, want at most %d", sum, gbit)
	}
	within(t, w)
}

// TestBoundLost makes the store lose its data, while all hosts reach it and
// while one does not.
func TestBoundLost(t *testing.T) {
	t.Parallel()
	w := settled(8, 500_000)
	for i, h := range w.Hosts {
		w.Offer(h, int64(i)*gbit/4)
	}
	w.Flush()
	runFor(w, second/10)
	offerRate(w, w.Hosts[:4], gbit)
	runFor(w, 3*second)
	if w.Stats.Excess != [2]float64{} {
		t.Errorf("got excess %v while all hosts reach the store, want none", w.Stats.Excess)
	}
	if used := float64(w.Sum().Rate[0]) / gbit; used < 0.98 {
		t.Errorf("got %.4f of the budget, want at least 0.98", used)
	}
	w.Hosts[0].Cut = [2]bool{true, true}
	runFor(w, second/20)
	w.Flush()
	runFor(w, 3*second)
	within(t, w)
	if w.Stats.Excess[0] < gbit/8/16 {
		t.Errorf("got excess %v, want more: a host unknown to the store adds its rescue share",
			w.Stats.Excess)
	}
}

// TestBoundGoneAfterLost makes a store lose its data and then become
// unreachable: no host's rescue share may have grown because the store did not
// know the others.
func TestBoundGoneAfterLost(t *testing.T) {
	t.Parallel()
	for after := range int64(20) {
		w := settled(8, 500_000)
		w.Flush()
		runFor(w, after*25*ms)
		w.Down = true
		runFor(w, 3*second)
		if sum := w.Sum().Rate[0]; sum > gbit/2 {
			t.Errorf("%d ms after the store lost its data: got %d in all, want at most %d", after*25, sum,
				gbit/2)
		}
	}
}

// TestBoundAhead moves the clock ahead while a host that holds everything is
// cut off. A jump of more than two intervals is detected.
func TestBoundAhead(t *testing.T) {
	t.Parallel()
	for jump := int64(10 * ms); jump <= 800*ms; jump += 10 * ms {
		w := settled(20, 100_000)
		offerRate(w, w.Hosts[1:], 0)
		runFor(w, second)
		w.Hosts[0].Cut = [2]bool{true, true}
		offerRate(w, w.Hosts[1:], gbit)
		runFor(w, 150*ms)
		w.Jump(jump)
		runFor(w, 2*second)
		within(t, w)
		switch excess := w.Stats.Excess[0]; {
		case jump == 190*ms && excess < gbit/8/20:
			t.Errorf("jump of %d ms: got excess %.0f, want it near the bound %.0f", jump/ms, excess,
				w.Stats.Bound[0])
		case jump > 200*ms && excess > 0:
			t.Errorf("jump of %d ms: got excess %.0f, want none", jump/ms, excess)
		}
	}
}

// TestBoundBack moves the clock back over a time in which no host reached the
// store.
func TestBoundBack(t *testing.T) {
	t.Parallel()
	worst := 0.0
	for seed := range uint64(10) {
		for gone := int64(100 * ms); gone <= 1600*ms; gone += 100 * ms {
			for _, jump := range []int64{gone, gone + 200*ms} {
				w := settled(10, 500_000, func(c *world.Config) { c.Seed = seed })
				offerRate(w, w.Hosts[1:], 0)
				runFor(w, second)
				for _, h := range w.Hosts[1:] {
					h.Cut = [2]bool{true, true}
				}
				w.Down = true
				runFor(w, gone)
				w.Down = false
				w.Jump(-jump)
				runFor(w, 200*ms)
				w.Down = true // the host does not receive the store's view of that time
				runFor(w, 2*second)
				within(t, w)
				worst = max(worst, w.Stats.Excess[0])
				if gone >= 1000*ms && jump > gone && w.Stats.Excess[0] > 0 {
					t.Errorf("clock back after %d ms, when no lease was left: got excess %v, want none",
						gone/ms, w.Stats.Excess)
				}
			}
		}
	}
	if worst < gbit/8/100 {
		t.Errorf("got an excess of at most %.0f, want it near the bound", worst)
	}
}

// TestClockBack cuts off a host while the server's clock is an hour behind.
func TestClockBack(t *testing.T) {
	t.Parallel()
	w := settled(10, 500_000)
	w.Offer(w.Hosts[0], 0)
	runFor(w, second)
	w.Jump(-3600 * second)
	runFor(w, second)
	w.Hosts[0].Cut[1] = true
	runFor(w, 3*second)
	if w.Stats.Excess != [2]float64{} {
		t.Errorf("got excess %v, want none", w.Stats.Excess)
	}
	if sum := w.Sum().Rate[0]; sum < gbit*98/100 {
		t.Errorf("got %d in all, want at least 98 %% of %d", sum, gbit)
	}
}

// TestBoundStranger adds hosts unknown to the store to hosts that use the whole
// budget.
func TestBoundStranger(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(*world.World, *world.Host){
		"never reaches it":   func(w *world.World, h *world.Host) { h.Cut[0] = true },
		"never gets a reply": func(w *world.World, h *world.Host) { h.Cut[1] = true },
		"name is used":       func(w *world.World, h *world.Host) { h.Name = "host-0" },
		"first call lost": func(w *world.World, h *world.Host) {
			h.Cut[0] = true
			w.At(90*ms, func() { h.Cut[0] = false })
		},
	} {
		w := settled(10, 100_000)
		h := w.Join("")
		begin(w, h)
		w.Boot(h)
		runFor(w, 2*second)
		within(t, w)
		if w.Stats.Excess[0] == 0 {
			t.Errorf("%s: got no excess", name)
		}
		sum, stranger := w.Sum(), w.Terms.Bound(lease.Kept, 0).Stranger
		if most := w.Terms.Size.Plus(stranger); sum.Min(most) != sum {
			t.Errorf("%s: got %v in all, want at most %v", name, sum, most)
		}
		if (name == "never gets a reply" || name == "first call lost") && sum.Min(w.Terms.Size) != sum {
			t.Errorf("%s: got %v in all, want at most %v: the store knows all hosts", name, sum, w.Terms.Size)
		}
	}
}
