package say

import (
	"fmt"

	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// KeyCounts holds the counts of a per-key meter.
type KeyCounts struct {
	Name    string `json:"name"`
	Keys    int    `json:"keys"`    // keys in the table now
	Evicted uint64 `json:"evicted"` // keys
	Refused uint64 `json:"refused"` // packets whose key found no room
	most    int    // maximum number of keys
	stage   int    // index in the plan
}

// NewKeyCounts returns the counts of a stage of a plan.
func NewKeyCounts(s *compiled.StageOutline, stage int, n meter.TableStats) *KeyCounts {
	return &KeyCounts{s.Name, n.Keys, n.Evicted, n.Refused, s.Keys, stage}
}

// Stage returns the index of the meter in its plan.
func (k *KeyCounts) Stage() int { return k.stage }

// String describes the counts.
func (k *KeyCounts) String() string {
	return fmt.Sprintf("%s of %s, %d evicted, %d refused", Grouped(int64(k.Keys)), Count(k.most, "key"),
		k.Evicted, k.Refused)
}
