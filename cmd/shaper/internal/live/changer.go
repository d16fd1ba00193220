package live

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/customers"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/quota"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// Changeable is a running shaper whose customers, links and queues can be changed without a
// reload.
type Changeable interface {
	Info() *kernel.About
	Policy() (*policyfile.Compiled, error) // with or without changes
	HasRules() bool                        // the policy has quotas or schedules
	// SetCustomerPlans changes the plans of customers. The error wraps kernel.ErrNoRoom if a
	// reload is needed. amended is that of kernel.Shaper.SetCustomerPlans.
	SetCustomerPlans(list []compiled.CustomerService, amended func() *compiled.Plan) error
	// SetRates changes the rates of links and queues to those of a plan for both directions.
	SetRates(*compiled.Plan) error
	// CountersOf returns the counters of the customers of a plan, in its order.
	CountersOf(*compiled.Customers) ([]dataplane.CustomerStats, error)
	// Roster returns the customers of the policy in force.
	Roster() (*policyfile.Roster, error)
	// ChangeCustomers adds, replaces and removes customers, all or none. The errors are those of
	// kernel.Shaper.ChangeCustomers.
	ChangeCustomers([]compiled.CustomerChange) error
	// Replace reloads the shaper with a policy.
	Replace(*policyfile.Compiled) error
}

// Changer changes the shapers of one process, and keeps the changes in a file. The ends of changes,
// quotas and schedules do not depend on the file: they are in force first, and kept when the file can be
// written. Its methods must not be called concurrently.
type Changer struct {
	*changes.File
	Customers *customers.File        // customers that are added while the shapers run
	Report    func([]changes.Change) // called after Set if the changes are in force; nil: nothing
	shapers   func() []Changeable

	next      time.Time        // the end of the next change to end; zero: none
	again     []changes.Target // targets to be put into force again
	unlocked  []changes.Target // targets put into force without a lock
	loose     error            // why run had no lock of the interface; nil: it had
	schedules string           // state of the schedules in force
	unkept    error            // why the file lacks changes; nil: it is complete
	keepAt    time.Time        // time of the next attempt to write the file

	customersErr   error // of opening the file of customers
	customersLoose bool  // customers were changed without the lock of the interface
	idle           idleCustomers

	lockedSince time.Time // time at which the lock was first found held by another process; zero: it is not
	quotas      quotas
}

// NewChanger returns a Changer for shapers with a file of changes. A file in kernel.StateDir is
// volatile.
func NewChanger(file *changes.File, shapers func() []Changeable) *Changer {
	file.Volatile = filepath.Dir(file.Path) == kernel.StateDir
	added, err := customers.Open(customers.PathOf(file.Path))
	added.Volatile = file.Volatile
	return &Changer{
		Customers: added, customersErr: err,
		File: file, shapers: shapers, next: file.Book.Next(), again: file.Interrupted,
		quotas: quotas{Ledger: quota.New()},
	}
}

// effect holds the plans and rates of changes for one shaper.
type effect struct {
	shaper    Changeable
	policy    *policyfile.Compiled
	customers []compiled.CustomerService
	rates     *compiled.Plan // nil: no rate changes
}

// Set makes changes, all or none. The caller must hold the lock of the file. The error wraps
// *policyfile.UnknownError if a target is in no shaper, and *changes.UnkeptError if the changes are
// in force but the file cannot be written.
func (c *Changer) Set(list []changes.Change) error {
	err := c.set(list, true, time.Now())
	if inForce(err) == nil {
		c.report(list)
	}
	return err
}

// errChecked ends a check of changes before they are made.
var errChecked = errors.New("checked")

// Check returns the error that Set would return, and makes no changes.
func (c *Changer) Check(list []changes.Change) error {
	now := time.Now()
	targets, needed, err := c.targetsOf(list, now)
	if err != nil {
		return err
	}
	err = c.AddUnkept(list, func() error {
		if _, err := c.effects(targets, needed, now); err != nil {
			return err
		}
		return errChecked
	})
	if errors.Is(err, errChecked) {
		return nil
	}
	return err
}

func (c *Changer) report(list []changes.Change) {
	if c.Report != nil {
		c.Report(list)
	}
}

// setUnlocked is Set for a caller who cannot get the lock of the file; why is the reason. If the changes
// are in force, the error is an *changes.UnkeptError.
func (c *Changer) setUnlocked(list []changes.Change, why error) error {
	if err := c.set(list, false, time.Now()); err != nil {
		return err
	}
	c.report(list)
	return &changes.UnkeptError{Err: why}
}

// targetsOf returns the targets of changes. needed is false for those whose errors do not count.
func (c *Changer) targetsOf(list []changes.Change, now time.Time) (
	targets []changes.Target, needed map[changes.Target]bool, err error,
) {
	needed = map[changes.Target]bool{}
	for i := range list {
		t, until := list[i].Target, list[i].Until
		if !until.IsZero() && !now.Before(until) && !list[i].Ended {
			return nil, nil, fmt.Errorf("%v: %w", t, changes.ErrEnded)
		}
		if _, seen := needed[t]; !seen {
			targets = append(targets, t)
		}
		needed[t] = needed[t] || list[i].By == changes.ByUser && !list[i].Ended &&
			(!list[i].Reset || c.Book[t] == nil)
	}
	return targets, needed, nil
}

// set makes changes. Unless the lock of the file is held, the file is written later.
func (c *Changer) set(list []changes.Change, locked bool, now time.Time) error {
	targets, needed, err := c.targetsOf(list, now)
	if err != nil {
		return err
	}
	add, tried := c.Add, false
	if !locked {
		add = c.AddUnkept
	}
	err = add(list, func() error {
		effects, err := c.effects(append(targets, c.again...), needed, now)
		if err != nil {
			return err
		}
		tried = true
		return c.run(effects, now)
	})
	switch {
	case err == nil || errors.As(err, new(*changes.UnkeptError)):
		c.again = nil
		if !locked || c.loose != nil {
			c.unlocked = append(c.unlocked, targets...)
		}
	case tried && slices.ContainsFunc(list, func(c changes.Change) bool { return !c.Ended }):
		_ = c.apply(targets, now) // as before, in case one shaper was changed
	}
	c.next = c.Book.Next()
	return err
}

// Amend returns a policy with the changes and the customers in force. stale lists the errors of those that
// the policy cannot use.
func (c *Changer) Amend(policy *policyfile.Compiled) (amended *policyfile.Compiled, stale []error) {
	policy, stale = policy.WithCustomers(c.Customers.Book)
	amended, more := policy.Amended(c.Path, c.Book, time.Now())
	return amended, append(stale, more...)
}

// AmendLater returns a function to amend a policy with the changes in force now. Other goroutines
// may call it: with many changes it takes long.
func (c *Changer) AmendLater(policy *policyfile.Compiled) func() *policyfile.Compiled {
	path, book := c.Path, maps.Clone(c.Book)
	return func() *policyfile.Compiled {
		amended, _ := policy.Amended(path, book, time.Now())
		return amended
	}
}

// Advance ends changes whose time is over, follows schedules, and counts the bytes of customers. It
// should be called a few times a second. It never blocks: if another process holds the lock of the
// file, or the file cannot be written, a later call writes it. The error joins all current errors.
func (c *Changer) Advance(now time.Time) error {
	state, scheduled, rules, err := c.scheduled(now)
	ends, counts := !c.next.IsZero() && !now.Before(c.next), !now.Before(c.quotas.next)
	if counts && !rules {
		c.quotas.next = now.Add(time.Second)
		counts = len(c.Book.Planned(changes.ByQuota)) > 0 // of a policy before
	}
	if err != nil || !ends && !counts && !c.lacks() && c.again == nil && state == c.schedules {
		return err
	}
	lock, lockErr := changes.TryLock(c.Path)
	locked := lockErr == nil
	if locked {
		defer lock.Close()
	}
	var errs []error
	if state != c.schedules {
		targets := scheduled()
		if err = c.apply(targets, now); err == nil {
			c.schedules = state
		}
		if !locked || c.loose != nil {
			c.unlocked = append(c.unlocked, targets...)
		}
		errs = append(errs, err)
	}
	if ends || c.again != nil {
		list := c.Book.Ends(now)
		err := inForce(c.set(list, locked, now))
		for i := 0; err != nil && i < len(list) && len(list) > 1; i++ { // the others end nevertheless
			_ = c.set(list[i:i+1], locked, now)
		}
		errs = append(errs, err)
	}
	if counts {
		errs = append(errs, inForce(c.count(now, locked)))
	}
	if c.lacks() {
		errs = append(errs, c.keep(now, lockErr))
	} else {
		c.unkept, c.lockedSince = nil, time.Time{}
	}
	return errors.Join(errs...)
}

// Reloaded must be called after another process replaced a shaper's policy. The other process
// applied the changes of the file; Reloaded applies the missing ones again.
func (c *Changer) Reloaded() {
	if c.lacks() {
		c.again = c.Book.Targets()
	}
}

// inForce returns the error of changes, nil if they are in force.
func inForce(err error) error {
	if errors.As(err, new(*changes.UnkeptError)) {
		return nil // as keep reports
	}
	return err
}

// lacks reports whether the file lacks changes, or may do.
func (c *Changer) lacks() bool { return c.Behind() || c.unlocked != nil }

const (
	keepInterval = time.Second     // time between two attempts to write the file
	lockTime     = 3 * time.Second // time for which other processes may have its lock before that is an error
)

// keep writes the missing changes to the file. If the file still lacks them, keep returns the
// reason. lockErr is the error of taking the file's lock.
func (c *Changer) keep(now time.Time, lockErr error) error {
	if now.Before(c.keepAt) {
		return c.unkept
	}
	c.keepAt = now.Add(keepInterval)
	if errors.Is(lockErr, changes.ErrLocked) {
		if c.keepAt = now; c.lockedSince.IsZero() {
			c.lockedSince = now
		}
		if now.Sub(c.lockedSince) >= lockTime {
			c.unkept = &changes.UnkeptError{Err: fmt.Errorf(
				"another process has held the lock of %q for %v", c.Path, lockTime)}
		}
		return c.unkept
	}
	// A process that loaded a policy meanwhile did so without these changes.
	sort.Slice(c.unlocked, func(i, j int) bool { return c.unlocked[i].Compare(c.unlocked[j]) < 0 })
	c.unlocked = slices.Compact(c.unlocked)
	if c.unkept = c.apply(c.unlocked, now); c.unkept == nil {
		c.unkept = c.loose
	}
	if c.unkept == nil && lockErr != nil {
		c.unkept = &changes.UnkeptError{Err: lockErr}
	}
	if c.unkept != nil {
		return c.unkept
	}
	c.unlocked, c.lockedSince = nil, time.Time{}
	if c.unkept = c.Keep(); c.unkept == nil {
		c.keepAt = now
	}
	return c.unkept
}

// scheduled returns the state of all schedules, the customers to whom they apply, and whether
// there are any quotas or schedules.
func (c *Changer) scheduled(
	now time.Time,
) (state string, customers func() []changes.Target, rules bool, err error) {
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
		s, list := policy.ChangeCompiler(c.Book, now).Scheduled()
		state, lists, rules = state+s, append(lists, list), true
	}
	return state, func() (out []changes.Target) {
		for _, list := range lists {
			out = append(out, list()...)
		}
		sort.Slice(out, func(i, j int) bool { return out[i].Compare(out[j]) < 0 })
		return slices.Compact(out)
	}, rules, nil
}

// apply puts the present changes of targets into force.
func (c *Changer) apply(targets []changes.Target, now time.Time) error {
	effects, err := c.effects(targets, nil, now)
	return errors.Join(err, c.run(effects, now))
}

// run puts effects into force.
func (c *Changer) run(list []effect, now time.Time) error {
	c.loose = nil
	locked := func(err error) error {
		var unlocked *kernel.UnlockedError
		if errors.As(err, &unlocked) {
			c.loose = unlocked
			return nil
		}
		return err
	}
	for _, e := range list {
		var err error
		amended := sync.OnceValue(func() *compiled.Plan {
			policy, _ := e.policy.Amended(c.Path, c.Book, now)
			return policy.Plan
		})
		if len(e.customers) > 0 {
			err = locked(e.shaper.SetCustomerPlans(e.customers, amended))
		}
		if err == nil && e.rates != nil {
			if e.shaper.Info().Leaves {
				e.rates = amended() // HTB has the rates of customers, too
			}
			err = locked(e.shaper.SetRates(e.rates))
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

// effects returns the plans and rates of each shaper after the changes of targets. If needed is
// true for a target, it is an error if no shaper knows the target, or if a shaper does not allow
// its changes. Otherwise changes that are not allowed are left out, as in a reload: they must not
// stop the changes of other targets.
func (c *Changer) effects(
	targets []changes.Target, needed map[changes.Target]bool, now time.Time,
) (out []effect, err error) {
	unknown := map[changes.Target]int{} // number of shapers without it
	list := c.shapers()
	for _, sh := range list {
		policy, err := sh.Policy()
		if err != nil {
			return nil, err
		}
		e, amender := effect{shaper: sh, policy: policy}, policy.ChangeCompiler(c.Book, now)
		for _, t := range targets {
			var service *compiled.Service
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
				service = policy.Plan.ServiceFor(sh.Info().Direction, service)
				e.customers = append(e.customers, compiled.CustomerService{Name: t.Name, Plan: service})
			}
		}
		out = append(out, e)
	}
	return out, nil
}
