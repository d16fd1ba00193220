package queue

import (
	"math"
	"math/big"
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestFairTrace has traces of RFC 8290 §4, computed by hand. A byte takes 1 µs;
// packets are numbered from 0. Comments list the new and the old flows with
// their deficits.
func TestFairTrace(t *testing.T) {
	const µs = 1000
	type in struct {
		at   int64
		flow uint16
		n    int
	}
	type out = traced
	for _, test := range []struct {
		name string
		cfg  Config
		in   []in
		out  []out
	}{
		{"new flows are served before old ones", Config{Packets: 9}, []in{
			{0, 1, 1000}, // deficit 1514 - 1000 = 514
			{0, 1, 1000}, // new {1 514}: deficit -486
			{0, 1, 1000},
			{0, 1, 1000},
			{500 * µs, 2, 100}, // new {1 514} {2 1514}
		}, []out{
			{0, 0, Admit},
			{1, 1000 * µs, Admit},
			{4, 2000 * µs, Admit}, // new {2 1514}, old {1 1028}
			{2, 2100 * µs, Admit}, // old {1 1028} {2 1414}
			{3, 3100 * µs, Admit}, // deficit 28 left
		}},
		{"flows get equal bytes", Config{Packets: 9}, []in{
			{0, 1, 1514}, // deficit 0: the turn is over
			{0, 1, 1514},
			{0, 1, 1514},
			{0, 2, 757},
			{0, 2, 757},
			{0, 2, 757},
			{0, 2, 757},
		}, []out{
			{0, 0, Admit},
			{3, 1514 * µs, Admit},
			{4, 2271 * µs, Admit},
			{1, 3028 * µs, Admit},
			{5, 4542 * µs, Admit},
			{6, 5299 * µs, Admit},
			{2, 6056 * µs, Admit},
		}},
		{"a flow that empties becomes old", Config{Packets: 9}, []in{
			{0, 1, 1514},
			{0, 1, 1514},
			{0, 2, 100},         // new {2 1514}, old {1 1514}
			{1550 * µs, 2, 100}, // while empty but still new: continues with 1414
			{1700 * µs, 1, 1514},
			{1800 * µs, 2, 100}, // was empty at its turn: now old
			{1800 * µs, 3, 100}, // new
		}, []out{
			{0, 0, Admit},
			{2, 1514 * µs, Admit},
			{3, 1614 * µs, Admit},
			{1, 1714 * µs, Admit}, // new {} old {1 1514} {2 1314}
			{6, 3228 * µs, Admit},
			{5, 3328 * µs, Admit}, // old {2 1314} {1 1514} {3 1414}
			{4, 3428 * µs, Admit},
		}},
		{"the flow with the largest backlog makes room", Config{Packets: 3}, []in{
			{0, 1, 100},
			{0, 1, 100},
			{0, 1, 100},
			{0, 1, 100},
			{10 * µs, 2, 250}, // flows 300 B: drops 1
			{20 * µs, 2, 10},  // flows 200 and 250 B: drops 4
			{30 * µs, 3, 200}, // flows 200 and 10 B: drops 2
			{40 * µs, 3, 50},  // flows 100, 10 and 200 B: drops 6
		}, []out{
			{0, 0, Admit},
			{1, 10 * µs, Full},
			{4, 20 * µs, Full},
			{2, 30 * µs, Full},
			{6, 40 * µs, Full},
			{3, 100 * µs, Admit},
			{5, 200 * µs, Admit},
			{7, 210 * µs, Admit},
		}},
		{"limit in bytes; among equal flows the lowest number", Config{Bytes: 300}, []in{
			{0, 9, 100},
			{0, 7, 100},
			{0, 5, 100},
			{0, 8, 100},
			{0, 9, 150}, // drops 5, then 7
			{0, 9, 301}, // longer than the limit: no drop makes room
		}, []out{
			{0, 0, Admit},
			{2, 0, Full},
			{1, 0, Full},
			{5, 0, Full},
			{4, 100 * µs, Admit}, // flow 9 was new first
			{3, 250 * µs, Admit},
		}},
		{"each flow has its own CoDel", Config{Packets: 30, CoDel: CoDel{100 * µs, 100 * µs}}, []in{
			{0, 1, 1000},
			{0, 1, 1000}, // at 1000: dropping starts at 1100
			{0, 1, 1000}, // at 2000: dropped
			{0, 1, 1000}, // at 2000
			{0, 1, 1000},
			{0, 1, 1000},
			{1950 * µs, 2, 100}, // delay 50
		}, []out{
			{0, 0, Admit},
			{1, 1000 * µs, Admit},
			{6, 2000 * µs, Admit},
			{2, 2100 * µs, Stale},
			{3, 2100 * µs, Admit},
			{4, 3100 * µs, Admit}, // one frame is queued behind it
			{5, 4100 * µs, Admit},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var in []arrival
			for _, p := range test.in {
				in = append(in, arrival{p.at, Packet{Bytes: p.n, Flow: p.flow}})
			}
			checkTrace(t, LinkQueue{Config: test.cfg, Fair: FairFlows}, in, test.out)
		})
	}
}

// arrival is a packet of a trace.
type arrival struct {
	at int64
	Packet
}

// traced is the outcome for a packet of a trace, by its number.
type traced struct {
	packet int
	at     int64
	fate   Fate
}

// checkTrace compares the outcomes for packets in a queue of a link of 8 Mbit/s with those wanted.
func checkTrace(t *testing.T, s LinkQueue, in []arrival, want []traced) {
	t.Helper()
	l := openLink(t, meter.BitRate(8e6), s)
	var got []traced
	collect := func(now int64) {
		for _, d := range decided(l, now) {
			got = append(got, traced{d.Value, d.Depart, d.Fate})
		}
	}
	for i, p := range in {
		if f := l.Admit(p.at, 0, p.Packet, i); f == Full {
			got = append(got, traced{i, p.at, f})
		}
		collect(p.at)
	}
	collect(math.MaxInt64)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%v, want\n%v", got, want)
	}
}

// TestFlow compares the hash with its definition and checks its spread.
func TestFlow(t *testing.T) {
	mod := new(big.Int).Lsh(big.NewInt(1), 64)
	mix := func(z *big.Int) *big.Int {
		for _, step := range []struct {
			shift  uint
			factor uint64
		}{{30, 0xBF58476D1CE4E5B9}, {27, 0x94D049BB133111EB}, {31, 1}} {
			z = new(big.Int).Xor(z, new(big.Int).Rsh(z, step.shift))
			z.Mod(z.Mul(z, new(big.Int).SetUint64(step.factor)), mod)
		}
		return z
	}
	seen := map[uint16]bool{}
	for i := range uint64(4 * Flows) {
		fields := []uint64{i, 1 << 63, i << 40}
		h := new(big.Int).SetUint64(7)
		for _, f := range fields {
			h = mix(h.Xor(h, new(big.Int).SetUint64(f)))
		}
		got := Flow(7, fields...)
		if want := h.Mod(h, big.NewInt(1024)).Uint64(); uint64(got) != want {
			t.Fatalf("%x: flow %d, want %d", fields, got, want)
		}
		seen[got] = true
	}
	// Of 1024 flows, 4096 random packets leave 1024 e^-4 = 19 unused.
	if len(seen) < Flows*95/100 {
		t.Errorf("4096 packets hash to %d flows, want at least 95 %% of 1024", len(seen))
	}
	if n := testing.AllocsPerRun(100, func() { Flow(1, 2, 3, 4, 5, 6) }); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

// TestRewindBounds checks the times of a level on both sides of the rewind threshold:
// differences within the level stay the same, and other levels do not change.
func TestRewindBounds(t *testing.T) {
	for _, test := range []struct {
		now    int64
		starts [3]int64 // the last queue is of another priority
		want   int64
		after  [3]int64
	}{
		{1<<61 - 1, [3]int64{1<<61 + 4, 0, 7}, 1<<61 - 1, [3]int64{1<<61 + 4, 0, 7}},
		{1 << 61, [3]int64{1<<61 + 5, 0, 7}, 0, [3]int64{5, -1 << 61, 7}},
		{1<<61 + 1, [3]int64{1<<61 + 5, 1, 7}, 0, [3]int64{4, -1 << 61, 7}},
		{1<<61 + 1, [3]int64{1<<61 + 1, 0, 7}, 0, [3]int64{0, -1 << 61, 7}}, // limited
	} {
		l := openLink(t, meter.BitRate(8e6), LinkQueue{}, LinkQueue{}, LinkQueue{Priority: 1})
		v := &l.links[0].levels[0]
		v.now, v.latest = test.now, test.now+9
		for i := range l.queues {
			l.nodes[i+1].virtual = test.starts[i]
		}
		l.rewind(&l.links[0], 0)
		after := [3]int64{l.nodes[1].virtual, l.nodes[2].virtual, l.nodes[3].virtual}
		if v.now != test.want || v.latest != test.want+9 || after != test.after {
			t.Errorf("at %d: now %d, latest %d, starts %d; want %d, %d, %d", test.now, v.now, v.latest, after,
				test.want, test.want+9, test.after)
		}
	}
}

// TestRewind starts virtual time near the rewind threshold and compares the
// decisions with those of a link that starts at 0.
func TestRewind(t *testing.T) {
	for range 50 {
		r := seeded(t)
		shares := []LinkQueue{{Weight: 1}, {Weight: 3}, {Weight: 1000}, {Weight: 5, Priority: 1}}
		one, late := openLink(t, meter.BitRate(8e9), shares...), openLink(t, meter.BitRate(8e9), shares...)
		const before = rewindAt - 3000*grain
		v := &late.links[0].levels[0]
		v.now, v.latest = before, before
		for i := range late.queues[:3] {
			late.nodes[i+1].virtual = before
		}
		now := int64(0)
		for i := range 500 {
			q, n := r.IntN(4), 1+r.IntN(1514)
			one.Admit(now, q, Packet{Bytes: n}, i)
			late.Admit(now, q, Packet{Bytes: n}, i)
			if r.IntN(3) == 0 {
				now += int64(r.IntN(3000))
			}
			if a, b := decided(one, now), decided(late, now); !slices.Equal(a, b) {
				t.Fatalf("got %v for a link near the rewind threshold, want %v", b, a)
			}
		}
		if v.now > rewindAt/2 {
			t.Errorf("virtual time was not rewound: got %d, want at most %d", v.now, int64(rewindAt/2))
		}
	}
}
