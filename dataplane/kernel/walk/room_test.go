package walk

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// sizedPolicy is a policy of n classes, each with a meter, the first ones with a queue. Class i
// matches DSCP i % 64 and mark i / 64.
func sizedPolicy(prefix string, n, queues int) *dataplane.Policy {
	p := &dataplane.Policy{}
	for i := range n {
		c := dataplane.Class{
			Name: fmt.Sprint(prefix, i),
			Match: dataplane.Match{
				DSCP: []dataplane.Range{{First: uint64(i % 64), Last: uint64(i % 64)}},
				Mark: []dataplane.Range{{First: uint64(i / 64), Last: uint64(i / 64)}},
			},
			Meter: &dataplane.Meter{
				Name:   fmt.Sprint(prefix, i),
				Params: meter.SRTCM{CIR: meter.BitRate(8000), CBS: 3000, EBS: 2000},
			},
			Red: &dataplane.Action{Drop: true},
		}
		if i < queues {
			c.Green = &dataplane.Action{Queue: &dataplane.Queue{
				Name: c.Name, Config: queue.Config{Rate: kerneltest.EightMbit, Packets: 7},
			}}
		}
		p.Classes = append(p.Classes, c)
	}
	return p
}

// TestMapSizes compares the tokens, backlogs and counters of classes with the pipeline while
// policies grow and shrink and their maps are replaced.
func TestMapSizes(t *testing.T) {
	if kerneltest.InVM {
		t.Skip("too slow in a VM")
	}
	kerneltest.NeedRoot(t)
	t.Parallel()
	r := kerneltest.Seeded(t)
	policy := sizedPolicy("a", 3, 2)
	h := newHooked(t, policy, image.EgressEntry, nil)
	about := &record.About{}
	h.image.Describe(about)
	pl, err := pipeline.New(policy)
	if err != nil {
		t.Fatal(err)
	}
	now := engine.Now() + 3600*1000*kerneltest.Millisecond // by the clock at which meters start
	entries := []uint32{h.maps.Counters.MaxEntries()}
	for step, next := range []*dataplane.Policy{
		sizedPolicy("a", 7, 3), sizedPolicy("a", 40, 20), sizedPolicy("b", 3, 2), sizedPolicy("a", 300, 60),
		sizedPolicy("b", 300, 200), sizedPolicy("a", 2, 1), sizedPolicy("a", 1024, 256),
		sizedPolicy("a", 3, 2),
	} {
		for range 100 {
			now += r.Int64N(3 * kerneltest.Millisecond)
			if !sameVerdict(t, h, pl, packetOfFirstClasses(r, policy, now)) {
				t.Fatalf("before step %d", step)
			}
		}
		policy = next
		before := h
		h = h.successor(t, about, policy)
		after, err := pipeline.New(policy)
		if err != nil {
			t.Fatal(err)
		}
		after.Inherit(pl)
		pl = after
		before.maps.CloseExcept(h.maps)
		entries = append(entries, h.maps.Counters.MaxEntries())
		got, err := h.Stats()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, pl.Stats()) {
			t.Fatalf("step %d: got counters %+v, want %+v", step, got, pl.Stats())
		}
	}
	for range 100 {
		now += r.Int64N(3 * kerneltest.Millisecond)
		sameVerdict(t, h, pl, packetOfFirstClasses(r, policy, now))
	}
	if entries[0] != image.MinSlots || entries[1] != image.MinSlots ||
		entries[len(entries)-1] != 2*image.MaxClasses+1 {
		t.Errorf("got maps of %d counters, want %d for few classes and %d for the most", entries,
			image.MinSlots, 2*image.MaxClasses+1)
	}
	for name, most := range image.MaxSlots {
		if n := (*h.maps.MapFields()[name]).MaxEntries(); n > most {
			t.Errorf("map %s: got %d slots, want at most %d", name, n, most)
		}
	}
}

// packetOfFirstClasses is a packet of one of the first 60 classes of a policy, or of none.
func packetOfFirstClasses(r *rand.Rand, policy *dataplane.Policy, now int64) dataplane.Packet {
	return datagram(now, byte(r.IntN(min(len(policy.Classes), 60)+1))<<2, 100+r.IntN(400))
}
