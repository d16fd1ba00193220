package dataplane

import (
	"testing"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// customersPolicy has a class for customers and one for strangers.
func customersPolicy(customers *Customers) *Policy {
	return &Policy{Customers: customers, Classes: []Class{
		{Name: "customers", Match: Match{Customer: true}, Meter: &Meter{}},
		{Name: "strangers"},
	}}
}

// bucketPlan is a plan of a bucket of 1 byte per microsecond.
func bucketPlan(name string, burst int64) *ServicePlan {
	return &ServicePlan{Name: name, Params: meter.TokenBucket{Rate: mega, Burst: burst}}
}

func TestPlanFor(t *testing.T) {
	for _, test := range []struct {
		key             CustomerKey
		egress, ingress CustomerKey
	}{
		{ByInside, ByDestination, BySource},
		{BySource, BySource, BySource},
		{ByDestination, ByDestination, ByDestination},
		{ByOuterVLAN, ByOuterVLAN, ByOuterVLAN},
		{ByTwoVLANs, ByTwoVLANs, ByTwoVLANs},
	} {
		plan := newPipeline(t, customersPolicy(&Customers{Key: test.key, List: []Customer{{Name: "a", Plan: bucketPlan("p", 1500)}}})).Plan()
		for direction, want := range map[Direction]CustomerKey{Egress: test.egress, Ingress: test.ingress} {
			got := plan.For(direction)
			if got.Customers.Key != want || got.Customers.Number("a") != 1 || got.For(direction) != got {
				t.Errorf("key %d at %v: got %d, want %d", test.key, direction, got.Customers.Key, want)
			}
			if (got == plan) != (test.key != ByInside) || plan.Customers.Key != test.key {
				t.Errorf("key %d at %v: the plan was changed, or copied in vain", test.key, direction)
			}
		}
	}
	plan := newPipeline(t, validPolicy()).Plan()
	if plan.For(Ingress) != plan {
		t.Error("a plan without customers was copied")
	}
}
