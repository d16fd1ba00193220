package shared

import (
	"context"
	"fmt"
	"slices"
)

// Replace changes the agent's budgets. Their interval and deadline must not
// change. Budgets that it already had, by name and host, keep their shares and
// meters. The host leaves the others, whose meters must not pass packets any
// more. New budgets have no meters yet; see Bind.
func (a *Agent) Replace(budgets []Budget) error {
	next, err := NewAgent(a.client, budgets, a.config)
	if err != nil {
		return err
	}
	if next.interval != a.interval || next.deadline != a.deadline {
		return fmt.Errorf("budget %s: interval %v differs from %v of the agent", budgets[0].Name,
			next.interval, a.interval)
	}
	a.turn.Lock()
	defer a.turn.Unlock()
	left := slices.Clone(a.members)
	for i, m := range next.members {
		at := slices.IndexFunc(left, func(o *member) bool { return o.Name == m.Name && o.Host == m.Host })
		if at < 0 {
			continue
		}
		next.members[i] = left[at]
		next.members[i].Terms = m.Terms
		next.members[i].host.SetTerms(m.Terms)
		left = slices.Delete(left, at, at+1)
	}
	a.mu.Lock()
	a.members = next.members
	a.mu.Unlock()
	if len(left) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), a.deadline)
		defer cancel()
		_ = a.leave(ctx, left) // otherwise their leases end by themselves
		for _, m := range left {
			delete(a.lines, m.Name)
		}
	}
	return nil
}
