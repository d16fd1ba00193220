package kernel

import (
	"math"
	"sync"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
)

// readingsShaper returns a shaper of one class and one queue that has only a map of readings.
func readingsShaper(t *testing.T) *Shaper {
	t.Helper()
	kerneltest.NeedRoot(t)
	s := &Shaper{About: About{Outline: compiled.Outline{
		Classes: make([]compiled.ClassOutline, 1), Queues: make([]compiled.QueueOutline, 1),
	}}}
	var err error
	if s.readings, err = image.NewReadings(&s.Outline); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.readings.Close() })
	return s
}

// readingOf returns a reading whose counters are all n.
func readingOf(n int64, at int64) Reading {
	r := Reading{At: at, Stats: make([]dataplane.ClassStats, 2), Queues: make([]dataplane.QueueState, 1)}
	words := image.EmptyReading(&compiled.Outline{Classes: make([]compiled.ClassOutline, 1)})
	for i := range words {
		words[i] = n
	}
	copy(r.Stats, words.Classes(2))
	r.Queues[0].Sent, r.Queues[0].Dropped = dataplane.Count{Packets: n, Bytes: n}, n
	return r
}

// isAll reports whether all counters of a reading are n.
func isAll(r *Reading, n int64) bool {
	want := readingOf(n, r.At)
	return len(r.Stats) == 2 && r.Stats[0] == want.Stats[0] && r.Stats[1] == want.Stats[1] &&
		len(r.Queues) == 1 && r.Queues[0] == want.Queues[0]
}

// TestEarlier checks which readings rates are computed from.
func TestEarlier(t *testing.T) {
	const none = -1
	type kept struct {
		n   int64
		age time.Duration
	}
	for name, row := range map[string]struct {
		keep []kept
		now  int64 // counters of the current reading
		want int64 // counters of the earlier reading
	}{
		"nothing kept":          {nil, 9, none},
		"too old":               {[]kept{{1, 11 * time.Second}}, 9, none},
		"too young":             {[]kept{{1, 200 * time.Millisecond}}, 9, none},
		"one":                   {[]kept{{1, 9 * time.Second}}, 9, 1},
		"the latest":            {[]kept{{1, 5 * time.Second}, {2, time.Second}}, 9, 2},
		"the latest of three":   {[]kept{{1, 5 * time.Second}, {2, 3 * time.Second}, {3, time.Second}}, 9, 3},
		"the last is too young": {[]kept{{1, 5 * time.Second}, {2, time.Second}, {3, 100 * time.Millisecond}}, 9, 2},
		"many young ones":       {[]kept{{1, 5 * time.Second}, {2, 290 * time.Millisecond}, {3, 150 * time.Millisecond}, {4, 100 * time.Millisecond}, {5, 0}}, 9, 2},
		"the counters restart":  {[]kept{{7, time.Second}}, 2, none},
		"the counters wrap":     {[]kept{{math.MaxInt64 - 3, time.Second}}, 2, math.MaxInt64 - 3},
	} {
		t.Run(name, func(t *testing.T) {
			s, now := readingsShaper(t), Now()
			var want time.Duration
			for _, k := range row.keep {
				s.Keep(readingOf(k.n, now-int64(k.age)))
				if k.n == row.want {
					want = k.age
				}
			}
			got, ok := s.Earlier(readingOf(row.now, now))
			if ok != (row.want != none) || ok && !isAll(&got, row.want) {
				t.Fatalf("got %v, %v: want the counters %d", got, ok, row.want)
			}
			if age := time.Duration(now - got.At); ok && age != want {
				t.Errorf("it is %v old: want %v", age, want)
			}
		})
	}
}

// TestTornReading checks that a reading is not used while it is written.
func TestTornReading(t *testing.T) {
	s, now := readingsShaper(t), Now()
	for word := range image.EmptyReading(&s.Outline) {
		s.Keep(readingOf(3, now-int64(time.Second)))
		k := image.EmptyReading(&s.Outline)
		if err := s.readings.Lookup(uint32(0), k); err != nil {
			t.Fatal(err)
		}
		if _, ok := s.Earlier(readingOf(4, now)); !ok {
			t.Fatal("got no reading")
		}
		k[word] ^= 1
		if err := s.readings.Put(uint32(0), k); err != nil {
			t.Fatal(err)
		}
		if got, ok := s.Earlier(readingOf(4, now)); ok {
			t.Fatalf("got %v although word %d is wrong", got, word)
		}
	}
}

// TestConcurrentReadings checks that processes that keep readings at the same time do not mix
// their counters.
func TestConcurrentReadings(t *testing.T) {
	s, begin := readingsShaper(t), int64(time.Hour)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for n := range int64(2000) {
				at := begin + n*int64(300*time.Millisecond)
				s.Keep(readingOf(n, at))
				if got, ok := s.Earlier(readingOf(n, at)); ok && !isAll(&got, got.Queues[0].Dropped) {
					t.Errorf("got %v: want equal counters", got)
					return
				}
			}
		})
	}
	all.Wait()
}
