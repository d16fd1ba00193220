package queue

import (
	"cmp"
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestHostsTrace has traces of a queue that is fair to hosts, computed by hand. A byte takes 1 µs;
// packets are numbered from 0.
func TestHostsTrace(t *testing.T) {
	const µs = 1000
	type in struct {
		at         int64
		host, flow uint16
		n          int
	}
	type out = traced
	for _, test := range []struct {
		name string
		cfg  Config
		in   []in
		out  []out
	}{
		{"a host gets one turn, however many flows it has", Config{Packets: 99}, []in{
			{0, 1, 1, 1514}, // ends the turn of host 1 and of its flow 1
			{0, 1, 1, 1514},
			{0, 1, 2, 1514},
			{0, 1, 3, 1514},
			{0, 2, 1, 1514}, // flow 1 of host 2 is another flow
			{0, 2, 1, 1514},
			{0, 2, 1, 1514},
		}, []out{
			{0, 0, Admit},
			{4, 1514 * µs, Admit},     // host 2 is new, host 1 is old
			{2, 2 * 1514 * µs, Admit}, // flows 2 and 3 are new, flow 1 is old
			{5, 3 * 1514 * µs, Admit},
			{3, 4 * 1514 * µs, Admit},
			{6, 5 * 1514 * µs, Admit},
			{1, 6 * 1514 * µs, Admit},
		}},
		{"flows of a host that left the lists are new", Config{Packets: 99}, []in{
			{0, 1, 1, 1000},         // flow 1 of host 1: deficit 514
			{0, 2, 1, 1514},         // at 1000; host 1 becomes old before
			{1000 * µs, 2, 1, 1514}, // at 2514; host 1 leaves before, since it has no packets
			{2000 * µs, 1, 2, 10},   // host 1 is still old, with a deficit of 514; its flow 2 is new
			{2000 * µs, 1, 1, 20},
			{9000 * µs, 2, 1, 1514},
			{9000 * µs, 2, 1, 1514}, // at 10514; host 1 leaves before
			{10600 * µs, 1, 2, 10},  // both are new again, flow 2 first
			{10600 * µs, 1, 1, 20},
		}, []out{
			{0, 0, Admit},
			{1, 1000 * µs, Admit},
			{4, 2514 * µs, Admit}, // flow 1 is still new
			{3, 2534 * µs, Admit},
			{2, 2544 * µs, Admit},
			{5, 9000 * µs, Admit},
			{6, 10514 * µs, Admit},
			{7, 12028 * µs, Admit},
			{8, 12038 * µs, Admit},
		}},
		{"the host with the largest backlog makes room, and its largest flow", Config{Packets: 6}, []in{
			{0, 9, 9, 5000}, // being sent
			{0, 1, 1, 500},  // host 1 has 1300 bytes
			{0, 1, 2, 400},
			{0, 1, 3, 400},
			{0, 2, 1, 600}, // host 2 has 1200 bytes
			{0, 2, 2, 300},
			{0, 2, 2, 300},
			{10 * µs, 3, 1, 100}, // drops 1
			{20 * µs, 3, 1, 100}, // host 2: flows of 600 bytes, drops 4
			{30 * µs, 3, 1, 1},   // host 1: flows of 400 bytes, drops 2
			{40 * µs, 3, 1, 1},   // host 2 has 600 bytes, drops 5
			{50 * µs, 3, 1, 900}, // host 1 has 400 bytes, drops 3
			{60 * µs, 4, 1, 1},   // host 3 has 1102 bytes, drops 7
		}, []out{
			{0, 0, Admit},
			{1, 10 * µs, Full},
			{4, 20 * µs, Full},
			{2, 30 * µs, Full},
			{5, 40 * µs, Full},
			{3, 50 * µs, Full},
			{7, 60 * µs, Full},
			{6, 5000 * µs, Admit},
			{8, 5300 * µs, Admit},
			{9, 5400 * µs, Admit},
			{10, 5401 * µs, Admit},
			{11, 5402 * µs, Admit},
			{12, 6302 * µs, Admit},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var in []arrival
			for _, p := range test.in {
				in = append(in, arrival{p.at, Packet{Bytes: p.n, Host: p.host, Flow: p.flow}})
			}
			checkTrace(t, LinkQueue{Config: test.cfg, Fair: FairHosts}, in, test.out)
		})
	}
}

// TestHostShares keeps the flows of a host with eight and of a host with one busy. At any time each
// host has sent half of the bytes, and each flow the same as the other flows of its host, within a packet and
// a quantum.
func TestHostShares(t *testing.T) {
	r := seeded(t)
	const longest = 1514
	l := openLink(t, meter.BitRate(1e9), LinkQueue{Fair: FairHosts})
	type source struct{ host, flow uint16 }
	var all []source
	var sent [9]int
	for i := range uint16(9) {
		all = append(all, source{7 * (i / 8), 3 * i})
	}
	admit := func(now int64, i int) {
		n := 1 + r.IntN(longest)
		if i == 3 {
			n = longest
		}
		l.Admit(now, 0, Packet{Bytes: n, Host: all[i].host, Flow: all[i].flow}, n<<4|i)
	}
	for i := range all {
		for range 3 {
			admit(0, i)
		}
	}
	for range 40_000 {
		at, _ := l.Due()
		d, _ := l.Decide(at)
		i := d.Value & 15
		sent[i] += d.Value >> 4
		admit(at, i)
		flows, one := sent[:8], sent[8]
		sum := 0
		for _, n := range flows {
			sum += n
		}
		if off := sum - one; max(off, -off) > longest+Quantum {
			t.Fatalf("the hosts have sent %d and %d B", sum, one)
		}
		if off := slices.Max(flows) - slices.Min(flows); off > longest+Quantum {
			t.Fatalf("the flows of a host have sent %d B", flows)
		}
	}
}

// TestHostOfOneFlow compares a queue that is fair to hosts, each with one flow or all with the same, with a
// queue that is fair to flows.
func TestHostOfOneFlow(t *testing.T) {
	r := seeded(t)
	for range 100 {
		pick := fromRandom(r, r.IntN(2) == 0)
		rate := pick.oneRate()
		c := pick.config(rate)
		open := func(f Fair) *Link[int] { return openLink(t, rate, LinkQueue{Config: c, Fair: f}) }
		flows, hosts := open(FairFlows), open(FairHosts)
		now := int64(0)
		for i := range 300 {
			p := pick.packet()
			a := flows.Admit(now, 0, p, i)
			p.Host = p.Flow
			if b := hosts.Admit(now, 0, p, i); a != b {
				t.Fatalf("packet %d: %v instead of %v", i, b, a)
			}
			if a, b := decided(flows, now), decided(hosts, now); !slices.Equal(a, b) {
				t.Fatalf("%+v: at %d: %v instead of %v", c, now, b, a)
			}
			now += pick.gap(rate, p)
		}
	}
}

// TestHeap compares the largest flow with that of a search, while packets arrive and leave.
func TestHeap(t *testing.T) {
	r := seeded(t)
	var f forest
	root := f.addRoot(true)
	top := f.nodes.at(root)
	count := 1 + r.IntN(200)
	for range 100_000 {
		number := uint16(r.IntN(count) * (Flows / 200))
		size := int64(r.IntN(4) * 500)
		if n := f.nodes.at(f.child(root, number, true, 0)); n.queued == 0 || r.IntN(5) < 2 {
			f.added(root, number, true, 0, size)
			top.queued++
			top.bytes += size
		} else {
			if size > n.bytes || n.queued == 1 {
				size = n.bytes
			}
			f.removed(n, size)
		}
		if top.queued == 0 {
			continue
		}
		if r.IntN(8) == 0 { // as a selection does
			f.charge(f.leaf(root), int64(r.IntN(4000)))
		}
		if r.IntN(3) > 0 {
			continue
		}
		got := f.largest(f.turns.at(top.turns))
		want := slices.MaxFunc(queuedNodes(&f), func(a, b *flowNode) int {
			return cmp.Or(cmp.Compare(a.bytes, b.bytes), cmp.Compare(b.number, a.number))
		})
		if got != want {
			t.Fatalf("got flow %d with %d B, want %d with %d B", got.number, got.bytes, want.number, want.bytes)
		}
	}
}

// queuedNodes returns all flows with packets.
func queuedNodes(f *forest) (list []*flowNode) {
	for _, c := range f.nodes.chunks {
		for i := range c {
			if n := &c[i]; n.parent != 0 && n.queued > 0 {
				list = append(list, n)
			}
		}
	}
	return list
}
