package kernel

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// budgetRequest is a stage of a plan whose meter is a budget of the host.
type budgetRequest struct {
	budgetRecord                    // according to the plan; without slot and users
	previous     *bpf.ShaperProfile // in the user's previous plan; nil if the budget was not in it
	initial      bpf.ShaperState    // of a new budget
	stage        int                // index in the plan
}

// budgetRequestFor returns the request of a stage, or nil if its meter is not a budget of
// the host.
func budgetRequestFor(plan *dataplane.Plan, stage int, p *bpf.ShaperProfile) *budgetRequest {
	s := &plan.Stages[stage]
	if s.Budget == nil || s.Leased {
		return nil
	}
	return &budgetRequest{
		budgetRecord: budgetRecord{Name: s.BudgetName, Packets: flag(s.Packets), Params: formatParams(s.Source), Profile: *p},
		initial:      initialLevels(s, p).unstartedState(p), stage: stage,
	}
}

// formatParams returns a meter's parameters in the one-line form of policy files.
func formatParams(m *dataplane.Meter) string {
	kind := m.Params.Kind().Info()
	words := []string{kind.Name}
	for _, name := range slices.Concat(kind.Required, kind.Optional) {
		value := meter.Field(m.Params, name)
		if reflect.ValueOf(value).IsZero() {
			continue
		}
		if r, ok := value.(meter.Rate); ok && m.Packets {
			value = fmt.Sprintf("%dp/%v", r.Bytes, r.Period)
		}
		words = append(words, fmt.Sprintf("%s=%v", name, value))
	}
	if m.Packets {
		words = append(words, "count=packets")
	}
	return strings.Join(words, " ")
}

// BudgetError reports that a budget of the host is in use with other parameters.
type BudgetError struct {
	Name   string
	Ours   string   // parameters in the rejected policy, in the one-line form of policy files
	Theirs string   // parameters in force
	Users  []string // other users: interface, direction and process
}

func (e *BudgetError) Error() string {
	return fmt.Sprintf("budget %q has parameters %s in this policy, but %s in %s: use the same in both, or reload one of its users with the new parameters",
		e.Name, e.Ours, e.Theirs, strings.Join(e.Users, ", "))
}

// budgetClaim is a granted request.
type budgetClaim struct {
	*budgetRequest
	record *budgetRecord
	isNew  bool          // the state has to be written
	old    *budgetRecord // incompatible budget of the same name that it replaces, or nil
	change bool          // the parameters in force change to those of the request
}

// budgetClaims are the budgets of a shaper while a policy is loaded. The registry is locked
// until unlock.
type budgetClaims struct {
	*lockedRegistry
	user      budgetUser
	list      []*budgetClaim
	undo      []byte // previous text of the registry
	committed bool
}

// newClaims locks the registry and grants requests. It writes nothing; the error may be a
// *BudgetError. interrupted means that the user's previous change was interrupted, so
// its parameters are unknown.
func newClaims(user budgetUser, requests []*budgetRequest, interrupted bool) (*budgetClaims, error) {
	b, err := openRegistry(user.registryTemp())
	if err != nil {
		return nil, err
	}
	c := &budgetClaims{lockedRegistry: b, user: user, undo: b.text}
	if len(requests) > 0 {
		err = b.openMaps()
	}
	for _, request := range requests {
		if err != nil {
			break
		}
		var claim *budgetClaim
		if claim, err = c.grant(request, interrupted); err == nil {
			c.list = append(c.list, claim)
		}
	}
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	return c, nil
}

// grant finds the budget of a request, or makes it.
//
// A new user must have the parameters in force, because equal names with different
// parameters may be a mistake. If a user's reload changes the parameters, they change for
// all users; the others can be reloaded one after the other. If a reload does not change
// the user's parameters, those in force stay, because another user's reload has changed
// them.
func (c *budgetClaims) grant(request *budgetRequest, interrupted bool) (*budgetClaim, error) {
	for _, r := range c.Budgets {
		if r.Name != request.Name {
			continue
		}
		if r.Packets == request.Packets && r.Profile == request.Profile {
			return &budgetClaim{budgetRequest: request, record: r}, nil
		}
		compatible := r.Packets == request.Packets && sameStateFormat(&r.Profile, &request.Profile)
		others := slices.DeleteFunc(slices.Clone(r.Users), c.isUser)
		inUse := len(others) < len(r.Users) // by this user
		switch {
		case len(others) == 0 && compatible:
			return &budgetClaim{budgetRequest: request, record: r, change: true}, nil
		case len(others) == 0:
			c.Budgets = slices.DeleteFunc(c.Budgets, func(o *budgetRecord) bool { return o == r })
			return c.newBudget(request, r)
		case compatible && inUse:
			changed := request.previous != nil && (interrupted || *request.previous != request.Profile)
			return &budgetClaim{budgetRequest: request, record: r, change: changed}, nil
		}
		e := &BudgetError{Name: request.Name, Ours: request.Params, Theirs: r.Params}
		for i := range others {
			e.Users = append(e.Users, others[i].String())
		}
		return nil, e
	}
	return c.newBudget(request, nil)
}

// isUser reports whether u is the user of these claims.
func (c *budgetClaims) isUser(u budgetUser) bool { return u.File == c.user.File }

// sameStateFormat reports whether the words of a state have the same meaning in both
// profiles, apart from their units.
func sameStateFormat(a, b *bpf.ShaperProfile) bool {
	return a.Coupled == b.Coupled && a.Peak == b.Peak && a.Excess == b.Excess && a.Limit == b.Limit && a.Sliding == b.Sliding &&
		(a.Window > 0) == (b.Window > 0)
}

// newBudget makes the budget of a request. The slot differs from that of old, a budget
// that it replaces, or nil.
func (c *budgetClaims) newBudget(request *budgetRequest, old *budgetRecord) (*budgetClaim, error) {
	slots := slotAllocator{used: map[uint32]bool{}}
	if old != nil {
		slots.used[old.Slot] = true
	}
	for _, r := range c.Budgets {
		slots.used[r.Slot] = true
	}
	slot := slots.allocate()
	if slot >= maxBudgets {
		return nil, fmt.Errorf("budget %q: this host already has %d budgets, the maximum", request.Name, maxBudgets)
	}
	r := request.budgetRecord
	r.Slot, r.Users = slot, nil
	c.Budgets = append(c.Budgets, &r)
	return &budgetClaim{budgetRequest: request, record: &r, isNew: true, old: old}, nil
}

// writeInitialState writes the state of a new budget, at a time (ns of CLOCK_MONOTONIC). A
// budget that replaces another one gets its tokens.
func (c *budgetClaims) writeInitialState(claim *budgetClaim, now uint64, state bpf.ShaperState) error {
	var was bpf.ShaperBudget
	if claim.old != nil {
		if err := c.maps[0].Lookup(claim.old.Slot, &was); err != nil {
			return fmt.Errorf("budgets: %w", err)
		}
		var l levels
		if claim.old.Packets == claim.Packets {
			l = levelsAt(&bpf.ShaperState{Word: was.Word, Stamp: was.Stamp}, &was.Profile, now).convert(&was.Profile, &claim.Profile)
		}
		state = l.state(now, &claim.Profile)
	}
	if err := c.maps[0].Lookup(claim.record.Slot, &was); err != nil {
		return fmt.Errorf("budgets: %w", err)
	}
	b := bpf.ShaperBudget{Word: state.Word, Stamp: state.Stamp, Version: was.Version + 1, Profile: claim.Profile}
	if err := c.maps[0].Put(claim.record.Slot, &b); err != nil {
		return fmt.Errorf("budgets: %w", err)
	}
	return nil
}

// register writes the user into the registry, in the budgets of the previous policy and of
// the new one, because either program may be attached if this process is killed. Then it
// pins new maps.
func (c *budgetClaims) register() error {
	for _, claim := range c.list {
		claim.record.Users = append(slices.DeleteFunc(claim.record.Users, c.isUser), c.user)
	}
	if err := c.save(); err != nil {
		return err
	}
	return c.pinMaps()
}

// commit changes parameters as granted, and removes the user from budgets that the policy
// does not have. Call it when the policy is active.
func (c *budgetClaims) commit() error {
	c.committed = true
	var errs []error
	used := map[*budgetRecord]bool{}
	for _, claim := range c.list {
		used[claim.record] = true
		if !claim.change {
			continue
		}
		if err := changeBudget(c.maps, claim.record.Slot, &claim.Profile); err != nil {
			errs = append(errs, fmt.Errorf("budget %q keeps parameters %s: %w", claim.Name, claim.record.Params, err))
			continue
		}
		claim.record.Profile, claim.record.Params = claim.Profile, claim.Params
	}
	for _, r := range c.Budgets {
		r.Users = slices.DeleteFunc(r.Users, c.isUser)
		if used[r] {
			r.Users = append(r.Users, c.user)
		}
	}
	c.dropUnused()
	return errors.Join(append(errs, c.save())...)
}

// unlock unlocks the registry. Without commit it first restores the registry. c may be nil.
func (c *budgetClaims) unlock() error {
	if c == nil {
		return nil
	}
	var err error
	if !c.committed {
		err = c.restore()
	}
	return errors.Join(err, c.close())
}

// restore writes the previous text of the registry.
func (c *budgetClaims) restore() error {
	if c.undo == nil {
		c.Budgets = nil
		return c.save()
	}
	if string(c.text) == string(c.undo) {
		return nil
	}
	return c.write(c.undo)
}

// notes describes the effects of changed parameters on other users, one line each. c may be
// nil.
func (c *budgetClaims) notes() (out []string) {
	if c == nil {
		return nil
	}
	for _, claim := range c.list {
		var others []string
		for i := range claim.record.Users {
			if u := &claim.record.Users[i]; !c.isUser(*u) {
				others = append(others, u.name())
			}
		}
		switch {
		case len(others) == 0:
		case claim.change:
			out = append(out, fmt.Sprintf("budget %s is now %s, also for %s", claim.Name, claim.record.Params, strings.Join(others, ", ")))
		case claim.record.Profile != claim.Profile:
			out = append(out, fmt.Sprintf("budget %s keeps the parameters of %s, %s, not %s", claim.Name, strings.Join(others, ", "), claim.record.Params, claim.Params))
		}
	}
	return out
}

// BudgetUse is a budget of this host and its users.
type BudgetUse struct {
	Name   string
	Params string   // parameters in force, in the one-line form of policy files
	Users  []string // interface, direction and process of each user
}

// Budgets returns the budgets of this host that are in use, in any network namespace. It is
// safe for concurrent use. It does not check that their users still exist.
func Budgets() (out []BudgetUse, err error) {
	for try := 0; ; try++ {
		r, _, err := readRegistry()
		if err != nil && try < maxTries { // it may be replaced at this moment
			time.Sleep(time.Millisecond)
			continue
		}
		for _, b := range r.Budgets {
			use := BudgetUse{Name: b.Name, Params: b.Params}
			for i := range b.Users {
				use.Users = append(use.Users, b.Users[i].String())
			}
			out = append(out, use)
		}
		return out, err
	}
}

// newBudgetOf returns the claim of a stage if its budget is new, otherwise nil. c may be
// nil.
func (c *budgetClaims) newBudgetOf(stage int) *budgetClaim {
	if c == nil {
		return nil
	}
	for _, claim := range c.list {
		if claim.stage == stage && claim.isNew {
			return claim
		}
	}
	return nil
}

// registerProgram registers a shaper with the attached program and the next one; previous
// is 0 if none is attached. It first starts the guard. c may be nil.
func (c *budgetClaims) registerProgram(startGuard func() error, previous, next ebpf.ProgramID) error {
	if c == nil || len(c.list) == 0 {
		return nil
	}
	if err := startGuard(); err != nil { // the budget outlives the process
		return err
	}
	c.user.Programs = []ebpf.ProgramID{next}
	if previous != 0 {
		c.user.Programs = append(c.user.Programs, previous)
	}
	return c.register()
}

// commitProgram commits the claims of a shaper whose program is attached. c may be nil.
func (c *budgetClaims) commitProgram(program ebpf.ProgramID) error {
	if c == nil {
		return nil
	}
	c.user.Programs = []ebpf.ProgramID{program}
	return c.commit()
}
