package budgets

import (
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// Unit is the unit of a server budget's tokens: bytes or packets.
type Unit bool

const (
	InBytes   Unit = false
	InPackets Unit = true
)

// Floor is the burst that an idle host keeps if the budget is large enough: two packets.
// The server stores it, so shaper budget can derive the unit from it.
func (u Unit) Floor() int64 {
	if u == InPackets {
		return 2
	}
	return 2 * 1514
}

// UnitOf returns the unit that has this floor.
func UnitOf(floor int64) Unit { return Unit(floor == InPackets.Floor()) }

// Rates writes the rates of buckets that have one, two of them with a plus.
func (u Unit) Rates(a lease.Amounts) string { return byBucket(a.Rate, u.rate) }

// Bursts writes the bursts of buckets that have one.
func (u Unit) Bursts(a lease.Amounts) string { return byBucket(a.Burst, u.burst) }

func byBucket(n [2]int64, write func(int64) string) string {
	if n[1] > 0 {
		return write(n[0]) + " + " + write(n[1])
	}
	return write(n[0])
}

func (u Unit) burst(n int64) string {
	if u == InPackets {
		return say.Count(n, "packet")
	}
	return say.Bytes(n)
}

// rate writes a rate in eighths of a token per second.
func (u Unit) rate(n int64) string {
	if u == InPackets {
		return say.Grouped(n/8) + " packets/s"
	}
	return say.Scaled(n, 1000, "bit/s", "kbit/s", "Mbit/s", "Gbit/s")
}

func (u Unit) ParseRate(s string) (meter.Rate, error) {
	if u == InPackets {
		return policyfile.ParsePacketRate(s)
	}
	return policyfile.ParseRate(s)
}

func (u Unit) ParseBurst(s string) (int64, error) {
	if u == InPackets {
		return policyfile.ParsePackets(s)
	}
	return policyfile.ParseSize(s)
}
