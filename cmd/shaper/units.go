package main

import (
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// unit is the unit of a server budget's tokens: bytes or packets.
type unit bool

const (
	inBytes   unit = false
	inPackets unit = true
)

// floor is the burst that an idle host keeps if the budget is large enough: two packets.
// The server stores it, so shaper budget can derive the unit from it.
func (u unit) floor() int64 {
	if u == inPackets {
		return 2
	}
	return 2 * 1514
}

// unitOf returns the unit that has this floor.
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
		return say.Count(n, "packet")
	}
	return say.Bytes(n)
}

// rate writes a rate in eighths of a token per second.
func (u unit) rate(n int64) string {
	if u == inPackets {
		return say.Grouped(n/8) + " packets/s"
	}
	return say.Scaled(n, 1000, "bit/s", "kbit/s", "Mbit/s", "Gbit/s")
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
