package kernel

import (
	"errors"

	"github.com/cilium/ebpf"
)

// share claims the budgets of a policy for the shaper that it is loaded for, and marks
// their stages. It is nil if there is nothing to claim or to leave. A dry run leaves
// budgets alone: its meters are its own.
func (s *Shaper) claimShares(g *image, next *About) (*shares, error) {
	var wishes []*budgetRequest
	for i := range g.stages {
		w := budgetRequestFor(g.plan, i, &g.stages[i].Profile)
		if w == nil || next.Dry {
			continue
		}
		for k := range s.Stages {
			if s.Stages[k].Table == storeShared && s.Outline.Stages[k].BudgetName == w.Name {
				w.previous = &s.Stages[k].Profile
			}
		}
		wishes = append(wishes, w)
	}
	if len(wishes) == 0 && !registryExists() {
		return nil, nil
	}
	shares, err := newShares(budgetUser{
		File: s.iface().fileName(s.Direction.String()), Process: next.Process,
		Namespace: s.Namespace, Index: s.Index, Interface: s.Interface, Direction: s.Direction,
	}, wishes, s.Begun)
	if err != nil {
		return nil, err
	}
	for _, c := range shares.list {
		stage := &g.stages[c.stage]
		stage.Table, stage.Slot = storeShared, c.record.Slot
		g.constants.Elsewhere = 1
	}
	return shares, nil
}

// checkShares is share for one that changes nothing.
func (s *Shaper) checkShares(g *image) error {
	shares, err := s.claimShares(g, &s.About)
	return errors.Join(err, shares.unlock())
}

// Budgets returns the names of the host budgets that the shaper uses.
func (a *About) Budgets() []string { return a.budgetsIn(storeShared) }

// OnServers returns the names of the budgets on servers whose leases the shaper follows.
func (a *About) OnServers() []string { return a.budgetsIn(storeLeased) }

func (a *About) budgetsIn(store int32) (names []string) {
	for i := range a.Stages {
		if s := &a.Stages[i]; s.Table == store {
			names = append(names, a.Outline.Stages[i].BudgetName)
		}
	}
	return names
}

// join takes the maps of budgets of the host.
func (s *stateMaps) useBudgetMaps(c *shares) error {
	if c == nil || len(c.list) == 0 {
		return nil
	}
	for i, m := range [2]**ebpf.Map{&s.budgets, &s.locks} {
		id, err := mapID(*m)
		if err != nil {
			return err
		}
		if id == c.Maps[i] {
			continue
		}
		if *m, err = c.maps[i].Clone(); err != nil {
			return err
		}
	}
	return nil
}

// fresh is the share of a stage whose budget nobody has used yet, or nil.
func (s *shares) newShareOf(stage int) *share {
	if s == nil {
		return nil
	}
	for _, g := range s.list {
		if g.stage == stage && g.isNew {
			return g
		}
	}
	return nil
}

// claim enters the shaper with the programs that may be attached from now on.
func (s *shares) registerProgram(st *site, before, next ebpf.ProgramID) error {
	if s == nil || len(s.list) == 0 {
		return nil
	}
	if err := st.startGuard(); err != nil { // the budget outlives the process
		return err
	}
	s.user.Programs = []ebpf.ProgramID{next}
	if before != 0 {
		s.user.Programs = append(s.user.Programs, before)
	}
	return s.register()
}

// take settles the shares of a shaper whose program is attached.
func (s *shares) commitProgram(program ebpf.ProgramID) error {
	if s == nil {
		return nil
	}
	s.user.Programs = []ebpf.ProgramID{program}
	return s.commit()
}
