package registry

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/rundir"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Request is a stage of a plan whose meter is a budget of the host.
type Request struct {
	Budget                      // according to the plan; without slot and users
	Previous *bpf.ShaperProfile // in the user's previous plan; nil if the budget was not in it
	Initial  bpf.ShaperState    // of a new budget
	Stage    int                // index in the plan
	Once     bool               // charge a packet once on its way through the host
}

// RequestFor returns the request of a stage, or nil if its meter is not a budget of
// the host.
func RequestFor(plan *compiled.Plan, stage int, p *bpf.ShaperProfile) *Request {
	s := &plan.Stages[stage]
	if s.Budget == nil || s.Leased {
		return nil
	}
	return &Request{
		Budget: Budget{
			Name: s.BudgetName, Packets: engine.Flag(s.Packets), Params: formatParams(s.Source), Profile: *p,
		},
		Initial: engine.InitialLevels(s, p).UnstartedState(p), Stage: stage,
		Once: s.Budget.Once,
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

// ConflictError reports a budget of the host in use with other parameters.
type ConflictError struct {
	Name   string
	Ours   string   // parameters in the rejected policy, in the one-line form of policy files
	Theirs string   // parameters in force
	Users  []string // other users: interface, direction and process
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("budget %q has parameters %s in this policy, but %s in %s: use the same in both, or reload one of its users with the new parameters",
		e.Name, e.Ours, e.Theirs, strings.Join(e.Users, ", "))
}

// Claim is a granted request.
type Claim struct {
	*Request
	Record *Budget
	IsNew  bool    // the state must be written
	old    *Budget // incompatible budget of the same name, which this one replaces, or nil
	change bool    // the parameters in force change to those of the request
}

// Claims are the budgets of a shaper while a policy is loaded. The registry is locked
// until Unlock.
type Claims struct {
	*Locked
	user      User
	List      []*Claim
	undo      []byte // previous text of the registry
	committed bool
}

// NewClaims locks the registry and grants requests. It writes nothing; the error may be a
// *ConflictError. interrupted: the user's previous change was interrupted, so its parameters are
// unknown.
func NewClaims(user User, requests []*Request, interrupted bool) (*Claims, error) {
	b, err := openRegistry(user.registryTemp(), unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	c := &Claims{Locked: b, user: user, undo: b.text}
	if len(requests) > 0 {
		err = b.openMaps()
	}
	for _, request := range requests {
		if err != nil {
			break
		}
		var claim *Claim
		if claim, err = c.grant(request, interrupted); err == nil {
			c.List = append(c.List, claim)
			if request.Once && claim.Record.Label == 0 {
				claim.Record.Label = c.newLabel()
			}
		}
	}
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	return c, nil
}

// grant finds the budget of a request, or makes it.
//
// A new user must have the parameters in force, because equal names with different parameters may
// be a mistake. If a user's reload changes the parameters, they change for all users; the others
// can be reloaded one after the other. If a reload does not change the user's parameters, those in
// force stay, because another user's reload changed them.
func (c *Claims) grant(request *Request, interrupted bool) (*Claim, error) {
	for _, r := range c.Budgets {
		if r.Name != request.Name {
			continue
		}
		if r.Packets == request.Packets && r.Profile == request.Profile {
			return &Claim{Request: request, Record: r}, nil
		}
		compatible := r.Packets == request.Packets && SameStateFormat(&r.Profile, &request.Profile)
		others := slices.DeleteFunc(slices.Clone(r.Users), c.isUser)
		inUse := len(others) < len(r.Users) // by this user
		switch {
		case len(others) == 0 && compatible:
			return &Claim{Request: request, Record: r, change: true}, nil
		case len(others) == 0:
			c.Budgets = slices.DeleteFunc(c.Budgets, func(o *Budget) bool { return o == r })
			return c.newBudget(request, r)
		case compatible && inUse:
			changed := request.Previous != nil && (interrupted || *request.Previous != request.Profile)
			return &Claim{Request: request, Record: r, change: changed}, nil
		}
		e := &ConflictError{Name: request.Name, Ours: request.Params, Theirs: r.Params}
		for i := range others {
			e.Users = append(e.Users, others[i].String())
		}
		return nil, e
	}
	return c.newBudget(request, nil)
}

// isUser reports whether u is the user of these claims.
func (c *Claims) isUser(u User) bool { return u.File == c.user.File }

// userOf returns the user of a granted request.
func (c *Claims) userOf(claim *Claim) User {
	u := c.user
	u.Once = claim.Once
	return u
}

// SameStateFormat reports whether the words of a state have the same meaning in both
// profiles, apart from their units.
func SameStateFormat(a, b *bpf.ShaperProfile) bool {
	return a.Coupled == b.Coupled && a.Peak == b.Peak && a.Excess == b.Excess && a.Limit == b.Limit &&
		a.Sliding == b.Sliding &&
		(a.Window > 0) == (b.Window > 0)
}

// newBudget makes the budget of a request. The slot differs from that of old, the budget that it
// replaces, or nil.
func (c *Claims) newBudget(request *Request, old *Budget) (*Claim, error) {
	slots := engine.SlotAllocator{Used: map[uint32]bool{}}
	if old != nil {
		slots.Used[old.Slot] = true
	}
	for _, r := range c.Budgets {
		slots.Used[r.Slot] = true
	}
	slot := slots.Allocate()
	if slot >= MaxBudgets {
		return nil, fmt.Errorf("budget %q: this host already has %d budgets, the maximum", request.Name,
			MaxBudgets)
	}
	r := request.Budget
	r.Slot, r.Users = slot, nil
	c.Budgets = append(c.Budgets, &r)
	return &Claim{Request: request, Record: &r, IsNew: true, old: old}, nil
}

// WriteInitialState writes the state of a new budget, at a time (ns of CLOCK_MONOTONIC). A budget
// replacing another one gets its tokens.
func (c *Claims) WriteInitialState(claim *Claim, now uint64, state bpf.ShaperState) error {
	var was bpf.ShaperBudget
	if claim.old != nil {
		if err := c.Opened[0].Lookup(claim.old.Slot, &was); err != nil {
			return fmt.Errorf("budgets: %w", err)
		}
		var l engine.Levels
		if claim.old.Packets == claim.Packets {
			l = engine.LevelsAt(&bpf.ShaperState{Word: was.Word, Stamp: was.Stamp}, &was.Profile,
				now).Convert(&was.Profile, &claim.Profile)
		}
		state = l.State(now, &claim.Profile)
	}
	if err := c.Opened[0].Lookup(claim.Record.Slot, &was); err != nil {
		return fmt.Errorf("budgets: %w", err)
	}
	b := bpf.ShaperBudget{
		Word: state.Word, Stamp: state.Stamp, Version: was.Version + 1, Profile: claim.Profile,
	}
	if err := c.Opened[0].Put(claim.Record.Slot, &b); err != nil {
		return fmt.Errorf("budgets: %w", err)
	}
	return nil
}

// Register writes the user into the registry, in the budgets of the previous policy and of
// the new one, because either program may be attached if this process is killed. Then it
// pins new maps.
func (c *Claims) Register() error {
	for _, claim := range c.List {
		claim.Record.Users = append(slices.DeleteFunc(claim.Record.Users, c.isUser), c.userOf(claim))
	}
	if err := c.save(); err != nil {
		return err
	}
	return c.pinMaps()
}

// Commit changes parameters as granted, and removes the user from budgets missing in the policy.
// Call it when the policy is active.
func (c *Claims) Commit() error {
	c.committed = true
	var errs []error
	used := map[*Budget]*Claim{}
	for _, claim := range c.List {
		used[claim.Record] = claim
		if !claim.change {
			continue
		}
		if err := engine.ChangeBudget(c.Opened, claim.Record.Slot, &claim.Profile); err != nil {
			errs = append(errs,
				fmt.Errorf("budget %q keeps parameters %s: %w", claim.Name, claim.Record.Params, err))
			continue
		}
		claim.Record.Profile, claim.Record.Params = claim.Profile, claim.Params
	}
	for _, r := range c.Budgets {
		r.Users = slices.DeleteFunc(r.Users, c.isUser)
		if claim := used[r]; claim != nil {
			r.Users = append(r.Users, c.userOf(claim))
		}
	}
	c.dropUnused()
	return errors.Join(append(errs, c.save())...)
}

// Unlock unlocks the registry. Without commit it first restores the registry. c may be nil.
func (c *Claims) Unlock() error {
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
func (c *Claims) restore() error {
	if c.undo == nil {
		c.Budgets = nil
		return c.save()
	}
	if string(c.text) == string(c.undo) {
		return nil
	}
	return c.write(c.undo)
}

// Notes describes the effects of changed parameters on other users, and warns about packets that the user
// and another one both charge, one line each. Call it in the user's network namespace. c may be nil.
func (c *Claims) Notes() (out []string) {
	if c == nil {
		return nil
	}
	for _, claim := range c.List {
		var others []string
		for i := range claim.Record.Users {
			if u := &claim.Record.Users[i]; !c.isUser(*u) {
				others = append(others, u.name())
			}
		}
		switch {
		case len(others) == 0:
		case claim.change:
			out = append(out, fmt.Sprintf("budget %s is now %s, also for %s", claim.Name, claim.Record.Params,
				strings.Join(others, ", ")))
		case claim.Record.Profile != claim.Profile:
			out = append(out, fmt.Sprintf("budget %s keeps the parameters of %s, %s, not %s", claim.Name,
				strings.Join(others, ", "), claim.Record.Params, claim.Params))
		}
		if warning := claim.Record.twice(c.user.Namespace, c.isUser); warning != "" {
			out = append(out, "warning: "+warning)
		}
	}
	return out
}

// Use is a budget of this host and its users.
type Use struct {
	Name   string
	Params string   // parameters in force, in the one-line form of policy files
	Users  []string // interface, direction and process of each user
	// Warning is about two users in this network namespace that both charge a forwarded packet; "" if
	// there are none
	Warning string
}

// InUse returns the used budgets of this host, in any network namespace. It is safe for concurrent
// use. It does not check that their users still exist.
func InUse() (out []Use, err error) {
	for try := 0; ; try++ {
		r, _, err := readRegistry()
		if err != nil && try < rundir.MaxTries { // it may be replaced at this moment
			time.Sleep(time.Millisecond)
			continue
		}
		for _, b := range r.Budgets {
			use := Use{Name: b.Name, Params: b.Params, Warning: b.twiceHere()}
			for i := range b.Users {
				use.Users = append(use.Users, b.Users[i].String())
			}
			out = append(out, use)
		}
		return out, err
	}
}

// NewBudgetOf returns the claim of a stage if its budget is new, otherwise nil. c may be
// nil.
func (c *Claims) NewBudgetOf(stage int) *Claim {
	if c == nil {
		return nil
	}
	for _, claim := range c.List {
		if claim.Stage == stage && claim.IsNew {
			return claim
		}
	}
	return nil
}

// RegisterProgram registers a shaper with the attached program and the next one; previous
// is 0 if none is attached. It first starts the guard. c may be nil.
func (c *Claims) RegisterProgram(startGuard func() error, previous, next ebpf.ProgramID) error {
	if c == nil || len(c.List) == 0 {
		return nil
	}
	if err := startGuard(); err != nil { // the budget outlives the process
		return err
	}
	c.user.Programs = []ebpf.ProgramID{next}
	if previous != 0 {
		c.user.Programs = append(c.user.Programs, previous)
	}
	return c.Register()
}

// CommitProgram commits the claims of a shaper whose program is attached. c may be nil.
func (c *Claims) CommitProgram(program ebpf.ProgramID) error {
	if c == nil {
		return nil
	}
	c.user.Programs = []ebpf.ProgramID{program}
	return c.Commit()
}
