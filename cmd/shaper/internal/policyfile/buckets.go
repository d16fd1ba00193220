package policyfile

import (
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
	}
	return nil
}

// Colors returns the colors that a class can give its packets.
func Colors(c *dataplane.Class) []meter.Color {
	if c.Meter == nil {
		return []meter.Color{meter.Green}
	}
	if _, two := c.Meter.Params.(meter.TokenBucket); two && !c.Meter.Aware && c.Meter.Then == nil {
		return []meter.Color{meter.Green, meter.Red}
	}
	return []meter.Color{meter.Green, meter.Yellow, meter.Red}
}
