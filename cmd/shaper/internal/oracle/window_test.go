package oracle

import (
	"math/big"
	"testing"
)

// verdict is a packet at a meter: its time in ns, its length, its input color, and the expected
// outcome.
type verdict struct {
	at     int64
	length int64
	in     color
	reason string
}

// verdicts runs packets without headers through a meter.
func verdicts(t *testing.T, text string, want []verdict) *meter {
	t.Helper()
	m := meterOf(t, text)
	for i, v := range want {
		if _, reason, _ := m.decide(frame{}, whole(v.at), v.length, v.in); reason != v.reason {
			t.Errorf("%s: packet %d, %+v: got %s, want %s", text, i, v, reason, v.reason)
		}
	}
	return m
}

func TestFixedWindow(t *testing.T) {
	verdicts(t, "{type: fixed-window, limit: 1000, window: 1us, color: aware}", []verdict{
		{5500, 1001, green, "fixed-window-red"},
		{5500, 999, green, "fixed-window-green"},
		{5500, 2, yellow, "fixed-window-red"},
		{5500, 1, red, "fixed-window-pre-red"},
		{5500, 1, yellow, "fixed-window-pre-yellow"},
		{5500, 0, green, "fixed-window-green"},
		{5999, 1, green, "fixed-window-red"},
		{6000, 1000, green, "fixed-window-green"}, // twice the limit within 500 ns
		{6999, 1, green, "fixed-window-red"},
		{9000, 1000, green, "fixed-window-green"},
	})
	verdicts(t, "{type: fixed-window, limit: 2, window: 1us, count: packets}", []verdict{
		{0, 1500, green, "fixed-window-green"},
		{0, 9000, red, "fixed-window-green"}, // blind
		{999, 0, green, "fixed-window-red"},
		{1000, 1, green, "fixed-window-green"},
	})
	verdicts(t, "{type: fixed-window, limit: 1001, window: 1us, initial: 50%}", []verdict{
		{5999, 501, green, "fixed-window-red"},
		{5999, 500, green, "fixed-window-green"},
		{6000, 1001, green, "fixed-window-green"},
	})
	// A red packet can be the first packet, too.
	verdicts(t, "{type: fixed-window, limit: 10, window: 1us, initial: empty, color: aware}", []verdict{
		{5999, 1, red, "fixed-window-pre-red"},
		{6000, 10, green, "fixed-window-green"},
	})
}

func TestSlidingWindow(t *testing.T) {
	// A slot is 250 ns.
	verdicts(t, "{type: sliding-window, limit: 10, window: 1us, slots: 4, color: aware}", []verdict{
		{1249, 6, green, "sliding-window-green"},
		{1250, 5, green, "sliding-window-red"},
		{1250, 4, yellow, "sliding-window-pre-yellow"},
		{1250, 0, red, "sliding-window-pre-red"},
		{1250, 0, green, "sliding-window-green"},
		{1999, 1, green, "sliding-window-red"},
		{2000, 7, green, "sliding-window-red"}, // the slot from 1000 is out of view
		{2000, 6, green, "sliding-window-green"},
		{2249, 1, green, "sliding-window-red"},
		{2250, 5, green, "sliding-window-red"},
		{2250, 4, green, "sliding-window-green"},
		{3250, 10, green, "sliding-window-green"},
	})
	verdicts(t, "{type: sliding-window, limit: 11, window: 1us, initial: 50%}", []verdict{
		{1099, 6, green, "sliding-window-red"},
		{1099, 5, green, "sliding-window-green"},
		{1999, 1, green, "sliding-window-red"},
		{2000, 11, green, "sliding-window-green"}, // there are ten slots
	})
	verdicts(t, "{type: sliding-window, limit: 1, window: 1us, slots: 1, count: packets}", []verdict{
		{1000, 99, green, "sliding-window-green"},
		{1999, 99, green, "sliding-window-red"},
		{2000, 99, green, "sliding-window-green"},
	})
}

func TestSlidingCounter(t *testing.T) {
	verdicts(t, "{type: sliding-counter, limit: 10, window: 1us, color: aware}", []verdict{
		{1000, 11, green, "sliding-counter-red"},
		{1000, 10, yellow, "sliding-counter-pre-yellow"},
		{1999, 1, green, "sliding-counter-red"},
		{2000, 1, green, "sliding-counter-red"},
		{2000, 0, green, "sliding-counter-green"},
		{2000, 0, red, "sliding-counter-pre-red"},
		{2099, 1, green, "sliding-counter-red"},   // 9.01 + 1
		{2100, 1, green, "sliding-counter-green"}, // 9 + 1, equal
		{2500, 5, green, "sliding-counter-red"},   // 5 + 1 + 5
		{2500, 4, green, "sliding-counter-green"},
		{3000, 6, green, "sliding-counter-red"}, // 5 of the previous window
		{3000, 5, green, "sliding-counter-green"},
		{5000, 10, green, "sliding-counter-green"}, // and nothing of the window before that
	})
	verdicts(t, "{type: sliding-counter, limit: 11, window: 1us, initial: 10%}", []verdict{
		{1999, 2, green, "sliding-counter-red"},
		{1999, 1, green, "sliding-counter-green"}, // now all 11 are used
		{2090, 1, green, "sliding-counter-red"},   // 10.01 + 1
		{2091, 1, green, "sliding-counter-green"}, // 9.999 + 1
	})
}

func TestSlidingLog(t *testing.T) {
	verdicts(t, "{type: sliding-log, limit: 10, window: 1us, color: aware}", []verdict{
		{5000, 4, green, "sliding-log-green"},
		{5001, 7, green, "sliding-log-red"},
		{5001, 6, yellow, "sliding-log-pre-yellow"},
		{5999, 1, green, "sliding-log-red"},
		{5999, 0, red, "sliding-log-pre-red"},
		{6000, 5, green, "sliding-log-red"}, // an entry exactly as old as the window is out of view
		{6000, 4, green, "sliding-log-green"},
		{6001, 6, green, "sliding-log-green"},
		{6001, 1, green, "sliding-log-red"},
	})
	verdicts(t, "{type: sliding-log, limit: 100, window: 1us, entries: 2}", []verdict{
		{0, 1, green, "sliding-log-green"},
		{1, 1, green, "sliding-log-green"},
		{2, 0, green, "sliding-log-green"}, // nothing to remember
		{2, 1, green, "sliding-log-red"},   // no room
		{999, 1, green, "sliding-log-red"},
		{1000, 0, green, "sliding-log-green"},
		{1000, 1, green, "sliding-log-green"},
		{1000, 98, green, "sliding-log-green"}, // together with the previous one
		{1000, 1, green, "sliding-log-red"},    // 100 are used
		{1001, 1, green, "sliding-log-green"},
	})
	verdicts(t, "{type: sliding-log, limit: 3, window: 1us, entries: 1, initial: 50%}", []verdict{
		{7, 2, green, "sliding-log-red"},
		{7, 1, green, "sliding-log-green"},
		{1006, 0, green, "sliding-log-green"},
		{1006, 1, green, "sliding-log-red"},
		{1007, 3, green, "sliding-log-green"},
	})
	m := verdicts(t, "{type: sliding-log, limit: 3, window: 1us, entries: 2, count: packets}", []verdict{
		{0, 0, green, "sliding-log-green"}, // a packet counts one, however short
		{0, 9, green, "sliding-log-green"},
		{1, 9, green, "sliding-log-green"},
		{1, 9, green, "sliding-log-red"},
	})
	if n := len(m.state.(*window).taken); n != 2 {
		t.Errorf("got %d entries, want 2", n)
	}
}

// TestWindowsAgree compares meters that must be equal.
func TestWindowsAgree(t *testing.T) {
	for _, pair := range [][2]string{
		{"type: sliding-window, slots: 1", "type: fixed-window"},
		{"type: sliding-window, slots: 1000", "type: sliding-log"}, // a slot is 1 ns
	} {
		a, b := meterOf(t, "{limit: 900, window: 1us, initial: 33%, "+pair[0]+"}"),
			meterOf(t, "{limit: 900, window: 1us, initial: 33%, "+pair[1]+"}")
		seen := [3]int{}
		for i := range int64(2000) {
			now, length := whole(i*i%37+i*13), i*i*7%61
			was, _, _ := a.decide(frame{}, now, length, green)
			is, _, _ := b.decide(frame{}, now, length, green)
			if seen[was]++; was != is {
				t.Fatalf("%q: packet %d: got %s and %s, want equal colors", pair, i, was, is)
			}
		}
		if seen[green] < 100 || seen[red] < 100 {
			t.Errorf("%q: got colors %d, want at least 100 green and red", pair, seen)
		}
	}
}

// TestExactWindow checks decisions that depend on a fraction of a byte that a float cannot
// represent.
func TestExactWindow(t *testing.T) {
	m := meterOf(t, "{type: sliding-counter, limit: 140737488355328, window: 8784h}")
	last := int64(8784*3600e9 - 1)
	step := func(at, length int64, want color) {
		t.Helper()
		if got, _, _ := m.decide(frame{}, new(big.Rat).SetInt64(at), length, green); got != want {
			t.Errorf("%d B at %d: got %s, want %s", length, at, got, want)
		}
	}
	step(last, 1<<47, green)
	step(last+1, 1, red)
	// 2^47 bytes per 31622400e9 ns: one byte in 224.7 ns.
	step(last+1+224, 1, red)
	step(last+1+225, 1, green)
}
