package kernel

import (
	"errors"

	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
)

// ChangeCustomers adds, replaces and removes customers of the attached program, all or none. It takes
// milliseconds, whatever the number of customers. Others are not affected: each packet finds its customer,
// and no packet is metered twice or not at all. A replaced customer keeps its tokens and counters. A new one
// is full; no packet of an earlier customer meets its state. The plans are those for the shaper's direction.
//
// The errors are those of SetCustomerPlans. With ErrNoRoom nothing changed: reload the shaper with a plan
// that has these customers.
func (s *Shaper) ChangeCustomers(list []compiled.CustomerChange) error {
	change, unlocked, err := s.lockToSet()
	if err != nil {
		return err
	}
	defer change.Close()
	index, err := s.currentIndex()
	if err != nil {
		return err
	}
	if index == nil || s.Leaves {
		return ErrNoRoom
	}
	services := make([]compiled.CustomerService, 0, len(list))
	for i := range list {
		if list[i].InTree {
			return ErrNoRoom
		}
		if plan := list[i].Plan; plan != nil {
			services = append(services, compiled.CustomerService{Name: list[i].Name, Plan: plan})
		}
	}
	plans, err := image.EncodeServices(&s.About, services)
	if err != nil {
		return err
	}
	switch err = index.Change(list, plans); {
	case errors.Is(err, ErrNoRoom):
		return err
	case err != nil:
		index.Close() // it may differ from the maps now
		s.index = nil
		return err
	}
	return unlocked
}
