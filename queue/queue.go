// Package queue paces packets through leaky buckets: packets depart at a rate, one
// after the other. A packet is dropped if its queue is full, or early, to keep the
// queue short.
//
// A queue here is a rule for departure times, not a buffer. The caller holds the packet until it
// departs: replay writes the time into the capture, a live plane waits. Leaky sends at a rate of
// its own, so a packet's departure is known on arrival:
//
//	depart = max(now, next)
//	next   = depart + length/rate
//
// Link is a rate shared by several queues, by priority and weight. The next packet is selected when
// the link becomes free. Times are exact: queues keep fractions of a nanosecond and round up only
// the departures they return, so rounding errors do not add up.
//
// Early drop is color-aware (WRED; RFC 2597 §2: yellow before green, red before
// yellow), by CoDel (RFC 8289), or both. ECN-capable packets can be marked instead
// of dropped (RFC 3168).
package queue

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Config describes a queue. At least one of the limits Time, Bytes and Packets is above zero. A
// packet is dropped if it would exceed a limit.
type Config struct {
	Rate    meter.Rate    // rate of a Leaky; unset for a queue of a Link
	Time    time.Duration // maximum queueing delay; on a Link, converted to bytes at the link's rate
	Bytes   int64         // maximum backlog in bytes, the arriving packet included
	Packets int64         // maximum backlog in packets, the arriving packet included; at most MaxPackets

	WRED  [3]Early // indexed by color
	Seed  uint64   // seed of WRED's random numbers
	CoDel CoDel
	ECN   bool // mark ECN-capable packets instead of dropping them early
}

// MaxPackets is the maximum backlog, in packets, of a queue with a limit in
// bytes or packets. A limit in bytes also limits packets, to one per 20 bytes,
// the length of an IPv4 header.
const MaxPackets = 1 << 16

// MaxBytes is the maximum length of a packet in a Link.
const MaxBytes = math.MaxUint32

// Capacity returns the maximum backlog in packets, or 0 if the queue is limited
// by delay only.
func (c *Config) Capacity() int {
	n := c.Packets
	if c.Bytes > 0 {
		shortest := min(max(c.Bytes/20, 1), MaxPackets) // packets of 20 bytes
		if n == 0 || shortest < n {
			n = shortest
		}
	}
	return int(n)
}

// Axis is the quantity in which the backlog of a queue is measured.
type Axis uint8

const (
	ByTime Axis = iota // queueing delay, ns
	ByBytes
	ByPackets
)

// String returns time, bytes or packets.
func (a Axis) String() string {
	if names := [...]string{"time", "bytes", "packets"}; int(a) < len(names) {
		return names[a]
	}
	return fmt.Sprintf("Axis(%d)", uint8(a))
}

// Axis returns the axis of the limit. If there are several limits, the first in the
// order time, bytes, packets counts.
func (c *Config) Axis() Axis {
	switch {
	case c.Time > 0:
		return ByTime
	case c.Bytes > 0:
		return ByBytes
	}
	return ByPackets
}

// Limit returns the limit on the axis: ns, bytes or packets.
func (c *Config) Limit() int64 { return [...]int64{int64(c.Time), c.Bytes, c.Packets}[c.Axis()] }

// Packet is a packet as a queue sees it.
type Packet struct {
	Bytes int
	// Segments is the number of packets as which a GSO packet leaves the device. It counts as so many in
	// limits in packets, WRED and CoDel. 0 means 1.
	Segments int
	Color    meter.Color
	ECN      bool   // ECN-capable
	Flow     uint16 // flow number in a fair queue, below Flows; see Flow
	Host     uint16 // host number in a queue that is fair to hosts, likewise
}

// packets returns the number of packets as which p counts. More than MaxPackets are one more,
// which no limit in packets admits.
func (p *Packet) packets() int { return min(max(p.Segments, 1), MaxPackets+1) }

// Fate is a queue's decision about a packet. The zero Fate is a drop.
type Fate uint8

const (
	Full    Fate = iota // dropped: a limit is exceeded
	Thin                // dropped by WRED
	Stale               // dropped by CoDel
	Admit               // admitted
	AdmitCE             // admitted, to be marked Congestion Experienced
)

// Dropped reports whether the packet is dropped.
func (f Fate) Dropped() bool { return f < Admit }

// String returns full, wred, codel, admit or admit-ce.
func (f Fate) String() string {
	if names := [...]string{"full", "wred", "codel", "admit", "admit-ce"}; int(f) < len(names) {
		return names[f]
	}
	return fmt.Sprintf("Fate(%d)", uint8(f))
}

// applyWRED decides about a packet arriving at a backlog.
func (c *Config) applyWRED(p Packet, backlog int64, d *dice) Fate {
	victim, certain := c.WRED[p.Color].drops(backlog, d)
	switch {
	case !victim:
		return Admit
	case certain:
		return Thin
	}
	return c.markOrDrop(p.ECN, Thin)
}

// markOrDrop returns AdmitCE if a packet, which may be ECN-capable, is to be marked instead of
// dropped, and drop otherwise.
func (c *Config) markOrDrop(ecn bool, drop Fate) Fate {
	if c.ECN && ecn {
		return AdmitCE
	}
	return drop
}

// check joins the errors in a configuration, as meter.FieldErrors with the
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
		add("limit", "is missing: give a time such as 100ms, a size, or a number of packets")
	case c.Packets > MaxPackets:
		add("limit", "is above 65536 packets: use fewer, or limit by time or size")
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
