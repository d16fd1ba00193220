package main

import (
	"errors"
	"maps"
	"os"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// openChanges opens the file of changes of the interface, before it is shaped. The file may be
// that of an earlier process whose shapers are pinned.
func (r *running) openChanges() error {
	path, err := kernel.ChangesPath(r.name, r.both)
	if err != nil {
		return err
	}
	state := &r.flags.state
	if state.dir != "" {
		path = state.path(r.stateName(), stateChanges)
	}
	if r.changer != nil { // the interface is back, and may have another number
		r.changer.Path = path
		return nil
	}
	inForce, pinned, err := r.pinnedBefore(path)
	if err != nil {
		return err // nobody knows whether the changes are in force
	}
	if _, err := os.Lstat(path); err == nil && state.dir == "" && !pinned { // left behind by a killed process
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	file, err := changes.Open(path)
	if err != nil && (state.dir != "" || !errors.Is(err, os.ErrPermission)) { // which attaching will explain
		r.warn("%v", err)
	}
	if err := file.Include(inForce); err != nil {
		r.warn("%v", err)
	}
	r.changer = live.NewChanger(file, func() (out []live.Changeable) {
		for _, sh := range r.list {
			out = append(out, changeable{sh, r})
		}
		return out
	})
	r.changer.Report = r.logChanges
	if err := state.restoreQuotas(r.stateName(), r.changer); err != nil {
		r.warn("%v", err)
	}
	return nil
}

// changesLook returns the changes in the shapers of this process.
func (r *running) changesLook(sh live.Handle) (live.Changes, func() (*policyfile.Compiled, error), error) {
	policy := func() (*policyfile.Compiled, error) { return r.policyOf(sh.Info()) }
	return live.Changes{Book: r.changer.Book, Problem: string(r.changeProblem)}, policy, nil
}

// stateName is the name of the files of state of this command.
func (r *running) stateName() string {
	return r.host + "-" + (&cli.Directions{List: r.both}).String()
}

// restore returns the saved customers of a direction.
func (r *running) restore(direction kernel.Direction) []byte {
	text, err := r.flags.state.read(directionName(r.host, direction), stateCustomers)
	if err != nil {
		r.warn("%v: customers start anew", err)
	}
	return text
}

// saveState keeps what customers have used, and their tokens.
func (r *running) saveState() error {
	tokens := map[string]func() ([]byte, error){}
	for _, sh := range r.list {
		tokens[directionName(r.host, sh.Direction)] = sh.SaveCustomers
	}
	return r.flags.state.save(r.stateName(), r.changer, tokens)
}

// keepState counts what customers have used, and saves the state. The shapers may be detached: this
// process still has their maps.
func (r *running) keepState() error {
	if !r.started {
		return nil
	}
	return errors.Join(r.changer.CountNow(), r.saveState())
}

// pinnedBefore reports whether there are shapers that this process may take over, and returns
// their changes in other files than that at path: those stay in force.
func (r *running) pinnedBefore(path string) (inForce changes.Book, pinned bool, err error) {
	v, err := live.Look()
	if errors.Is(err, os.ErrPermission) {
		return nil, false, nil // without the permission to look it cannot take over either
	}
	if err != nil {
		return nil, false, err
	}
	defer func() { live.CloseAll(v.List) }()
	v.Narrow(r.name, r.both)
	inForce = changes.Book{}
	for _, sh := range v.List {
		source, sourceErr := policyfile.SourceOf(sh.Info().Label)
		if owned, ownedErr := sh.Owned(); sourceErr != nil || ownedErr != nil || owned || source.Changes == path {
			continue // attaching will explain the errors
		}
		book, _, readErr := changes.Read(source.Changes) // attaching puts interrupted changes into force
		maps.Copy(inForce, book)
		if readErr != nil {
			r.warn("%v", readErr)
		}
	}
	return inForce, len(v.List) > 0, nil
}

// amend returns a policy with the changes in force.
func (r *running) amend(policy *policyfile.Compiled) *policyfile.Compiled {
	policy, stale := r.changer.Amend(policy)
	cli.WarnStale(r.err, stale)
	return policy
}

// changeable is a shaper of this process.
type changeable struct {
	*kernel.Shaper
	r *running
}

func (c changeable) Policy() (*policyfile.Compiled, error) {
	if err := c.Refresh(); err != nil && !errors.Is(err, kernel.ErrDetached) { // it has its counters
		return nil, err
	}
	return c.r.policyOf(&c.About)
}

// HasRules reports whether plans have quotas or schedules. It does not compile the policy.
func (c changeable) HasRules() bool {
	known := &c.r.rules[c.Direction]
	if !known.loaded.Equal(c.Loaded) {
		source, err := policyfile.SourceOf(c.Label)
		*known = loadedRules{c.Loaded, err == nil && source.Ruled}
	}
	return known.has
}

// CountersOf returns the counters of the customers of a plan.
func (c changeable) CountersOf(plan *dataplane.PlanCustomers) ([]dataplane.CustomerStats, error) {
	return c.Customers(plan)
}

// Replace reloads the shaper.
func (c changeable) Replace(policy *policyfile.Compiled) error {
	err := live.Replace(c.Shaper, policy)
	if err == nil {
		c.r.loaded(c.Shaper, policy)
	}
	return err
}

// loadedPolicy is the policy of a shaper, with the time at which it was loaded.
type loadedPolicy struct {
	loaded time.Time
	policy *policyfile.Compiled
}

// loadedRules says whether the policy of a shaper has rules, with the time at which it was loaded.
type loadedRules struct {
	loaded time.Time
	has    bool
}

// loaded notes that this process gave a shaper its policy.
func (r *running) loaded(sh *kernel.Shaper, policy *policyfile.Compiled) {
	r.policies[sh.Direction], r.checked[sh.Direction] = loadedPolicy{sh.Loaded, policy}, sh.Loaded
}

// policyOf returns the policy of a shaper. It compiles the policy only if another process has
// loaded it.
func (r *running) policyOf(sh *kernel.About) (*policyfile.Compiled, error) {
	cached := &r.policies[sh.Direction]
	if !cached.loaded.Equal(sh.Loaded) {
		policy, err := policyfile.CompileLabel(sh.Label)
		if err != nil {
			return nil, err
		}
		*cached = loadedPolicy{sh.Loaded, policy}
	}
	return cached.policy, nil
}

// planOf returns the plan of a shaper with budgets on servers, and an empty plan of other
// shapers.
func (r *running) planOf(sh *kernel.Shaper) (*dataplane.Plan, error) {
	if len(sh.OnServers()) == 0 {
		return &dataplane.Plan{}, nil
	}
	policy, err := r.policyOf(&sh.About)
	if err != nil {
		return nil, err
	}
	return policy.Plan, nil
}

// errNoRules is the error of a policy with rules for a shaper without a process.
var errNoRules = cli.Usagef("quotas and schedules need a process that follows them: run without --background")

// advanceChanges ends changes whose time is over, and follows quotas and schedules.
func (r *running) advanceChanges() {
	err := r.changer.Advance(time.Now())
	for _, sh := range r.list {
		err = errors.Join(err, sh.PrepareCustomerPlans())
	}
	if errors.Is(err, kernel.ErrDetached) { // which the next check reports
		err = nil
	}
	if r.flags.state.due() {
		_ = r.saveState()
	}
	err = errors.Join(err, r.flags.state.failed)
	r.changeProblem.report(err, r.warn)
}

// report prints a new error of advanceChanges, and the end of errors, by warn.
func (p *problem) report(err error, warn func(string, ...any)) {
	was := *p
	switch {
	case p.isNew(err):
		warn("changes, quotas, schedules and state: %v", err)
	case err == nil && was != "":
		warn("changes, quotas, schedules and state work again")
	}
}
