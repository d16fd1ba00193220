package queue

import (
	"math"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Tests of what shows after many packets, or long ones.

// TestLinkShares keeps queues busy and holds what they send to their weights.
func TestLinkShares(t *testing.T) {
	r := seeded(t)
	for _, weights := range [][]int{{1, 1}, {1, 3}, {1, 2, 5}, {1, 1000}, {7, 7, 7, 7}} {
		const longest = 1514
		shares := make([]Share, len(weights))
		for i, w := range weights {
			shares[i].Weight = w
		}
		l := openLink(t, meter.BitRate(1e9), shares...)
		size := make([]int, 0, 1<<18)
		admit := func(now int64, queue int) {
			n := 1 + r.IntN(longest)
			if queue == 0 {
				n = longest - r.IntN(3) // the one has long packets
			}
			l.Admit(now, queue, Packet{Bytes: n}, len(size)<<8|queue)
			size = append(size, n)
		}
		for i := range weights {
			for range 3 {
				admit(0, i)
			}
		}
		decided(l, 0) // the first found the link idle, and no others
		sent := make([]float64, len(weights))
		type bounds struct{ least, most float64 }
		lead := map[[2]int]*bounds{} // of one over another, by weight
		for range 40_000 {
			at, _ := l.Due()
			d, ok := l.Decide(at)
			if !ok || d.Depart != at {
				t.Fatalf("nothing at %d: %+v", at, d)
			}
			queue := d.Value & 255
			sent[queue] += float64(size[d.Value>>8]) / float64(weights[queue])
			admit(at, queue)
			for i := range weights {
				for j := range i {
					b := lead[[2]int{i, j}]
					if b == nil {
						b = &bounds{}
						lead[[2]int{i, j}] = b
					}
					now := sent[i] - sent[j]
					b.least, b.most = min(b.least, now), max(b.most, now)
					// Shreedhar and Varghese, theorem 2: in any interval.
					if most := Quantum + longest/float64(weights[i]) + longest/float64(weights[j]); b.most-b.least > most {
						t.Fatalf("weights %d: queues %d and %d are %.0f B a weight apart, want at most %.0f", weights, i, j, b.most-b.least, most)
					}
				}
			}
		}
	}
}

// TestRateError sends a million packets and compares departures with those that
// the rate gives for all the bytes before.
func TestRateError(t *testing.T) {
	sizes := [...]int{1500, 64, 1499, 1, 0, 576, 1514}
	for _, bits := range []int64{1e3, 1e6, 9_999_991, 1e9} {
		rate := meter.BitRate(bits)
		check := func(what string, i int, bytes, depart int64) {
			t.Helper()
			if want := ceil(takes(rate, int(bytes))); depart != want {
				t.Fatalf("%v: packet %d of %s leaves at %d, want %d", rate, i, what, depart, want)
			}
		}
		q, l := open(t, Config{Rate: rate, Time: math.MaxInt64}), openLink(t, rate, Share{}, Share{Weight: 2})
		var bytes, linked, now int64
		for i := range 1_000_000 {
			n := sizes[i%len(sizes)]
			depart, f := q.Admit(0, Packet{Bytes: n})
			if f != Admit || l.Admit(now, i%2, Packet{Bytes: n}, n) != Admit {
				t.Fatalf("packet %d is dropped", i)
			}
			last := i == 999_999
			if i%9973 == 0 || last {
				check("a queue", i, bytes, depart)
			}
			bytes += int64(n)
			if i < 100 {
				continue // that wait
			}
			now, _ = l.Due()
			d, _ := l.Decide(now)
			if i%9973 == 0 || last {
				check("a link", i, linked, d.Depart)
			}
			linked += int64(d.Value)
		}
	}
}

// TestOverflowIsBounded sends ten times what queues can take, a million
// packets of it.
func TestOverflowIsBounded(t *testing.T) {
	mega := meter.BitRate(8e6)
	for _, cfg := range []Config{{Packets: 100}, {Bytes: 2000}, {Time: 100 * time.Microsecond}} {
		c := cfg
		c.Rate = mega
		q, l := open(t, c), openLink(t, mega, Share{Config: cfg})
		dropped, left := 0, 0
		most := 1
		for most < max(cfg.Capacity(), 100) {
			most *= 2
		}
		now := int64(0)
		for i := range 1_000_000 {
			now += 2000
			q.Admit(now, Packet{Bytes: 20})
			if f := l.Admit(now, 0, Packet{Bytes: 20}, i); f.Dropped() {
				dropped++
			}
			for _, ok := l.Decide(now); ok; _, ok = l.Decide(now) {
				left++
			}
		}
		if n := len(q.waiting.list); n > most {
			t.Errorf("%+v: room for %d packets, want at most %d", cfg, n, most)
		}
		if n := len(l.queues[0].packets.list); n > most {
			t.Errorf("%+v: room for %d packets on a link, want at most %d", cfg, n, most)
		}
		if n := len(l.decided.list); n > 8 {
			t.Errorf("%+v: room for %d decisions, of which none waits", cfg, n)
		}
		if dropped+left+l.waiting != 1_000_000 || left != 100_000 {
			t.Errorf("%+v: %d dropped and %d left, want 100000", cfg, dropped, left)
		}
	}
}

// TestLongPackets holds that a choice does not take longer where packets are
// much longer than a turn: a capture may claim 4 GB of each.
func TestLongPackets(t *testing.T) {
	l := openLink(t, meter.BitRate(10e9), Share{}, Share{})
	for i := range 100 {
		l.Admit(0, i%2, Packet{Bytes: math.MaxUint32}, i)
	}
	begin := time.Now()
	for i, d := range decided(l, math.MaxInt64) {
		if want := ceil(takes(meter.BitRate(10e9), i*math.MaxUint32)); d.Value != i || d.Depart != want {
			t.Fatalf("decision %d: %+v, want %d", i, d, want)
		}
	}
	if took := time.Since(begin); took > 500*time.Millisecond {
		t.Errorf("100 packets take %v", took)
	}
}
