package episodes

import (
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestSampled checks the estimates of a long episode: its flows take turns, and one has a tenth of the
// packets. Everything but the flow is exact.
func TestSampled(t *testing.T) {
	tracker := New(linkPlan(t))
	const packets = 1_000_000
	for i := range int64(packets) {
		flow := 1 + int(i%16) // a pattern that a fixed distance of samples would miss
		if i%10 == 3 {
			flow = 100
		}
		v := dataplane.Verdict{Now: i, ID: i + 1, Length: 100, Packets: 1, Class: 1, Color: meter.Red}
		tracker.packet(flowPacket(flow), &v)
	}
	e := tracker.Worst()[0]
	if e.Packets != packets || e.Bytes != 100*packets || e.FirstPacket != 1 || e.LastPacket != packets ||
		!e.Sampled {
		t.Errorf("got %+v", e)
	}
	if want := dataplane.FlowOf(flowPacket(100)); e.Flow.Key != want || e.Flow.Packets < packets/10*9/10 ||
		e.Flow.Packets > packets/10*11/10 {
		t.Errorf("got flow %v with %d packets, want %v with about %d", e.Flow.Key, e.Flow.Packets, want,
			packets/10)
	}
}

// TestExact checks that the flows of an episode with few packets are counted exactly.
func TestExact(t *testing.T) {
	tracker := New(linkPlan(t))
	for i := range int64(exactFlows) {
		v := dataplane.Verdict{Now: i, ID: i + 1, Length: 100, Packets: 1, Class: 1, Color: meter.Red}
		tracker.packet(flowPacket(int(i%4)), &v)
	}
	if e := tracker.Worst()[0]; e.Flow.Packets != exactFlows/4 {
		t.Errorf("got %+v, want %d packets", e.Flow, exactFlows/4)
	}
}

// TestPacketsAllocateNothing checks that packets of open episodes, and others, allocate nothing.
func TestPacketsAllocateNothing(t *testing.T) {
	tracker := New(linkPlan(t))
	id := int64(0)
	verdicts := []dataplane.Verdict{
		{Class: 0, Done: dataplane.Pass},
		{Class: 0, Color: meter.Red, Stage: 0},
		{Class: 1, Color: meter.Yellow, Done: dataplane.Pass, Stage: 1},
		{Class: 1, Color: meter.Red, Stage: 1},
		{Class: 1, Color: meter.Red, Stage: 1, Done: dataplane.Pass},
		{Class: -1, Stage: -1},
	}
	packets := make([]dataplane.Packet, len(verdicts))
	for i := range packets {
		packets[i] = *flowPacket(1)
	}
	step := func() {
		for i := range verdicts {
			id++
			v := &verdicts[i]
			v.ID, v.Now, v.Length, v.Packets = id, id, 100, 1
		}
		tracker.Packets(packets, verdicts)
	}
	step()
	if n := testing.AllocsPerRun(1000, step); n != 0 {
		t.Errorf("%v allocations for %d packets, want 0", n, len(verdicts))
	}
	steps := id / int64(len(verdicts))
	for _, e := range tracker.Worst() { // the unclassified packet and two of the six are drops, one is yellow
		if e.Packets != steps {
			t.Errorf("%v of class %d: %d packets, want %d", e.Kind, e.Class, e.Packets, steps)
		}
	}
	if tracker.Counts != [kinds]int64{3, 1} {
		t.Errorf("got %v episodes, want 3 of drops and 1 of yellow packets", tracker.Counts)
	}
}
