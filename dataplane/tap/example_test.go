package tap_test

import (
	"context"
	"fmt"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/tap"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// A plane between two devices made of channels, which need no privilege. Frames
// depart one after the other at 1 Mbit/s.
func Example() {
	slow := &dataplane.Queue{
		Name: "slow", Config: queue.Config{Rate: meter.BitRate(1_000_000), Time: time.Second},
	}
	plan, err := compiled.Compile(&dataplane.Policy{Classes: []dataplane.Class{
		{Name: "all", Green: &dataplane.Action{Queue: slow}},
	}})
	if err != nil {
		panic(err)
	}
	shaper := tap.NewActivePolicy(plan, 0)
	inside, outside := tap.NewFake("inside", 1), tap.NewFake("outside", 1)
	plane := tap.Plane{Inside: inside, Outside: outside, Egress: shaper}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- plane.Run(ctx) }()

	frame := make([]byte, tap.HeaderLen+14+20) // an Ethernet frame with only an IPv4 header
	copy(frame[tap.HeaderLen+12:], []byte{0x08, 0x00, 0x45, 0, 0, 20})
	for range 3 {
		inside.Send(0, frame)
	}
	for range 3 {
		got, _ := outside.Receive(0)
		fmt.Println(len(got)-tap.HeaderLen, "bytes")
	}
	stop()
	if err := <-done; err != nil {
		panic(err)
	}
	stats, _ := shaper.Stats()
	fmt.Println(stats[0].Queued[meter.Green].Packets, "queued")
	// Output:
	// 34 bytes
	// 34 bytes
	// 34 bytes
	// 3 queued
}
