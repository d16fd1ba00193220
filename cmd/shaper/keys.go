package main

import (
	"fmt"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// keyTotals counts the keys of a meter for each key.
type keyTotals struct {
	Name    string `json:"name"`
	Keys    int    `json:"keys"` // in the table now
	Evicted uint64 `json:"evicted"`
	Refused uint64 `json:"refused"` // packets
	most    int    // keys
	stage   int
}

func newKeyTotals(s *dataplane.StageOutline, stage int, n meter.TableStats) *keyTotals {
	return &keyTotals{s.Name, n.Keys, n.Evicted, n.Refused, s.Keys, stage}
}

// String is for people.
func (k *keyTotals) String() string {
	return fmt.Sprintf("%s of %s, %d evicted, %d refused", say.Grouped(int64(k.Keys)), say.Count(k.most, "key"), k.Evicted, k.Refused)
}

// keysOf asks an engine for the keys of all meters that have them, by stage.
func keysOf(plan *dataplane.Plan, e engine) (out []*keyTotals) {
	for i := range plan.Stages {
		s := &plan.Stages[i]
		if n, ok := e.Keys(i); ok && s.Keyed() {
			out = append(out, newKeyTotals(&s.StageOutline, i, n))
		}
	}
	return out
}

// tooManyKeys warns of meters that saw more keys than their tables hold, if the engine evicts
// in its own way then.
func tooManyKeys(plan *dataplane.Plan, e engine) (warnings []string, err error) {
	for i := range plan.Stages {
		n, err := e.Over(i)
		if err != nil {
			return nil, err
		}
		if n > 0 {
			s := &plan.Stages[i]
			warnings = append(warnings, fmt.Sprintf("meter %s saw more than its %s: then the kernel evicts other keys than --engine go, "+
				"and colors may differ from --engine go and from live traffic; increase keys", s.Name, say.Count(s.Keys, "key")))
		}
	}
	return warnings, nil
}
