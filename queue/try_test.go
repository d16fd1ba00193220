package queue

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestTry sends random packets to two equal queues. One of them is tried first: a drop is that of
// Admit, an admitted packet has the same fate, and one that something else drops leaves no trace.
func TestTry(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	early := [3]Early{
		{Min: 1e6, Max: 9e6, Probability: Certain / 2}, {Max: 5e6, Probability: Certain}, {Min: 2e6, Max: 9e6},
	}
	bytes := Early{Min: 100, Max: 2000, Probability: Certain / 3}
	counts := map[Fate]int{}
	elsewhere := 0
	for _, cfg := range []Config{
		{Rate: meter.BitRate(7777777), Time: 10 * time.Millisecond, ECN: true, Seed: 5, WRED: early, CoDel: CoDel{time.Millisecond, 3 * time.Millisecond}},
		{Rate: meter.BitRate(7777777), Time: 10 * time.Millisecond, CoDel: CoDel{2 * time.Millisecond, 5 * time.Millisecond}},
		{Rate: meter.BitRate(7777777), Bytes: 9000, Seed: 6, WRED: [3]Early{bytes, bytes, bytes}},
		{Rate: meter.BitRate(7777777), Packets: 9},
	} {
		plain, tried := newLeaky(t, cfg), newLeaky(t, cfg)
		now := int64(0)
		for range 20_000 {
			now += r.Int64N(3e6) / (1 + r.Int64N(20))
			p := Packet{Bytes: 28 + r.IntN(1472), Color: meter.Color(r.IntN(3)), ECN: r.IntN(2) == 0}
			fate := tried.Try(now, p)
			if r.IntN(4) == 0 && !fate.Dropped() {
				elsewhere++
				continue // a meter drops it
			}
			at, got := int64(0), fate
			if !fate.Dropped() {
				at, got = tried.Admit(now, p)
			}
			wantAt, want := plain.Admit(now, p)
			counts[want]++
			if got != want || fate != want || at != wantAt {
				t.Fatalf("%+v: at %d: Try %v, then %v at %d, want %v at %d", cfg, now, fate, got, at, want,
					wantAt)
			}
		}
	}
	for fate := Full; fate <= AdmitCE; fate++ {
		if counts[fate] < 50 {
			t.Errorf("%d packets had fate %v: the test is too easy", counts[fate], fate)
		}
	}
	if elsewhere < 1000 {
		t.Errorf("%d packets were dropped elsewhere", elsewhere)
	}
}
