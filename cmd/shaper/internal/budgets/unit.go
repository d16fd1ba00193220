package budgets

import (
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// Unit is the unit of the tokens of a budget on a server: bytes or packets.
type Unit bool

const (
	InBytes   Unit = false
	InPackets Unit = true
)

// Floor returns the burst kept by an idle host if the budget is large enough: two packets. The
// server stores it, so shaper budget can derive the unit from it.
func (u Unit) Floor() int64 {
	if u == InPackets {
		return 2
	}
	return 2 * 1514
}

// UnitOf returns the unit with this floor.
func UnitOf(floor int64) Unit { return Unit(floor == InPackets.Floor()) }

// Rates writes the rate of the first bucket, and with a plus the second's if there is one.
func (u Unit) Rates(a lease.Amounts) string { return byBucket(a.Rate, u.rate) }

// Bursts writes the bursts in the same way.
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

// ParseRate reads a rate in the syntax of policies.
func (u Unit) ParseRate(s string) (meter.Rate, error) {
	if u == InPackets {
		return policyfile.ParsePacketRate(s)
	}
	return policyfile.ParseRate(s)
}

// ParseBurst reads a burst in the syntax of policies.
func (u Unit) ParseBurst(s string) (int64, error) {
	if u == InPackets {
		return policyfile.ParsePackets(s)
	}
	return policyfile.ParseSize(s)
}
