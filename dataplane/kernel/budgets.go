package kernel

import (
	"errors"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/registry"
)

// claimBudgets claims the host budgets of a plan for the shaper, and connects their stages in the
// image. It returns nil without budgets in the plan and the registry. A dry run claims none: its
// meters have states of their own.
func (s *Shaper) claimBudgets(g *image.Image, next *About) (*registry.Claims, error) {
	var requests []*registry.Request
	for i := range g.Stages {
		request := registry.RequestFor(g.Plan, i, &g.Stages[i].Profile)
		if request == nil || next.Dry {
			continue
		}
		for k := range s.Stages {
			if s.Stages[k].Table == record.StoreShared && s.Outline.Stages[k].BudgetName == request.Name {
				request.Previous = &s.Stages[k].Profile
			}
		}
		requests = append(requests, request)
	}
	user := s.Identity().FileName(s.Direction.String())
	if len(requests) == 0 && !registry.HasUser(user) {
		return nil, nil
	}
	claims, err := registry.NewClaims(registry.User{
		File: user, Process: next.Process,
		Namespace: s.Namespace, Index: s.Index, Interface: s.Interface, Direction: s.Direction,
	}, requests, s.Begun)
	if err != nil {
		return nil, err
	}
	for _, claim := range claims.List {
		stage := &g.Stages[claim.Stage]
		stage.Table, stage.Slot = record.StoreShared, claim.Record.Slot
		if claim.Once {
			stage.Label = claim.Record.Label
		}
		g.Constants.Elsewhere = 1
	}
	return claims, nil
}

// checkBudgets returns the error of claimBudgets, and changes nothing.
func (s *Shaper) checkBudgets(g *image.Image) error {
	claims, err := s.claimBudgets(g, &s.About)
	return errors.Join(err, claims.Unlock())
}
