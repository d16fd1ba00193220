package main

import (
	"fmt"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
)

// keysOf returns the counts of all per-key meters, if the engine counts keys.
func keysOf(plan *compiled.Plan, e engine) (out []*say.KeyCounts) {
	for i := range plan.Stages {
		s := &plan.Stages[i]
		if n, ok := e.Keys(i); ok && s.Keyed() {
			out = append(out, say.NewKeyCounts(&s.StageOutline, i, n))
		}
	}
	return out
}

// tooManyKeys returns a warning for each meter that saw more keys than its bound.
func tooManyKeys(plan *compiled.Plan, e engine) (warnings []string, err error) {
	for i := range plan.Stages {
		n, err := e.KeysOverBound(i)
		if err != nil {
			return nil, err
		}
		if n > 0 {
			s := &plan.Stages[i]
			warnings = append(warnings,
				fmt.Sprintf("meter %s saw more than its %s: the kernel then evicts different keys than --engine go, "+
					"and colors may differ from --engine go and from live traffic: increase keys", s.Name,
					say.Count(s.Keys, "key")))
		}
	}
	return warnings, nil
}
