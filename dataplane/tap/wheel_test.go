package tap

import (
	"cmp"
	"container/heap"
	"math"
	"math/rand/v2"
	"testing"
)

// wheelModel is the specification of a wheel: a heap of (time, order of add).
type wheelModel struct {
	waiting []wheelRow
	added   int
}

type wheelRow struct {
	at  int64
	seq int
}

func (m *wheelModel) Len() int { return len(m.waiting) }
func (m *wheelModel) Less(i, j int) bool {
	a, b := m.waiting[i], m.waiting[j]
	return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.seq, b.seq)) < 0
}
func (m *wheelModel) Swap(i, j int) { m.waiting[i], m.waiting[j] = m.waiting[j], m.waiting[i] }
func (m *wheelModel) Push(x any)    { m.waiting = append(m.waiting, x.(wheelRow)) }
func (m *wheelModel) Pop() any {
	last := m.waiting[len(m.waiting)-1]
	m.waiting = m.waiting[:len(m.waiting)-1]
	return last
}

// wheelPair applies the same operations to a wheel and its model.
type wheelPair struct {
	t     testing.TB
	wheel *wheel[int]
	model wheelModel
}

func newWheelPair(t testing.TB, now int64) *wheelPair {
	return &wheelPair{t: t, wheel: newWheel[int](now)}
}

func (p *wheelPair) addEntry(at int64) {
	p.wheel.add(at, p.model.added)
	heap.Push(&p.model, wheelRow{at, p.model.added})
	p.model.added++
	p.compare()
}

// compare compares the observable state.
func (p *wheelPair) compare() {
	p.t.Helper()
	at, ok := p.wheel.next()
	if n := p.wheel.len(); n != p.model.Len() || ok != (n > 0) {
		p.t.Fatalf("got len %d and a next entry %v, want len %d", n, ok, p.model.Len())
	}
	if ok && at != p.model.waiting[0].at {
		p.t.Fatalf("next is at %d, want %d", at, p.model.waiting[0].at)
	}
}

// popEntries removes up to n values that are due by now.
func (p *wheelPair) popEntries(now int64, n int) {
	p.t.Helper()
	for range n {
		v, at, ok := p.wheel.pop(now)
		due := p.model.Len() > 0 && p.model.waiting[0].at <= now
		if ok != due {
			p.t.Fatalf("pop(%d) = %v, want %v", now, ok, due)
		}
		if !ok {
			return
		}
		if want := heap.Pop(&p.model).(wheelRow); (wheelRow{at, v}) != want {
			p.t.Fatalf("pop(%d) = %v, want %v", now, wheelRow{at, v}, want)
		}
		p.compare()
	}
}

// drainEntries removes all values, each exactly at its time.
func (p *wheelPair) drainEntries() {
	p.t.Helper()
	for p.model.Len() > 0 {
		at := p.model.waiting[0].at
		if at > math.MinInt64 {
			p.popEntries(at-1, 1)
		}
		p.popEntries(at, 1)
	}
	p.popEntries(math.MaxInt64, 1)
	for i := range p.wheel.entries {
		if p.wheel.entries[i].value != 0 {
			p.t.Fatalf("entry %d still references its value", i)
		}
	}
}

func TestWheelRows(t *testing.T) {
	const year = 365 * 24 * 3600 * 1e9
	for _, test := range []struct {
		name string
		now  int64
		at   []int64
	}{
		{"nothing", 0, nil},
		{"in order", 0, []int64{1, 2, 3, 100, 1e9, 2e9}},
		{"reverse order", 0, []int64{2e9, 1e9, 100, 3, 2, 1}},
		{"ties", 5, []int64{9, 7, 9, 7, 1e6, 9, 7, 1e6, 7}},
		{"late", 1e9, []int64{5, 9, 7, 1e9, 7, 3, 1e9, 9, 1e9 + 1, 5, math.MinInt64, 3}},
		{"negative times", -1e9, []int64{5, -7, 0, -1, -1e9, 1, 5, 0}},
		{"minimum and maximum times", 0, []int64{math.MaxInt64, math.MinInt64, math.MaxInt64 - 1, math.MinInt64 + 1, math.MaxInt64, 0, math.MinInt64}},
		{"from the minimum time", math.MinInt64, []int64{math.MaxInt64, 0, math.MinInt64, -1, 1, math.MinInt64}},
		{"from the maximum time", math.MaxInt64, []int64{math.MaxInt64, math.MaxInt64 - 1, math.MaxInt64}},
		{"years", 1.7e18, []int64{1.7e18 + 200*year, 1.7e18 + year, 1.7e18 + 1, 1.7e18 + 100*year, 1.7e18 + year - 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newWheelPair(t, test.now)
			for range 3 { // later rounds start with late times and free entries
				for _, at := range test.at {
					p.addEntry(at)
				}
				p.drainEntries()
			}
		})
	}
}

// TestWheelWraps crosses the end of each slot of each level.
func TestWheelWraps(t *testing.T) {
	for shift := range 63 {
		edge := int64(1) << shift
		for _, now := range []int64{0, edge / 2, edge - 1, edge, -edge} {
			p := newWheelPair(t, now)
			for _, at := range []int64{
				edge + 1, edge, edge - 1, edge, edge - 1, edge + edge/2, edge + (edge - 1),
			} {
				p.addEntry(at)
			}
			p.popEntries(edge-1, 1)
			p.addEntry(edge)
			p.addEntry(edge - 1)
			p.popEntries(edge, 2)
			p.addEntry(edge + (edge - 1))
			p.addEntry(edge + 1)
			p.drainEntries()
		}
	}
}

// TestWheelRandom adds and removes values while the clock advances by steps of
// any size. Times are near, far, equal or past.
func TestWheelRandom(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		now := []int64{0, 1.7e18, -1e12, math.MinInt64, math.MaxInt64 - 1e9}[r.IntN(5)]
		span := 1 + r.IntN(62)
		p := newWheelPair(t, now)
		for range 300 {
			switch r.IntN(8) {
			case 0: // idle
				now = wheelLater(now, r.Int64()>>r.IntN(63))
			case 1:
				now = wheelLater(now, r.Int64()>>(63-span))
			case 2, 3:
				p.popEntries(now, r.IntN(20))
			case 4: // a burst at one time
				at := wheelLater(now, r.Int64()>>(63-span))
				for range r.IntN(10) {
					p.addEntry(at)
				}
			case 5: // a queue
				at := now
				for range r.IntN(20) {
					at = wheelLater(at, r.Int64()>>(63-span/2))
					p.addEntry(at)
				}
			case 6:
				p.addEntry(now - r.Int64N(1000)) // late; or far ahead if it wraps
			default:
				p.addEntry(wheelLater(now, r.Int64()>>(63-span)))
			}
		}
		p.drainEntries()
	}
}

// wheelLater returns at+d, limited to the maximum time.
func wheelLater(at, d int64) int64 {
	if sum := at + d; sum >= at {
		return sum
	}
	return math.MaxInt64
}

// FuzzWheel reads steps of 3 bytes: an operation, and a time by its highest bit
// and its lower ones.
func FuzzWheel(f *testing.F) {
	f.Add(int64(0), []byte{0, 10, 1, 0, 10, 1, 0, 9, 7, 2, 11, 0, 4, 1, 0})
	f.Add(int64(math.MinInt64), []byte{0, 63, 1, 1, 63, 1, 0, 0, 7, 2, 63, 0, 4, 3, 0, 0, 62, 5})
	f.Add(int64(1.7e18), []byte{0, 20, 1, 0, 19, 1, 3, 19, 2, 1, 5, 0, 4, 3, 0, 0, 62, 5})
	f.Fuzz(func(t *testing.T, now int64, steps []byte) {
		p := newWheelPair(t, now)
		for ; len(steps) >= 3; steps = steps[3:] {
			d := int64((1<<8 | uint64(steps[2])) << (steps[1] % 64) >> 8)
			switch steps[0] % 5 {
			case 0:
				p.addEntry(wheelLater(now, max(d, 0)))
			case 1:
				p.addEntry(now - d)
			case 2:
				now = wheelLater(now, max(d, 0))
			case 3:
				p.addEntry(d)
			case 4:
				p.popEntries(now, int(steps[1]))
			}
		}
		p.drainEntries()
	})
}

// wheelPacket has about the size of a queued packet in a plane.
type wheelPacket struct {
	queue int
	_     []byte
}

// wheelPatterns generate the departure of a packet that replaces one that
// departed at at.
var wheelPatterns = []struct {
	name   string
	queues int
	next   func(r *rand.Rand) func(queue int, at int64) int64
}{
	{"one queue", 1, wheelQueues(1)},
	{"1000 queues", 1000, wheelQueues(1000)},
	{"uniform over 1s", 1, func(r *rand.Rand) func(int, int64) int64 {
		return func(_ int, at int64) int64 { return at + r.Int64N(1e9) }
	}},
}

// wheelQueues generates departures of leaky buckets of different rates that
// never run empty: a packet arrives whenever one departs.
func wheelQueues(n int) func(r *rand.Rand) func(queue int, at int64) int64 {
	return func(r *rand.Rand) func(int, int64) int64 {
		tail, gap := make([]int64, n), make([]int64, n)
		for i := range gap {
			gap[i] = int64(n) * (5_000 + r.Int64N(10_000))
		}
		return func(queue int, _ int64) int64 {
			tail[queue] += gap[queue]
			return tail[queue]
		}
	}
}

func fillWheel(n, queues int, next func(int, int64) int64) *wheel[wheelPacket] {
	w := newWheel[wheelPacket](0)
	for i := range n {
		queue := i % queues
		w.add(next(queue, 0), wheelPacket{queue: queue})
	}
	return w
}

// BenchmarkWheel removes one of 100,000 values, adds one, and asks for the next
// time.
func BenchmarkWheel(b *testing.B) {
	for _, pattern := range wheelPatterns {
		b.Run(pattern.name, func(b *testing.B) {
			next := pattern.next(rand.New(rand.NewPCG(1, 2)))
			w := fillWheel(100_000, pattern.queues, next)
			b.ReportAllocs()
			for b.Loop() {
				v, at, _ := w.pop(math.MaxInt64)
				w.add(next(v.queue, at), v)
				w.next()
			}
		})
	}
}

func TestWheelAllocations(t *testing.T) {
	for _, pattern := range wheelPatterns {
		next := pattern.next(rand.New(rand.NewPCG(1, 2)))
		w := fillWheel(10_000, pattern.queues, next)
		if n := testing.AllocsPerRun(20_000, func() {
			v, at, _ := w.pop(math.MaxInt64)
			w.add(next(v.queue, at), v)
			w.next()
		}); n != 0 {
			t.Errorf("%s: got %v allocations, want 0", pattern.name, n)
		}
	}
}
