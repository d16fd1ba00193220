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

	Other  any    // the other part of a conflict, which Reason ends with; nil: none
	Remedy string // what to do about a conflict; "": nothing besides Reason
}

// Phrase returns the reason, the place of Other, such as " (line 7)" or "", and the remedy.
func (e *FieldError) Phrase(place string) string {
	if e.Remedy == "" {
		return e.Reason + place
	}
	return e.Reason + place + ": " + e.Remedy
}

func (e *FieldError) Error() string {
	reason := e.Phrase("")
	switch o := e.Object.(type) {
	case *Class:
		return fmt.Sprintf("class %q: %s: %s", o.Name, e.Field, reason)
	case *Meter:
		return fmt.Sprintf("meter %q: %s: %s", o.Name, e.Field, reason)
	case *Queue:
		return fmt.Sprintf("queue %q: %s: %s", o.Name, e.Field, reason)
	case *Link:
		return fmt.Sprintf("link %q: %s: %s", o.Name, e.Field, reason)
	case *Envelope:
		return fmt.Sprintf("envelope %q: %s: %s", o.Name, e.Field, reason)
	case *Customer:
		return fmt.Sprintf("customer %q: %s: %s", o.Name, e.Field, reason)
	case *ServicePlan:
		return fmt.Sprintf("plan %q: %s: %s", o.Name, e.Field, reason)
	case *Budget:
		return fmt.Sprintf("budget %q: %s: %s", o.Name, e.Field, reason)
	}
	return e.Field + ": " + reason
}

// ActiveError is the error of a reload whose new policy is active, although removing the
// rest of the previous one failed. Another Reload, or Detach, tries again.
type ActiveError struct{ Err error }

func (e *ActiveError) Error() string { return fmt.Sprintf("the new policy is active, but: %v", e.Err) }

func (e *ActiveError) Unwrap() error { return e.Err }
