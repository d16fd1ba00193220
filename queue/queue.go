// Package queue paces packets through leaky buckets: they leave at a rate, one
// after the other, and are dropped where a bucket is full, or early.
//
// A queue here is a rule for departure times, not a buffer. Whoever asks holds
// the packet until it leaves: replay writes the time into the capture, a live
// plane waits. Leaky has a rate of its own, and a packet's departure is known
// when it comes:
//
//	depart = max(now, next)
//	next   = depart + length/rate
//
// Link is a rate that several queues share by priority and weight; what leaves
// next is known when the link is free. Times are exact: a departure keeps its
// fraction of a nanosecond, is rounded up where it is used, and no rounding is
// carried on.
//
// Early drop is color-aware (WRED; RFC 2597 §2: yellow before green, red before
// yellow), by CoDel (RFC 8289), or both; packets that are ECN-capable may be
// marked instead (RFC 3168).
package queue

import (
	"errors"
	"math"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Config describes a queue. At least one limit is above zero; a packet is
// dropped where it would break one of those that are.
type Config struct {
	Rate    meter.Rate    // of a Leaky
	Time    time.Duration // longest wait; on a Link, the bytes that it sends in that time
	Bytes   int64         // waiting, this packet included
	Packets int64         // waiting, this packet included; at most MaxPackets

	WRED  [3]Early // by color
	Seed  uint64   // of WRED's random numbers
	CoDel CoDel
	ECN   bool // mark ECN-capable packets instead of dropping them early
}

// MaxPackets is how many packets can wait in a queue that has a limit in bytes
// or packets. One limited in bytes holds no more than a packet per 20 of them,
// an IPv4 header.
const MaxPackets = 1 << 16

// MaxBytes is the length of the longest packet that a Link takes.
const MaxBytes = math.MaxUint32

// Capacity is how many packets may wait, 0 where only their wait is limited.
func (c *Config) Capacity() int {
	n := c.Packets
	if c.Bytes > 0 {
		room := min(max(c.Bytes/20, 1), MaxPackets)
		if n == 0 || room < n {
			n = room
		}
	}
	return int(n)
}

// Axis is what the backlog of a queue is measured by.
type Axis uint8

const (
	ByTime Axis = iota // ns that a packet would wait
	ByBytes
	ByPackets
)

// Axis is that of the limit; of several, the first of time, bytes and packets.
func (c *Config) Axis() Axis {
	switch {
	case c.Time > 0:
		return ByTime
	case c.Bytes > 0:
		return ByBytes
	}
	return ByPackets
}

// Limit is the limit on the axis.
func (c *Config) Limit() int64 { return [...]int64{int64(c.Time), c.Bytes, c.Packets}[c.Axis()] }

// Packet is what a queue needs to know of a packet.
type Packet struct {
	Bytes int
	Color meter.Color
	ECN   bool   // ECN-capable
	Flow  uint16 // in a fair queue, below Flows
}

// Fate says what a queue does with a packet. The zero Fate is a drop.
type Fate uint8

const (
	Full    Fate = iota // dropped: a limit
	Thin                // dropped by WRED
	Stale               // dropped by CoDel
	Admit               // admitted
	AdmitCE             // admitted, to be marked with Congestion Experienced
)

// Dropped says that the packet does not leave.
func (f Fate) Dropped() bool { return f < Admit }

// early is what WRED does to a packet that finds a backlog.
func (c *Config) early(p Packet, backlog int64, d *dice) Fate {
	victim, certain := c.WRED[p.Color].takes(backlog, d)
	switch {
	case !victim:
		return Admit
	case certain:
		return Thin
	}
	return c.victim(p, Thin)
}

// victim drops a packet, or marks it instead.
func (c *Config) victim(p Packet, f Fate) Fate {
	if c.ECN && p.ECN {
		return AdmitCE
	}
	return f
}

// check joins what is wrong with a configuration, as meter.FieldErrors of the
// fields' names in lower case.
func (c *Config) check() error {
	var errs []error
	add := func(field, reason string) {
		errs = append(errs, &meter.FieldError{Field: field, Reason: reason})
	}
	switch {
	case c.Time < 0 || c.Bytes < 0 || c.Packets < 0:
		add("limit", "is negative")
	case c.Time == 0 && c.Bytes == 0 && c.Packets == 0:
		add("limit", "is missing: say how long a packet may wait, such as 100ms")
	case c.Packets > MaxPackets:
		add("limit", "is above 65536 packets: give a time or a size")
	}
	for _, e := range c.WRED {
		if reason := e.check(c.Limit()); reason != "" {
			add("wred", reason)
			break
		}
	}
	if reason := c.CoDel.check(); reason != "" {
		add("codel", reason)
	}
	return errors.Join(errs...)
}
