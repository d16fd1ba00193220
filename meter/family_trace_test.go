package meter

import "testing"

// TestFamilyTrace has rows worked out by hand for the other meters, as TestTrace does for
// those of the RFCs.
func TestFamilyTrace(t *testing.T) {
	const µs = 1000
	mega := BitRate(8e6)
	type row struct {
		at   int64 // ns
		n    int
		in   Color
		want Color
		tc   int64 // tokens after the packet
	}
	for _, test := range []struct {
		name   string
		params compiler
		rows   []row
	}{
		{"GCRA is a token bucket", TokenBucket{Rate: mega, Burst: 100, GCRA: true}, []row{
			{0, 101, Green, Red, 100},
			{0, 100, Yellow, Yellow, 0},
			{1*µs - 1, 1, Green, Red, 0},
			{1 * µs, 1, Red, Red, 1},
			{1 * µs, 1, Green, Green, 0},
			{500 * µs, -1, Green, Red, 100},
		}},
		{"a warm-up starts with a third of the burst, at a third of the rate", TokenBucket{Rate: Rate{3, 1}, Burst: 3000, Warmup: 100 * µs}, []row{
			{0, 1001, Green, Red, 1000},
			{0, 1000, Green, Green, 0},
			{1 * µs, 1001, Green, Red, 1000},
			{1 * µs, 1000, Green, Green, 0},
			{2 * µs, 0, Red, Red, 1020}, // the second step: 1.02 B/ns
			{2 * µs, 1020, Green, Green, 0},
			{2*µs - 1, 1, Green, Red, 0},
			{100 * µs, 3000, Green, Green, 0},
			{100*µs + 1, 3, Green, Green, 0}, // warm: the full rate
			{200 * µs, 3000, Green, Green, 0},
			{300*µs - 1, 0, Green, Green, 3000}, // a ns less than a pause
			{400*µs - 1, 1001, Green, Red, 1000},
		}},
		{"a fixed window is empty at its border", FixedWindow{Limit: 100, Window: 10 * µs}, []row{
			{3 * µs, 101, Green, Red, 100},
			{3 * µs, 60, Green, Green, 40},
			{10*µs - 1, 41, Green, Red, 40},
			{10*µs - 1, 40, Yellow, Yellow, 0},
			{10*µs - 1, 0, Green, Green, 0},
			{10 * µs, 100, Green, Green, 0},
			{9 * µs, 1, Green, Red, 0},
			{20 * µs, 1, Red, Red, 100},
		}},
		{"windows before time 0 are also aligned", FixedWindow{Limit: 100, Window: 10 * µs}, []row{
			{-10*µs - 1, 100, Green, Green, 0},
			{-10 * µs, 100, Green, Green, 0},
			{-1, 1, Green, Red, 0},
			{0, 100, Green, Green, 0},
		}},
		{"a slot leaves the window one window after it began", SlidingWindow{Limit: 100, Window: 10 * µs, Slots: 10}, []row{
			{1*µs + 999, 60, Green, Green, 40},
			{2 * µs, 40, Green, Green, 0},
			{11*µs - 1, 1, Green, Red, 0},
			{11 * µs, 61, Green, Red, 60},
			{11 * µs, 60, Green, Green, 0},
			{12*µs - 1, 1, Green, Red, 0},
			{12 * µs, 40, Yellow, Yellow, 0},
			{5 * µs, 1, Green, Red, 0},
			{22 * µs, 0, Red, Red, 100},
		}},
		{"a slot before time 0 leaves the window like all others", SlidingWindow{Limit: 100, Window: 10 * µs, Slots: 10}, []row{
			{-5 * µs, 100, Green, Green, 0},
			{-1, 1, Green, Red, 0},
			{(1<<64 - 5) / 1000, 100, Green, Green, 0}, // 213 days later
		}},
		{"the share of the window before is rounded up", SlidingCounter{Limit: 100, Window: 10 * µs}, []row{
			{9 * µs, 100, Green, Green, 0},
			{10 * µs, 1, Green, Red, 0},
			{10*µs + 99, 1, Green, Red, 0},
			{10*µs + 100, 1, Green, Green, 0},
			{15 * µs, 50, Green, Red, 49},
			{15 * µs, 49, Green, Green, 0},
			{20 * µs, 51, Green, Red, 50},
			{20 * µs, 50, Green, Green, 0},
			{40 * µs, 100, Green, Green, 0}, // the window between was empty
		}},
		{"a packet counts for a window; each ns has an entry", SlidingLog{Limit: 100, Window: 10 * µs, Entries: 2}, []row{
			{0, 10, Green, Green, 90},
			{0, 10, Yellow, Yellow, 80},
			{5 * µs, 10, Green, Green, 70},
			{5 * µs, 10, Green, Green, 60}, // shares an entry
			{6 * µs, 1, Green, Red, 0},     // no entry is free
			{6 * µs, 0, Green, Green, 0},   // needs no entry
			{10*µs - 1, 1, Green, Red, 0},
			{10 * µs, 81, Green, Red, 80},
			{10 * µs, 80, Green, Green, 0},
			{15 * µs, 20, Green, Green, 0},
			{25 * µs, 0, Red, Red, 100},
		}},
		{"an average up to CIR is green; seed 0 draws e220a839...", TSWTCM{CIR: mega, PIR: mega, Window: 100 * µs, Seed: 0}, []row{
			{0, 100, Green, Green, 0},
			{100 * µs, 100, Red, Red, 50},
			{100 * µs, 100, Green, Green, 0},
			{100 * µs, 50, Yellow, Yellow, 0}, // u = .88: the third above PIR is not selected
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := New(compileProfile(t, test.params))
			for i, r := range test.rows {
				got := m.Color(r.at, r.n, r.in)
				if tc, _ := m.Tokens(r.at); got != r.want || tc != r.tc {
					t.Fatalf("row %d: %d B at %d, input %v: %v with %d left; want %v with %d", i, r.n, r.at,
						r.in, got, tc, r.want, r.tc)
				}
			}
		})
	}
}
