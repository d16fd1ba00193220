package kernel

import (
	"errors"

	"github.com/cilium/ebpf"
)

// claimBudgets claims the host budgets of a plan for the shaper, and connects their stages
// in the image. It returns nil if neither the plan nor the registry has a budget. A dry run
// claims none: its meters have states of their own.
func (s *Shaper) claimBudgets(g *image, next *About) (*budgetClaims, error) {
	var requests []*budgetRequest
	for i := range g.stages {
		request := budgetRequestFor(g.plan, i, &g.stages[i].Profile)
		if request == nil || next.Dry {
			continue
		}
		for k := range s.Stages {
			if s.Stages[k].Table == storeShared && s.Outline.Stages[k].BudgetName == request.Name {
				request.previous = &s.Stages[k].Profile
			}
		}
		requests = append(requests, request)
	}
	if len(requests) == 0 && !registryExists() {
		return nil, nil
	}
	claims, err := newClaims(budgetUser{
		File: s.iface().fileName(s.Direction.String()), Process: next.Process,
		Namespace: s.Namespace, Index: s.Index, Interface: s.Interface, Direction: s.Direction,
	}, requests, s.Begun)
	if err != nil {
		return nil, err
	}
	for _, claim := range claims.list {
		stage := &g.stages[claim.stage]
		stage.Table, stage.Slot = storeShared, claim.record.Slot
		g.constants.Elsewhere = 1
	}
	return claims, nil
}

// checkBudgets returns the error of claimBudgets, and changes nothing.
func (s *Shaper) checkBudgets(g *image) error {
	claims, err := s.claimBudgets(g, &s.About)
	return errors.Join(err, claims.unlock())
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

// useBudgetMaps replaces the maps of budgets by those of the claims, if there are any.
func (s *stateMaps) useBudgetMaps(claims *budgetClaims) error {
	if claims == nil || len(claims.list) == 0 {
		return nil
	}
	for i, m := range [2]**ebpf.Map{&s.budgets, &s.locks} {
		id, err := mapID(*m)
		if err != nil {
			return err
		}
		if id == claims.Maps[i] {
			continue
		}
		if *m, err = claims.maps[i].Clone(); err != nil {
			return err
		}
	}
	return nil
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

// registerProgram registers the shaper with the attached program and the next one; previous
// is 0 if none is attached. c may be nil.
func (c *budgetClaims) registerProgram(st *site, previous, next ebpf.ProgramID) error {
	if c == nil || len(c.list) == 0 {
		return nil
	}
	if err := st.startGuard(); err != nil { // the budget outlives the process
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
