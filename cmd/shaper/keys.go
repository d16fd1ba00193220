package main

import (
	"fmt"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// keyTotals has the counts of a per-key meter.
type keyTotals struct {
	Name    string `json:"name"`
	Keys    int    `json:"keys"`    // keys in the table now
	Evicted uint64 `json:"evicted"` // keys
	Refused uint64 `json:"refused"` // packets whose key found no room
	most    int    // maximum number of keys
	stage   int
}

func newKeyTotals(s *dataplane.StageOutline, stage int, n meter.TableStats) *keyTotals {
	return &keyTotals{s.Name, n.Keys, n.Evicted, n.Refused, s.Keys, stage}
}

// String describes the counts.
func (k *keyTotals) String() string {
	return fmt.Sprintf("%s of %s, %d evicted, %d refused", say.Grouped(int64(k.Keys)), say.Count(k.most, "key"), k.Evicted, k.Refused)
}

// keysOf returns the counts of all per-key meters, if the engine counts keys.
func keysOf(plan *dataplane.Plan, e engine) (out []*keyTotals) {
	for i := range plan.Stages {
		s := &plan.Stages[i]
		if n, ok := e.Keys(i); ok && s.Keyed() {
			out = append(out, newKeyTotals(&s.StageOutline, i, n))
		}
	}
	return out
}

// tooManyKeys returns a warning for each meter that saw more keys than its bound.
func tooManyKeys(plan *dataplane.Plan, e engine) (warnings []string, err error) {
	for i := range plan.Stages {
		n, err := e.KeysOverBound(i)
		if err != nil {
			return nil, err
		}
		if n > 0 {
			s := &plan.Stages[i]
			warnings = append(warnings, fmt.Sprintf("meter %s saw more than its %s: the kernel then evicts different keys than --engine go, "+
				"and colors may differ from --engine go and from live traffic: increase keys", s.Name, say.Count(s.Keys, "key")))
		}
	}
	return warnings, nil
}
