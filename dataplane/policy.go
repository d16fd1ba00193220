package dataplane

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"

	"github.com/a-seed-32e5a53f/shaper/marker"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// Policy says what happens to packets. It is plain data. Compile makes a Plan of it, New
// a Pipeline. Classes and chains share a meter, and actions a queue, by pointing to the
// same one.
type Policy struct {
	Length  LengthRule
	Classes []Class // a packet belongs to the first class that matches it
	// DropUnclassified drops packets that no class matches; otherwise they pass
	// unmetered.
	DropUnclassified bool

	// Named parts, in order. No class need lead to them; Compile checks those, too.
	Meters    []*Meter
	Queues    []*Queue
	Links     []*Link
	Envelopes []*Envelope
}

// LengthBase is the part of a frame that is metered.
type LengthBase uint8

const (
	L3 LengthBase = iota // the IP packet, RFC 2697 §1
	L2                   // the Ethernet frame without FCS
	L1                   // what it takes on the wire: max(60, frame) + 24
)

// LengthRule says how many bytes a packet counts: its base, plus Overhead
// (-32768 to 32768), but at least MPU (0 to 32768), and at most 2^32-1.
type LengthRule struct {
	Base     LengthBase
	Overhead int
	MPU      int
}

const (
	maxAdded  = 1 << 15   // bytes of Overhead and of MPU
	maxLength = 1<<32 - 1 // bytes that a packet counts, also in the kernel
)

// of is the metered length in bytes, the sum over the packet's segments.
func (r LengthRule) of(p *Packet) int {
	if p.Segments <= 1 {
		return atMost(r.frame(int64(p.WireLen), int64(p.L3Len)))
	}
	full, size, l3 := int64(p.Segments-1), int64(p.Segment), int64(p.L3)
	last := int64(p.WireLen) - full*size
	return atMost(full*r.frame(size, size-l3) + r.frame(last, last-l3))
}

// atMost limits a length to what 32 bits hold, and an int.
func atMost(n int64) int { return int(min(n, min(maxLength, math.MaxInt))) }

func (r *LengthRule) check(errs *errorList) {
	if r.Base > L1 {
		errs.add(r, "base", "is not known")
	}
	if r.Overhead < -maxAdded || r.Overhead > maxAdded {
		errs.add(r, "overhead", fmt.Sprintf("%d is not between %d and %d bytes", r.Overhead, -maxAdded, maxAdded))
	}
	switch {
	case r.MPU < 0:
		errs.add(r, "mpu", "is negative")
	case r.MPU > maxAdded:
		errs.add(r, "mpu", fmt.Sprintf("%d is above %d bytes", r.MPU, maxAdded))
	}
}

// frame is the metered length of one frame in bytes, never negative.
func (r LengthRule) frame(wire, l3 int64) int64 {
	n := l3
	switch r.Base {
	case L2:
		n = wire
	case L1:
		n = max(60, wire) + 24 // FCS 4, preamble and start 8, gap 12
	}
	return max(n+int64(r.Overhead), int64(r.MPU), 0)
}

// Accepts says why packets of a link type have no such length, or nil.
func (r LengthRule) Accepts(link LinkType) error {
	if r.Base != L3 && link != LinkEthernet {
		return fmt.Errorf("the policy's length rule counts Ethernet frames, and link type %v is not Ethernet: use length: l3", link)
	}
	return nil
}

// Class is what happens to the packets that Match takes.
type Class struct {
	Name  string
	Match Match
	Meter *Meter // nil: green
	// What is done by color; nil is to pass green and yellow and drop red.
	Green, Yellow, Red *Action
}

// Params are the parameters of a meter, such as meter.SRTCM.
type Params = meter.Params

// Meter is a meter in a policy. Classes and chains that point to the same one
// share its tokens.
type Meter struct {
	Name   string
	Params Params
	// Aware takes the color before from PreColor, or from the meter before
	// in a chain. Otherwise every packet is green before.
	Aware    bool
	PreColor PreColor
	Initial  Share
	Packets  bool   // count packets instead of bytes
	Then     *Meter // meters the packet next, unless it is red

	// Per makes it a meter for each key, of at most Keys; 0 is DefaultKeys.
	// Initial is full or empty, for a new key. Idle is that of
	// meter.TableConfig.
	Per  Key
	Keys int
	Idle bool

	// Envelope shares bandwidth between the flows that point to it, which are
	// meters of RFC 4115. Those of a larger Rank, 1 to 64, are before others.
	// CIRMax and EIRMax are those of the flow; nil is that of the envelope.
	Envelope       *Envelope
	Rank           int
	CIRMax, EIRMax *meter.Rate

	// Budget makes it one meter with all others that name the same budget.
	Budget *Budget
}

// Limits returns CIRMax and EIRMax of a flow in an envelope, its own or those of
// the envelope. Nil is no limit.
func (m *Meter) Limits() (cirmax, eirmax *meter.Rate) {
	if m.Envelope != nil {
		cirmax, eirmax = m.Envelope.Limits()
	}
	return cmp.Or(m.CIRMax, cirmax), cmp.Or(m.EIRMax, eirmax)
}

// Envelope is a bandwidth profile envelope, MEF 10.3 §12.
type Envelope struct {
	Name string
	// CIRMax and EIRMax are those of each flow that has none of its own; a zero rate
	// is no limit.
	CIRMax, EIRMax meter.Rate
	Packets        bool // they count packets
	// Coupling is the flag CF0 of meter.EnvelopeParams.
	Coupling bool
}

// Limits returns CIRMax and EIRMax. Nil is no limit.
func (e *Envelope) Limits() (cirmax, eirmax *meter.Rate) {
	if e.CIRMax.Bytes != 0 {
		cirmax = &e.CIRMax
	}
	if e.EIRMax.Bytes != 0 {
		eirmax = &e.EIRMax
	}
	return cirmax, eirmax
}

const maxRank = 64

// Share is a part of a whole, Num/Den. The zero Share is all of it.
type Share struct{ Num, Den int64 }

func (s Share) valid() bool { return 0 <= s.Num && s.Num <= s.Den }

// Of is a valid share of n, rounded down.
func (s Share) Of(n int64) int64 {
	if s.Den == 0 {
		return n
	}
	hi, lo := bits.Mul64(uint64(n), uint64(s.Num))
	share, _ := bits.Div64(hi, lo, uint64(s.Den))
	return int64(share)
}

// PreColor is where an aware meter finds the color before. Values that Map
// does not name, and packets without the header, are green. The zero PreColor
// is the DSCP with the default of marker.AF.
type PreColor struct {
	From Field
	Map  map[uint32]meter.Color // nil: marker.AF for DSCP, DEI 1 yellow, else all green
}

// Table returns the colors that are not green, by value, with the default.
func (p PreColor) Table() map[uint32]meter.Color {
	if p.Map != nil {
		return p.Map
	}
	table := map[uint32]meter.Color{}
	switch p.From {
	case DSCP:
		for v, c := range marker.AF() {
			table[uint32(v)] = c
		}
	case DEI:
		table[1] = meter.Yellow
	}
	return table
}

// ECN says what an action does by explicit congestion notification (RFC 3168).
type ECN uint8

const (
	NoECN    ECN = iota
	CE           // CE on ECN-capable packets; others pass
	CEOrDrop     // CE on ECN-capable packets; others are dropped
)

// Action is what happens to a packet of one color: Drop alone, or any of the
// others, always done in the order ECN, Marks, Queue.
type Action struct {
	Drop  bool
	ECN   ECN
	Marks []Mark
	Queue *Queue
}

// check adds the errors of an action.
func (a *Action) check(errs *errorList) {
	if a.Drop && (a.ECN != NoECN || len(a.Marks) > 0 || a.Queue != nil) {
		errs.add(a, "drop", "goes with nothing else")
	}
	if a.ECN > CEOrDrop {
		errs.add(a, "ecn", "is not known")
	}
	seen := map[Field]bool{}
	for _, m := range a.Marks {
		if !m.Field.known() {
			errs.add(a, "mark", fmt.Sprintf("%v is not known", m.Field))
			continue
		}
		if m.Value > fieldMax[m.Field] {
			errs.add(a, m.Field.String(), fmt.Sprintf("%d is above %d", m.Value, fieldMax[m.Field]))
		}
		if seen[m.Field] {
			errs.add(a, m.Field.String(), "is marked twice")
		}
		seen[m.Field] = true
	}
}

// Queue is a paced queue: one with a rate of its own, or one of a link. Actions
// that point to the same one share it.
type Queue struct {
	Name string
	queue.Config
	// A queue of a link has no Rate, but what queue.Share says; 0 is a weight
	// of one.
	Link             *Link
	Priority, Weight int
	// Fair parts a link's queue evenly between the flows of its packets (RFC 8290):
	// those that share a key are one, as are those that have none. CoDel is
	// each flow's own.
	Fair Key
}

// Drain returns the rate at which the queue is emptied at best: its own, or its link's.
func (q *Queue) Drain() meter.Rate {
	if q.Link != nil {
		return q.Link.Rate
	}
	return q.Rate
}

// Resolve returns the queue with its limits resolved: those of a queue of a link in
// bytes instead of times. Otherwise Config alone is set. Errors are those of
// queue.Share.Resolve.
func (q *Queue) Resolve() (queue.Share, error) {
	if q.Link == nil {
		return queue.Share{Config: q.Config}, nil
	}
	return q.Share().Resolve(q.Link.Rate)
}

// Share is the queue as one of its link.
func (q *Queue) Share() queue.Share {
	s := queue.Share{Config: q.Config, Priority: q.Priority, Weight: q.Weight, Fair: q.Fair.By != NoKey}
	if s.Weight == 0 {
		s.Weight = 1
	}
	return s
}

// Link is a rate that queues share. Those that point to the same one do.
type Link struct {
	Name string
	Rate meter.Rate
}

// actions returns the class's actions by color, with the defaults.
func (c *Class) actions() [3]Action {
	actions := [3]Action{meter.Red: {Drop: true}}
	for color, a := range [3]*Action{c.Green, c.Yellow, c.Red} {
		if a != nil {
			actions[color] = *a
		}
	}
	return actions
}

// Action returns what the class does to packets of a color, defaults resolved.
func (c *Class) Action(color meter.Color) Action { return c.actions()[color] }
