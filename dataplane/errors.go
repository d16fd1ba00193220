package dataplane

import (
	"fmt"
)

// FieldError is an error in one field of a policy.
type FieldError struct {
	// Object is the faulty part of the policy: a *Policy, *LengthRule, *Class, *Match, *Meter,
	// *Action, *Queue, *Link, *Envelope, *Budget, *Customers, *Customer or *ServicePlan.
	Object any
	Field  string // key within the object, as spelled in policy files
	Reason string // a phrase continuing Field, such as "is missing"
}

func (e *FieldError) Error() string {
	switch o := e.Object.(type) {
	case *Class:
		return fmt.Sprintf("class %q: %s: %s", o.Name, e.Field, e.Reason)
	case *Meter:
		return fmt.Sprintf("meter %q: %s: %s", o.Name, e.Field, e.Reason)
	case *Queue:
		return fmt.Sprintf("queue %q: %s: %s", o.Name, e.Field, e.Reason)
	case *Link:
		return fmt.Sprintf("link %q: %s: %s", o.Name, e.Field, e.Reason)
	case *Envelope:
		return fmt.Sprintf("envelope %q: %s: %s", o.Name, e.Field, e.Reason)
	case *Customer:
		return fmt.Sprintf("customer %q: %s: %s", o.Name, e.Field, e.Reason)
	case *ServicePlan:
		return fmt.Sprintf("plan %q: %s: %s", o.Name, e.Field, e.Reason)
	case *Budget:
		return fmt.Sprintf("budget %q: %s: %s", o.Name, e.Field, e.Reason)
	}
	return e.Field + ": " + e.Reason
}

// ActiveError is the error of a reload whose new policy is active, although removing the
// rest of the previous one failed. Another Reload, or Detach, tries again.
type ActiveError struct{ Err error }

func (e *ActiveError) Error() string { return fmt.Sprintf("the new policy is active, but: %v", e.Err) }

func (e *ActiveError) Unwrap() error { return e.Err }
