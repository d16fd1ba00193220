package pipeline

import (
	"fmt"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestLinkStates checks the states of links with queues of customers, by the rules: a byte takes site 1 us
// and slow 4 us. It checks that a reload keeps the counters of links that stay.
func TestLinkStates(t *testing.T) {
	t.Parallel()
	site := &dataplane.Link{Name: "site", Rate: meter.BitRate(8e6)}
	slow := &dataplane.Link{Name: "slow", Link: site, Rate: meter.BitRate(2e6), Guarantee: meter.BitRate(1e6)}
	fast := &dataplane.Link{Name: "fast", Link: site}
	plans := []*dataplane.ServicePlan{
		treePlan("slow", meter.BitRate(7e6), slow), treePlan("fast", meter.BitRate(3e6), fast),
	}
	list := customersOf(2, func(i int) *dataplane.ServicePlan { return plans[i] })
	policy := func() *dataplane.Policy {
		return frametest.CustomersPolicy(&dataplane.Customers{Plans: plans, List: list})
	}
	l := newPipeline(t, policy())
	for i := range 4 { // three packets of the first customer, then one of the other
		frame := toward(fmt.Sprintf("10.0.0.%d", i/3), 1000)
		p := dataplane.Packet{Data: frame, WireLen: len(frame), Link: dataplane.LinkEthernet, ID: int64(i)}
		l.Process(&p, new(dataplane.Verdict))
	}
	length := int64(len(toward("10.0.0.0", 1000)) - 14)
	// Departures: 0 on slow, when site is free on fast, and then when slow is free, at 4 us a byte.
	now := 5 * length * 1000
	for v := (dataplane.Verdict{}); l.Settle(now, &v); {
	}
	count := func(packets int64) dataplane.Count {
		return dataplane.Count{Packets: packets, Bytes: packets * length}
	}
	byteTimes := func(n int64) time.Duration { return time.Duration(n*length) * time.Microsecond }
	want := map[string]dataplane.LinkState{
		"site": {
			Name: "site", Above: -1, Rate: site.Rate, Guaranteed: meter.BitRate(5e6), Reach: site.Rate,
			// it is busy with packets behind it at 0 to 2 and at 4 to 5 byte times
			Sent: count(3), Backlog: count(1), Held: byteTimes(3), HeldKnown: true,
		},
		"slow": {
			Name: "slow", Above: 0, Rate: slow.Rate, Guaranteed: meter.BitRate(2e6), Reach: slow.Rate,
			Sent: count(2), Backlog: count(1), Held: byteTimes(5), HeldKnown: true,
		},
		"fast": {
			Name: "fast", Above: 0, Guaranteed: meter.BitRate(3e6), Reach: site.Rate,
			Sent: count(1), HeldKnown: true,
		},
	}
	check := func(l *Pipeline, now int64) {
		t.Helper()
		got := l.Links(now)
		for _, s := range got {
			got, want := fmt.Sprintf("%+v", s), fmt.Sprintf("%+v", want[s.Name]) // a rate has several forms
			if got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%d links, want %d", len(got), len(want))
		}
	}
	check(l, now)
	// At the reload the last packet is sent: slow was not free until 8 byte times.
	for v := (dataplane.Verdict{}); l.Settle(1<<62, &v); {
	}
	next := newPipeline(t, policy())
	next.Inherit(l)
	for name, s := range want {
		if s.Backlog = (dataplane.Count{}); name != "fast" {
			s.Sent = count(s.Sent.Packets + 1)
		}
		if name == "slow" {
			s.Held = byteTimes(8)
		}
		want[name] = s
	}
	check(next, l.now)
}
