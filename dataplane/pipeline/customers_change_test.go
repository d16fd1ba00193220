package pipeline

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// TestSetCustomerPlans compares a pipeline whose customers get other plans with one that is
// replaced by a pipeline with those plans each time.
func TestSetCustomerPlans(t *testing.T) {
	r := frametest.Seeded(t)
	plans := []*dataplane.ServicePlan{
		frametest.BucketPlan("bucket", 3000), frametest.BucketPlan("small", 900),
		pacedPlan(frametest.Mega, 5*time.Millisecond),
		{Name: "trtcm", Params: meter.TRTCM{CIR: frametest.Mega, CBS: 2000, PIR: meter.BitRate(16e6), PBS: 4000}},
		{Name: "window", Params: meter.FixedWindow{Limit: 3000, Window: time.Millisecond}},
		{Name: "codel", Queue: &queue.Config{Rate: frametest.Mega, Time: 20 * time.Millisecond, CoDel: queue.CoDel{Target: time.Millisecond, Interval: 5 * time.Millisecond}}},
	}
	list := customersOf(10, func(i int) *dataplane.ServicePlan { return plans[i%len(plans)] })
	policy := func() *dataplane.Policy {
		return frametest.CustomersPolicy(&dataplane.Customers{Plans: plans, List: slices.Clone(list)})
	}
	one, other := newPipeline(t, policy()), newPipeline(t, policy())
	services := one.plan.Customers.Plans
	at, seen := int64(0), map[string]int{}
	for i := range 20_000 {
		if r.IntN(20) == 0 {
			changes := []compiled.CustomerService{{Name: "unknown", Plan: &services[0]}}
			for _, c := range r.Perm(len(list))[:1+r.IntN(3)] {
				k := r.IntN(len(plans))
				list[c].Plan = plans[k]
				changes = append(changes, compiled.CustomerService{Name: list[c].Name, Plan: &services[k]})
			}
			one.SetCustomerPlans(at, changes)
			other, _ = inherited(t, other, policy())
		}
		at += r.Int64N(40 * µs)
		frame := toward(fmt.Sprintf("10.0.0.%d", r.IntN(11)), 40+r.IntN(1400))
		want, _ := process(other, at, frame)
		got, _ := process(one, at, frame)
		seen[fmt.Sprint(want.Class, want.Reason, want.Done.Dropped())]++
		if got != want {
			t.Fatalf("packet %d: got %+v, want %+v", i, got, want)
		}
	}
	if len(seen) < 10 {
		t.Errorf("only these cases: %v", seen)
	}
	for i, want := range other.Customers() {
		if got := one.Customers()[i]; got != want {
			t.Errorf("customer %d: got %+v, want %+v", i, got, want)
		}
	}
}

// TestCustomerQueueRate compares the queue of a customer with a queue of the policy, while the rate of
// both changes, by a reload or without. CoDel continues in both unless its target changes. Then the
// customer's CoDel begins anew. To make the queue of the policy begin anew, too, the test changes its
// limit in bytes, which it never reaches.
func TestCustomerQueueRate(t *testing.T) {
	r := frametest.Seeded(t)
	config := queue.Config{
		Rate: frametest.Mega, Time: 50 * time.Millisecond,
		CoDel: queue.CoDel{Target: time.Millisecond, Interval: 5 * time.Millisecond},
	}
	customers := func() *dataplane.Policy {
		return frametest.CustomersPolicy(&dataplane.Customers{List: []dataplane.Customer{{
			Name: "a", Prefixes: frametest.Prefixes("192.0.2.1/32"),
			Plan: &dataplane.ServicePlan{Name: "p", Queue: &config},
		}}})
	}
	anew := int64(0)
	queues := func() *dataplane.Policy {
		c := config
		c.Bytes = 1e9 + anew
		return &dataplane.Policy{Classes: []dataplane.Class{
			{Name: "a", Green: &dataplane.Action{Queue: &dataplane.Queue{Name: "q", Config: c}}},
		}}
	}
	one, other := newPipeline(t, customers()), newPipeline(t, queues())
	at, dropped := int64(0), 0
	for i := range 20_000 {
		if r.IntN(20) == 0 {
			config.Rate = meter.BitRate(7e6 + r.Int64N(2e6))
			if r.IntN(4) == 0 {
				anew++
				config.CoDel.Target = time.Millisecond + time.Duration(anew) // another one each time
			}
			other, _ = inherited(t, other, queues())
			if next := newPipeline(t, customers()); r.IntN(2) == 0 {
				one.SetCustomerPlans(at,
					[]compiled.CustomerService{{Name: "a", Plan: &next.plan.Customers.Plans[0]}})
			} else {
				next.Inherit(one)
				one = next
			}
		}
		at += r.Int64N(2000 * µs)
		frame := toward("192.0.2.1", 40+r.IntN(2000))
		got, _ := process(one, at, frame)
		want, _ := process(other, at, frame)
		if got.Customer = 0; got != want {
			t.Fatalf("packet %d: got %+v, want %+v", i, got, want)
		}
		if got.Reason == dataplane.CoDel {
			dropped++
		}
	}
	if dropped < 100 {
		t.Errorf("CoDel dropped only %d packets", dropped)
	}
}
