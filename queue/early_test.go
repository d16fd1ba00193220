package queue

import (
	"math"
	"math/big"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestDraw compares the random numbers with published outputs of SplitMix64, of
// which they are the top 24 bits.
func TestDraw(t *testing.T) {
	d := dice{seed: 1234567}
	for i, want := range []uint64{
		6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431,
		16408922859458223821,
	} {
		if got := d.draw(); got != want>>40 {
			t.Errorf("number %d: got %d, want %d", i+1, got, want>>40)
		}
		if got := modelRandom(1234567, int64(i+1)); got.Uint64() != want {
			t.Errorf("number %d of the model: got %d, want %d", i+1, got, want)
		}
	}
}

func TestSqrt(t *testing.T) {
	r := seeded(t)
	numbers := []uint64{0, 1, 2, 3, math.MaxUint64, 9e18}
	for bit := range 64 {
		root := uint64(1) << (bit / 2)
		numbers = append(numbers, 1<<bit-1, 1<<bit, 1<<bit+1, root*root-1, root*root, root*root+1)
	}
	for range 10_000 {
		root := r.Uint64() >> (32 + r.IntN(32))
		numbers = append(numbers, root*root-1, root*root, root*root+1, r.Uint64()>>r.IntN(64))
	}
	for _, n := range numbers {
		want := new(big.Int).SetUint64(n)
		if got := sqrt(n); got != want.Sqrt(want).Uint64() {
			t.Errorf("sqrt(%d) = %d, want %d", n, got, want)
		}
	}
}

// TestEarly checks the decision on both sides of each bound, and whether a
// random number is drawn.
func TestEarly(t *testing.T) {
	for _, test := range []struct {
		name            string
		e               Early
		backlog         int64
		victim, certain bool
		drawn           uint64
	}{
		{"none", Early{}, math.MaxInt64, false, false, 0},
		{"below min", Early{100, 200, Certain}, 99, false, false, 0},
		{"at min the probability is 0", Early{100, 200, Certain}, 100, false, false, 1},
		{"just above min", Early{100, 200, Certain}, 101, false, false, 1},
		{"just below max", Early{100, 200, Certain}, 199, true, false, 1},
		{"just below max, probability 0", Early{100, 200, 0}, 199, false, false, 1},
		{"at max, certain", Early{100, 200, 0}, 200, true, true, 0},
		{"above max", Early{100, 200, 0}, 201, true, true, 0},
		{"min is max: just below", Early{200, 200, 1}, 199, false, false, 0},
		{"min is max", Early{200, 200, 1}, 200, true, true, 0},
		{"min 0", Early{0, 1, Certain}, 0, false, false, 1},
		{"largest thresholds", Early{0, maxThreshold - 1, Certain}, maxThreshold - 2, true, false, 1},
		{"largest thresholds, probability 0", Early{0, maxThreshold - 1, 0}, maxThreshold - 2, false, false, 1},
	} {
		var d dice // its first number is 0.88 of the range
		victim, certain := test.e.drops(test.backlog, &d)
		if victim != test.victim || certain != test.certain || d.drawn != test.drawn {
			t.Errorf("%s: drop %v, certain %v, %d numbers drawn; want %v, %v, %d", test.name, victim, certain,
				d.drawn, test.victim, test.certain, test.drawn)
		}
	}
}

// TestEarlyProbability checks the frequency of drops, and that a number equal
// to the probability is not a drop.
func TestEarlyProbability(t *testing.T) {
	const n = 100_000
	for _, e := range []Early{{0, 100, Certain}, {0, 100, Certain / 10}, {10, 60, Certain / 2}} {
		for _, backlog := range []int64{e.Min, e.Min + 1, (e.Min + e.Max) / 2, e.Max - 1} {
			d, victims := dice{seed: 5}, 0
			for range n {
				if victim, _ := e.drops(backlog, &d); victim {
					victims++
				}
			}
			p := float64(e.Probability) / Certain * float64(backlog-e.Min) / float64(e.Max-e.Min)
			if off := math.Abs(float64(victims) - n*p); off > 5*math.Sqrt(n*p*(1-p)) {
				t.Errorf("%+v at %d: got %d of %d dropped, want %.0f", e, backlog, victims, n, n*p)
			}
		}
	}
	// If max - min is the range of the numbers, numbers below the backlog are
	// drops.
	first := (&dice{}).draw()
	for backlog, want := range map[uint64]bool{first: false, first + 1: true} {
		e := Early{0, Certain, Certain}
		if victim, _ := e.drops(int64(backlog), &dice{}); victim != want {
			t.Errorf("number %d at a backlog of %d: got drop %v, want %v", first, backlog, victim, want)
		}
	}
}

// TestCoDelTrace has rows of departure times and queueing delays, for a target
// of 5 ms and an interval of 100 ms.
func TestCoDelTrace(t *testing.T) {
	const ms = int64(time.Millisecond)
	type row struct {
		now, delay int64 // ns
		victim     bool
		count      uint32
		next       int64 // ns, of the next drop
	}
	for _, test := range []struct {
		name string
		rows []row
	}{
		{"below the target", []row{{0, 5*ms - 1, false, 0, 0}, {1000 * ms, 5*ms - 1, false, 0, 0}}},
		{"at the target, for less than an interval", []row{{0, 5 * ms, false, 0, 0}, {100*ms - 1, 5 * ms, false, 0, 0}}},
		{"at the target, for an interval", []row{{0, 5 * ms, false, 0, 0}, {100 * ms, 5 * ms, true, 1, 200 * ms}}},
		{"a short delay restarts the interval", []row{
			{0, 9 * ms, false, 0, 0},
			{99 * ms, 5*ms - 1, false, 0, 0},
			{100 * ms, 9 * ms, false, 0, 0},
			{200*ms - 1, 9 * ms, false, 0, 0},
			{200 * ms, 9 * ms, true, 1, 300 * ms},
		}},
		{"faster and faster, then resumed", []row{
			{0, 9 * ms, false, 0, 0},
			{100 * ms, 9 * ms, true, 1, 200 * ms},
			{200*ms - 1, 9 * ms, false, 1, 200 * ms},
			{200 * ms, 9 * ms, true, 2, 270_710_678}, // 100/sqrt(2) is 70.7106781
			{270_710_677, 9 * ms, false, 2, 270_710_678},
			{270_710_678, 9 * ms, true, 3, 328_445_704}, // 57.7350269
			{500 * ms, 9 * ms, true, 4, 378_445_704},    // late: the next drop is due at once
			{500 * ms, 9 * ms, true, 5, 423_167_063},    // 44.7213595
			{501 * ms, 4 * ms, false, 5, 423_167_063},   // below the target: dropping ends
			{502 * ms, 5 * ms, false, 5, 423_167_063},
			{602*ms - 1, 5 * ms, false, 5, 423_167_063},
			// Within 16 intervals of the last drop: resumes with 5-1, where 1
			// is the count at the start of dropping.
			{602 * ms, 5 * ms, true, 4, 652 * ms},
			{603 * ms, 4 * ms, false, 4, 652 * ms},
			{604 * ms, 5 * ms, false, 4, 652 * ms},
			// 4-4 is not more than one: restarts with 1.
			{704 * ms, 5 * ms, true, 1, 804 * ms},
		}},
		{"a count higher by 2 is resumed within 16 intervals", []row{
			{0, 9 * ms, false, 0, 0},
			{100 * ms, 9 * ms, true, 1, 200 * ms},
			{200 * ms, 9 * ms, true, 2, 270_710_678},
			{300 * ms, 9 * ms, true, 3, 328_445_704},
			{301 * ms, 0, false, 3, 328_445_704},
			{302 * ms, 9 * ms, false, 3, 328_445_704},
			{1_928_445_703, 9 * ms, true, 2, 1_928_445_703 + 70_710_678},
		}},
		{"not after 16 intervals", []row{
			{0, 9 * ms, false, 0, 0},
			{100 * ms, 9 * ms, true, 1, 200 * ms},
			{200 * ms, 9 * ms, true, 2, 270_710_678},
			{300 * ms, 9 * ms, true, 3, 328_445_704},
			{301 * ms, 0, false, 3, 328_445_704},
			{302 * ms, 9 * ms, false, 3, 328_445_704},
			{1_928_445_704, 9 * ms, true, 1, 2_028_445_704},
		}},
		{"a count higher by 1 is not resumed", []row{
			{0, 9 * ms, false, 0, 0},
			{100 * ms, 9 * ms, true, 1, 200 * ms},
			{200 * ms, 9 * ms, true, 2, 270_710_678},
			{201 * ms, 0, false, 2, 270_710_678},
			{202 * ms, 9 * ms, false, 2, 270_710_678},
			{302 * ms, 9 * ms, true, 1, 402 * ms},
		}},
		{"negative times", []row{
			{-1000 * ms, 9 * ms, false, 0, 0},
			{-900*ms - 1, 9 * ms, false, 0, 0},
			{-900 * ms, 9 * ms, true, 1, -800 * ms},
		}},
	} {
		var c codel
		cfg := CoDel{5 * time.Millisecond, 100 * time.Millisecond}
		for i, r := range test.rows {
			if got := c.drops(&cfg, r.now, r.delay, 1); got != r.victim || c.count != r.count ||
				c.dropNext != r.next {
				t.Errorf("%s, row %d: drop %v, count %d, next %d; want %v, %d, %d", test.name, i, got,
					c.count, c.dropNext, r.victim, r.count, r.next)
			}
		}
	}
}

// TestLeakyEarly checks the fate by color, with ECN and without.
func TestLeakyEarly(t *testing.T) {
	const ms = int64(time.Millisecond)
	certain := [3]Early{meter.Yellow: {500, 1500, Certain}, meter.Red: {0, 500, 0}}
	green, yellow, red := Packet{Bytes: 1000}, Packet{Bytes: 1000, Color: meter.Yellow},
		Packet{Bytes: 1000, Color: meter.Red}
	capable := func(p Packet) Packet { p.ECN = true; return p }
	type row struct {
		at   int64 // ns
		p    Packet
		want Fate
	}
	for _, test := range []struct {
		name  string
		cfg   Config
		rows  []row
		drawn uint64
	}{
		// 8 Mbit/s: a packet of 1000 bytes is sent in 1 ms.
		{"backlog in bytes", Config{Bytes: 3000, WRED: certain}, []row{
			{0, red, Admit}, // departs at once; a number is drawn at backlog 0
			{0, red, Admit}, // likewise
			{0, red, Thin},  // 1000 B queued
			{0, yellow, Thin},
			{0, green, Admit},
			{0, yellow, Thin}, // 2000 B: certain
			{0, green, Admit},
			{0, green, Full}, // 3000 B
			{ms, green, Admit},
			{4*ms - 1, red, Thin},
			{4 * ms, red, Admit},
		}, 4},
		{"backlog in packets", Config{Packets: 2, WRED: [3]Early{meter.Yellow: {1, 2, 0}}}, []row{
			{0, yellow, Admit}, // departs at once
			{0, yellow, Admit},
			{0, yellow, Admit}, // 1 queued: probability 0
			{0, yellow, Full},  // 2 queued: the limit is checked first
			{0, green, Full},
		}, 1},
		{"queueing delay", Config{Time: 3 * time.Millisecond, WRED: [3]Early{{ms, 2 * ms, 0}}}, []row{
			{0, green, Admit},
			{0, green, Admit}, // 1 ms: probability 0
			{0, green, Thin},  // 2 ms
			{1, green, Admit}, // 1 ns less than 2 ms
		}, 2},
		{"ECN enabled", Config{Bytes: 3000, ECN: true, WRED: [3]Early{{0, 1001, Certain}}}, []row{
			{0, green, Admit},
			{0, green, Admit},
			{0, capable(green), AdmitCE},
			{0, capable(green), Thin}, // 2000 B is above max: certain
		}, 3},
		{"ECN disabled", Config{Bytes: 3000, WRED: [3]Early{{0, 1001, Certain}}}, []row{
			{0, green, Admit}, {0, green, Admit}, {0, capable(green), Thin},
		}, 3},
		{"CoDel", Config{Packets: 100, ECN: true, CoDel: CoDel{time.Millisecond, time.Millisecond}}, []row{
			{0, green, Admit},
			{0, green, Admit},          // delayed by the target, departs at 1 ms
			{0, green, Stale},          // would depart at 2 ms
			{0, capable(green), Admit}, // also at 2 ms; the next drop is at 3 ms
			{0, capable(green), AdmitCE},
			{5 * ms, green, Admit}, // no delay
			{5 * ms, green, Admit},
			{5 * ms, green, Stale},
		}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.cfg.Rate = meter.BitRate(8e6)
			q := newLeaky(t, test.cfg)
			for i, r := range test.rows {
				before := *q
				depart, f := q.Admit(r.at, r.p)
				if f != r.want {
					t.Fatalf("row %d: got %v, want %v", i, f, r.want)
				}
				if f.Dropped() && (depart != 0 || q.pace != before.pace) {
					t.Errorf("row %d: got departure %d and pace %+v of a dropped packet, want 0 and %+v", i,
						depart, q.pace, before.pace)
				}
			}
			if q.dice.drawn != test.drawn {
				t.Errorf("got %d numbers drawn, want %d", q.dice.drawn, test.drawn)
			}
		})
	}
	for f, want := range map[Fate]bool{Full: true, Thin: true, Stale: true, Admit: false, AdmitCE: false} {
		if f.Dropped() != want {
			t.Errorf("fate %d: dropped %v", f, !want)
		}
	}
}

// TestCoDelCountsMarkedPackets checks that CoDel counts a packet that WRED marks like
// any other.
func TestCoDelCountsMarkedPackets(t *testing.T) {
	q := newLeaky(t, Config{
		Rate: meter.BitRate(8e6), Packets: 9, ECN: true, Seed: 3, // first number 0.11
		WRED:  [3]Early{meter.Yellow: {0, 2, Certain}},
		CoDel: CoDel{time.Millisecond, time.Millisecond},
	})
	q.Admit(0, Packet{Bytes: 1000})
	q.Admit(0, Packet{Bytes: 1000})
	depart, f := q.Admit(0, Packet{Bytes: 1000, Color: meter.Yellow, ECN: true})
	if depart != 2e6 || f != AdmitCE || q.dice.drawn != 1 || q.codel.count != 1 {
		t.Errorf("departs at %d, fate %v, %d numbers drawn, CoDel count %d; want 2e6, AdmitCE, 1, 1", depart,
			f, q.dice.drawn, q.codel.count)
	}
}

// TestCoDelSaturates lets CoDel count more packets than 32 bits hold.
func TestCoDelSaturates(t *testing.T) {
	var c codel
	cfg := &CoDel{time.Millisecond, time.Millisecond}
	c.drops(cfg, 0, 2e6, 1) // above the target from here on
	for now := int64(1e6); c.count < math.MaxUint32; now = max(now, c.dropNext) {
		if !c.drops(cfg, now, 2e6, 1<<30) {
			t.Fatalf("no drop at %d ns", now)
		}
	}
	if next := c.dropNext; !c.drops(cfg, next, 2e6, 1) || c.count != math.MaxUint32 {
		t.Errorf("the count is %d, want 2^32-1", c.count)
	}
}

// TestHugePackets checks that packets whose sizes overflow a sum are not admitted.
func TestHugePackets(t *testing.T) {
	rate := meter.BitRate(8e6)
	for name, test := range map[string]struct {
		c Config
		p Packet
	}{
		"packets":    {Config{Packets: 9}, Packet{Bytes: 1000, Segments: math.MaxInt}},
		"bytes":      {Config{Bytes: 9000}, Packet{Bytes: math.MaxInt}},
		"bytes only": {Config{Bytes: 9000, Time: time.Hour}, Packet{Bytes: math.MaxInt}},
	} {
		test.c.Rate = rate
		q := newLeaky(t, test.c)
		q.Admit(0, Packet{Bytes: 1000})
		q.Admit(0, Packet{Bytes: 1000})
		if _, fate := q.Admit(0, test.p); fate != Full {
			t.Errorf("%s: fate %v, want Full", name, fate)
		}
	}
}
