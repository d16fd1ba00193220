package process

import (
	"context"
	"errors"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/metrics"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

func (k *kernelPlane) directions() (out []serviceDirection) {
	for _, sh := range k.list {
		out = append(out, kernelDirection{sh, k})
	}
	return out
}

// read calls f in the goroutine of the owner, which accepts such calls at any time.
func (k *kernelPlane) read(ctx context.Context, f func([]serviceDirection) error) error {
	return k.turns.ask(ctx, k.turns.reads, func() error { return f(k.directions()) })
}

func (k *kernelPlane) locksToRead() bool { return false }

// set makes changes with the lock of their file. The owner does not wait for it.
func (k *kernelPlane) set(list []changes.Change) error { return k.caller().Set(list) }

// commitCustomers makes requests with the lock of the file of changes. The owner does not wait for it.
func (k *kernelPlane) commitCustomers(list []*live.PendingCustomers) {
	k.caller().CommitCustomers(list)
}

// kernelDirection is one direction of a kernelPlane.
type kernelDirection struct {
	*kernel.Shaper
	k *kernelPlane
}

func (d kernelDirection) Policy() (*policyfile.Compiled, error) {
	policy, err := d.loadedPolicy()
	if err != nil {
		return nil, err
	}
	return policy.Current(), nil
}

// Roster returns the customers of the policy.
func (d kernelDirection) Roster() (*policyfile.Roster, error) {
	policy, err := d.loadedPolicy()
	if err != nil {
		return nil, err
	}
	return policy.Roster(), nil
}

// packetsOf returns the number of packets of a customer; 0 if there is none.
func (d kernelDirection) packetsOf(name string) (int64, error) {
	stats, err := d.Shaper.Customer(name)
	return stats.Total().Packets, err
}

// loadedPolicy returns the policy as it was loaded.
func (d kernelDirection) loadedPolicy() (*policyfile.Compiled, error) {
	if err := d.Refresh(); err != nil && !errors.Is(err, kernel.ErrDetached) { // its counters remain
		return nil, err
	}
	return d.k.loadedPolicy(&d.About)
}

// HasRules reports whether plans have quotas or schedules. It does not compile the policy.
func (d kernelDirection) HasRules() bool {
	known := &d.k.seen[d.Direction].rules
	if !known.loaded.Equal(d.Loaded) {
		source, err := policyfile.SourceOf(d.Label)
		*known = loadedRules{d.Loaded, err == nil && source.Ruled}
	}
	return known.has
}

// CountersOf returns the counters of the customers of a plan.
func (d kernelDirection) CountersOf(plan *compiled.Customers) ([]dataplane.CustomerStats, error) {
	return d.Customers(plan)
}

// Replace reloads the shaper.
func (d kernelDirection) Replace(policy *policyfile.Compiled) error {
	err := live.Replace(d.Shaper, policy)
	if err == nil {
		d.k.loaded(d.Shaper, policy)
	}
	return err
}

// loadedPolicy is the policy of a shaper, with the time at which it was loaded.
type loadedPolicy struct {
	loaded time.Time
	policy *policyfile.Compiled
}

// loadedRules holds whether the policy of a shaper contains rules, and the time of its loading.
type loadedRules struct {
	loaded time.Time
	has    bool
}

// loaded notes the policy of a shaper, given by this process.
func (k *kernelPlane) loaded(sh *kernel.Shaper, policy *policyfile.Compiled) {
	seen := &k.seen[sh.Direction]
	seen.policy, seen.checked, seen.armed = loadedPolicy{sh.Loaded, policy}, sh.Loaded, !sh.Until.IsZero()
}

// policyOf returns the policy of a shaper with its present customers.
func (k *kernelPlane) policyOf(sh *kernel.About) (*policyfile.Compiled, error) {
	policy, err := k.loadedPolicy(sh)
	if err != nil {
		return nil, err
	}
	return policy.Current(), nil
}

// loadedPolicy returns the policy of a shaper as it was loaded. It compiles the policy only if another
// process loaded it.
func (k *kernelPlane) loadedPolicy(sh *kernel.About) (*policyfile.Compiled, error) {
	cached := &k.seen[sh.Direction].policy
	if !cached.loaded.Equal(sh.Loaded) {
		policy, err := policyfile.CompileLabel(sh.Label)
		if err != nil {
			return nil, err
		}
		*cached = loadedPolicy{sh.Loaded, policy}
	}
	return cached.policy, nil
}

func (d kernelDirection) Handle() live.Handle { return live.InKernel(d.Shaper) }

func (d kernelDirection) Customer(name string, book changes.Book) (out live.Customer, err error) {
	policy, err := d.Policy()
	if err != nil {
		return out, err
	}
	_, service, err := policy.ChangeCompiler(book, time.Now()).Service(name)
	if service == nil {
		return out, err
	}
	stats, err := d.Shaper.Customer(name)
	return live.Customer{Name: name, Plan: service.Name, CustomerStats: stats}, err
}

func (d kernelDirection) CustomerReader() (customerReader, error) {
	policy, err := d.Policy()
	if err != nil {
		return nil, err
	}
	counters, err := d.CustomerCounters()
	if err != nil {
		return nil, err
	}
	return &kernelCustomers{d.k.changer.AmendLater(policy), counters}, nil
}

// kernelCustomers reads the customers of a kernelDirection.
type kernelCustomers struct {
	policy   func() *policyfile.Compiled
	counters *kernel.CustomerCounters // nil without customers
}

func (c *kernelCustomers) Customers() (at int64, list []live.Customer, err error) {
	plan := c.policy().Plan.Customers
	if plan == nil || c.counters == nil {
		return 0, nil, live.ErrNoCustomers
	}
	at = kernel.Now()
	stats, err := c.counters.Of(plan)
	if err != nil {
		return 0, nil, err
	}
	return at, live.ListCustomers(plan, stats), nil
}

func (c *kernelCustomers) Close() {
	if c.counters != nil {
		c.counters.Close()
	}
}

func (d kernelDirection) reload(
	policy *policyfile.Compiled, until time.Time,
) ([]compiled.ClassChange, error) {
	list, err := d.Reload(policy.Plan, live.Label(policy, d.Interface), until)
	if err == nil || errors.As(err, new(*dataplane.ActiveError)) {
		d.k.loaded(d.Shaper, policy)
	}
	return list, err
}

func (d kernelDirection) observeCustomers(o *metrics.Observation) error {
	var policy func() *policyfile.Compiled // not known if another process loaded it
	if p := &d.k.seen[d.Direction].policy; p.loaded.Equal(d.Loaded) {
		policy = d.k.changer.AmendLater(p.policy.Current())
	}
	return o.AddCustomers(d.Shaper, policy)
}
