package kernel

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// sized is a policy of n classes, each with a meter, and with a queue if there are
// any. Class i takes DSCP i % 64 and mark i / 64.
func sized(prefix string, n, queues int) *dataplane.Policy {
	p := &dataplane.Policy{}
	for i := range n {
		c := dataplane.Class{
			Name:  fmt.Sprint(prefix, i),
			Match: dataplane.Match{DSCP: []dataplane.Range{{First: uint32(i % 64), Last: uint32(i % 64)}}, Mark: []dataplane.Range{{First: uint32(i / 64), Last: uint32(i / 64)}}},
			Meter: &dataplane.Meter{Name: fmt.Sprint(prefix, i), Params: meter.SRTCM{CIR: bps(8000), CBS: 3000, EBS: 2000}},
			Red:   &dataplane.Action{Drop: true},
		}
		if i < queues {
			c.Green = &dataplane.Action{Queue: &dataplane.Queue{Name: c.Name, Config: queue.Config{Rate: mega, Packets: 7}}}
		}
		p.Classes = append(p.Classes, c)
	}
	return p
}

// TestRoom holds what a class has to the pipeline while policies grow and shrink
// around it: tokens, backlogs and counters, over maps that are replaced.
func TestRoom(t *testing.T) {
	if inVM {
		t.Skip("not in a VM: it would take long and show nothing new")
	}
	needRoot(t)
	t.Parallel()
	r := seeded(t)
	policy := sized("a", 3, 2)
	h := newHooked(t, policy, egressEntry, nil)
	about := &About{}
	about.recordImage(h.image)
	pipeline, err := dataplane.New(policy)
	if err != nil {
		t.Fatal(err)
	}
	begin, err := monotonic() // meters that begin do at this clock
	if err != nil {
		t.Fatal(err)
	}
	now := int64(begin) + 3600*1000*ms
	entries := []uint32{h.maps.counters.MaxEntries()}
	for step, next := range []*dataplane.Policy{
		sized("a", 7, 3), sized("a", 40, 20), sized("b", 3, 2), sized("a", 300, 60), sized("b", 300, 200), sized("a", 2, 1), sized("a", 1024, 256), sized("a", 3, 2),
	} {
		for range 100 {
			now += r.Int64N(3 * ms)
			if !sameVerdict(t, h, pipeline, anyOf(r, policy, now)) {
				t.Fatalf("before step %d", step)
			}
		}
		policy = next
		before := h
		h = h.successor(t, about, policy)
		after, err := dataplane.New(policy)
		if err != nil {
			t.Fatal(err)
		}
		after.Inherit(pipeline)
		pipeline = after
		before.maps.closeExcept(h.maps)
		entries = append(entries, h.maps.counters.MaxEntries())
		got, err := h.Stats()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, pipeline.Stats()) {
			t.Fatalf("step %d: counters %+v: want %+v", step, got, pipeline.Stats())
		}
	}
	for range 100 {
		now += r.Int64N(3 * ms)
		sameVerdict(t, h, pipeline, anyOf(r, policy, now))
	}
	if entries[0] != minSlots || entries[1] != minSlots || entries[len(entries)-1] != 2*MaxClasses+1 {
		t.Errorf("counters have had %d slots: want few for few classes", entries)
	}
	for name, most := range maxSlots {
		if n := (*h.maps.mapFields()[name]).MaxEntries(); n > most {
			t.Errorf("%s has %d slots, of at most %d that are ever used", name, n, most)
		}
	}
}

// anyOf is a packet of one of the first classes of a policy, or of none.
func anyOf(r *rand.Rand, policy *dataplane.Policy, now int64) dataplane.Packet {
	return datagram(now, byte(r.IntN(min(len(policy.Classes), 60)+1))<<2, 100+r.IntN(400))
}
