package live

import (
	"errors"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
)

// Customer is a customer of a running shaper with its counters.
type Customer struct {
	Name, Plan string
	dataplane.CustomerStats
}

// ErrNoCustomers is the error for a policy without customers.
var ErrNoCustomers = errors.New("the policy has no customers")

// ListCustomers joins customers of a plan with their counters.
func ListCustomers(plan *compiled.Customers, stats []dataplane.CustomerStats) []Customer {
	out := make([]Customer, len(stats))
	for i := range stats {
		out[i] = Customer{plan.Source.List[i].Name, plan.Service(uint32(i + 1)).Name, stats[i]}
	}
	return out
}

// customers returns the customers of a direction, none if its policy has none.
func (c *tapControl) customers(direction dataplane.Direction, out *[]Customer) error {
	for _, sh := range c.list {
		if sh.about.Direction == direction {
			if plan := sh.CustomerPlan(c.changes); plan != nil {
				list := plan().Plan.Customers
				*out = ListCustomers(list, sh.Shaper.CustomersOf(list))
			}
		}
	}
	return nil
}

// CustomerPlan returns a function that returns the policy in force, as Changer.AmendLater does; nil if it has
// no customers.
func (c *LocalTap) CustomerPlan(all *LockedChanger) func() *policyfile.Compiled {
	all.Lock()
	defer all.Unlock()
	policy := c.loaded()
	if policy.Plan.Customers == nil {
		return nil
	}
	return all.AmendLater(policy.Current())
}

// Customer returns a customer with the changes of a book. The error is a *policyfile.UnknownError
// if there is none of that name.
func (c *LocalTap) Customer(name string, book changes.Book) (Customer, error) {
	policy, _ := c.Policy() // no error
	_, service, err := policy.ChangeCompiler(book, time.Now()).Service(name)
	if service == nil {
		return Customer{}, err
	}
	return Customer{Name: name, Plan: service.Name, CustomerStats: c.Shaper.CustomerNamed(name)}, nil
}
