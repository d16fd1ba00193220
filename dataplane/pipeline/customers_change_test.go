package pipeline

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestChangeCustomers adds, replaces and removes customers at random in a pipeline. Another one is reloaded
// with a policy compiled from the same customers. Both decide alike about each packet, and count alike.
func TestChangeCustomers(t *testing.T) {
	r := frametest.Seeded(t)
	plans := []*dataplane.ServicePlan{
		frametest.BucketPlan("bucket", 3000), frametest.BucketPlan("small", 900),
		pacedPlan(frametest.Mega, 5*time.Millisecond),
		{Name: "window", Params: meter.FixedWindow{Limit: 3000, Window: time.Millisecond}},
	}
	list := customersOf(5, func(i int) *dataplane.ServicePlan { return plans[i%len(plans)] })
	policy := func() *dataplane.Policy {
		return frametest.CustomersPolicy(&dataplane.Customers{Plans: plans, List: slices.Clone(list)})
	}
	one, other := newPipeline(t, policy()), newPipeline(t, policy())
	base := one.plan
	at, kinds := int64(0), map[string]int{}
	for i := range 20_000 {
		if r.IntN(20) == 0 {
			var changes []compiled.CustomerChange
			touched := map[string]bool{}
			for range 1 + r.IntN(3) {
				name := fmt.Sprint("c", r.IntN(12))
				k := slices.IndexFunc(list, func(c dataplane.Customer) bool { return c.Name == name })
				if touched[name] {
					continue
				}
				touched[name] = true
				change := compiled.CustomerChange{Name: name}
				if k >= 0 {
					before := list[k]
					change.Before = &before
				}
				plan := r.IntN(len(plans))
				address := netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(20))})
				contains := func(p netip.Prefix) bool { return p.Contains(address) }
				used := slices.ContainsFunc(list, func(c dataplane.Customer) bool {
					return c.Name != name && slices.ContainsFunc(c.Prefixes, contains)
				})
				after := dataplane.Customer{
					Name: name, Plan: plans[plan], Prefixes: []netip.Prefix{netip.PrefixFrom(address, 32)},
				}
				switch {
				case k >= 0 && r.IntN(2) == 0:
					kinds["removed"]++
					list = slices.Delete(list, k, k+1)
				case used:
					continue
				case k >= 0:
					kinds["replaced"]++
					change.After, change.Plan, list[k] = &after, &base.Customers.Plans[plan], after
				default:
					kinds["added"]++
					change.After, change.Plan = &after, &base.Customers.Plans[plan]
					list = append(list, after)
				}
				changes = append(changes, change)
			}
			one.ChangeCustomers(at, changes)
			other, _ = inherited(t, other, policy())
			other.advance(one.now)
		}
		at += r.Int64N(40 * µs)
		frame := toward(fmt.Sprintf("10.0.0.%d", r.IntN(20)), 40+r.IntN(1400))
		want, _ := process(other, at, frame)
		got, _ := process(one, at, frame)
		if owner(one, &got) != owner(other, &want) {
			t.Fatalf("packet %d: customer %q, want %q", i, owner(one, &got), owner(other, &want))
		}
		got.Customer, want.Customer = 0, 0
		if got != want {
			t.Fatalf("packet %d: got %+v, want %+v", i, got, want)
		}
	}
	got := make([]dataplane.CustomerStats, len(list))
	one.CustomersOf(other.plan.Customers, 0, got)
	for i, want := range other.Customers() {
		if got[i] != want || one.CustomerNamed(list[i].Name) != want {
			t.Errorf("customer %q: got %+v, want %+v", list[i].Name, got[i], want)
		}
	}
	if kinds["added"] < 100 || kinds["removed"] < 100 || kinds["replaced"] < 100 {
		t.Errorf("only %v", kinds)
	}
}

// owner returns the name of the customer of a verdict.
func owner(l *Pipeline, v *dataplane.Verdict) string {
	if v.Customer == 0 {
		return ""
	}
	return l.plan.Customers.Source.List[v.Customer-1].Name
}

// TestChangedNumber removes a customer whose packet waits in a link, and gives its number to another one.
// When the link drops the packet, neither its drop nor its tokens may come to the new customer.
func TestChangedNumber(t *testing.T) {
	link := &dataplane.Link{Name: "link", Rate: frametest.Mega}
	slow := &dataplane.Queue{Name: "q", Link: link, Weight: 1}
	slow.Config.Bytes = 100_000
	slow.Config.CoDel.Target, slow.Config.CoDel.Interval = time.Millisecond, 2*time.Millisecond
	plan := frametest.BucketPlan("bucket", 1_000_000)
	policy := frametest.CustomersPolicy(&dataplane.Customers{
		Plans: []*dataplane.ServicePlan{plan},
		List:  []dataplane.Customer{{Name: "old", Plan: plan, Prefixes: frametest.Prefixes("10.0.0.1/32")}},
	})
	policy.Links = []*dataplane.Link{link}
	policy.Classes[0].Green = &dataplane.Action{Queue: slow}
	l := newPipeline(t, policy)
	for range 60 {
		process(l, 0, toward("10.0.0.1", 1000))
	}
	service := &l.plan.Customers.Plans[0]
	old, next := policy.Customers.List[0], policy.Customers.List[0]
	next.Name = "new"
	l.ChangeCustomers(0, []compiled.CustomerChange{{Name: "old", Before: &old}})
	l.ChangeCustomers(0, []compiled.CustomerChange{{Name: "new", After: &next, Plan: service}})
	number := l.plan.Customers.Number("new")
	if number != 1 {
		t.Fatalf("the new customer has number %d", number)
	}
	var v dataplane.Verdict
	dropped := 0
	for l.Settle(int64(time.Second), &v) {
		if v.Done.Dropped() {
			dropped++
		}
	}
	if got := l.CustomerNamed("new"); dropped == 0 || got != (dataplane.CustomerStats{}) {
		t.Errorf("the link dropped %d packets, and the new customer has %+v", dropped, got)
	}
	tc, _ := l.customers.customer(number).Tokens(l.now)
	if want := int64(1_000_000); tc != want {
		t.Errorf("the new customer has %d tokens, want %d", tc, want)
	}
}
