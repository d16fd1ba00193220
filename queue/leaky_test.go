package queue

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

func newLeaky(t testing.TB, cfg Config) *Leaky {
	t.Helper()
	q, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// Rows computed by hand: 8 Mbit/s is one byte per microsecond.
func TestTrace(t *testing.T) {
	const µs = 1000
	mega := meter.BitRate(8e6)
	type row struct {
		at   int64
		n    int
		want int64 // -1: dropped
	}
	for _, test := range []struct {
		name string
		cfg  Config
		rows []row
	}{
		{"paced at the rate", Config{Rate: mega, Time: time.Second}, []row{
			{0, 100, 0},
			{0, 100, 100 * µs},
			{50 * µs, 100, 200 * µs},
			{300 * µs, 100, 300 * µs},
			{1000 * µs, 1, 1000 * µs},
		}},
		{"fractions are rounded up in departures, but not carried over", Config{Rate: meter.Rate{Bytes: 3, Period: 10}, Time: time.Second}, []row{
			{0, 1, 0},
			{0, 1, 4},  // 3 1/3
			{0, 1, 7},  // 6 2/3
			{0, 1, 10}, // 10
			{0, 1, 14},
		}},
		{"the rate becomes free in the middle of a ns", Config{Rate: meter.Rate{Bytes: 3, Period: 10}, Packets: 1}, []row{
			{0, 1, 0},  // 3 1/3
			{3, 1, 4},  // 6 2/3
			{3, 1, -1}, // 1 queued
			{4, 1, 7},  // which has departed
			{10, 1, 10},
		}},
		{"a delay equal to the limit is admitted", Config{Rate: mega, Time: 100 * time.Microsecond}, []row{
			{0, 100, 0},
			{0, 1, 100 * µs},
			{0, 1, -1},
			{1 * µs, 1, 101 * µs},
		}},
		{"a fraction of a ns over the limit is over it", Config{Rate: meter.Rate{Bytes: 3, Period: 10}, Time: 3}, []row{
			{0, 1, 0},
			{0, 1, -1},
			{1, 1, 4},
		}},
		{"limit in bytes includes the arriving packet", Config{Rate: mega, Bytes: 150}, []row{
			{0, 151, -1},
			{0, 150, 0}, // departs at once
			{0, 100, 150 * µs},
			{0, 51, -1},
			{0, 50, 250 * µs},
			{149 * µs, 1, -1},
			{150 * µs, 100, 300 * µs},
		}},
		{"limit in packets includes the arriving packet", Config{Rate: mega, Packets: 2}, []row{
			{0, 100, 0},
			{0, 100, 100 * µs},
			{0, 100, 200 * µs},
			{0, 100, -1},
			{99 * µs, 100, -1},
			{100 * µs, 100, 300 * µs},
		}},
		{"negative times", Config{Rate: mega, Time: time.Second}, []row{
			{-1000 * µs, 100, -1000 * µs},
			{-1000 * µs, 100, -900 * µs},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			q := newLeaky(t, test.cfg)
			for i, r := range test.rows {
				got, f := q.Admit(r.at, Packet{Bytes: r.n})
				if f.Dropped() {
					got = -1
				}
				if got != r.want {
					t.Fatalf("row %d: %d B at %d: got departure %d, want %d", i, r.n, r.at, got, r.want)
				}
			}
		})
	}
}

// fields returns the fields that an error names.
func fields(t testing.TB, err error) (names []string) {
	t.Helper()
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			names = append(names, fields(t, err)...)
		}
		return names
	}
	var e *meter.FieldError
	if errors.As(err, &e) {
		return []string{e.Field}
	}
	if err != nil {
		t.Errorf("got %v (%T), want FieldErrors", err, err)
	}
	return nil
}

func TestErrors(t *testing.T) {
	ok := meter.BitRate(1e6)
	early := func(e ...Early) (c Config) {
		c = Config{Rate: ok, Packets: 100}
		copy(c.WRED[:], e)
		return c
	}
	codel := func(target, interval time.Duration) Config {
		return Config{Rate: ok, Time: 1, CoDel: CoDel{target, interval}}
	}
	for _, test := range []struct {
		cfg    Config
		fields []string
		want   string
	}{
		{Config{Time: 1}, []string{"rate"}, "rate must be above zero"},
		{Config{Time: 1, Rate: meter.Rate{Bytes: -1, Period: 1}}, []string{"rate"}, "rate must be above zero"},
		{Config{Time: 1, Rate: meter.Rate{Bytes: 0, Period: 1}}, []string{"rate"}, "rate must be above zero"},
		{Config{Time: 1, Rate: meter.Rate{Bytes: 1, Period: 0}}, []string{"rate"}, "rate must be above zero"},
		{Config{Time: 1, Rate: meter.Rate{Bytes: 1, Period: -1}}, []string{"rate"}, "rate must be above zero"},
		{Config{Rate: meter.Rate{Bytes: math.MaxInt64, Period: 2}, Time: 1}, []string{"rate"}, "too fine"},
		{Config{Rate: meter.Unlimited, Time: 1}, []string{"rate"}, "rate must not be unlimited: a queue needs a finite rate"},
		{Config{Rate: meter.Rate{Bytes: maxTerm, Period: 1}, Time: 1}, nil, ""},
		{Config{Rate: meter.Rate{Bytes: maxTerm + 1, Period: 1}, Time: 1}, []string{"rate"}, "too fine"},
		{Config{Rate: meter.Rate{Bytes: 1, Period: maxTerm}, Time: 1}, nil, ""},
		{Config{Rate: meter.Rate{Bytes: 1, Period: maxTerm + 1}, Time: 1}, []string{"rate"}, "too fine"},
		{Config{Rate: ok}, []string{"limit"}, "limit is missing"},
		{Config{Rate: ok, Time: -1}, []string{"limit"}, "limit is negative"},
		{Config{Rate: ok, Bytes: -1}, []string{"limit"}, "limit is negative"},
		{Config{Rate: ok, Time: 1, Packets: -1}, []string{"limit"}, "limit is negative"},
		{Config{Rate: ok, Packets: MaxPackets}, nil, ""},
		{Config{Rate: ok, Packets: MaxPackets + 1}, []string{"limit"}, "65536"},
		{early(Early{0, 1, 0}), nil, ""},
		{early(Early{100, 100, Certain}), nil, ""},
		{early(Early{0, 101, 0}), []string{"wred"}, "above the queue's limit"},
		{early(Early{}, Early{-1, 100, 0}), []string{"wred"}, "min"},
		{early(Early{51, 50, 0}, Early{}, Early{0, 0, 1}), []string{"wred"}, "min"},
		{early(Early{0, 0, 1}), []string{"wred"}, "above zero"},
		{early(Early{0, 100, Certain + 1}), []string{"wred"}, "probability"},
		{Config{Rate: ok, Bytes: maxThreshold, WRED: [3]Early{{0, maxThreshold - 1, 1}}}, nil, ""},
		{Config{Rate: ok, Bytes: maxThreshold, WRED: [3]Early{{0, maxThreshold, 1}}}, []string{"wred"}, "9m9.755813888s"},
		{codel(1, 1), nil, ""},
		{codel(time.Hour, 3*time.Second), nil, ""},
		{codel(1, 3*time.Second+1), []string{"codel"}, "at most 3s"},
		{codel(0, 1), []string{"codel"}, "above zero"},
		{codel(1, 0), []string{"codel"}, "above zero"},
		{codel(-1, 1), []string{"codel"}, "above zero"},
		{Config{CoDel: CoDel{1, 0}, WRED: [3]Early{{2, 1, 0}}}, []string{"rate", "limit", "wred", "codel"}, ""},
	} {
		_, err := New(test.cfg)
		if got := fields(t, err); !slices.Equal(got, test.fields) || err != nil &&
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v: fields %q, want %q and the text %q", test.cfg, err, got, test.fields,
				test.want)
		}
	}
}

// TestCapacity checks the capacity, axis and limit of a queue.
func TestCapacity(t *testing.T) {
	for _, test := range []struct {
		cfg  Config
		want int
		axis Axis
		most int64
	}{
		{Config{Time: 1}, 0, ByTime, 1},
		{Config{Packets: 7}, 7, ByPackets, 7},
		{Config{Bytes: 1}, 1, ByBytes, 1},
		{Config{Bytes: 39}, 1, ByBytes, 39},
		{Config{Bytes: 40}, 2, ByBytes, 40},
		{Config{Bytes: 20*MaxPackets - 1}, MaxPackets - 1, ByBytes, 20*MaxPackets - 1},
		{Config{Bytes: math.MaxInt64}, MaxPackets, ByBytes, math.MaxInt64},
		{Config{Bytes: 100, Packets: 4}, 4, ByBytes, 100},
		{Config{Time: 9, Bytes: 100, Packets: 6}, 5, ByTime, 9},
	} {
		if got, axis, most := test.cfg.Capacity(), test.cfg.Axis(), test.cfg.Limit(); got != test.want ||
			axis != test.axis || most != test.most {
			t.Errorf("%+v: capacity %d, limit %d on axis %d; want %d, %d on axis %d", test.cfg, got, most,
				axis, test.want, test.most, test.axis)
		}
	}
}

func TestEndOfTime(t *testing.T) {
	q := newLeaky(t, Config{Rate: meter.BitRate(1), Time: math.MaxInt64})
	for range 3 {
		q.Admit(math.MaxInt64-10, Packet{Bytes: math.MaxInt}) // must not overflow
	}
	if at, f := q.Admit(math.MaxInt64-10, Packet{}); f.Dropped() || at != math.MaxInt64-10 {
		t.Errorf("got departure %d, fate %v, want an immediate departure", at, f)
	}
}

func TestAllocations(t *testing.T) {
	q := newLeaky(t, Config{
		Rate: meter.BitRate(8e6), Packets: 15, ECN: true,
		WRED:  [3]Early{{2, 14, Certain / 10}, {3, 15, 0}},
		CoDel: CoDel{9 * time.Millisecond, 15 * time.Millisecond},
	})
	var now int64
	var seen [AdmitCE + 1]int
	admit := func() {
		for i := range 100 {
			now += 800_000
			_, f := q.Admit(now, Packet{Bytes: 1000, Color: meter.Color(i % 8 / 7), ECN: i%2 == 0})
			seen[f]++
			if i%33 == 0 {
				for range 2 {
					_, f := q.Admit(now, Packet{Bytes: 1000, Color: meter.Red})
					seen[f]++
				}
			}
		}
	}
	for range 5 {
		admit()
	}
	if n := testing.AllocsPerRun(100, admit); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
	if slices.Contains(seen[:], 0) {
		t.Errorf("a fate did not occur: got counts %d", seen)
	}
}

func BenchmarkAdmit(b *testing.B) {
	wred := [3]Early{{1, 1000 * 1000, Certain / 10}}
	for _, bench := range []struct {
		name string
		cfg  Config
	}{
		{"plain", Config{Time: time.Millisecond}},
		{"bytes", Config{Bytes: 1 << 16}},
		{"wred", Config{Time: time.Millisecond, WRED: wred}},
		{"codel", Config{Time: time.Millisecond, CoDel: CoDel{500 * time.Microsecond, time.Millisecond}}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			bench.cfg.Rate = meter.BitRate(1e9)
			q, now := newLeaky(b, bench.cfg), int64(0)
			b.ReportAllocs()
			for b.Loop() {
				now += 11_900 // a little above the rate
				q.Admit(now, Packet{Bytes: 1500})
			}
		})
	}
}
