package queue

import (
	"fmt"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// verdict is a value as large as that of dataplane/pipeline.
type verdict [9]int64

// fairLink returns a link of 1 Gbit/s with one fair queue.
func fairLink(t testing.TB, c Config, fair Fair) *Link[verdict] {
	t.Helper()
	l, err := NewLink[verdict](meter.BitRate(1e9), []LinkQueue{{Config: c, Weight: 1, Fair: fair}})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// BenchmarkFair sends packets of flows in turn through a queue with a backlog of 2 packets per flow,
// without drops.
func BenchmarkFair(b *testing.B) {
	for _, flows := range []int{0, 1, 16, 1024} {
		for _, c := range []CoDel{{}, {5 * time.Millisecond, 100 * time.Millisecond}} {
			b.Run(fmt.Sprintf("flows=%d/codel=%v", flows, c != CoDel{}), func(b *testing.B) {
				l := fairLink(b, Config{Packets: MaxPackets, CoDel: c}, Fair(min(flows, 1)))
				now, flow := int64(0), uint16(0)
				admit := func() {
					l.Admit(now, 0, Packet{Bytes: 1500, Flow: flow}, verdict{})
					if flow++; int(flow) >= flows {
						flow = 0
					}
				}
				for range 2 * max(flows, 1) {
					admit()
				}
				b.ReportAllocs()
				for b.Loop() {
					now += 12_000
					admit()
					for _, ok := l.Decide(now); ok; _, ok = l.Decide(now) {
					}
				}
			})
		}
	}
}

// BenchmarkShed sends packets to a full queue. Each of them makes the queue drop a packet. The
// link sends none meanwhile. A drop should take no longer with many flows or hosts than with one.
func BenchmarkShed(b *testing.B) {
	for _, fair := range []Fair{FairFlows, FairHosts} {
		for _, random := range []bool{false, true} {
			for _, flows := range []int{1, 16, 1024} {
				b.Run(fmt.Sprintf("%v/random=%v/flows=%d", fair, random, flows), func(b *testing.B) {
					shedForever(b, fair, random, flows)
				})
			}
		}
	}
}

func shedForever(b *testing.B, fair Fair, random bool, flows int) {
	l := fairLink(b, Config{Packets: 4096}, fair)
	var list [8192]Packet
	r := seeded(b)
	for i := range list {
		list[i] = Packet{Bytes: 1500, Flow: uint16(i % flows), Host: uint16(i / 32 % flows)}
		if random {
			list[i] = Packet{
				Bytes: 60 + r.IntN(1400), Flow: uint16(r.IntN(flows)), Host: uint16(r.IntN(flows)),
			}
		}
	}
	admit := func(i int) {
		l.Admit(0, 0, list[i%len(list)], verdict{})
		l.Decide(0)
	}
	for i := range 8192 {
		admit(i)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		admit(i)
	}
}
