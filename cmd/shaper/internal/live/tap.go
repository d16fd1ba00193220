package live

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/tap"
)

// ByTap is the hook of a shaper tap, whose process moves the frames itself.
const ByTap = "tap"

// LocalTap is one direction of this process's shaper tap.
type LocalTap struct {
	Shaper  *tap.ActivePolicy
	Notes   func() // prints the effects of a reload on budgets of the host
	Changes *LockedChanger

	lock   sync.Mutex // protects the fields below, which a reload changes
	about  kernel.About
	policy *policyfile.Compiled
	plan   *compiled.Plan // of this direction
}

// NewLocalTap returns one direction of a shaper tap between name and peer.
func NewLocalTap(
	name, peer string, direction dataplane.Direction, shaper *tap.ActivePolicy, policy *policyfile.Compiled,
) *LocalTap {
	now := time.Now().Round(0)
	c := &LocalTap{Shaper: shaper, policy: policy, plan: policy.Plan.For(direction), about: kernel.About{
		Interface: name, Peer: peer, Direction: direction, Since: now, Loaded: now, Process: os.Getpid(),
		Label: policy.Label(), Outline: *policy.Plan.Outline(),
	}}
	c.about.Place.Hook = ByTap
	return c
}

// Info returns a copy, because a reload can change the original at any time.
func (c *LocalTap) Info() *kernel.About {
	c.lock.Lock()
	defer c.lock.Unlock()
	about := c.about
	return &about
}

// Host returns the name of this direction among the hosts of budgets on servers.
func (c *LocalTap) Host() string {
	return budgets.HostName(c.about.Interface, c.about.Direction.String())
}

// MTU returns the MTU of an interface, bytes, or 0 if it is unknown. Unlike package net, it does not
// ask for all interfaces.
func MTU(name string) int {
	if l, err := netlink.LinkByName(name); err == nil {
		return l.Attrs().MTU
	}
	return 0
}

// BudgetHost returns the current plan with the name of this direction.
func (c *LocalTap) BudgetHost() budgets.Host {
	c.lock.Lock()
	defer c.lock.Unlock()
	return budgets.Host{Plan: c.plan, Name: c.Host(), MTU: MTU(c.about.Interface)}
}

// Snapshot returns a consistent state, without a reload in between.
func (c *LocalTap) Snapshot() Snapshot {
	c.lock.Lock()
	defer c.lock.Unlock()
	return Snapshot{Version: snapshotVersion, About: c.about, Now: c.Shaper.Snapshot()}
}

// Policy returns the policy in force, as of the last reload, with the present customers.
func (c *LocalTap) Policy() (*policyfile.Compiled, error) { return c.loaded().Current(), nil }

// loaded returns the policy as of the last reload.
func (c *LocalTap) loaded() *policyfile.Compiled {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.policy
}

// Roster returns the customers of the policy.
func (c *LocalTap) Roster() (*policyfile.Roster, error) { return c.loaded().Roster(), nil }

// ChangeCustomers adds, replaces and removes customers. The error is kernel.ErrNoRoom if some of them have
// queues in a tree of links.
func (c *LocalTap) ChangeCustomers(list []compiled.CustomerChange) error {
	for i := range list {
		if list[i].InTree {
			return kernel.ErrNoRoom
		}
	}
	c.Shaper.ChangeCustomers(list)
	return nil
}

// HasRules reports whether plans have quotas or schedules.
func (c *LocalTap) HasRules() bool {
	return c.loaded().HasRules()
}

// SetCustomerPlans changes the plans of customers.
func (c *LocalTap) SetCustomerPlans(list []compiled.CustomerService, _ func() *compiled.Plan) error {
	return c.Shaper.SetCustomerPlans(list)
}

// SetRates changes the rates of links and queues.
func (c *LocalTap) SetRates(plan *compiled.Plan) error {
	return c.Shaper.SetRates(plan.For(c.about.Direction))
}

// CountersOf returns the counters of the customers of a plan.
func (c *LocalTap) CountersOf(plan *compiled.Customers) ([]dataplane.CustomerStats, error) {
	return c.Shaper.CustomersOf(plan), nil
}

// Replace is Reload.
func (c *LocalTap) Replace(policy *policyfile.Compiled) error {
	_, err := c.Reload(policy, policy.Label())
	return err
}

// Reload replaces the policy of this direction. The policy must have the changes in force.
func (c *LocalTap) Reload(
	policy *policyfile.Compiled, label json.RawMessage,
) ([]compiled.ClassChange, error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	plan := policy.Plan.For(c.about.Direction)
	if err := plan.InUserSpace(); err != nil {
		return nil, err
	}
	changes, err := c.Shaper.Reload(plan)
	if err == nil || errors.As(err, new(*dataplane.ActiveError)) {
		c.Notes()
		c.policy, c.plan, c.about.Outline, c.about.Label, c.about.Loaded = policy, plan, *plan.Outline(),
			label, time.Now().Round(0)
	}
	return changes, err
}

// tapPrefix is the beginning of the abstract socket names of shaper tap. The names belong
// to its network namespace and end with it.
const tapPrefix = "@shaper-tap:"

// tapControl holds the methods of a shaper tap for other processes.
type tapControl struct {
	list    []*LocalTap
	stop    func()
	changed func() error // called after a reload
	shares  *budgets.Agents
	changes *LockedChanger
	heard   *Heard
}

// ServeTap lets other processes call the shaper tap of a device. stop ends it; changed is
// called after each reload.
func ServeTap(
	device string, list []*LocalTap, shares *budgets.Agents, changes *LockedChanger, heard *Heard,
	stop func(), changed func() error,
) (io.Closer, error) {
	return serve(tapPrefix+device, (&tapControl{list, stop, changed, shares, changes, heard}).methods)
}

func (c *tapControl) methods() methods {
	return methods{
		"Take": method(c.take), "Reload": method(c.reload), "End": method(c.end),
		"Customers": method(c.customers), "Set": method(setter(c.set)), "Changes": method(c.listChanges),
		"Announce": method(c.heard.announce), "Links": method(c.links),
		"ChangeCustomers": method(submitter(c.changeCustomers)), "CustomerTerms": method(pager(c.customerTerms)),
	}
}

// snapshotVersion is the version of the format of Snapshot. Processes before version 1 send
// none, which is read as 0.
const snapshotVersion = 1

// Snapshot is the state of one direction.
type Snapshot struct {
	Version int // snapshotVersion
	About   kernel.About
	Now     tap.Snapshot
	Shares  []budgets.State
	Problem string // of changes

	Customers CustomerCounts
}

// take returns the snapshots of all directions.
func (c *tapControl) take(_ struct{}, out *[]Snapshot) error {
	for _, sh := range c.list {
		s := sh.Snapshot()
		s.Shares, s.Problem = c.shares.States(sh.Host()), c.changes.Problem()
		s.Customers = c.changes.CustomerCounts()
		*out = append(*out, s)
	}
	return nil
}

// links returns the states of the links of a direction.
func (c *tapControl) links(of dataplane.Direction, out *[]dataplane.LinkState) error {
	for _, sh := range c.list {
		if sh.about.Direction == of {
			*out = sh.Shaper.Links()
		}
	}
	return nil
}

// Policy is a policy for one direction, as the label of a shaper.
type Policy struct {
	Direction dataplane.Direction
	Label     json.RawMessage
}

// reload replaces the policy of a direction.
func (c *tapControl) reload(in Policy, out *[]compiled.ClassChange) error {
	policy, err := policyfile.CompileLabel(in.Label)
	if err != nil {
		return err
	}
	c.changes.Lock()
	defer c.changes.Unlock()
	policy, _ = c.changes.Amend(policy) // the caller printed the stale changes
	for _, sh := range c.list {
		if sh.about.Direction == in.Direction {
			if err := c.shares.Prepare(context.Background(),
				budgets.Host{Plan: policy.Plan, Name: sh.Host()}); err != nil {
				return errors.Join(err, c.changed())
			}
			*out, err = sh.Reload(policy, policy.Label())
			if err == nil || errors.As(err, new(*dataplane.ActiveError)) {
				c.heard.Warn("%s: reloaded by %s, policy %s", Name(&sh.about),
					c.heard.By(Reload, in.Direction), policy.Name)
			}
		}
	}
	return errors.Join(err, c.changed())
}

// set makes changes, all or none.
func (c *tapControl) set(list []changes.Change) error {
	c.changes.Lock()
	defer c.changes.Unlock()
	return c.changes.Set(list)
}

// changeCustomers makes a request.
func (c *tapControl) changeCustomers(ctx context.Context, request CustomerRequest) (CustomerReply, error) {
	return c.changes.SubmitCustomers(ctx, request, c.changes.CommitCustomers)
}

// customerTerms returns a page of customers.
func (c *tapControl) customerTerms(q CustomerQuery) (CustomerPage, error) {
	c.changes.Lock()
	defer c.changes.Unlock()
	return c.changes.CustomerPage(q)
}

// listChanges returns the changes in force, a JSON list.
func (c *tapControl) listChanges(_ struct{}, out *json.RawMessage) (err error) {
	*out, err = json.Marshal(slices.Collect(c.changes.Copy().All()))
	return err
}

// end ends the command.
func (c *tapControl) end(struct{}, *struct{}) error {
	for _, sh := range c.list {
		c.heard.Warn("%s: detached by %s", Name(&sh.about), c.heard.By(Detach, sh.about.Direction))
	}
	c.stop()
	return nil
}
