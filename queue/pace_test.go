package queue

import (
	"math"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestPaceAfter checks both sides of the bounds of pace.after: a packet takes at most
// MaxInt64-1 ns, and the rate is free at MaxInt64-1 at the latest, so that due can
// round up.
func TestPaceAfter(t *testing.T) {
	const last = math.MaxInt64 - 1 // = (2^31-1) * (2^32+2)
	slow := func(period time.Duration) meter.Rate { return meter.Rate{Bytes: 1, Period: period} }
	for _, test := range []struct {
		name string
		rate meter.Rate
		next int64
		frac uint64
		n    int
		ok   bool
		want instant // next and frac, if ok
	}{
		{"ends at the last ns", slow(1<<32 + 2), 0, 0, 1<<31 - 1, true, instant{next: last}},
		{"ends one ns before it", slow(1<<32 + 2), -1, 0, 1<<31 - 1, true, instant{next: last - 1}},
		{"ends one ns after it", slow(1<<32 + 2), 1, 0, 1<<31 - 1, false, instant{}},
		{"no length at the last ns", slow(1), last, 0, 0, true, instant{next: last}},
		{"one byte at the last ns", slow(1), last, 0, 1, false, instant{}},
		{"no length at the end of int64", slow(1), math.MaxInt64, 0, 0, false, instant{}},
		// 649657 * 14197294936951 = 2^63-1.
		{"takes 2^63-1 ns", slow(14197294936951), 0, 0, 649657, false, instant{}},
		{"takes 2^63-1 ns from before 0", slow(14197294936951), -5, 0, 649657, false, instant{}},
		{"takes 2^63 ns", slow(1 << 43), -5, 0, 1 << 20, false, instant{}},
		{"takes 2^64-2^44 ns", slow(1 << 44), math.MinInt64, 0, 1<<20 - 1, false, instant{}},
		{"takes 2^64 ns", slow(1 << 44), math.MinInt64, 0, 1 << 20, false, instant{}},
		{"takes 2^63-2^44 ns", slow(1 << 44), 0, 0, 1<<19 - 1, true, instant{next: math.MaxInt64 - (1<<44 - 1)}},
		{"takes more than 2^64 ns", slow(1 << 44), 0, 0, 1<<20 + 1, false, instant{}},
		{"fractions add up to a ns", meter.Rate{Bytes: 3, Period: 7}, 10, 2, 1, true, instant{next: 13}},
		{"fractions stay below a ns", meter.Rate{Bytes: 3, Period: 7}, 10, 1, 1, true, instant{next: 12, frac: 2}},
		{"negative length", meter.Rate{Bytes: 3, Period: 7}, 10, 1, -1, true, instant{next: 10, frac: 1}},
	} {
		p, err := newPace(test.rate)
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		p.next, p.frac = test.next, test.frac
		if got, ok := p.after(test.n); ok != test.ok || ok &&
			(got.next != test.want.next || got.frac != test.want.frac) {
			t.Errorf("%s: got %d + %d/%d ns, %v; want %d + %d/%[4]d ns, %v", test.name, got.next, got.frac,
				p.den, ok, test.want.next, test.want.frac, test.ok)
		}
	}
}
