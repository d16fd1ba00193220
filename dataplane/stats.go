package dataplane

import "github.com/a-seed-32e5a53f/shaper/meter"

// Count is packets and their metered bytes.
type Count struct{ Packets, Bytes int64 }

func (c *Count) add(n int) {
	c.Packets++
	c.Bytes += int64(n)
}

// Plus returns the sum.
func (c Count) Plus(d Count) Count { return Count{c.Packets + d.Packets, c.Bytes + d.Bytes} }

// Cause says why a packet was dropped.
type Cause uint8

const (
	CauseColor Cause = iota // its color's action is drop
	CauseECN                // not ECN-capable where the action asks for CE or drop
	CauseQueue              // the queue was full
)

// String returns the cause as tables spell it.
func (c Cause) String() string { return [...]string{"color", "ecn", "queue-full"}[c] }

// ClassStats counts the packets of one class.
type ClassStats struct {
	Colors  [3]Count    // by color after the meter
	Drops   [3][3]Count // by color and Cause
	Marked  [3]Count    // by color
	Queued  [3]Count    // by color
	Untaken Count       // packets without a color: only for what no class took
}

// Dropped is what was dropped of a color, whatever the cause.
func (s *ClassStats) Dropped(c meter.Color) Count { return Sum(s.Drops[c]) }

// Total is all packets of the class.
func (s *ClassStats) Total() Count { return Sum(s.Colors).Plus(s.Untaken) }

// Sum adds up three counts, such as those of the colors.
func Sum(c [3]Count) Count { return c[0].Plus(c[1]).Plus(c[2]) }
