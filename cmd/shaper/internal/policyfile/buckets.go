package policyfile

import (
	"cmp"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// EntryBytes is the memory of an entry of a log, or of a slot of a window.
const EntryBytes = 16

// Memory is what the entries and slots of a meter take, in bytes, those of all
// its keys together; 0 for a meter that has none.
func Memory(m *dataplane.Meter) int64 {
	entries := 0
	switch t := m.Params.(type) {
	case meter.SlidingWindow:
		entries = t.Slots
	case meter.SlidingLog:
		entries = t.Entries
	}
	return int64(entries) * int64(Keys(m)) * EntryBytes
}

// Keys is how many keys a meter knows at most, 1 for one that is for all.
func Keys(m *dataplane.Meter) int {
	if m.Per.By == dataplane.NoKey {
		return 1
	}
	return cmp.Or(m.Keys, dataplane.DefaultKeys)
}

// Colors returns the colors that a class can give its packets.
func Colors(c *dataplane.Class) []meter.Color {
	if c.Meter == nil {
		return []meter.Color{meter.Green}
	}
	if two := len(c.Meter.Params.Buckets()) == 1; two && !c.Meter.Aware && c.Meter.Then == nil {
		return []meter.Color{meter.Green, meter.Red}
	}
	return []meter.Color{meter.Green, meter.Yellow, meter.Red}
}
