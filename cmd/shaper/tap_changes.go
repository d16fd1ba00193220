package main

import (
	"fmt"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
)

// openChanges makes the book of changes, which ends with the process.
func (c *runningTap) openChanges() error {
	file, err := changes.Open("")
	c.changes = &live.TapChanges{Changer: live.NewChanger(file, func() (out []live.Changeable) {
		for _, sh := range c.list {
			out = append(out, sh)
		}
		return out
	})}
	c.changes.Restarted()
	return err
}

// amend returns a policy with the changes in force.
func (c *runningTap) amend(policy *policyfile.Compiled) *policyfile.Compiled {
	policy, stale := policy.Amended(c.changes.Path, c.changes.Book, time.Now())
	warnStale(c.s.err, stale)
	return policy
}

// advanceChanges ends changes whose time is over, and follows quotas and schedules.
func (c *runningTap) advanceChanges() {
	c.changes.Lock()
	defer c.changes.Unlock()
	if err := c.changes.Advance(time.Now()); err != nil {
		fmt.Fprintf(c.s.err, "shaper: quotas, schedules and ends of changes: %v\n", err)
	}
}
