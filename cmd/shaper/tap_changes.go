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
	return err
}

// amend returns a policy with the changes in force.
func (c *runningTap) amend(policy *policyfile.Compiled) *policyfile.Compiled {
	policy, stale := policy.Amended(c.changes.Path, c.changes.Book, time.Now())
	warnStale(c.s.err, stale)
	return policy
}

// endChanges ends the changes whose time is over.
func (c *runningTap) endChanges() {
	c.changes.Lock()
	defer c.changes.Unlock()
	if now := time.Now(); c.changes.Due(now) {
		if err := c.changes.Expire(now); err != nil {
			fmt.Fprintf(c.s.err, "shaper: the end of a change by shaper set: %v\n", err)
		}
	}
}
