package live

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/quota"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// Changeable is a running shaper whose customers, links and queues can be changed without a
// reload.
type Changeable interface {
	Info() *kernel.About
	Policy() (*policyfile.Compiled, error) // with or without changes
	HasRules() bool                        // the policy has quotas or schedules
	// SetCustomerPlans changes the plans of customers. The error wraps kernel.ErrNoRoom if a
	// reload is needed.
	SetCustomerPlans([]dataplane.CustomerPlan) error
	// SetRates changes the rates of links and queues to those of a plan for both directions.
	SetRates(*dataplane.Plan) error
	// CountersOf returns the counters of the customers of a plan, in its order.
	CountersOf(*dataplane.PlanCustomers) ([]dataplane.CustomerStats, error)
	// Replace reloads the shaper with a policy.
	Replace(*policyfile.Compiled) error
}

// Changer changes the shapers of one process, and keeps the changes in a file. Its methods must
// not be called concurrently.
type Changer struct {
	*changes.File
	shapers func() []Changeable

	next      time.Time        // the end of the next change to end; zero: none
	ended     []changes.Target // targets of ended changes that are still in force
	schedules string           // state of the schedules that is in force
	quotas    quotas
}

// NewChanger returns a Changer for shapers with a file of changes. A file in kernel.StateDir is
// volatile.
func NewChanger(file *changes.File, shapers func() []Changeable) *Changer {
	file.Volatile = filepath.Dir(file.Path) == kernel.StateDir
	return &Changer{File: file, shapers: shapers, next: file.Book.Next(), quotas: quotas{Ledger: quota.New()}}
}

// effect has the plans and rates that changes give to one shaper.
type effect struct {
	shaper    Changeable
	policy    *policyfile.Compiled
	customers []dataplane.CustomerPlan
	rates     *dataplane.Plan // nil: no rate changes
}

// Set makes changes, all or none. The caller must hold the lock of the file. The error wraps
// *policyfile.UnknownError if no shaper has a target.
func (c *Changer) Set(list []changes.Change) error {
	now := time.Now()
	var targets []changes.Target
	needed := map[changes.Target]bool{} // false: errors of the target do not count
	for i := range list {
		t, until := list[i].Target, list[i].Until
		if !until.IsZero() && !now.Before(until) {
			return fmt.Errorf("%v: the change would end before it begins", t)
		}
		if _, seen := needed[t]; !seen {
			targets = append(targets, t)
		}
		needed[t] = needed[t] || list[i].By == changes.ByUser && (!list[i].Reset || c.Book[t] == nil)
	}
	tried := false
	err := c.Add(list, func() error {
		effects, err := c.effects(targets, needed, now)
		if err != nil {
			return err
		}
		tried = true
		return c.run(effects, now)
	})
	if err != nil && tried {
		c.apply(targets, now) // as before, in case that one shaper was changed
	}
	c.next = c.Book.Next()
	return err
}

// Amend returns a policy with the changes in force. stale are the errors of those that the policy
// has no use for.
func (c *Changer) Amend(policy *policyfile.Compiled) (amended *policyfile.Compiled, stale []error) {
	return policy.Amended(c.Path, c.Book, time.Now())
}

// AmendLater returns a function that amends a policy with the changes in force now. Other
// goroutines may call it: with many changes it takes long.
func (c *Changer) AmendLater(policy *policyfile.Compiled) func() *policyfile.Compiled {
	path, book := c.Path, maps.Clone(c.Book)
	return func() *policyfile.Compiled {
		amended, _ := policy.Amended(path, book, time.Now())
		return amended
	}
}

// Advance ends changes whose time is over, follows schedules, and counts the bytes of customers.
// It should be called a few times a second. If another process has the lock of the file, a later
// call does it.
func (c *Changer) Advance(now time.Time) error {
	state, scheduled, rules, err := c.scheduled(now)
	ends, counts := !c.next.IsZero() && !now.Before(c.next), !now.Before(c.quotas.next)
	if counts && !rules {
		c.quotas.next = now.Add(time.Second)
		counts = len(c.Book.Planned(changes.ByQuota)) > 0 // of a policy before
	}
	if err != nil || !ends && !counts && c.ended == nil && state == c.schedules {
		return err
	}
	lock, err := changes.TryLock(c.Path)
	if errors.Is(err, changes.ErrLocked) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	var targets []changes.Target
	if state != c.schedules {
		targets = scheduled()
	}
	if ends {
		c.ended = append(c.ended, c.Book.Expire(now)...)
		c.next = c.Book.Next()
	}
	if err := c.apply(append(targets, c.ended...), now); err != nil {
		return err
	}
	c.schedules, c.ended = state, nil
	if counts {
		return c.count(now)
	}
	return nil
}

// scheduled returns the state of all schedules, the customers to whom they apply, and whether
// there are any quotas or schedules.
func (c *Changer) scheduled(now time.Time) (state string, customers func() []changes.Target, rules bool, err error) {
	var lists []func() []changes.Target
	for _, sh := range c.shapers() {
		if !sh.HasRules() {
			c.quotas.Unknown(int(sh.Info().Direction))
			continue
		}
		policy, err := sh.Policy()
		if err != nil {
			return "", nil, false, err
		}
		s, list := policy.Amender(c.Book, now).Scheduled()
		state, lists, rules = state+s, append(lists, list), true
	}
	return state, func() (out []changes.Target) {
		for _, list := range lists {
			out = append(out, list()...)
		}
		slices.SortFunc(out, changes.Target.Compare)
		return slices.Compact(out)
	}, rules, nil
}

// apply puts the present changes of targets into force.
func (c *Changer) apply(targets []changes.Target, now time.Time) error {
	effects, err := c.effects(targets, nil, now)
	return errors.Join(err, c.run(effects, now))
}

func (c *Changer) run(list []effect, now time.Time) error {
	for _, e := range list {
		var err error
		if len(e.customers) > 0 {
			err = e.shaper.SetCustomerPlans(e.customers)
		}
		if err == nil && e.rates != nil {
			err = e.shaper.SetRates(e.rates)
		}
		if errors.Is(err, kernel.ErrNoRoom) {
			policy, _ := e.policy.Amended(c.Path, c.Book, now)
			err = e.shaper.Replace(policy)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// effects returns the plans and rates that each shaper gets by the changes of targets. If needed is true for a
// target, it is an error that no shaper has it, or that one does not allow its changes. Otherwise those that are not
// allowed are left out, as in a reload: they must not stop the changes of other targets.
func (c *Changer) effects(targets []changes.Target, needed map[changes.Target]bool, now time.Time) (out []effect, err error) {
	unknown := map[changes.Target]int{} // number of shapers without it
	list := c.shapers()
	for _, sh := range list {
		policy, err := sh.Policy()
		if err != nil {
			return nil, err
		}
		e, amender := effect{shaper: sh, policy: policy}, policy.Amender(c.Book, now)
		for _, t := range targets {
			var service *dataplane.PlanService
			rate := t.Kind != changes.Customer
			if rate {
				err = amender.Rate(t)
			} else {
				_, service, err = amender.Service(t.Name)
			}
			if errors.As(err, new(*policyfile.UnknownError)) {
				if unknown[t]++; needed[t] && unknown[t] == len(list) {
					return nil, err
				}
				continue
			}
			if err != nil && needed[t] {
				return nil, err
			}
			if rate {
				e.rates, _ = amender.Rates()
			} else {
				e.customers = append(e.customers, dataplane.CustomerPlan{Name: t.Name, Plan: service})
			}
		}
		out = append(out, e)
	}
	return out, nil
}
