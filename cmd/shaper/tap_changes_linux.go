package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
)

// warn prints a line on stderr.
func (c *runningTap) warn(format string, args ...any) {
	fmt.Fprintf(c.s.Err, "shaper: "+format+"\n", args...)
}

// openChanges makes the book of changes. Without --state it ends with the process.
func (c *runningTap) openChanges() {
	state, path := &c.flags.state, ""
	if state.dir != "" {
		path = state.path(c.name, stateChanges)
	}
	file, err := changes.Open(path)
	if err != nil {
		c.warn("%v", err)
	}
	c.changes = &live.TapChanges{Changer: live.NewChanger(file, func() (out []live.Changeable) {
		for _, sh := range c.list {
			out = append(out, sh)
		}
		return out
	})}
	c.changes.Report = func(list []changes.Change) { logChanges(c.warn, c.name, list) }
	if err := state.restoreQuotas(c.name, c.changes.Changer); err != nil {
		c.warn("%v", err)
	}
	for _, direction := range c.flags.Directions.List {
		c.changes.Restarted(direction)
	}
}

// saveState keeps what customers have used, and their tokens. The lock of the changes must be held.
func (c *runningTap) saveState() error {
	tokens := map[string]func() ([]byte, error){}
	for _, sh := range c.list {
		tokens[directionName(c.name, sh.Info().Direction)] = func() ([]byte, error) { return sh.Shaper.SaveCustomers(), nil }
	}
	return c.flags.state.save(c.name, c.changes.Changer, tokens)
}

// restoreCustomers restores the tokens of customers.
func (c *runningTap) restoreCustomers() {
	for _, sh := range c.list {
		text, err := c.flags.state.read(directionName(c.name, sh.Info().Direction), stateCustomers)
		if err == nil && text != nil {
			err = sh.Shaper.RestoreCustomers(text)
		}
		if err != nil {
			c.warn("%s: %v: customers start anew", live.Name(sh.Info()), err)
		}
	}
}

// amend returns a policy with the changes in force.
func (c *runningTap) amend(policy *policyfile.Compiled) *policyfile.Compiled {
	policy, stale := c.changes.Amend(policy)
	cli.WarnStale(c.s.Err, stale)
	return policy
}

// advanceChanges ends changes whose time is over, and follows quotas and schedules.
func (c *runningTap) advanceChanges() {
	c.changes.Lock()
	defer c.changes.Unlock()
	err := c.changes.Advance(time.Now())
	if c.flags.state.due() {
		_ = c.saveState()
	}
	err = errors.Join(err, c.flags.state.failed)
	c.changeProblem.report(err, c.warn)
	c.changes.SetProblem(string(c.changeProblem))
}
