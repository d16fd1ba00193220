package report

import (
	"math"
	"strings"
	"testing"
)

func TestTicks(t *testing.T) {
	for _, tt := range []struct {
		high  float64
		units []unit
		count int
		want  string
	}{
		{4.2e6, rateUnits, 3, "0|2 Mbit/s|4 Mbit/s"},
		{1, rateUnits, 3, "0|0.5 bit/s|1 bit/s"},
		{1000, rateUnits, 3, "0|0.5 kbit/s|1 kbit/s"},
		{999, rateUnits, 3, "0|500 bit/s"},
		{2.1e10, rateUnits, 3, "0|10 Gbit/s|20 Gbit/s"},
		{0.3, timeUnits, 3, "0|100 ms|200 ms|300 ms"}, // 0.3 / 0.1 is below 3
		{12, timeUnits, 12, "0|1 s|2 s|3 s|4 s|5 s|6 s|7 s|8 s|9 s|10 s|11 s|12 s"},
		{599, timeUnits, 6, "0|100 s|200 s|300 s|400 s|500 s"},
		{600, timeUnits, 6, "0|2 min|4 min|6 min|8 min|10 min"},
		{36_000, timeUnits, 2, "0|5 h|10 h"},
		{1e6, timeUnits, 3, "0|5 d|10 d"},
		{2e-9, timeUnits, 3, "0|1 ns|2 ns"},
		{1e-9, timeUnits, 3, "0|0.5 ns|1 ns"},
	} {
		var labels []string
		for _, k := range ticksTo(tt.high, tt.units, tt.count) {
			labels = append(labels, k.label)
		}
		if got := strings.Join(labels, "|"); got != tt.want {
			t.Errorf("ticksTo(%v, %d): got %s, want %s", tt.high, tt.count, got, tt.want)
		}
	}
}

// TestTicksAnywhere checks the number, the distance and the end of the ticks for short and
// long axes.
func TestTicksAnywhere(t *testing.T) {
	for high := 1e-9; high < 1e30; high *= 1.0371 {
		for _, count := range []int{1, 2, 3, 12} {
			ticks := ticksTo(high, timeUnits, count)
			last := ticks[len(ticks)-1].at
			if n := len(ticks) - 1; n > count || 5*n < 2*count-2 || last > high*(1+1e-9) {
				t.Fatalf("got %d ticks to %v on an axis to %v, want at most %d", n, last, high, count)
			}
			for i := range ticks[1:] {
				if step := ticks[i+1].at - ticks[i].at; math.Abs(
					step*float64(len(ticks)-1)-last) > last*1e-9 {
					t.Fatalf("axis to %v: got tick %d %v after the one before, want equal steps to %v", high,
						i+1, step, last)
				}
			}
		}
	}
}

func TestFittedText(t *testing.T) {
	for _, tt := range []struct {
		class, text string
		width       px
		want        string
	}{
		{"note", "cir=8mbit", 100, "cir=8mbit"},
		{"note", "cir=8mbit", 48, "cir=8…"},
		{"name", "名前名前", 40, "名前…"},
		{"note", "cir=8mbit", 5, ""},
		{"note", "cir=8mbit", -5, ""},
		{"note", "", 5, ""},
	} {
		got := fitted(tt.class, tt.text, tt.width)
		if got != tt.want {
			t.Errorf("%q in %v: got %q, want %q", tt.text, tt.width, got, tt.want)
		}
		if got != "" && textWidth(tt.class, got) > tt.width {
			t.Errorf("%q is %v wide, want at most %v", got, textWidth(tt.class, got), tt.width)
		}
	}
}
