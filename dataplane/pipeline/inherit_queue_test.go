package pipeline

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// TestInheritQueues checks that a queue becomes free at the same time as the old queue of
// its name: later packets depart after the queued ones. Queued packets count against the limit
// only if nothing but the rate and the times of CoDel changes.
func TestInheritQueues(t *testing.T) {
	config := queue.Config{
		Rate: frametest.Mega, Bytes: 3000, CoDel: queue.CoDel{Target: time.Second, Interval: time.Second},
	}
	policy := func(name string, edit func(*queue.Config)) *dataplane.Policy {
		c := config
		edit(&c)
		to := &dataplane.Action{Queue: &dataplane.Queue{Name: name, Config: c}}
		return &dataplane.Policy{Classes: []dataplane.Class{{Name: "a", Green: to}}}
	}
	same := func(*queue.Config) {}
	for name, test := range map[string]struct {
		after *dataplane.Policy
		// Departures of four packets of 1000 bytes that follow two; 0 if dropped.
		want [4]int64
	}{
		"same queue":    {policy("q", same), [4]int64{2000 * µs, 3000 * µs, 0, 0}},
		"another name":  {policy("p", same), [4]int64{0, 1000 * µs, 2000 * µs, 3000 * µs}},
		"another rate":  {policy("q", func(c *queue.Config) { c.Rate = meter.BitRate(80e6) }), [4]int64{2000 * µs, 2100 * µs, 0, 0}},
		"other times":   {policy("q", func(c *queue.Config) { c.CoDel = queue.CoDelAt(frametest.Mega) }), [4]int64{2000 * µs, 3000 * µs, 0, 0}},
		"no codel":      {policy("q", func(c *queue.Config) { c.CoDel = queue.CoDel{} }), [4]int64{2000 * µs, 3000 * µs, 4000 * µs, 0}},
		"smaller limit": {policy("q", func(c *queue.Config) { c.Bytes = 1000 }), [4]int64{2000 * µs, 0, 0, 0}},
		"limit in time": {policy("q", func(c *queue.Config) { c.Bytes, c.Time = 0, 3*time.Millisecond }), [4]int64{2000 * µs, 3000 * µs, 0, 0}},
		"short time":    {policy("q", func(c *queue.Config) { c.Bytes, c.Time = 0, time.Millisecond }), [4]int64{0, 0, 0, 0}},
		"early drop":    {policy("q", func(c *queue.Config) { c.WRED[meter.Green] = queue.Early{Min: 1, Max: 1500, Probability: 1} }), [4]int64{2000 * µs, 3000 * µs, 0, 0}},
	} {
		before := policy("q", same)
		l := newPipeline(t, before)
		for i, want := range []int64{0, 1000 * µs} {
			if v, _ := process(l, 0, ipPacket(0, 1000)); v.Departure != want {
				t.Fatalf("packet %d departs at %d, want %d", i, v.Departure, want)
			}
		}
		l, _ = inherited(t, l, test.after)
		for i, want := range test.want {
			v, _ := process(l, 0, ipPacket(0, 1000))
			if v.Done.Dropped() != (want == 0 && (name != "another name" || i > 0)) || v.Departure != want {
				t.Errorf("%s: packet %d: got %s, want departure %d", name, i, verdict(test.after, v), want)
			}
		}
	}
}

// TestInheritQueueState checks that a queue with an unchanged configuration keeps all of its
// state: backlog, random numbers and CoDel.
func TestInheritQueueState(t *testing.T) {
	r := frametest.Seeded(t)
	for range 20 {
		c := queue.Config{
			Rate: frametest.Mega, Bytes: 20_000, Packets: 30, Seed: r.Uint64(),
			WRED:  [3]queue.Early{{Min: 1000, Max: 15_000, Probability: queue.Certain / 4}},
			CoDel: queue.CoDel{Target: 2 * time.Millisecond, Interval: 10 * time.Millisecond},
		}
		policy := func() *dataplane.Policy {
			return &dataplane.Policy{Classes: []dataplane.Class{
				{Name: "a", Green: &dataplane.Action{Queue: &dataplane.Queue{Name: "q", Config: c}}},
			}}
		}
		one, other := newPipeline(t, policy()), newPipeline(t, policy())
		at := int64(0)
		for i := range 500 {
			if r.IntN(20) == 0 {
				other, _ = inherited(t, other, policy())
			}
			frame := ipPacket(0, 100+r.IntN(1400))
			at += r.Int64N(1400 * µs)
			want, _ := process(one, at, frame)
			if got, _ := process(other, at, frame); got != want {
				t.Fatalf("packet %d: got %+v, want %+v", i, got, want)
			}
		}
	}
}

// TestInheritLinks checks that a link becomes free at the same time as the old link of its
// name, after all of its queued packets have departed.
func TestInheritLinks(t *testing.T) {
	policy := func(name string, rate meter.Rate, queues ...string) *dataplane.Policy {
		link := &dataplane.Link{Name: name, Rate: rate}
		list := classes(queues...)
		for i, q := range queues {
			list[i].Green = &dataplane.Action{
				Queue: &dataplane.Queue{Name: q, Config: queue.Config{Packets: 2}, Link: link, Priority: i},
			}
		}
		return &dataplane.Policy{Classes: list}
	}
	for name, test := range map[string]struct {
		after *dataplane.Policy
		want  string // departures and IDs of three packets of class b and one of a, each of 1000 bytes
	}{
		"same link":    {policy("wan", frametest.Mega, "a", "b"), "3000000 3 4000000 0 5000000 1"},
		"another rate": {policy("wan", meter.BitRate(80e6), "a", "b"), "3000000 3 3100000 0 3200000 1"},
		"another name": {policy("lan", frametest.Mega, "a", "b"), "3000000 3 4000000 0 5000000 1"},
		"other names":  {policy("lan", frametest.Mega, "x", "y"), "0 0 1000000 3 2000000 1 3000000 2"},
		"other queues": {policy("wan", frametest.Mega, "x", "y"), "3000000 3 4000000 0 5000000 1"},
		"fewer queues": {policy("wan", frametest.Mega, "b"), "3000000 0 4000000 1"},
		"no link":      {&dataplane.Policy{Classes: []dataplane.Class{{Name: "a", Green: &dataplane.Action{Queue: &dataplane.Queue{Name: "b", Config: queue.Config{Rate: frametest.Mega, Time: time.Second}}}}}}, "3000000 0 4000000 1 5000000 2 6000000 3"},
	} {
		before := policy("wan", frametest.Mega, "a", "b")
		l := newPipeline(t, before)
		for range 3 {
			process(l, 0, ipPacket(1, 1000))
		}
		var v dataplane.Verdict
		last := int64(0)
		for l.Settle(math.MaxInt64, &v) {
			last = v.Departure
		}
		if last != 2000*µs {
			t.Fatalf("the last packet departs at %d, want 2 ms", last)
		}
		next, _ := inherited(t, l, test.after)
		got := ""
		note := func(v dataplane.Verdict) {
			if !v.Done.Dropped() {
				got += fmt.Sprintf(" %d %d", v.Departure, v.ID)
			}
		}
		for i, dscp := range []uint8{1, 1, 1, 0} {
			if len(test.after.Classes) == 1 {
				dscp = 0
			}
			p := dataplane.Packet{Data: ipPacket(dscp, 1000), Link: dataplane.LinkEthernet, ID: int64(i)}
			if v := verdictOf(next, &p); v.Done&dataplane.Waiting == 0 {
				note(v)
			}
		}
		for next.Settle(math.MaxInt64, &v) {
			note(v)
		}
		if got != " "+test.want {
			t.Errorf("%s: departures and packets%s, want %s", name, got, test.want)
		}
	}
}

// TestInheritUnnamed checks that queues and links of the same name, such as "", do not
// continue the same one. Only policy files ensure that names differ.
func TestInheritUnnamed(t *testing.T) {
	policy := func() *dataplane.Policy {
		list := classes("a", "b", "c", "d")
		for i := range list[:2] {
			list[i].Green = &dataplane.Action{
				Queue: &dataplane.Queue{Config: queue.Config{Rate: frametest.Mega, Time: time.Second}},
			}
		}
		for i := range list[2:] {
			list[2+i].Green = &dataplane.Action{Queue: &dataplane.Queue{
				Config: queue.Config{Packets: 9}, Link: &dataplane.Link{Rate: frametest.Mega},
			}}
		}
		return &dataplane.Policy{Classes: list}
	}
	l, _ := inherited(t, newPipeline(t, policy()), policy())
	for dscp := range uint8(4) {
		v, _ := process(l, 0, ipPacket(dscp, 1000))
		if v.Done&dataplane.Waiting != 0 && !l.Settle(0, &v) {
			t.Errorf("queue %d: the packet is queued, want it to depart immediately", dscp)
		}
		if v.Departure != 0 {
			t.Errorf("queue %d: departure %d, want it to depart immediately", dscp, v.Departure)
		}
	}
}
