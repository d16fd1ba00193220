package shared

import (
	"context"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// Replace gives the agent other budgets. Those that it had, by name and host, keep
// their shares and meters; the others are left, and their meters must let nothing
// through any more. The new ones have no meters yet: see Bind.
func (a *Agent) Replace(budgets []Budget) error {
	next, err := NewAgent(a.client, budgets, a.config)
	if err != nil {
		return err
	}
	a.turn.Lock()
	defer a.turn.Unlock()
	for i, m := range next.members {
		at := slices.IndexFunc(a.members, func(o *member) bool { return o.Name == m.Name && o.Host == m.Host })
		if at < 0 {
			continue
		}
		next.members[i] = a.members[at]
		next.members[i].Budget = m.Budget
		next.members[i].host.SetTerms(m.Terms)
		a.members = slices.Delete(a.members, at, at+1)
	}
	left := a.members
	a.mu.Lock()
	a.members = next.members
	a.mu.Unlock()
	if len(left) == 0 {
		return nil
	}
	requests := make([]lease.Request, len(left))
	for i, m := range left {
		requests[i] = m.host.Leave()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(a.members[0].Terms.Deadline))
	defer cancel()
	gone := Agent{client: a.client, members: left}
	_, _, _ = gone.ask(ctx, requests) // their leases end all the same
	return nil
}
