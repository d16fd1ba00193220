package dataplane

import (
	"cmp"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Done is the set of things done to a packet. The zero Done is a drop.
type Done uint8

const (
	Pass    Done = 1 << iota // sent; the only bit if nothing else was done
	ECNSet                   // marked Congestion Experienced
	Marked                   // a mark was written, even if it changed no bit
	Queued                   // departs at Verdict.Departure
	Waiting                  // queued in a link; pipeline.Pipeline.Settle returns its departure or drop
)

// Dropped reports whether the packet is dropped.
func (d Done) Dropped() bool { return d == 0 }

// doneNames are the names of all sets.
var doneNames = func() (names [2 * Waiting]string) {
	for done := range names {
		var parts []string
		for bit, name := range []string{1: "ecn", "mark", "queue", "waiting"} {
			if name != "" && done>>bit&1 != 0 {
				parts = append(parts, name)
			}
		}
		names[done] = cmp.Or(strings.Join(parts, "+"), "pass")
	}
	names[0] = "drop"
	return names
}()

// String returns the set as it is spelled in decision files: drop, pass, or ecn, mark and queue
// joined by plus signs. A Waiting packet adds waiting.
func (d Done) String() string { return enumName(d, "Done", doneNames[:]) }

// Reason is the reason for a verdict: a clause of the last meter (meter.Clause), or one
// of the reasons below.
type Reason uint8

const (
	// the class has no meter, or an IP packet is unclassified
	NoMeter   Reason = Reason(meter.NumClauses) + iota
	NotIP            // unclassified, and not IP
	BadPacket        // unclassified, and malformed
	QueueFull        // dropped: the queue is full
	WRED             // dropped early by WRED
	CoDel            // dropped early by CoDel
)

// String returns the reason as it is spelled in decision files.
func (r Reason) String() string {
	switch r {
	case NoMeter:
		return "no-meter"
	case NotIP:
		return "not-ip"
	case BadPacket:
		return "malformed"
	case QueueFull:
		return "queue-full"
	case WRED:
		return "wred"
	case CoDel:
		return "codel"
	}
	return meter.Clause(r).String()
}

// Verdict is the outcome for one packet. The zero Verdict is a drop.
type Verdict struct {
	Now       int64  // the pipeline's clock at arrival, ns
	Departure int64  // departure time, ns; valid unless dropped or Waiting
	ID        int64  // Packet.ID
	Length    int    // metered length, bytes
	Packets   int    // number of packets on the wire: the segments of a GSO packet, or 1
	Class     int32  // index into Policy.Classes; -1 if unclassified
	Customer  uint32 // number of the customer, from 1; 0 for none
	Stage     int32  // index in compiled.Plan.Stages of the last meter of the packet; -1 for none
	// Lack is the number of tokens that this meter lacked to give the packet a better
	// color, see compiled.Stage.Lack. It is 0 unless pipeline.Pipeline.MeasureLack was called, and
	// for a meter per key or customer.
	Lack    int32
	Done    Done
	Pre     meter.Color // input color of the first meter; valid if Class >= 0
	Color   meter.Color // color after the last meter; valid if Class >= 0
	Reason  Reason
	HasDSCP bool  // the packet contains an IP header, and so a DSCP
	DSCPIn  uint8 // DSCP on arrival
	DSCPOut uint8 // DSCP on departure; not valid if dropped
}
