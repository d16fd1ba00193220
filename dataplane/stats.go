package dataplane

import (
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Count is packets and their metered bytes.
type Count struct {
	Packets int64 `json:"packets"`
	Bytes   int64 `json:"bytes"`
}

func (c *Count) add(d Count) {
	c.Packets += d.Packets
	c.Bytes += d.Bytes
}

// Plus returns the sum.
func (c Count) Plus(d Count) Count { return Count{c.Packets + d.Packets, c.Bytes + d.Bytes} }

// Cause says why a packet was dropped.
type Cause uint8

const (
	CauseColor Cause = iota // its color's action is drop
	CauseECN                // not ECN-capable where the action asks for CE or drop
	CauseQueue              // the queue was full
	CauseWRED               // WRED, before it was
	CauseCoDel              // CoDel
	Causes                  // how many there are
)

// Unclassified names the cause of ClassStats.UntakenDropped, beside those of
// colors.
const Unclassified = "unclassified"

// String returns the cause as tables spell it.
func (c Cause) String() string {
	return [...]string{"color", "ecn", QueueFull.String(), WRED.String(), CoDel.String()}[c]
}

// ClassStats counts the packets of one class.
type ClassStats struct {
	Colors  [3]Count         // by color after the meter
	Drops   [3][Causes]Count // by color
	Marked  [3]Count         // by color: a header field was written
	CE      [3]Count         // by color: Congestion Experienced was set
	Queued  [3]Count         // by color
	Untaken Count            // packets without a color: only for what no class took
	// UntakenDropped is what was dropped of Untaken, by Policy.DropUnclassified.
	UntakenDropped Count
	// Behind is what the kernel's qdisc dropped of packets of unknown color, in
	// packets only. Of a known color it is in Drops.
	Behind Count
}

// QueueState is what waits in a queue.
type QueueState struct {
	Name  string
	Delay time.Duration // that a packet would have to wait; 0 in a queue of a link
	Bytes int64         // that wait
	// Dropped is how many packets the kernel's qdisc had no room for. They are
	// also counted as queued, and as dropped, by Class: the only one whose packets
	// ever entered the queue, "" where there were several.
	Dropped int64
	Class   string
	Sent    Count // by HTB, in bytes as it counts; zero elsewhere
}

// Dropped is what was dropped of a color, whatever the cause.
func (s *ClassStats) Dropped(c meter.Color) Count { return Sum(s.Drops[c][:]) }

// AllDropped is what was dropped of the class.
func (s *ClassStats) AllDropped() Count {
	sum := s.Behind.Plus(s.UntakenDropped)
	for c := range s.Drops {
		sum.add(s.Dropped(meter.Color(c)))
	}
	return sum
}

// Total is all packets of the class.
func (s *ClassStats) Total() Count { return Sum(s.Colors[:]).Plus(s.Untaken) }

// Sum adds up counts, such as those of the colors.
func Sum(counts []Count) Count {
	var sum Count
	for _, c := range counts {
		sum.add(c)
	}
	return sum
}
