package frametest

import (
	"errors"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// Mega is one byte per microsecond.
var Mega = meter.BitRate(8e6)

// BucketPlan is a plan of a bucket of 1 byte per microsecond.
func BucketPlan(name string, burst int64) *dataplane.ServicePlan {
	return &dataplane.ServicePlan{Name: name, Params: meter.TokenBucket{Rate: Mega, Burst: burst}}
}

// CustomersPolicy has a class for customers and one for strangers.
func CustomersPolicy(customers *dataplane.Customers) *dataplane.Policy {
	return &dataplane.Policy{Customers: customers, Classes: []dataplane.Class{
		{Name: "customers", Match: dataplane.Match{Customer: true}, Meter: &dataplane.Meter{}},
		{Name: "strangers"},
	}}
}

// ValidPolicy returns a policy with one of everything.
func ValidPolicy() *dataplane.Policy {
	total := &dataplane.Meter{Name: "total", Params: meter.TokenBucket{Rate: Mega, Burst: 9000}, Aware: true}
	return &dataplane.Policy{Classes: []dataplane.Class{
		{
			Name:  "voice",
			Match: dataplane.Match{Src: Prefixes("192.0.2.0/24"), DSCP: Values(46)},
			Meter: &dataplane.Meter{
				Name: "first", Params: meter.SRTCM{CIR: Mega, CBS: 1500, EBS: 1500}, Then: total,
			},
			Red: &dataplane.Action{
				Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 0}, {Field: dataplane.PCP, Value: 7}},
				Queue: &dataplane.Queue{Name: "bulk", Config: queue.Config{Rate: Mega, Time: time.Second}},
			},
		},
		{Name: "rest", Meter: total},
	}}
}

// FieldErrors returns the errors that err joins.
func FieldErrors(t *testing.T, err error) []*dataplane.FieldError {
	t.Helper()
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("%v (%T) does not join errors", err, err)
	}
	var list []*dataplane.FieldError
	for _, err := range joined.Unwrap() {
		var e *dataplane.FieldError
		if !errors.As(err, &e) {
			t.Fatalf("%v (%T) is not a FieldError", err, err)
		}
		list = append(list, e)
	}
	return list
}

// NoPanic turns a panic into a failure, so that other tests continue.
func NoPanic(t *testing.T) {
	if x := recover(); x != nil {
		t.Errorf("panic: %v", x)
	}
}

var Server = dataplane.Address{URL: "redis://h"}
