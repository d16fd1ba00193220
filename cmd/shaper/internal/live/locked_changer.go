package live

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
)

// LockedChanger is a Changer for several goroutines. Its lock must be held while it is used, and
// during a reload.
type LockedChanger struct {
	sync.Mutex
	*Changer

	problem  atomic.Pointer[string]
	requests customerQueue
}

// SetProblem notes why changes, quotas or schedules do not work, or are not kept; "" if there is no
// problem.
func (c *LockedChanger) SetProblem(text string) { c.problem.Store(&text) }

// Problem returns the text of SetProblem. It does not need the lock.
func (c *LockedChanger) Problem() string {
	if text := c.problem.Load(); text != nil {
		return *text
	}
	return ""
}

// Copy returns a copy of the book, and takes the lock only for the copy: there may be many changes.
func (c *LockedChanger) Copy() changes.Book {
	c.Lock()
	defer c.Unlock()
	return maps.Clone(c.Book)
}

// Now returns the changes now, and takes the lock only for a copy.
func (c *LockedChanger) Now() Changes {
	return Changes{Book: c.Copy(), Problem: c.Problem(), Customers: c.CustomerCounts()}
}

// CustomerCounts returns the numbers of customers added and removed. It takes the lock for a moment.
func (c *LockedChanger) CustomerCounts() CustomerCounts {
	c.Lock()
	defer c.Unlock()
	return CountCustomers(c.Customers.Book)
}
