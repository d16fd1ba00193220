package main

import (
	"fmt"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// unit is what the tokens of a budget on a server are.
type unit bool

const (
	inBytes   unit = false
	inPackets unit = true
)

// floor is the burst that a host without demand keeps if the budget has room for it: two
// packets. It tells the unit to those who see the budget only on the server.
func (u unit) floor() int64 {
	if u == inPackets {
		return 2
	}
	return 2 * 1514
}

// unitOf is the unit with a floor.
func unitOf(floor int64) unit { return unit(floor == inPackets.floor()) }

// rates writes the rates of buckets that have one, two of them with a plus.
func (u unit) rates(a lease.Amounts) string { return byBucket(a.Rate, u.rate) }

// bursts writes the bursts of buckets that have one.
func (u unit) bursts(a lease.Amounts) string { return byBucket(a.Burst, u.burst) }

func byBucket(n [2]int64, write func(int64) string) string {
	if n[1] > 0 {
		return write(n[0]) + " + " + write(n[1])
	}
	return write(n[0])
}

func (u unit) burst(n int64) string {
	if u == inPackets {
		return counted(int(n), "packet", "packets")
	}
	return memory(n)
}

// rate writes eighths of a token per second.
func (u unit) rate(n int64) string {
	if u == inPackets {
		return grouped(n/8) + " packets/s"
	}
	return shortRate(n)
}

func (u unit) parseRate(s string) (meter.Rate, error) {
	if u == inPackets {
		return policyfile.ParsePacketRate(s)
	}
	return policyfile.ParseRate(s)
}

func (u unit) parseBurst(s string) (int64, error) {
	if u == inPackets {
		return policyfile.ParsePackets(s)
	}
	return policyfile.ParseSize(s)
}

// shortRate writes a rate in bit/s with four digits.
func shortRate(n int64) string {
	v := float64(n)
	for _, unit := range []string{"bit", "kbit", "Mbit"} {
		if v < 1000 {
			return fmt.Sprintf("%.4g %s/s", v, unit)
		}
		v /= 1000
	}
	return fmt.Sprintf("%.4g Gbit/s", v)
}
