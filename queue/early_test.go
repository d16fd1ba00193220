package queue

import (
	"math"
	"math/big"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestDraw holds the random numbers to the published ones of SplitMix64, of
// which they are the top 24 bits.
func TestDraw(t *testing.T) {
	d := dice{seed: 1234567}
	for i, want := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821} {
		if got := d.draw(); got != want>>40 {
			t.Errorf("number %d is %d, want %d", i+1, got, want>>40)
		}
		if got := modelRandom(1234567, int64(i+1)); got.Uint64() != want {
			t.Errorf("number %d of the model is %d, want %d", i+1, got, want)
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
			t.Errorf("sqrt(%d) is %d, want %d", n, got, want)
		}
	}
}

// TestEarly shows the backlogs at the bounds, and where a number is drawn.
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
		{"at min the chance is none", Early{100, 200, Certain}, 100, false, false, 1},
		{"just above min", Early{100, 200, Certain}, 101, false, false, 1},
		{"just below max", Early{100, 200, Certain}, 199, true, false, 1},
		{"just below max, never", Early{100, 200, 0}, 199, false, false, 1},
		{"at max, for certain", Early{100, 200, 0}, 200, true, true, 0},
		{"above max", Early{100, 200, 0}, 201, true, true, 0},
		{"min is max: just below", Early{200, 200, 1}, 199, false, false, 0},
		{"min is max", Early{200, 200, 1}, 200, true, true, 0},
		{"from nothing on", Early{0, 1, Certain}, 0, false, false, 1},
		{"the largest", Early{0, bound - 1, Certain}, bound - 2, true, false, 1},
		{"the largest, never", Early{0, bound - 1, 0}, bound - 2, false, false, 1},
	} {
		var d dice // its first number is 0.88 of the range
		victim, certain := test.e.takes(test.backlog, &d)
		if victim != test.victim || certain != test.certain || d.drawn != test.drawn {
			t.Errorf("%s: victim %v, certain %v after %d numbers; want %v, %v after %d", test.name, victim, certain, d.drawn, test.victim, test.certain, test.drawn)
		}
	}
}

// TestEarlyShare holds that what is drawn is as likely as it should be, and
// that the number itself is not a victim where it equals the chance.
func TestEarlyShare(t *testing.T) {
	const n = 100_000
	for _, e := range []Early{{0, 100, Certain}, {0, 100, Certain / 10}, {10, 60, Certain / 2}} {
		for _, backlog := range []int64{e.Min, e.Min + 1, (e.Min + e.Max) / 2, e.Max - 1} {
			d, victims := dice{seed: 5}, 0
			for range n {
				if victim, _ := e.takes(backlog, &d); victim {
					victims++
				}
			}
			p := float64(e.Probability) / Certain * float64(backlog-e.Min) / float64(e.Max-e.Min)
			if off := math.Abs(float64(victims) - n*p); off > 5*math.Sqrt(n*p*(1-p)) {
				t.Errorf("%+v at %d: %d victims of %d, want %.0f", e, backlog, victims, n, n*p)
			}
		}
	}
	// Where the range is that of the numbers, the victims are those below the backlog.
	first := (&dice{}).draw()
	for backlog, want := range map[uint64]bool{first: false, first + 1: true} {
		e := Early{0, Certain, Certain}
		if victim, _ := e.takes(int64(backlog), &dice{}); victim != want {
			t.Errorf("the number %d at a backlog of %d: victim %v", first, backlog, victim)
		}
	}
}

// TestCoDelTrace shows the times in ms of packets that leave, with what they
// waited: a target of 5 and an interval of 100.
func TestCoDelTrace(t *testing.T) {
	const ms = int64(time.Millisecond)
	type row struct {
		now, wait int64 // ns
		victim    bool
		count     uint32
		next      int64 // ns, of the next drop
	}
	for _, test := range []struct {
		name string
		rows []row
	}{
		{"below the target", []row{{0, 5*ms - 1, false, 0, 0}, {1000 * ms, 5*ms - 1, false, 0, 0}}},
		{"at the target, for less than an interval", []row{{0, 5 * ms, false, 0, 0}, {100*ms - 1, 5 * ms, false, 0, 0}}},
		{"at the target, for an interval", []row{{0, 5 * ms, false, 0, 0}, {100 * ms, 5 * ms, true, 1, 200 * ms}}},
		{"a short wait begins the interval anew", []row{
			{0, 9 * ms, false, 0, 0},
			{99 * ms, 5*ms - 1, false, 0, 0},
			{100 * ms, 9 * ms, false, 0, 0},
			{200*ms - 1, 9 * ms, false, 0, 0},
			{200 * ms, 9 * ms, true, 1, 300 * ms},
		}},
		{"ever faster, and begun again where it was", []row{
			{0, 9 * ms, false, 0, 0},
			{100 * ms, 9 * ms, true, 1, 200 * ms},
			{200*ms - 1, 9 * ms, false, 1, 200 * ms},
			{200 * ms, 9 * ms, true, 2, 270_710_678}, // 100/sqrt(2) is 70.7106781
			{270_710_677, 9 * ms, false, 2, 270_710_678},
			{270_710_678, 9 * ms, true, 3, 328_445_704}, // 57.7350269
			{500 * ms, 9 * ms, true, 4, 378_445_704},    // late: the next one is due at once
			{500 * ms, 9 * ms, true, 5, 423_167_063},    // 44.7213595
			{501 * ms, 4 * ms, false, 5, 423_167_063},   // it ends
			{502 * ms, 5 * ms, false, 5, 423_167_063},
			{602*ms - 1, 5 * ms, false, 5, 423_167_063},
			// Within 16 intervals of the last drop: on with 5-1, which it began with.
			{602 * ms, 5 * ms, true, 4, 652 * ms},
			{603 * ms, 4 * ms, false, 4, 652 * ms},
			{604 * ms, 5 * ms, false, 4, 652 * ms},
			// 4-4 is not more than one: from the start.
			{704 * ms, 5 * ms, true, 1, 804 * ms},
		}},
		{"a count of two more is kept, up to 16 intervals", []row{
			{0, 9 * ms, false, 0, 0},
			{100 * ms, 9 * ms, true, 1, 200 * ms},
			{200 * ms, 9 * ms, true, 2, 270_710_678},
			{300 * ms, 9 * ms, true, 3, 328_445_704},
			{301 * ms, 0, false, 3, 328_445_704},
			{302 * ms, 9 * ms, false, 3, 328_445_704},
			{1_928_445_703, 9 * ms, true, 2, 1_928_445_703 + 70_710_678},
		}},
		{"but not at 16", []row{
			{0, 9 * ms, false, 0, 0},
			{100 * ms, 9 * ms, true, 1, 200 * ms},
			{200 * ms, 9 * ms, true, 2, 270_710_678},
			{300 * ms, 9 * ms, true, 3, 328_445_704},
			{301 * ms, 0, false, 3, 328_445_704},
			{302 * ms, 9 * ms, false, 3, 328_445_704},
			{1_928_445_704, 9 * ms, true, 1, 2_028_445_704},
		}},
		{"nor one more", []row{
			{0, 9 * ms, false, 0, 0},
			{100 * ms, 9 * ms, true, 1, 200 * ms},
			{200 * ms, 9 * ms, true, 2, 270_710_678},
			{201 * ms, 0, false, 2, 270_710_678},
			{202 * ms, 9 * ms, false, 2, 270_710_678},
			{302 * ms, 9 * ms, true, 1, 402 * ms},
		}},
		{"a clock below zero", []row{
			{-1000 * ms, 9 * ms, false, 0, 0},
			{-900*ms - 1, 9 * ms, false, 0, 0},
			{-900 * ms, 9 * ms, true, 1, -800 * ms},
		}},
	} {
		c := newCoDel(CoDel{5 * time.Millisecond, 100 * time.Millisecond})
		for i, r := range test.rows {
			if got := c.takes(r.now, r.wait); got != r.victim || c.count != r.count || c.dropNext != r.next {
				t.Errorf("%s, row %d: victim %v, count %d, next %d; want %v, %d, %d", test.name, i, got, c.count, c.dropNext, r.victim, r.count, r.next)
			}
		}
	}
}

// TestLeakyEarly shows what a queue does by color, with ECN and without.
func TestLeakyEarly(t *testing.T) {
	const ms = int64(time.Millisecond)
	certain := [3]Early{meter.Yellow: {500, 1500, Certain}, meter.Red: {0, 500, 0}}
	green, yellow, red := Packet{Bytes: 1000}, Packet{Bytes: 1000, Color: meter.Yellow}, Packet{Bytes: 1000, Color: meter.Red}
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
		// 8 Mbit/s: a packet of 1000 bytes is sent in a ms.
		{"bytes that wait", Config{Bytes: 3000, WRED: certain}, []row{
			{0, red, Admit}, // leaves at once: a number was drawn, in vain
			{0, red, Admit}, // as before
			{0, red, Thin},  // 1000 wait
			{0, yellow, Thin},
			{0, green, Admit},
			{0, yellow, Thin}, // 2000: for certain
			{0, green, Admit},
			{0, green, Full}, // 3000
			{ms, green, Admit},
			{4*ms - 1, red, Thin},
			{4 * ms, red, Admit},
		}, 4},
		{"packets that wait", Config{Packets: 2, WRED: [3]Early{meter.Yellow: {1, 2, 0}}}, []row{
			{0, yellow, Admit}, // leaves at once
			{0, yellow, Admit},
			{0, yellow, Admit}, // one waits, with no chance
			{0, yellow, Full},  // two: the limit is first
			{0, green, Full},
		}, 1},
		{"a wait", Config{Time: 3 * time.Millisecond, WRED: [3]Early{{ms, 2 * ms, 0}}}, []row{
			{0, green, Admit},
			{0, green, Admit}, // would wait for a ms, with no chance
			{0, green, Thin},  // for 2
			{1, green, Admit}, // for one ns less
		}, 2},
		{"ECN where it is asked for", Config{Bytes: 3000, ECN: true, WRED: [3]Early{{0, 1001, Certain}}}, []row{
			{0, green, Admit},
			{0, green, Admit},
			{0, capable(green), AdmitCE},
			{0, capable(green), Thin}, // 2000 is above max: for certain
		}, 3},
		{"ECN where it is not", Config{Bytes: 3000, WRED: [3]Early{{0, 1001, Certain}}}, []row{
			{0, green, Admit}, {0, green, Admit}, {0, capable(green), Thin},
		}, 3},
		{"CoDel", Config{Packets: 100, ECN: true, CoDel: CoDel{time.Millisecond, time.Millisecond}}, []row{
			{0, green, Admit},
			{0, green, Admit},          // waits for the target, leaves at 1 ms
			{0, green, Stale},          // would leave at 2
			{0, capable(green), Admit}, // so does this, and the next drop is at 3
			{0, capable(green), AdmitCE},
			{5 * ms, green, Admit}, // no wait
			{5 * ms, green, Admit},
			{5 * ms, green, Stale},
		}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.cfg.Rate = meter.BitRate(8e6)
			q := open(t, test.cfg)
			for i, r := range test.rows {
				before := *q
				depart, f := q.Admit(r.at, r.p)
				if f != r.want {
					t.Fatalf("row %d: %v, want %v", i, f, r.want)
				}
				if f.Dropped() && (depart != 0 || q.pace != before.pace) {
					t.Errorf("row %d: a packet that is dropped leaves at %d, after %+v is %+v", i, depart, before.pace, q.pace)
				}
			}
			if q.dice.drawn != test.drawn {
				t.Errorf("%d numbers were drawn, want %d", q.dice.drawn, test.drawn)
			}
		})
	}
	for f, want := range map[Fate]bool{Full: true, Thin: true, Stale: true, Admit: false, AdmitCE: false} {
		if f.Dropped() != want {
			t.Errorf("fate %d: dropped %v", f, !want)
		}
	}
}

// TestCEGoesThroughCoDel holds that a packet that WRED marks counts with CoDel
// as any other.
func TestCEGoesThroughCoDel(t *testing.T) {
	q := open(t, Config{
		Rate: meter.BitRate(8e6), Packets: 9, ECN: true, Seed: 3, // whose first number is 0.11
		WRED:  [3]Early{meter.Yellow: {0, 2, Certain}},
		CoDel: CoDel{time.Millisecond, time.Millisecond},
	})
	q.Admit(0, Packet{Bytes: 1000})
	q.Admit(0, Packet{Bytes: 1000})
	depart, f := q.Admit(0, Packet{Bytes: 1000, Color: meter.Yellow, ECN: true})
	if depart != 2e6 || f != AdmitCE || q.dice.drawn != 1 || q.codel.count != 1 {
		t.Errorf("leaves at %d with %v, after %d numbers; CoDel counts %d", depart, f, q.dice.drawn, q.codel.count)
	}
}
