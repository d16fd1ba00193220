package queue

import (
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

func TestLinkAllocations(t *testing.T) {
	early := Config{
		Bytes: 20_000, ECN: true, WRED: [3]Early{{1000, 10_000, Certain / 10}},
		CoDel: CoDel{time.Millisecond, time.Millisecond},
	}
	l := openLink(t, meter.BitRate(8e6), LinkQueue{Config: early}, LinkQueue{Config: early, Weight: 3},
		LinkQueue{Config: Config{Packets: 9}, Priority: 1})
	var now int64
	var seen [AdmitCE + 1]int
	admit := func() {
		for i := range 300 {
			now += 400_000
			if f := l.Admit(now, i%3, Packet{Bytes: 1000, ECN: i%2 == 0}, i); f.Dropped() {
				seen[f]++
			}
			for d, ok := l.Decide(now); ok; d, ok = l.Decide(now) {
				seen[d.Fate]++
			}
		}
	}
	for range 5 {
		admit()
	}
	if n := testing.AllocsPerRun(20, admit); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
	if slices.Contains(seen[:], 0) {
		t.Errorf("a fate did not occur: got counts %d", seen)
	}
}

func BenchmarkLink(b *testing.B) {
	for _, bench := range []struct {
		name string
		cfg  Config
	}{
		{"plain", Config{Bytes: 1 << 16}},
		{"early", Config{Bytes: 1 << 16, WRED: [3]Early{{1000, 60_000, Certain / 10}}, CoDel: CoDel{5 * time.Millisecond, 100 * time.Millisecond}}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			l := openLink(b, meter.BitRate(1e9), LinkQueue{Config: bench.cfg},
				LinkQueue{Config: bench.cfg, Priority: 1},
				LinkQueue{Config: bench.cfg, Priority: 1, Weight: 3})
			now := int64(0)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				now += 11_900 // a little above the rate
				l.Admit(now, i%3, Packet{Bytes: 1500}, i)
				for _, ok := l.Decide(now); ok; _, ok = l.Decide(now) {
				}
			}
		})
	}
}
