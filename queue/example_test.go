package queue_test

import (
	"fmt"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// At 12 Mbit/s a packet of 1500 bytes takes 1 ms.
func Example() {
	q, err := queue.New(queue.Config{Rate: meter.BitRate(12_000_000), Time: 2 * time.Millisecond})
	if err != nil {
		panic(err)
	}
	for range 4 {
		depart, fate := q.Admit(0, queue.Packet{Bytes: 1500})
		if fate.Dropped() {
			fmt.Println("the queue is full")
			continue
		}
		fmt.Println("departs at", time.Duration(depart))
	}
	// Output:
	// departs at 0s
	// departs at 1ms
	// departs at 2ms
	// the queue is full
}

// Voice is sent first; the others share the remaining rate by weight.
func ExampleLink() {
	link, err := queue.NewLink[string](meter.BitRate(12_000_000), []queue.LinkQueue{
		{Config: queue.Config{Packets: 10}, Priority: 0, Weight: 1},
		{Config: queue.Config{Packets: 10}, Priority: 1, Weight: 2},
		{Config: queue.Config{Packets: 10}, Priority: 1, Weight: 1},
	})
	if err != nil {
		panic(err)
	}
	for _, p := range []struct {
		queue int
		name  string
	}{{2, "mail"}, {2, "mail"}, {2, "mail"}, {1, "web"}, {1, "web"}, {1, "web"}, {0, "voice"}} {
		link.Admit(0, p.queue, queue.Packet{Bytes: 1500}, p.name)
	}
	for {
		at, ok := link.Due()
		if !ok {
			return
		}
		d, _ := link.Decide(at)
		fmt.Println(d.Value, time.Duration(d.Depart))
	}
	// Output:
	// mail 0s
	// voice 1ms
	// web 2ms
	// web 3ms
	// web 4ms
	// mail 5ms
	// mail 6ms
}
