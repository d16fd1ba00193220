package dataplane

import "github.com/a-seed-32e5a53f/shaper/meter"

// Done says what happened to a packet. The zero Done is a drop.
type Done uint8

const (
	Pass    Done = 1 << iota // left, alone where nothing else was done
	ECNSet                   // CE was set
	Marked                   // a mark was written, changed or not
	Queued                   // left at Departure
	Waiting                  // in a link's queue: Settle says what becomes of it
)

// Dropped says that the packet does not leave.
func (d Done) Dropped() bool { return d == 0 }

// Reason says what decided a verdict: a meter's clause, or one of those below.
type Reason uint8

const (
	NoMeter Reason = Reason(meter.NumClauses) + iota
	NotIP
	BadPacket
	QueueFull
	WRED
	CoDel
)

// String returns the reason as decisions spell it.
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

// Verdict is what became of one packet. The zero Verdict is a drop.
type Verdict struct {
	Now       int64 // ns: the clock, the largest time seen
	Departure int64 // ns; valid unless dropped or waiting
	ID        int64 // the packet's
	Length    int   // metered bytes
	Packets   int   // that it leaves as
	Class     int32 // index into Policy.Classes, -1 where no class took it
	Done      Done
	Pre       meter.Color // before the first meter; valid where Class >= 0
	Color     meter.Color // after the last meter; valid where Class >= 0
	Reason    Reason
	HasDSCP   bool // there is an IP header
	DSCPIn    uint8
	DSCPOut   uint8 // valid unless dropped
}

// count is what the packet adds to counters.
func (v *Verdict) count() Count { return Count{int64(v.Packets), int64(v.Length)} }
