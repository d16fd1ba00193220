package episodes

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

const ms = int64(time.Millisecond)

// linkPlan has three classes with a meter. A link with CoDel can drop their packets.
func linkPlan(t *testing.T) *compiled.Plan {
	t.Helper()
	link := &dataplane.Link{Name: "link", Rate: meter.BitRate(1_000_000)}
	q := &dataplane.Queue{
		Name: "q", Link: link,
		Config: queue.Config{Bytes: 1 << 20, CoDel: queue.CoDel{Target: 5e6, Interval: 1e8}},
	}
	policy := &dataplane.Policy{}
	for _, name := range []string{"a", "b", "c"} {
		policy.Classes = append(policy.Classes, dataplane.Class{
			Name: name,
			Match: dataplane.Match{DSCP: []dataplane.Range{
				{First: uint64(len(policy.Classes)), Last: uint64(len(policy.Classes))},
			}},
			Meter: &dataplane.Meter{Params: meter.TokenBucket{Rate: meter.BitRate(1000), Burst: 1500}},
			Green: &dataplane.Action{Queue: q},
		})
	}
	plan, err := compiled.Compile(policy)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// kept returns the number of packets.
func (w *waiting) kept() int {
	n := len(w.older)
	for i := range w.ring {
		if w.ring[i].number != 0 {
			n++
		}
	}
	return n
}

// flowPacket is a parsed packet of a flow.
func flowPacket(n int) *dataplane.Packet {
	p := &dataplane.Packet{Data: append(
		[]byte{0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, byte(n >> 8), byte(n)}, 192, 0, 2,
		1), Link: dataplane.LinkRaw}
	dataplane.Parse(p)
	return p
}

// lost is a packet of an episode in the model.
type lost struct {
	kind    Kind
	class   int
	now, id int64
	bytes   int64
	lack    int64
	flow    dataplane.Flow
}

// model returns the episodes by their definition: all packets, sorted by class and time, and
// split at each gap of at least 100 ms.
func model(all []lost) (out []Episode) {
	slices.SortFunc(all, func(a, b lost) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.class, b.class), cmp.Compare(a.now, b.now),
			cmp.Compare(a.id, b.id))
	})
	var flows map[dataplane.Flow]int64
	for i, l := range all {
		if i == 0 || all[i-1].kind != l.kind || all[i-1].class != l.class || l.now-all[i-1].now >= 100*ms {
			flows = map[dataplane.Flow]int64{}
			out = append(out, Episode{Kind: l.kind, Class: l.class, First: l.now, FirstPacket: l.id})
		}
		e := &out[len(out)-1]
		e.Last, e.LastPacket = l.now, l.id
		e.Packets, e.Bytes, e.Lack = e.Packets+1, e.Bytes+l.bytes, max(e.Lack, l.lack)
		flows[l.flow] += l.bytes
		e.Flow.Bytes = max(e.Flow.Bytes, flows[l.flow])
	}
	return out
}

// TestAgainstModel compares episodes of random packets with the model. Some packets wait in a
// link, which drops them later and in another order.
func TestAgainstModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	plan := linkPlan(t)
	for round := range 300 {
		tracker := New(plan)
		begun := 0
		tracker.Begin = func(*Episode) { begun++ }
		var all []lost
		type wait struct {
			v    dataplane.Verdict
			at   int64
			flow dataplane.Flow
		}
		var waits []wait
		settle := func(now int64) {
			slices.SortStableFunc(waits, func(a, b wait) int { return cmp.Compare(a.at, b.at) })
			for len(waits) > 0 && waits[0].at <= now {
				w := waits[0]
				waits = waits[1:]
				w.v.Done, w.v.Departure = dataplane.Pass|dataplane.Queued, w.at
				if r.IntN(2) == 0 {
					w.v.Done, w.v.Reason = 0, dataplane.CoDel
					all = append(all,
						lost{Drop, int(w.v.Class), w.v.Now, w.v.ID, int64(w.v.Length), 0, w.flow})
				}
				tracker.Settled(&w.v)
			}
		}
		now := r.Int64N(1e18)
		step := []int64{1, ringSize / 2}[round%2] // between numbers
		for id := int64(1); id <= 400*step; id += step {
			now += []int64{0, 1, ms, 50 * ms, 100*ms - 1, 100 * ms, 300 * ms}[r.IntN(7)] / int64(1+round%3)
			settle(now)
			p := flowPacket(r.IntN(12))
			v := dataplane.Verdict{
				Now: now, ID: id, Length: 1 + r.IntN(1500), Packets: 1, Class: int32(r.IntN(4) - 1),
				Stage: -1, Done: dataplane.Pass,
			}
			class := int(v.Class)
			l := lost{Drop, class, now, id, int64(v.Length), 0, dataplane.FlowOf(p)}
			switch kind := r.IntN(4); {
			case v.Class < 0:
				l.class, v.Done = 3, 0
			case kind == 0:
				v.Done, v.Color, v.Stage, v.Lack = 0, meter.Red, v.Class, int32(r.IntN(1500))
				l.lack = int64(v.Lack)
			case kind == 1:
				v.Color, l.kind = meter.Yellow, Yellow
			case kind == 2:
				v.Done |= dataplane.Waiting | dataplane.Queued
				waits = append(waits, wait{v, now + r.Int64N(300*ms), l.flow})
				tracker.packet(p, &v)
				continue
			default:
				continue
			}
			all = append(all, l)
			tracker.packet(p, &v)
		}
		settle(now + 1e9)
		if n := tracker.waiting.kept(); n > 0 {
			t.Fatalf("%d flows of decided packets are kept", n)
		}

		want := model(all)
		var counts [kinds]int64
		for _, e := range want {
			counts[e.Kind]++
		}
		slices.SortStableFunc(want, func(a, b Episode) int {
			return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(b.Bytes, a.Bytes),
				cmp.Compare(a.First, b.First))
		})
		got := tracker.Worst()
		if tracker.Counts != counts || len(got) != min(5, len(want)) ||
			int64(begun) < counts[Drop]+counts[Yellow] {
			t.Fatalf("round %d: got %d of %v episodes, want %v; %d begun", round, len(got), tracker.Counts,
				counts, begun)
		}
		for i, e := range got {
			w := &want[i]
			if e.Kind != w.Kind || e.Class != w.Class || e.First != w.First || e.Last != w.Last ||
				e.FirstPacket != w.FirstPacket ||
				e.LastPacket != w.LastPacket || e.Count != w.Count || e.Lack != w.Lack ||
				e.Flow.Bytes != w.Flow.Bytes {
				t.Fatalf("round %d, episode %d:\ngot  %+v\nwant %+v", round, i, *e, *w)
			}
			sum := dataplane.Count{}
			for _, p := range e.Parts {
				sum = sum.Plus(p.Count)
			}
			if sum != e.Count {
				t.Fatalf("round %d, episode %d: its parts %v are %v, want %v", round, i, e.Parts, sum,
					e.Count)
			}
		}
	}
}

// TestBounded checks that drops of 100,000 flows and 20,000 episodes take no more memory than few.
func TestBounded(t *testing.T) {
	tracker := New(linkPlan(t))
	for i := range int64(400_000) {
		v := dataplane.Verdict{
			Now: i/20*200*ms + i%20, ID: i + 1, Length: 100, Packets: 1, Class: 1, Color: meter.Red,
		}
		tracker.packet(flowPacket(int(i%100_000)), &v)
	}
	if n := len(tracker.open[4]) + len(tracker.worst[Drop]); n > openMax+worst {
		t.Errorf("%d episodes are kept", n)
	}
	if got := tracker.Worst(); tracker.Counts[Drop] != 20_000 || got[0].Packets != 20 ||
		got[4].FirstPacket != 81 {
		t.Errorf("%v episodes, the worst %+v", tracker.Counts, got[0])
	}
}

// TestTop checks that counts of few keys are exact, and that a large key is found among many.
func TestTop(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	top, exact := NewTop(8,
		func(k int) uint64 { return uint64(k) * 0x9e3779b97f4a7c15 >> 32 }), map[int]dataplane.Count{}
	add := func(key int, n int64) {
		count := dataplane.Count{Packets: 1, Bytes: n}
		top.Add(key, count)
		exact[key] = exact[key].Plus(count)
	}
	for range 1000 {
		add(r.IntN(16), r.Int64N(1500))
	}
	for _, item := range top.Sorted() {
		if item.Count != exact[item.Key] || item.Partial {
			t.Errorf("key %d: got %+v, want %v", item.Key, item, exact[item.Key])
		}
	}
	for range 100_000 { // one packet in 20 is of key 99, the others of 5,000 keys
		if r.IntN(20) == 0 {
			add(99, 1000)
		}
		add(1000+r.IntN(5000), 1000)
	}
	got := top.Sorted()
	if len(got) != 64 || got[0].Key != 99 || got[0].Bytes > exact[99].Bytes ||
		got[0].Bytes < exact[99].Bytes*9/10 {
		t.Errorf("got %+v of %d keys, want key 99 with %v", got[0], len(got), exact[99])
	}
	for _, item := range got {
		if item.Bytes > exact[item.Key].Bytes || !item.Partial && item.Count != exact[item.Key] {
			t.Errorf("key %d: got %+v, want at most %v", item.Key, item, exact[item.Key])
		}
	}
}

// TestTopTies checks that keys with equal bytes have the order of their first packets, whatever their hashes
// are: the same capture gives the same report each time.
func TestTopTies(t *testing.T) {
	for _, hash := range []func(int) uint64{
		func(k int) uint64 { return uint64(k * ways) },
		func(k int) uint64 { return uint64(-k * ways) },
	} {
		top := NewTop(8, hash)
		for range 2 {
			for _, k := range []int{3, 7, 1, 5} {
				top.Add(k, dataplane.Count{Packets: 1, Bytes: 100})
			}
		}
		var got []int
		for _, item := range top.Sorted() {
			got = append(got, item.Key)
		}
		if want := []int{3, 7, 1, 5}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
}
