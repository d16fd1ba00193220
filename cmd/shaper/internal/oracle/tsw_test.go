package oracle

import "testing"

// TestTSW has a window of 1000 bytes at cir and 2000 at pir. The random numbers of seed 0 are
// those of splitmix64, as parts of 2^32: 0.883, 0.432, 0.026, 0.971, 0.106.
func TestTSW(t *testing.T) {
	const text = "{type: tswtcm, cir: 1B/1ns, pir: 2B/1ns, window: 1us, color: aware}"
	m := verdicts(t, text, []verdict{
		{0, 1000, green, "tswtcm-green"}, // equal to cir: no number is drawn
		{0, 1000, green, "tswtcm-green"}, // 2000 on average: yellow below 0.5
		{0, 2000, green, "tswtcm-red"},   // 4000: red below 0.5
		{0, 9999, red, "tswtcm-pre-red"}, // neither counted nor drawn
		{0, 1, green, "tswtcm-red"},
		{0, 45_999, green, "tswtcm-yellow"}, // 50,000: red below 0.96, yellow below 0.98
		{0, 0, green, "tswtcm-red"},
	})
	if drawn := m.state.(*tsw).drawn; drawn != 5 {
		t.Errorf("got %d drawn, want 5", drawn)
	}
	m = verdicts(t, text, []verdict{
		{0, 1000, yellow, "tswtcm-pre-yellow"},
		{1000, 1000, yellow, "tswtcm-pre-yellow"}, // 1000 on average again
		{1000, 1000, yellow, "tswtcm-pre-yellow"}, // green by 0.883, but yellow stays yellow
		{1000, 2000, yellow, "tswtcm-red"},
	})
	if drawn := m.state.(*tsw).drawn; drawn != 2 {
		t.Errorf("got %d drawn, want 2", drawn)
	}
	// The clock starts with the first packet whose input color is not red.
	m = verdicts(t, text, []verdict{
		{0, 9999, red, "tswtcm-pre-red"},
		{1000, 1000, green, "tswtcm-green"},
		{1000, 1, red, "tswtcm-pre-red"},
	})
	if s := m.state.(*tsw); s.drawn != 0 || s.average.Int64() != 1000<<16 {
		t.Errorf("got %d drawn and an average of %s, want 0 and 65536000", s.drawn, s.average)
	}
	// Packets: two are the rate, three are above it. The first number of seed 0 is large.
	verdicts(t, "{type: tswtcm, cir: 2p/1us, pir: 3p/1us, window: 1us, count: packets}", []verdict{
		{0, 9000, red, "tswtcm-green"},
		{0, 9000, red, "tswtcm-green"},
		{0, 9000, red, "tswtcm-green"},
		{0, 9000, red, "tswtcm-yellow"}, // red below 0.25, yellow below 0.5: 0.432
	})
}

// TestTSWBounds: the first number of seed 0 is 0xe220a839. An average of 65536 bytes is 2^32
// units, so it is compared with 2^32 minus the level in units.
func TestTSWBounds(t *testing.T) {
	const equal = "501176263B/65536s"
	const below = "501176262B/65536s"
	for _, test := range []struct{ cir, pir, reason string }{
		{equal, "1gbit", "tswtcm-green"},
		{below, "1gbit", "tswtcm-yellow"},
		{below, equal, "tswtcm-yellow"},
		{below, below, "tswtcm-red"},
		{"1B/s", below, "tswtcm-red"},
		// One unit above the levels is not enough for a draw of 0.883.
		{"65535B/s", "65535B/s", "tswtcm-green"},
		{"65536B/s", "65536B/s", "tswtcm-green"},
	} {
		verdicts(t, "{type: tswtcm, cir: "+test.cir+", pir: "+test.pir+", window: 1s}",
			[]verdict{{0, 65536, green, test.reason}})
	}
}

func TestTSWRounding(t *testing.T) {
	m := meterOf(t, "{type: tswtcm, cir: 1B/7us, pir: 1B/3us, window: 1us, seed: 18446744073709551615}")
	s := m.state.(*tsw)
	if s.committed.Int64() != 9362 || s.peak.Int64() != 21845 { // 65536/7 and /3
		t.Errorf("got levels of %s and %s, want 9362 and 21845", s.committed, s.peak)
	}
	for i, step := range []struct{ at, length, average int64 }{
		{5, 1, 65536}, // the clock starts here
		{6, 0, 65470}, // 65536 * 1000/1001 = 65470.5
		{1006, 1, 65503},
		{1006, 0, 65503},
		{1_000_001_006, 0, 0},
	} {
		m.decide(frame{}, whole(step.at), step.length, green)
		if s.average.Int64() != step.average {
			t.Errorf("packet %d: got %s on average, want %d", i, s.average, step.average)
		}
	}
}

// TestTSWShares checks that in the long run the parts of the colors are those of RFC 2859 §4.
// At a steady rate of r bytes per ns, the average converges to r.
func TestTSWShares(t *testing.T) {
	m := meterOf(t, "{type: tswtcm, cir: 1B/1ns, pir: 2B/1ns, window: 100us, seed: 9}")
	seen := [3]int{}
	for i := range int64(30_000) {
		color, _, _ := m.decide(frame{}, whole(i*100), 400, green) // 4 bytes per ns
		if i >= 10_000 {
			seen[color]++
		}
	}
	for color, want := range []int{5000, 5000, 10_000} {
		if d := seen[color] - want; d < -300 || d > 300 {
			t.Errorf("got %d of 20,000, want about %d of %s", seen, want,
				[]string{"green", "yellow", "red"}[color])
		}
	}
}
