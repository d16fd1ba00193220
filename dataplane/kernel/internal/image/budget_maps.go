package image

import (
	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/registry"
)

// useBudgetMaps replaces the maps of budgets by those of the claims, if there are any.
func (s *Maps) useBudgetMaps(claims *registry.Claims) error {
	if claims == nil || len(claims.List) == 0 {
		return nil
	}
	for i, m := range [2]**ebpf.Map{&s.Budgets, &s.Locks} {
		id, err := engine.MapID(*m)
		if err != nil {
			return err
		}
		if id == claims.Maps[i] {
			continue
		}
		if *m, err = claims.Opened[i].Clone(); err != nil {
			return err
		}
	}
	return nil
}
