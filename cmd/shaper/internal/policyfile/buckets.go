package policyfile

import (
	"cmp"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// EntryBytes is the memory of a log entry or of a slot of a window, in bytes.
const EntryBytes = 16

// Memory returns the memory of a meter's log entries or slots, in bytes for all keys together, and
// the parameter setting their number. Other meters need 0.
func Memory(m *dataplane.Meter) (bytes int64, name string) {
	if m.Params == nil { // of customers
		return 0, ""
	}
	for _, name := range m.Params.Kind().Info().Optional {
		if entries, ok := meter.Field(m.Params, name).(int); ok {
			return int64(entries) * int64(Keys(m)) * EntryBytes, name
		}
	}
	return 0, ""
}

// Keys returns the maximum number of keys of a meter; 1 if it is not a per-key meter.
func Keys(m *dataplane.Meter) int {
	if m.Per.By == dataplane.NoKey {
		return 1
	}
	return cmp.Or(m.Keys, dataplane.DefaultKeys)
}

// Colors returns the colors that a class can give its packets. Plans of customers can give any.
func Colors(c *dataplane.Class) []meter.Color {
	if c.Meter == nil {
		return []meter.Color{meter.Green}
	}
	if two := !c.Match.Customer && len(c.Meter.Params.Buckets()) == 1; two && !c.Meter.Aware &&
		c.Meter.Then == nil {
		return []meter.Color{meter.Green, meter.Red}
	}
	return []meter.Color{meter.Green, meter.Yellow, meter.Red}
}
