package kernel

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// wish is a meter that is to be a budget of the host.
type budgetRequest struct {
	budgetRecord                    // what the policy says; without slot and users
	previous     *bpf.ShaperProfile // what the user's policy before said; nil if it had no such budget
	initial      bpf.ShaperState    // of a meter that nobody has used yet
	stage        int                // of the plan
}

// wishFor is the wish of a stage, nil if it is no budget of the host.
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

// inWords writes a meter's parameters as --meter takes them.
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

// BudgetError says that others use a budget of the host with other parameters.
type BudgetError struct {
	Name         string
	Ours, Theirs string // parameters
	Users        []string
}

func (e *BudgetError) Error() string {
	return fmt.Sprintf("budget %q: this policy says %s, but it is %s of %s: give both the same, or reload one that uses it with the new parameters",
		e.Name, e.Ours, e.Theirs, strings.Join(e.Users, ", "))
}

// share is a wish that is granted.
type share struct {
	*budgetRequest
	record *budgetRecord
	isNew  bool          // its state is to be written
	old    *budgetRecord // the budget of that name whose place it takes, or nil
	change bool          // its parameters are to become those of the wish
}

// shares are the budgets of a shaper, while a policy is loaded. The registry is
// locked meanwhile.
type shares struct {
	*lockedRegistry
	user      budgetUser
	list      []*share
	undo      []byte // the registry's text before
	committed bool
}

// newShares grants wishes, or says why not. Nothing is written yet. again says that a
// change of the user before was interrupted: which parameters it wanted is not known.
func newShares(user budgetUser, wishes []*budgetRequest, again bool) (*shares, error) {
	b, err := openRegistry(user.registryTemp())
	if err != nil {
		return nil, err
	}
	s := &shares{lockedRegistry: b, user: user}
	s.undo = b.text
	if len(wishes) > 0 {
		err = b.openMaps()
	}
	for _, w := range wishes {
		if err != nil {
			break
		}
		var g *share
		if g, err = s.grant(w, again); err == nil {
			s.list = append(s.list, g)
		}
	}
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	return s, nil
}

// grant finds the budget of a wish, or makes it.
//
// Who comes anew must have the parameters that are in force: the same name may be
// another limit by mistake. A user whose policy changes them changes them for all, so
// that one reload after the other can. If its policy does not, those in force
// stay: another one's reload has changed them before.
func (s *shares) grant(w *budgetRequest, again bool) (*share, error) {
	for _, r := range s.Budgets {
		if r.Name != w.Name {
			continue
		}
		same := r.Packets == w.Packets && sameStateFormat(&r.Profile, &w.Profile)
		if r.Packets == w.Packets && r.Profile == w.Profile {
			return &share{budgetRequest: w, record: r}, nil
		}
		others := slices.DeleteFunc(slices.Clone(r.Users), func(u budgetUser) bool { return u.File == s.user.File })
		mine := len(others) < len(r.Users)
		switch {
		case len(others) == 0 && same:
			return &share{budgetRequest: w, record: r, change: true}, nil
		case len(others) == 0: // only now do its words mean something else
			s.Budgets = slices.DeleteFunc(s.Budgets, func(o *budgetRecord) bool { return o == r })
			return s.newBudget(w, r)
		case same && mine && w.previous != nil && (again || *w.previous != w.Profile):
			return &share{budgetRequest: w, record: r, change: true}, nil
		case same && mine:
			return &share{budgetRequest: w, record: r}, nil
		}
		e := &BudgetError{Name: w.Name, Ours: w.Params, Theirs: r.Params}
		for i := range others {
			e.Users = append(e.Users, others[i].String())
		}
		return nil, e
	}
	return s.newBudget(w, nil)
}

// sameWords says whether the words of a state mean the same but for their units.
func sameStateFormat(a, b *bpf.ShaperProfile) bool {
	return a.Coupled == b.Coupled && a.Peak == b.Peak && a.Excess == b.Excess && a.Limit == b.Limit && a.Sliding == b.Sliding &&
		(a.Window > 0) == (b.Window > 0)
}

// make gives a wish a slot, beside that of the budget whose place it takes.
func (s *shares) newBudget(w *budgetRequest, old *budgetRecord) (*share, error) {
	free := slotAllocator{used: map[uint32]bool{}}
	if old != nil {
		free.used[old.Slot] = true
	}
	for _, r := range s.Budgets {
		free.used[r.Slot] = true
	}
	slot := free.allocate()
	if slot >= maxBudgets {
		return nil, fmt.Errorf("budget %q: %d others of this host are in use, which is as many as there is room for", w.Name, maxBudgets)
	}
	r := w.budgetRecord
	r.Slot, r.Users = slot, nil
	s.Budgets = append(s.Budgets, &r)
	return &share{budgetRequest: w, record: &r, isNew: true, old: old}, nil
}

// begin writes the state of a budget that nobody uses yet. One that takes the place of
// another keeps its tokens.
func (s *shares) writeInitialState(g *share, now uint64, state bpf.ShaperState) error {
	var was bpf.ShaperBudget
	if g.old != nil {
		if err := s.maps[0].Lookup(g.old.Slot, &was); err != nil {
			return fmt.Errorf("budgets: %w", err)
		}
		var l levels
		if g.old.Packets == g.Packets {
			l = levelsAt(&bpf.ShaperState{Word: was.Word, Stamp: was.Stamp}, &was.Profile, now).convert(&was.Profile, &g.Profile)
		}
		state = l.state(now, &g.Profile)
	}
	if err := s.maps[0].Lookup(g.record.Slot, &was); err != nil {
		return fmt.Errorf("budgets: %w", err)
	}
	b := bpf.ShaperBudget{Word: state.Word, Stamp: state.Stamp, Version: was.Version + 1, Profile: g.Profile}
	if err := s.maps[0].Put(g.record.Slot, &b); err != nil {
		return fmt.Errorf("budgets: %w", err)
	}
	return nil
}

// enter writes the user into the registry, in the budgets of the policy before and in
// those of the new one: whichever program will be attached. Then new maps are pinned.
func (s *shares) register() error {
	for _, g := range s.list {
		users := slices.DeleteFunc(g.record.Users, func(u budgetUser) bool { return u.File == s.user.File })
		g.record.Users = append(users, s.user)
	}
	if err := s.save(); err != nil {
		return err
	}
	return s.pinMaps()
}

// settle is called when the policy is in force: it changes what parameters are to
// change, and takes the user out of budgets that the policy does not have.
func (s *shares) commit() error {
	s.committed = true
	var errs []error
	for _, g := range s.list {
		if !g.change {
			continue
		}
		if err := changeBudget(s.maps, g.record.Slot, &g.Profile); err != nil {
			errs = append(errs, fmt.Errorf("budget %q stays %s: %w", g.Name, g.record.Params, err))
			continue
		}
		g.record.Profile, g.record.Params = g.Profile, g.Params
	}
	mine := map[*budgetRecord]bool{}
	for _, g := range s.list {
		mine[g.record] = true
	}
	for _, r := range s.Budgets {
		r.Users = slices.DeleteFunc(r.Users, func(u budgetUser) bool { return u.File == s.user.File })
		if mine[r] {
			r.Users = append(r.Users, s.user)
		}
	}
	s.dropUnused()
	return errors.Join(append(errs, s.save())...)
}

// end unlocks the registry. Unless the shares are settled it is as it was.
func (s *shares) unlock() error {
	if s == nil {
		return nil
	}
	var err error
	if !s.committed {
		err = s.restore()
	}
	return errors.Join(err, s.close())
}

// restore writes the registry as it was.
func (s *shares) restore() error {
	if s.undo == nil {
		s.Budgets = nil
		return s.save()
	}
	if string(s.text) == string(s.undo) {
		return nil
	}
	return s.write(s.undo)
}

// notes say what a change of parameters means for others.
func (s *shares) notes() (out []string) {
	if s == nil {
		return nil
	}
	for _, g := range s.list {
		var others []string
		for i := range g.record.Users {
			if u := &g.record.Users[i]; u.File != s.user.File {
				others = append(others, u.name())
			}
		}
		switch {
		case len(others) == 0:
		case g.change:
			out = append(out, fmt.Sprintf("budget %s is now %s, also for %s", g.Name, g.record.Params, strings.Join(others, ", ")))
		case g.record.Profile != g.Profile:
			out = append(out, fmt.Sprintf("budget %s stays %s, as %s has it, not %s", g.Name, g.record.Params, strings.Join(others, ", "), g.Params))
		}
	}
	return out
}

// BudgetUse is a budget of this host, and who uses it.
type BudgetUse struct {
	Name   string
	Params string   // in force, as --meter takes them
	Users  []string // interface and direction, and the process
}

// Budgets returns the budgets of this host, whichever processes share them.
func Budgets() (out []BudgetUse, err error) {
	for try := 0; ; try++ { // it may be replaced meanwhile
		r, _, err := readRegistry()
		if err != nil && try < maxTries {
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
