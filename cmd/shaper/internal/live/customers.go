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
			if plan, stats := sh.CustomerStats(c.changes); plan != nil {
				*out = ListCustomers(plan().Plan.Customers, stats)
			}
		}
	}
	return nil
}

// CustomerStats returns the counters of customers, and a function that returns the policy in force,
// as Changer.AmendLater does; nil if it has no customers.
func (c *LocalTap) CustomerStats(
	all *LockedChanger,
) (func() *policyfile.Compiled, []dataplane.CustomerStats) {
	all.Lock()
	defer all.Unlock()
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.plan.Customers == nil {
		return nil, nil
	}
	return all.AmendLater(c.policy), c.Shaper.Customers()
}

// Customer returns a customer with the changes of a book. The error is a *policyfile.UnknownError
// if there is none of that name.
func (c *LocalTap) Customer(name string, book changes.Book) (Customer, error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	number, service, err := c.policy.ChangeCompiler(book, time.Now()).Service(name)
	if service == nil {
		return Customer{}, err
	}
	out := Customer{Name: name, Plan: service.Name}
	if c.plan.Customers != nil {
		out.CustomerStats = c.Shaper.Customer(number)
	}
	return out, nil
}
