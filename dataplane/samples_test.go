package dataplane

import (
	"errors"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// mega is one byte per microsecond.
var mega = meter.BitRate(8e6)

// bucketPlan is a plan of a bucket of 1 byte per microsecond.
func bucketPlan(name string, burst int64) *ServicePlan {
	return &ServicePlan{Name: name, Params: meter.TokenBucket{Rate: mega, Burst: burst}}
}

// customersPolicy has a class for customers and one for strangers.
func customersPolicy(customers *Customers) *Policy {
	return &Policy{Customers: customers, Classes: []Class{
		{Name: "customers", Match: Match{Customer: true}, Meter: &Meter{}},
		{Name: "strangers"},
	}}
}

// validPolicy returns a policy with one of everything.
func validPolicy() *Policy {
	total := &Meter{Name: "total", Params: meter.TokenBucket{Rate: mega, Burst: 9000}, Aware: true}
	return &Policy{Classes: []Class{
		{
			Name:  "voice",
			Match: Match{Src: prefixes("192.0.2.0/24"), DSCP: values(46)},
			Meter: &Meter{Name: "first", Params: meter.SRTCM{CIR: mega, CBS: 1500, EBS: 1500}, Then: total},
			Red:   &Action{Marks: []Mark{{DSCP, 0}, {PCP, 7}}, Queue: &Queue{Name: "bulk", Config: queue.Config{Rate: mega, Time: time.Second}}},
		},
		{Name: "rest", Meter: total},
	}}
}

// fieldErrors returns the errors that err joins.
func fieldErrors(t *testing.T, err error) []*FieldError {
	t.Helper()
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("%v (%T) does not join errors", err, err)
	}
	var list []*FieldError
	for _, err := range joined.Unwrap() {
		var e *FieldError
		if !errors.As(err, &e) {
			t.Fatalf("%v (%T) is not a FieldError", err, err)
		}
		list = append(list, e)
	}
	return list
}

// noPanic turns a panic into a failure, so that other tests continue.
func noPanic(t *testing.T) {
	if x := recover(); x != nil {
		t.Errorf("panic: %v", x)
	}
}

var server = Store{URL: "redis://h"}
