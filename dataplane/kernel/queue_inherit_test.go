package kernel

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// successor is the program of a policy that takes the place of another's.
func (h *hooked) successor(t *testing.T, about *About, policy *dataplane.Policy) *hooked {
	t.Helper()
	g, err := encodePolicy(policy, egressEntry, "")
	if err != nil {
		t.Fatal(err)
	}
	next := &hooked{Walker: Walker{image: g, batch: 1, now: h.now}, hook: egressEntry, room: make([]byte, 1<<17)}
	next.constants.Handed, next.constants.Link = 1, uint8(dataplane.LinkEthernet)
	next.inherit(about)
	maps, err := h.maps.forPlan(g, about, nil)
	if err == nil {
		err = g.populate(about, h.maps, maps, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	next.maps = maps
	spec, err := bpf.LoadShaper()
	if err != nil {
		t.Fatal(err)
	}
	if next.loaded, err = next.loadProgram(spec, programs[Egress], maps.byName()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(next.loaded.Close)
	next.program = next.loaded.Programs[programs[Egress]]
	about.recordImage(g)
	return next
}

// TestQueueInherits holds what queues keep over a change of policy to the
// pipeline, packet by packet.
func TestQueueInherits(t *testing.T) {
	if inVM {
		t.Skip("not in a VM: it would take long and show nothing new")
	}
	needRoot(t)
	t.Parallel()
	into := func(queues ...*dataplane.Queue) *dataplane.Policy {
		policy := &dataplane.Policy{}
		for i, q := range queues {
			policy.Classes = append(policy.Classes, dataplane.Class{
				Name: q.Name, Match: dataplane.Match{DSCP: []dataplane.Range{{First: uint32(i), Last: uint32(i)}}},
				Green: &dataplane.Action{Queue: q},
			})
		}
		return policy
	}
	named := func(name string, cfg queue.Config) *dataplane.Queue {
		if cfg.Rate == (meter.Rate{}) {
			cfg.Rate = mega
		}
		return &dataplane.Queue{Name: name, Config: cfg}
	}
	tell := queue.CoDel{Target: time.Millisecond, Interval: 5 * time.Millisecond}
	early := [3]queue.Early{{Max: 20, Probability: queue.Certain / 2}}
	third := meter.Rate{Bytes: 30, Period: 100_000 * 7}
	for _, test := range []struct {
		name          string
		before, after *dataplane.Policy
	}{
		{"the same", into(named("a", queue.Config{Packets: 20, WRED: early, CoDel: tell, Seed: 5})), into(named("a", queue.Config{Packets: 20, WRED: early, CoDel: tell, Seed: 5}))},
		{"another rate", into(named("a", queue.Config{Packets: 20})), into(named("a", queue.Config{Packets: 20, Rate: bps(16e6)}))},
		{"a fraction", into(named("a", queue.Config{Time: 100 * time.Millisecond, Rate: third})), into(named("a", queue.Config{Time: 90 * time.Millisecond, Rate: third}))},
		{"renamed", into(named("a", queue.Config{Packets: 20})), into(named("b", queue.Config{Packets: 20}))},
		{"another limit", into(named("a", queue.Config{Packets: 20})), into(named("a", queue.Config{Packets: 200}))},
		{"another axis", into(named("a", queue.Config{Packets: 20})), into(named("a", queue.Config{Time: 15 * time.Millisecond}))},
		{"one more, in time", into(named("a", queue.Config{Time: 20 * time.Millisecond, CoDel: tell})), into(named("b", queue.Config{Packets: 9}), named("a", queue.Config{Time: 20 * time.Millisecond, CoDel: tell}))},
		{"one less, in time", into(named("b", queue.Config{Packets: 9}), named("a", queue.Config{Time: 20 * time.Millisecond, CoDel: tell})), into(named("a", queue.Config{Time: 20 * time.Millisecond, CoDel: tell}))},
		{"one more", into(named("a", queue.Config{Packets: 20, CoDel: tell})), into(named("b", queue.Config{Packets: 9}), named("a", queue.Config{Packets: 20, CoDel: tell}))},
		{"in other order", into(named("b", queue.Config{Bytes: 20_000}), named("a", queue.Config{Packets: 20})), into(named("a", queue.Config{Packets: 20}), named("b", queue.Config{Bytes: 20_000}))},
		{"in other order, in time", into(named("b", queue.Config{Time: ms9}), named("a", queue.Config{Time: 2 * ms9})), into(named("a", queue.Config{Time: 2 * ms9}), named("b", queue.Config{Time: ms9}))},
	} {
		if inVM && test.name != "another rate" && test.name != "one more, in time" {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			h := newHooked(t, test.before, egressEntry, nil)
			l, err := dataplane.New(test.before)
			if err != nil {
				t.Fatal(err)
			}
			var about About
			about.recordImage(h.image)
			r := rand.New(rand.NewPCG(1, 2))
			at := int64(0)
			same := func(h *hooked, l *dataplane.Pipeline, stage string) {
				for i := range 200 {
					at += r.Int64N(900_000)
					p := datagram(at, byte(r.IntN(2))<<2, 20+r.IntN(1400))
					var got, want dataplane.Verdict
					if err := h.run(&p, &got, skb{}); err != nil {
						t.Fatal(err)
					}
					l.Process(&p, &want)
					if got != want {
						t.Fatalf("%s, packet %d:\nkernel   %+v\npipeline %+v", stage, i, got, want)
					}
				}
			}
			same(h, l, "before")
			for i, policy := range []*dataplane.Policy{test.after, test.after, test.before, test.after, test.before, test.before} {
				if inVM && i > 1 {
					break
				}
				next, err := dataplane.New(policy)
				if err != nil {
					t.Fatal(err)
				}
				next.Inherit(l)
				l = next
				h = h.successor(t, &about, policy)
				same(h, l, fmt.Sprint("after ", i))
			}
		})
	}
}

const ms9 = 9 * time.Millisecond
