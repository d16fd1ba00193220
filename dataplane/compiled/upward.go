package compiled

import (
	"cmp"
	"errors"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// compileUp compiles the plan for packets from the customers, if it differs.
func (p *Plan) compileUp() error {
	policy := p.Source.Upward()
	if policy == nil {
		return nil
	}
	up, err := compileDirection(policy, p.Customers)
	if err != nil {
		return inUpward(policy, err)
	}
	if p.Up = up; p.Customers != nil {
		for i := range p.Customers.Plans {
			p.Customers.Plans[i].Up = &up.Customers.Plans[i]
		}
	}
	return nil
}

// inUpward returns the errors of a copy by dataplane.Policy.Upward as those of the original.
func inUpward(policy *dataplane.Policy, err error) error {
	var out []error
	list := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		list = joined.Unwrap()
	}
	for _, err := range list {
		var e *dataplane.FieldError
		if errors.As(err, &e) {
			err = &dataplane.FieldError{
				Object: policy.Original(e.Object), Field: e.Field, Reason: e.Reason + inUp,
			}
		}
		out = append(out, err)
	}
	return errors.Join(out...)
}

// inUp follows the reason of an error that only the other direction has.
const inUp = " (up)"

// ServiceFor returns the plan of a customer for packets of a direction.
func (p *Plan) ServiceFor(d dataplane.Direction, s *Service) *Service {
	if s.Up != nil && p.Upward(d) {
		return s.Up
	}
	return s
}

// upward returns the plan for packets from the customers.
func (p *Plan) upward() *Plan { return cmp.Or(p.Up, p) }

// upward returns the plan of a customer for packets from it.
func (s *Service) upward() *Service { return cmp.Or(s.Up, s) }
