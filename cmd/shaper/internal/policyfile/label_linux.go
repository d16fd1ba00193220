package policyfile

import (
	"encoding/json"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/customers"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
)

// CompileLabel compiles the policy of a label, with the changes and the added customers. Unreadable and stale
// changes are ignored: they are reported by the commands which make or reload a shaper.
func CompileLabel(label json.RawMessage) (*Compiled, error) {
	s, err := SourceOf(label)
	if err != nil {
		return nil, err
	}
	return s.compileWithChanges()
}

// CompileNames is CompileLabel without the addresses and VLANs of customers, in half the time: for
// names and plans. In this plan no packet belongs to a customer.
func CompileNames(label json.RawMessage) (*Compiled, error) {
	s, err := SourceOf(label)
	if err != nil {
		return nil, err
	}
	s.namesOnly = true
	return s.compileWithChanges()
}

func (s Source) compileWithChanges() (*Compiled, error) {
	c, err := s.Compile()
	if err != nil || s.Changes == "" {
		return c, err
	}
	added, _ := customers.Read(customers.PathOf(s.Changes))
	c, _ = c.WithCustomers(added)
	book, _, _ := changes.Read(s.Changes)
	c, _ = c.Amended(s.Changes, book, time.Now())
	return c, nil
}

// PlanOf compiles the policy of a label and returns its plan.
func PlanOf(label json.RawMessage) (*compiled.Plan, error) {
	c, err := CompileLabel(label)
	if err != nil {
		return nil, err
	}
	return c.Plan, nil
}
