package dataplane

import (
	"errors"
	"fmt"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// FieldError is an error in one field of a policy.
type FieldError struct {
	// Object is the part of the policy that contains the error: a *Policy,
	// *LengthRule, *Class, *Match, *Meter, *Action, *Queue, *Link, *Envelope,
	// *Budget, *Customers, *Customer or *ServicePlan.
	Object any
	Field  string // key within the object, as spelled in policy files
	Reason string // a phrase that continues Field, such as "is missing"
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

// errorList collects the errors of a policy.
type errorList []error

func (l *errorList) add(object any, field, reason string) {
	*l = append(*l, &FieldError{object, field, reason})
}

// addError adds an error of package meter or queue. Each meter.FieldError in it keeps
// its own field; any other error is an error of the given field.
func (l *errorList) addError(object any, field string, err error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			l.addError(object, field, err)
		}
		return
	}
	var e *meter.FieldError
	if errors.As(err, &e) {
		l.add(object, strings.ToLower(e.Field), e.Reason)
		return
	}
	l.add(object, field, err.Error())
}
