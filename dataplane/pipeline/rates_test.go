package pipeline

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// queuesOf returns a policy with a class for each queue: DSCP 0 for the first, and so on.
func queuesOf(queues ...*dataplane.Queue) *dataplane.Policy {
	names := make([]string, len(queues))
	for i, q := range queues {
		names[i] = q.Name
	}
	list := classes(names...)
	for i, q := range queues {
		list[i].Green = &dataplane.Action{Queue: q}
	}
	return &dataplane.Policy{Classes: list}
}

func compiledPlan(t testing.TB, policy *dataplane.Policy) *compiled.Plan {
	t.Helper()
	plan, err := compiled.Compile(policy)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// TestWithRates checks that a plan with other rates is equal to one that is compiled with them,
// and that the original does not change.
func TestWithRates(t *testing.T) {
	policy := func(a, wan meter.Rate) *dataplane.Policy {
		link := &dataplane.Link{Name: "wan", Rate: wan}
		red := [3]queue.Early{{Min: 1e6, Max: 4e6, Probability: 1}}
		return queuesOf(
			&dataplane.Queue{Name: "a", Config: queue.Config{Rate: a, Time: 5 * time.Millisecond, WRED: red}},
			&dataplane.Queue{
				Name: "b", Config: queue.Config{Time: 5 * time.Millisecond, WRED: red}, Link: link,
			},
			&dataplane.Queue{Name: "c", Config: queue.Config{Bytes: 5000}, Link: link, Priority: 3},
			&dataplane.Queue{Name: "d", Config: queue.Config{Rate: frametest.Mega, Packets: 5}},
			&dataplane.Queue{
				Name: "e", Config: queue.Config{Rate: a, Packets: 5, CoDel: queue.CoDelAt(a)},
				TargetAtRate: true, IntervalAtRate: true,
			},
			&dataplane.Queue{
				Name: "f", Config: queue.Config{Bytes: 5000, CoDel: queue.CoDelAt(wan)}, TargetAtRate: true,
				IntervalAtRate: true, Link: link, Fair: dataplane.Key{By: dataplane.ByFlow},
			},
			&dataplane.Queue{
				Name: "g", Config: queue.Config{Bytes: 5000, CoDel: queue.CoDelAt(frametest.Mega)},
				Link: link,
			},
			&dataplane.Queue{
				Name: "h", Config: queue.Config{Rate: a, Time: 5 * time.Millisecond}, Link: link,
				Guarantee: meter.BitRate(1e5),
			},
			&dataplane.Queue{
				Name: "i", Config: queue.Config{Rate: a, Time: 5 * time.Millisecond},
				Fair: dataplane.Key{By: dataplane.ByFlow},
				Link: &dataplane.Link{Name: "i", Link: link}, // not its own link: it has a rate
			},
		)
	}
	parts := func(p *compiled.Plan) (s string) {
		for _, q := range p.Queues {
			s += fmt.Sprintf("%+v %+v %v\n", q.QueueOutline, q.LinkQueue, q.Drain)
		}
		for _, l := range p.Links {
			s += fmt.Sprintf("%s %v %v\n", l.Name, l.Rate, l.Queues)
		}
		return s
	}
	before, fast, slow := compiledPlan(t, policy(frametest.Mega, frametest.Mega)), meter.BitRate(80e6),
		meter.BitRate(1e6)
	original := parts(before)
	after, err := before.WithRates(map[string]meter.Rate{"a": fast, "e": fast, "h": fast, "i": fast},
		map[string]meter.Rate{"wan": slow})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := parts(after), parts(compiledPlan(t, policy(fast, slow))); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	// 3000 bytes at 1 Mbit/s
	if got := after.Queues[5].CoDel; got != (queue.CoDel{
		Target: 24 * time.Millisecond, Interval: 100 * time.Millisecond,
	}) {
		t.Errorf("got CoDel %v at 1 Mbit/s", got)
	}
	if got := parts(before); got != original {
		t.Errorf("the original is now\n%swant\n%s", got, original)
	}
}

// TestWithRatesErrors checks that invalid rates are rejected with the part that they belong to.
func TestWithRatesErrors(t *testing.T) {
	link := &dataplane.Link{Name: "wan", Rate: frametest.Mega}
	plan := compiledPlan(t, queuesOf(
		&dataplane.Queue{Name: "a", Config: queue.Config{Rate: frametest.Mega, Time: time.Second}},
		&dataplane.Queue{Name: "b", Config: queue.Config{Time: time.Millisecond}, Link: link},
		&dataplane.Queue{Name: "twin", Config: queue.Config{Rate: frametest.Mega, Time: time.Second}},
	))
	plan.Queues = append(plan.Queues, plan.Queues[2])
	type rates = map[string]meter.Rate
	for want, test := range map[string]struct{ queues, links rates }{
		`queue "a": rate: must be above zero`:                      {rates{"a": {}}, nil},
		`queue "a": rate: must not be unlimited`:                   {rates{"a": meter.Unlimited}, nil},
		`queue "a": rate: is too fine`:                             {rates{"a": {Bytes: math.MaxInt64 - 1, Period: math.MaxInt64}}, nil},
		`queue "b": rate: cannot be set: the queue is sent at the`: {rates{"b": frametest.Mega}, nil},
		`queue "b": limit: of 1ms is less than a byte`:             {nil, rates{"wan": meter.BitRate(1000)}},
		`link "wan": rate: must be above zero`:                     {nil, rates{"wan": {}}},
		`queues: do not contain "wan"`:                             {rates{"wan": frametest.Mega}, nil},
		`links: do not contain "a"`:                                {nil, rates{"a": frametest.Mega}},
		`queues: contain "twin" 2 times`:                           {rates{"twin": frametest.Mega}, nil},
	} {
		if _, err := plan.WithRates(test.queues, test.links); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v: got error %v, want %s", test, err, want)
		}
	}
	if _, err := plan.WithRates(rates{"a": {}, "x": frametest.Mega},
		rates{"y": frametest.Mega}); len(strings.Split(fmt.Sprint(err), "\n")) != 3 {
		t.Errorf("got %v, want all three errors", err)
	}
}

// TestSetRates compares a pipeline whose rates change with one that gets a new policy each time:
// all verdicts are the same, and so are the states of the queues.
func TestSetRates(t *testing.T) {
	r := frametest.Seeded(t)
	codels := []queue.CoDel{
		{Target: 2 * time.Millisecond, Interval: 10 * time.Millisecond},
		{Target: time.Millisecond, Interval: 5 * time.Millisecond},
	}
	early := [3]queue.Early{{Min: 1000, Max: 15_000, Probability: queue.Certain / 4}}
	for range 20 {
		configs := []queue.Config{
			{Time: time.Duration(1+r.IntN(30)) * time.Millisecond, CoDel: codels[0]},
			{Bytes: 20_000, WRED: early, Seed: r.Uint64(), CoDel: codels[0]},
			{Packets: 1 + r.Int64N(30)},
		}
		rates := func() (out []meter.Rate) {
			for range configs {
				out = append(out,
					meter.Rate{Bytes: 1 + r.Int64N(7), Period: time.Duration(1 + r.IntN(20_000))})
			}
			return out
		}
		policy := func(rates []meter.Rate) *dataplane.Policy {
			var queues []*dataplane.Queue
			for i, c := range configs {
				c.Rate = rates[i]
				queues = append(queues, &dataplane.Queue{Name: fmt.Sprint(i), Config: c})
			}
			return queuesOf(queues...)
		}
		first := rates()
		one, other := newPipeline(t, policy(first)), newPipeline(t, policy(first))
		at := int64(0)
		for i := range 2000 {
			if r.IntN(10) == 0 {
				next := rates()
				for i := range 2 {
					configs[i].CoDel = codels[r.IntN(2)]
				}
				plan, err := one.Plan().WithRates(
					map[string]meter.Rate{"0": next[0], "1": next[1], "2": next[2]}, nil)
				if err == nil {
					for i := range 2 {
						plan.Queues[i].CoDel = configs[i].CoDel
					}
					err = one.SetRates(at+r.Int64N(1000), plan)
				}
				if err != nil {
					t.Fatal(err)
				}
				other, _ = inherited(t, other, policy(next))
			}
			frame := ipPacket(uint8(r.IntN(len(configs))), 100+r.IntN(1400))
			at += r.Int64N(1000 * µs)
			got, _ := process(one, at+1000, frame)
			if want, _ := process(other, at+1000, frame); got != want {
				t.Fatalf("packet %d: got %+v, want %+v", i, got, want)
			}
			if got, want := fmt.Sprint(one.Queues(at+1000)), fmt.Sprint(other.Queues(at+1000)); got != want {
				t.Fatalf("after packet %d: got queues %s, want %s", i, got, want)
			}
		}
	}
}

// TestSetRatesCoDel checks that the times of CoDel follow the plan, in a queue with a rate and in one of a
// link, whose rate does not change.
func TestSetRatesCoDel(t *testing.T) {
	short, long := queue.CoDel{Target: time.Millisecond, Interval: 10 * time.Millisecond},
		queue.CoDel{Target: time.Second, Interval: 2 * time.Second}
	link := &dataplane.Link{Name: "wan", Rate: frametest.Mega}
	plan := compiledPlan(t, queuesOf(
		&dataplane.Queue{
			Name: "own", Config: queue.Config{Rate: frametest.Mega, Time: time.Second, CoDel: short},
		},
		&dataplane.Queue{Name: "linked", Config: queue.Config{Bytes: 1e6, CoDel: short}, Link: link},
	))
	for class := range uint8(2) {
		for _, codel := range []queue.CoDel{short, long} {
			l, drops := FromPlan(plan), 0
			next, err := plan.WithRates(nil, nil)
			if err == nil {
				next.Queues[class].CoDel = codel
				err = l.SetRates(0, next)
			}
			if err != nil {
				t.Fatal(err)
			}
			count := func(v dataplane.Verdict) {
				if v.Reason == dataplane.CoDel {
					drops++
				}
			}
			for range 50 { // 1 ms each
				count(verdictOf(l,
					&dataplane.Packet{Data: ipPacket(class, 1000), Link: dataplane.LinkEthernet}))
			}
			for v := (dataplane.Verdict{}); l.Settle(math.MaxInt64, &v); {
				count(v)
			}
			if drops > 0 != (codel == short) {
				t.Errorf("class %d with %v: %d drops", class, codel, drops)
			}
		}
	}
}

// TestSetRatesLink checks that queued packets of a link are sent at the new rate in the order of
// priorities, and that limits in time follow the rate.
func TestSetRatesLink(t *testing.T) {
	link := &dataplane.Link{Name: "wan", Rate: frametest.Mega}
	plan := compiledPlan(t, queuesOf(
		&dataplane.Queue{Name: "high", Config: queue.Config{Bytes: 9000}, Link: link},
		&dataplane.Queue{
			Name: "low", Config: queue.Config{Time: 5 * time.Millisecond}, Link: link, Priority: 1,
		},
	))
	l := FromPlan(plan)
	got := ""
	settle := func(until int64) {
		var v dataplane.Verdict
		for l.Settle(until, &v) {
			got += fmt.Sprintf(" %d:%d", v.ID, v.Departure/µs)
		}
	}
	id := int64(0)
	arrive := func(at int64, class uint8) {
		settle(at)
		id++
		if v := verdictOf(l, &dataplane.Packet{
			Data: ipPacket(class, 1000), Link: dataplane.LinkEthernet, ID: id, Time: at,
		}); v.Done.Dropped() {
			got += fmt.Sprintf(" %d:%v", id, v.Reason)
		}
	}
	set := func(at, bits int64) {
		next, err := plan.WithRates(nil, map[string]meter.Rate{"wan": meter.BitRate(bits)})
		if err == nil {
			err = l.SetRates(at, next)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 4 {
		arrive(0, 1)
	}
	set(500*µs, 80e6)     // 10 bytes/µs, after the first packet of 1 ms; low has 50,000 bytes
	arrive(600*µs, 0)     // overtakes low
	set(1050*µs, 1.6e6)   // 0.2 bytes/µs, after the packet that ends at 1100; low has 1000 bytes
	arrive(1060*µs, 1)    // above the limit, and so are the three that are queued
	set(2000*µs, 8e6)     // during the packet from 1100 to 6100
	arrive(2100*µs, 1)    // fits again
	set(2200*µs, 8e6)     // no change
	settle(math.MaxInt64) // 1 ms each
	if want := " 1:0 5:1000 6:queue-full 2:1100 3:6100 4:7100 7:8100"; got != want {
		t.Errorf("got%s, want%s", got, want)
	}
}

// TestSetRatesRefused checks that a plan that differs in more than rates, places and the times of CoDel
// changes nothing.
func TestSetRatesRefused(t *testing.T) {
	link := &dataplane.Link{Name: "wan", Rate: frametest.Mega}
	base := func(edit func(a, b *dataplane.Queue)) *dataplane.Policy {
		a := &dataplane.Queue{Name: "a", Config: queue.Config{Rate: frametest.Mega, Time: time.Second}}
		b := &dataplane.Queue{Name: "b", Config: queue.Config{Bytes: 5000}, Link: link}
		edit(a, b)
		return queuesOf(a, b)
	}
	l := newPipeline(t, base(func(a, b *dataplane.Queue) {}))
	before := l.Plan()
	codel := queue.CoDelAt(frametest.Mega)
	for name, policy := range map[string]*dataplane.Policy{
		"name":    base(func(a, _ *dataplane.Queue) { a.Name = "x" }),
		"limit":   base(func(a, _ *dataplane.Queue) { a.Time = time.Minute }),
		"codel":   base(func(a, _ *dataplane.Queue) { a.CoDel = codel }),
		"seed":    base(func(_, b *dataplane.Queue) { b.Seed = 1 }),
		"link":    base(func(_, b *dataplane.Queue) { b.Link = &dataplane.Link{Name: "lan", Rate: frametest.Mega} }),
		"fewer":   queuesOf(&dataplane.Queue{Name: "a", Config: queue.Config{Rate: frametest.Mega, Time: time.Second}}),
		"no link": base(func(_, b *dataplane.Queue) { b.Link, b.Rate = nil, frametest.Mega }),
		"fair":    base(func(_, b *dataplane.Queue) { b.Fair = dataplane.Key{By: dataplane.ByFlow} }),
	} {
		if err := l.SetRates(0, compiledPlan(t, policy)); err == nil || l.Plan() != before {
			t.Errorf("%s: got error %v, want one and no change", name, err)
		}
	}
}
