package world

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// overloadedWorld returns a world after two seconds in which the hosts want twice the
// budget together.
func overloadedWorld(hosts int, seed uint64, rescue int64) *World {
	t := testTerms()
	t.Rescue = rescue
	w := New(Config{Hosts: hosts, Terms: t, Seed: seed, Delay: 2 * ms, Drift: 1e-4, Start: 100 * ms})
	for _, h := range w.Hosts {
		w.Offer(h, 2*t.Size.Rate[0]/int64(hosts))
	}
	w.Run(2 * second)
	return w
}

// passed returns the tokens passed until now.
func (w *World) passed() float64 {
	w.Run(w.Now)
	return w.Stats.Passed
}

// TestShiftingWindows stops one of ten shapers and starts another, every
// second. No second has more bytes than the budget, and none 5 % less.
// Bandwidth that moves is unused for about two and a half intervals.
func TestShiftingWindows(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		w := overloadedWorld(10, seed, 100_000)
		r := rand.New(rand.NewPCG(seed, 9))
		off := w.Hosts[0]
		w.Every(second, func() bool {
			on := w.Hosts[r.IntN(len(w.Hosts))]
			rate := off.Offered + on.Offered
			w.Offer(off, rate)
			w.Offer(on, 0)
			off = on
			return true
		})
		var at []float64
		least, most := 2.0, 0.0
		for range 60 * 100 {
			w.Run(w.Now + 10*ms)
			if at = append(at, w.Stats.Passed); len(at) > 200 { // after the first change
				share := (at[len(at)-1] - at[len(at)-101]) / 125e6
				least, most = min(least, share), max(most, share)
			}
		}
		t.Logf("seed %d: a second has %.2f %% to %.2f %% of the budget", seed, 100*least, 100*most)
		if least < 0.95 || most > 1 {
			t.Errorf("seed %d: got %.4f to %.4f of the budget in a second, want 0.95 to 1", seed, least, most)
		}
	}
}

// TestRescueShareIsFree checks that hosts use the whole budget if all are
// present, whatever the rescue share.
func TestRescueShareIsFree(t *testing.T) {
	t.Parallel()
	for _, hosts := range []int{1, 2, 10, 200} {
		for _, rescue := range []int64{0, 100_000, 300_000, 500_000} {
			w := overloadedWorld(hosts, 1, rescue)
			before := w.passed()
			w.Run(w.Now + 5*second)
			if used := (w.Stats.Passed - before) / (5 * 125e6); used < 0.99 || used > 1.0001 {
				t.Errorf(
					"%d hosts: got %.4f of the budget with a rescue share of %d millionths, want 0.99 to 1",
					hosts, used, rescue)
			}
		}
	}
}

// TestFreedBandwidth stops one shaper: the others soon use all of its
// bandwidth.
func TestFreedBandwidth(t *testing.T) {
	t.Parallel()
	for _, hosts := range []int{2, 10} {
		var times []float64
		for seed := range uint64(41) {
			w := overloadedWorld(hosts, seed, 100_000)
			w.Offer(w.Hosts[1], 2*w.Terms.Size.Rate[0])
			w.Run(w.Now + second + int64(seed)*7*ms)
			begin, took := w.Now, int64(0)
			w.Offer(w.Hosts[0], 0)
			for before := w.passed(); w.Now < begin+second; before = w.Stats.Passed {
				w.Run(w.Now + ms)
				if w.Stats.Passed-before < 0.98*125e6/1000 {
					took = w.Now - begin
				}
			}
			times = append(times, float64(took)/float64(w.Terms.Interval))
		}
		slices.Sort(times)
		t.Logf("%d hosts: %.2f intervals [%.2f..%.2f]", hosts, times[20], times[0], times[40])
		if times[20] > 3 || times[40] > 4 {
			t.Errorf("%d hosts: freed bandwidth was used after %.2f intervals, at most %.2f: want 3 and 4",
				hosts, times[20], times[40])
		}
	}
}

// TestThousandHosts runs a thousand hosts with a crash and a partition every
// second: nothing passes beyond the bound for hosts that start.
func TestThousandHosts(t *testing.T) {
	t.Parallel()
	w := overloadedWorld(1000, 1, 100_000)
	r := rand.New(rand.NewPCG(1, 9))
	pick := func() *Host { return w.Hosts[r.IntN(len(w.Hosts))] }
	w.Every(second, func() bool {
		crashed, cut := pick(), pick()
		w.Crash(crashed)
		w.At(3*second, func() { w.Boot(crashed) })
		cut.Cut = [2]bool{r.IntN(2) == 0, true}
		w.At(5*second, func() { cut.Cut = [2]bool{} })
		return true
	})
	w.Run(w.Now + 20*second)
	if w.Stats.Excess[0] > w.Stats.Bound[0] {
		t.Errorf("got %.0f tokens beyond the budget, want at most %.0f", w.Stats.Excess[0], w.Stats.Bound[0])
	}
	if used := w.Stats.Passed / w.Stats.Could; used < 0.97 {
		t.Errorf("got %.4f of the budget, want at least 0.97", used)
	}
	t.Logf("%.4f of the budget, excess %.0f, bound %.0f", w.Stats.Passed/w.Stats.Could, w.Stats.Excess[0],
		w.Stats.Bound[0])
}
