package queue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// load sends packets through a link, one for each call.
type load struct {
	*Link[int]
	*rand.Rand
	queues int
	busy   bool // all queues are backlogged; otherwise few are
	now    int64
	rate   float64 // bytes per ns
	burst  int     // packets left for queue
	queue  int
}

// newLoad returns a load of a link with a rate from a time on. If busy, each queue has packets.
func newLoad(l *Link[int], queues int, rate meter.Rate, busy bool, now int64) *load {
	d := &load{
		Link: l, Rand: rand.New(rand.NewPCG(1, 1)), queues: queues, busy: busy, now: now,
		rate: float64(rate.Bytes) / float64(rate.Period),
	}
	for i := range 3 * queues {
		if busy {
			l.Admit(now, i%queues, Packet{Bytes: d.bytes()}, i%queues)
		}
	}
	return d
}

func (d *load) bytes() int { return 64 + d.IntN(1437) }

// step admits a packet, and collects those that have departed.
func (d *load) step() {
	n := d.bytes()
	if d.busy {
		at, _ := d.Due()
		sent, _ := d.Decide(at)
		d.Admit(at, sent.Value, Packet{Bytes: n}, sent.Value)
		return
	}
	if d.burst--; d.burst < 0 {
		d.burst, d.queue = d.IntN(16), d.IntN(d.queues)
	}
	d.now += int64(float64(n) / d.rate / 0.9 * d.ExpFloat64())
	d.Admit(d.now, d.queue, Packet{Bytes: n}, d.queue)
	for _, ok := d.Decide(d.now); ok; _, ok = d.Decide(d.now) {
	}
}

// ofISP returns a tree of a root, links, and 20 customers for each, and its rate.
func ofISP(t testing.TB, links int) (l *Link[int], rate meter.Rate) {
	const root = 10e9 // more than a core sends
	tree := []TreeLink{{Rate: meter.BitRate(root)}}
	for range links {
		tree = append(tree, TreeLink{
			Rate: meter.BitRate(100e6), Guarantee: meter.BitRate(root / int64(links)), Weight: 1,
		})
	}
	queues := make([]LinkQueue, 20*links)
	for i := range queues {
		queues[i] = LinkQueue{
			Config: Config{Rate: meter.BitRate(50e6), Time: 100 * time.Millisecond},
			Parent: 1 + i/20, Weight: 1 + i%4,
		}
	}
	l, err := NewTree[int](tree, queues)
	if err != nil {
		t.Fatal(err)
	}
	return l, tree[0].Rate
}

// flat returns a link with equal queues.
func flat(t testing.TB, rate meter.Rate, queues int) *Link[int] {
	shares := make([]LinkQueue, queues)
	for i := range shares {
		shares[i].Config = Config{Time: 100 * time.Millisecond}
	}
	return openLink(t, rate, shares...)
}

func TestTreeAllocations(t *testing.T) {
	for _, busy := range []bool{false, true} {
		const links = 200
		l, rate := ofISP(t, links)
		for i := range 20 * links * 64 { // more than are queued later
			l.Admit(0, i%(20*links), Packet{Bytes: 100}, 0)
		}
		const drained = int64(time.Minute)
		for _, ok := l.Decide(drained); ok; _, ok = l.Decide(drained) {
		}
		d := newLoad(l, 20*links, rate, busy, drained)
		run := func() {
			for range 20_000 {
				d.step()
			}
		}
		for range 10 {
			run()
		}
		if n := testing.AllocsPerRun(5, run); n != 0 {
			t.Errorf("busy %v: got %v allocations, want 0", busy, n)
		}
	}
}

func BenchmarkLinkActive(b *testing.B) {
	for _, queues := range []int{1, 64, 4096} {
		b.Run(fmt.Sprint(queues), func(b *testing.B) {
			rate := meter.BitRate(10e9)
			d := newLoad(flat(b, rate, queues), queues, rate, true, 0)
			for b.Loop() {
				d.step()
			}
		})
	}
}

// BenchmarkTree compares a packet of a tree with one of a link with one queue. Both take turns, and the
// medians count.
func BenchmarkTree(b *testing.B) {
	for _, links := range []int{500, 5000} {
		for _, busy := range []bool{false, true} {
			name := fmt.Sprintf("%d/%s", 20*links, map[bool]string{false: "few", true: "busy"}[busy])
			b.Run(name, func(b *testing.B) {
				l, rate := ofISP(b, links)
				loads := [2]*load{
					newLoad(flat(b, rate, 1), 1, rate, busy, 0), newLoad(l, 20*links, rate, busy, 0),
				}
				for range 600 * links {
					loads[1].step()
				}
				const turn = 1000
				var spent [2][]float64
				for b.ResetTimer(); b.Loop(); {
					for i, d := range loads {
						begin := time.Now()
						for range turn {
							d.step()
						}
						spent[i] = append(spent[i], float64(time.Since(begin).Nanoseconds())/turn)
					}
				}
				for i := range spent {
					slices.Sort(spent[i])
				}
				flat, tree := spent[0][len(spent[0])/2], spent[1][len(spent[1])/2]
				b.ReportMetric(flat, "ns/flat")
				b.ReportMetric(tree, "ns/tree")
				b.ReportMetric(tree-flat, "ns/over")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
