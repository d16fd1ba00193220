package queue

import (
	"fmt"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// BenchmarkChange changes one of 100,000 queues that all have packets: its weight, its weight and its
// link, or both with the whole tree as Change sees it.
func BenchmarkChange(b *testing.B) {
	const customers = 100_000
	for _, links := range []int{5000, 500, 1} {
		for _, kind := range []string{"weight", "move", "whole"} {
			b.Run(fmt.Sprintf("%d/%s", links, kind), func(b *testing.B) {
				tree := []TreeLink{{Rate: meter.BitRate(10e9)}}
				for range links {
					tree = append(tree, TreeLink{
						Rate: meter.BitRate(20e9 / int64(links)), Guarantee: meter.BitRate(8e9 / int64(links)), Weight: 1,
					})
				}
				queues := make([]LinkQueue, customers)
				for i := range queues {
					queues[i] = LinkQueue{
						Config: Config{Rate: meter.BitRate(1e6), Time: 100 * time.Millisecond},
						Parent: 1 + i*links/customers, Weight: 1 + i%4,
					}
				}
				l, err := NewTree[int](tree, queues)
				if err != nil {
					b.Fatal(err)
				}
				for i := range queues {
					l.Admit(0, i, Packet{Bytes: 1000}, i)
				}
				for i := 0; b.Loop(); i++ {
					n := i * 7919 % customers
					q := &queues[n]
					if q.Weight = 1 + q.Weight%4; kind != "weight" {
						q.Parent = 1 + i%links
					}
					if kind == "whole" {
						err = l.Change(0, tree, queues)
					} else {
						err = l.ChangeQueues(0, []QueueChange{{n, *q}})
					}
					if err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
