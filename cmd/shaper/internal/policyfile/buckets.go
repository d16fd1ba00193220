package policyfile

import (
	"cmp"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Bucket is a bucket of a meter in a policy, with the RFC's names.
type Bucket struct {
	RateName, BurstName string
	Tokens              string // Tc, Te or Tp
	Rate                meter.Rate
	Burst               int64
}

// Buckets returns the buckets of a meter: one, or two.
func Buckets(p dataplane.Params) []Bucket {
	switch t := p.(type) {
	case meter.SRTCM:
		return []Bucket{{"CIR", "CBS", "Tc", t.CIR, t.CBS}, {"CIR", "EBS", "Te", t.CIR, t.EBS}}
	case meter.TRTCM:
		return []Bucket{{"CIR", "CBS", "Tc", t.CIR, t.CBS}, {"PIR", "PBS", "Tp", t.PIR, t.PBS}}
	case meter.TRTCM4115:
		return []Bucket{{"CIR", "CBS", "Tc", t.CIR, t.CBS}, {"EIR", "EBS", "Te", t.EIR, t.EBS}}
	case meter.TokenBucket:
		return []Bucket{{"rate", "burst", "Tc", t.Rate, t.Burst}}
	case meter.GCRA:
		return []Bucket{{"rate", "burst", "Tc", t.Rate, t.Burst}}
	case meter.FixedWindow:
		return window(t.Limit, t.Window)
	case meter.SlidingWindow:
		return window(t.Limit, t.Window)
	case meter.SlidingCounter:
		return window(t.Limit, t.Window)
	case meter.SlidingLog:
		return window(t.Limit, t.Window)
	case meter.TSWTCM:
		return []Bucket{target("CIR", t.CIR, t.Window), target("PIR", t.PIR, t.Window)}
	}
	return nil
}

// window is one as a bucket: what is left of its limit.
func window(limit int64, length time.Duration) []Bucket {
	return []Bucket{{"rate", "limit", "left", meter.Rate{Bytes: limit, Period: length}, limit}}
}

// target is a target rate of RFC 2859 as a bucket: what the average leaves.
func target(name string, r meter.Rate, length time.Duration) Bucket {
	burst, _ := r.Burst(length)
	return Bucket{name, name, "below " + name, r, burst}
}

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
	if two := len(Buckets(c.Meter.Params)) == 1; two && !c.Meter.Aware && c.Meter.Then == nil {
		return []meter.Color{meter.Green, meter.Red}
	}
	return []meter.Color{meter.Green, meter.Yellow, meter.Red}
}
