package kernel

import "errors"

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
		File: s.Identity().fileName(s.Direction.String()), Process: next.Process,
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
