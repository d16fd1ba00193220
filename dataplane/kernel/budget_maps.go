package kernel

import "github.com/cilium/ebpf"

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
