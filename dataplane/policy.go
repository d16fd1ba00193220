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

// Policy defines the treatment of packets, as plain data for compiled.Compile. Classes and chains
// with the same Meter share it, as do actions with the same Queue and queues with the same Link.
type Policy struct {
	Length  LengthRule
	Classes []Class // in order: a packet belongs to the first matching class
	// DropUnclassified drops unmatched packets. By default they pass without metering.
	DropUnclassified bool

	// The named parts, in order. The compiler also checks unused parts. Used parts need not be
	// listed.
	Meters    []*Meter
	Queues    []*Queue
	Links     []*Link
	Envelopes []*Envelope

	Customers *Customers // nil: no customers

	originals map[any]any // of the parts of a copy made by Upward
}

// LengthBase is the part of a frame whose bytes are counted.
type LengthBase uint8

const (
	L3 LengthBase = iota // the IP packet (RFC 2697 §1); see Lengths in the package doc
	L2                   // the Ethernet frame without FCS
	L1                   // the Ethernet frame as it occupies the wire: max(60, L2) + 24
)

// String returns the name as spelled in policy files: l3, l2 or l1.
func (b LengthBase) String() string { return enumName(b, "LengthBase", []string{"l3", "l2", "l1"}) }

// LengthRule is the rule for the metered length of a packet: its base plus Overhead, but
// at least MPU and at most 2^32-1 bytes.
type LengthRule struct {
	Base     LengthBase
	Overhead int // bytes, -32768 to 32768
	MPU      int // minimum packet unit, bytes, 0 to 32768
}

// maxLength bounds the metered length, bytes: the kernel plane counts in 32 bits.
const maxLength = 1<<32 - 1

// Length returns the metered length of a parsed packet, bytes: the sum over its segments.
func (r LengthRule) Length(p *Packet) int {
	if r == (LengthRule{}) && p.Segments <= 1 {
		return capLength(int64(p.L3Len))
	}
	if p.Segments <= 1 {
		return capLength(r.frameLength(int64(p.WireLen), int64(p.L3Len)))
	}
	full, size, l3 := int64(p.Segments-1), int64(p.Segment), int64(p.L3)
	last := int64(p.WireLen) - full*size
	return capLength(full*r.frameLength(size, size-l3) + r.frameLength(last, last-l3))
}

// capLength caps a length at 32 bits, and at the largest int.
func capLength(n int64) int { return int(min(n, min(maxLength, math.MaxInt))) }

// frameLength returns the metered length of one frame, bytes. It is never negative.
func (r LengthRule) frameLength(wire, l3 int64) int64 {
	n := l3
	switch r.Base {
	case L2:
		n = wire
	case L1:
		n = max(60, wire) + 24 // FCS 4, preamble and start delimiter 8, interframe gap 12
	}
	return max(n+int64(r.Overhead), int64(r.MPU), 0)
}

// PacketLength returns the metered length of the largest packet of an Ethernet interface with an
// MTU and one VLAN tag, bytes.
func (r LengthRule) PacketLength(mtu int) int {
	const header = 14 + 4
	return capLength(r.frameLength(int64(mtu)+header, int64(mtu)))
}

// Accepts returns an error if the rule does not apply to packets of a link type: L2 and
// L1 apply to Ethernet only.
func (r LengthRule) Accepts(link LinkType) error {
	if r.Base != L3 && link != LinkEthernet {
		return fmt.Errorf("the policy's length rule counts Ethernet frames, but link type %v is not Ethernet: use length: l3",
			link)
	}
	return nil
}

// Class defines the treatment of matching packets.
type Class struct {
	Name  string
	Match Match
	Meter *Meter // nil: all packets are green
	// Actions by color. The default for nil passes green and yellow, and drops red.
	Green, Yellow, Red *Action
}

// Meter is a meter of a policy. Classes and chains with the same Meter share its tokens.
type Meter struct {
	Name   string
	Params meter.Params // nil: those of the customer's plan, as first meter of a class with Match.Customer
	// Aware makes the meter color-aware. The input color of a packet is then the color
	// from the previous meter of the chain; for the first meter it comes from
	// PreColor. Otherwise the input color is green.
	Aware    bool
	PreColor PreColor
	Initial  Fraction // tokens at the start, as a fraction of each burst
	Packets  bool     // count packets instead of bytes
	Then     *Meter   // next meter of the chain, for green and yellow packets; it must be Aware

	// Per makes a meter for each key. Initial is then for new keys, and must be all or
	// nothing.
	Per  Key
	Keys int  // maximum number of keys; 0 means DefaultKeys
	Idle bool // evict only idle keys, see meter.TableConfig

	// Envelope makes the meter a flow of an envelope. Params must be
	// meter.TRTCM4115.
	Envelope       *Envelope
	Rank           int         // 1 to 64, different for each flow; flows of a larger rank go first
	CIRMax, EIRMax *meter.Rate // limits of the flow, see meter.EnvelopeFlow; nil: those of the envelope

	// Budget shares the tokens with the meters of other policies whose budget is of the same name
	// in the same store. A policy may contain each budget once.
	Budget *Budget
}

// Limits returns CIRMax and EIRMax of the meter, by default those of its envelope. Nil
// means no limit.
func (m *Meter) Limits() (cirmax, eirmax *meter.Rate) {
	if m.Envelope != nil {
		cirmax, eirmax = m.Envelope.Limits()
	}
	return cmp.Or(m.CIRMax, cirmax), cmp.Or(m.EIRMax, eirmax)
}

// Envelope is a bandwidth profile envelope (MEF 10.3 §12): its flows share bandwidth by
// rank.
type Envelope struct {
	Name           string
	CIRMax, EIRMax meter.Rate // limits of each flow without limits of its own; a zero rate means no limit
	Packets        bool       // CIRMax and EIRMax count packets instead of bytes
	Coupling       bool       // coupling flag CF0, see meter.EnvelopeParams
}

// Limits returns CIRMax and EIRMax. Nil means no limit.
func (e *Envelope) Limits() (cirmax, eirmax *meter.Rate) {
	if e.CIRMax.Bytes != 0 {
		cirmax = &e.CIRMax
	}
	if e.EIRMax.Bytes != 0 {
		eirmax = &e.EIRMax
	}
	return cirmax, eirmax
}

// Fraction is the fraction Num/Den of a whole. The zero Fraction is the whole.
type Fraction struct{ Num, Den int64 }

// Of returns the fraction of n, rounded down. The fraction must be between 0 and 1.
func (f Fraction) Of(n int64) int64 {
	if f.Den == 0 {
		return n
	}
	hi, lo := bits.Mul64(uint64(n), uint64(f.Num))
	part, _ := bits.Div64(hi, lo, uint64(f.Den))
	return int64(part)
}

// PreColor is the source of the input colors of a color-aware meter: a field, and the
// color for each of its values. The color is green if Map does not contain the value, or
// if the packet does not have the field. The zero PreColor reads the drop precedence of
// AF classes from the DSCP (marker.AF).
type PreColor struct {
	From Field
	// Map contains the colors by value. The default for nil is marker.AF for DSCP,
	// yellow for DEI 1, and green for everything else.
	Map map[uint32]meter.Color
}

// Table returns the colors by value, with the default if Map is nil. Do not change it.
func (p PreColor) Table() map[uint32]meter.Color {
	if p.Map != nil {
		return p.Map
	}
	return defaultColors[p.From]
}

// defaultColors are the tables of fields without a Map.
var defaultColors = map[Field]map[uint32]meter.Color{
	DSCP: func() map[uint32]meter.Color {
		table := map[uint32]meter.Color{}
		for v, c := range marker.AF() {
			table[uint32(v)] = c
		}
		return table
	}(),
	DEI: {1: meter.Yellow},
}

// ECN is the use of explicit congestion notification (RFC 3168) in an action.
type ECN uint8

const (
	NoECN    ECN = iota
	CE           // mark ECN-capable packets Congestion Experienced; pass others
	CEOrDrop     // mark ECN-capable packets Congestion Experienced; drop others
)

// String returns none, ce or ce-or-drop.
func (e ECN) String() string { return enumName(e, "ECN", []string{"none", "ce", "ce-or-drop"}) }

// Action is the treatment of packets of one color: Drop alone, or any of ECN, Marks and
// Queue, which are applied in that order. The zero Action passes the packet.
type Action struct {
	Drop  bool
	ECN   ECN
	Marks []Mark
	Queue *Queue
}

// Queue is a paced queue. It has a Rate of its own, a Link, or both. Actions with the same Queue
// share it.
type Queue struct {
	Name string
	queue.Config
	// compiled.Plan.WithRates sets these times of CoDel to those of queue.CoDelAt.
	TargetAtRate, IntervalAtRate bool

	// For a queue of a link, see queue.LinkQueue; weight 0 means 1. With a link, Rate is the maximum;
	// unset, the link's applies.
	Link             *Link
	Guarantee        meter.Rate
	Priority, Weight int

	Up Upward // for packets from the customers
	// Fair divides the queue of a link evenly among flows (RFC 8290). Packets with the
	// same key are one flow, as are all packets without a key. CoDel works on each
	// flow separately.
	Fair Key
	// Hosts divides it evenly among hosts first, by a key likewise, and the part of a host among its
	// flows.
	Hosts Key
}

// Drain returns the maximum rate at which packets leave the queue: the lowest of its own and those of
// its link and the links above.
func (q *Queue) Drain() meter.Rate {
	if q.Link == nil {
		return q.Rate
	}
	return queue.Lowest(q.Rate, q.Link.Reach())
}

// Resolve returns the queue as its link sees it, with limits in time converted to
// bytes at its rate. Without a link it returns Config as it is. Errors are those
// of queue.LinkQueue.Resolve.
func (q *Queue) Resolve() (queue.LinkQueue, error) {
	if q.Link == nil {
		return queue.LinkQueue{Config: q.Config}, nil
	}
	return q.LinkQueue().Resolve(q.Link.Reach())
}

// LinkQueue returns the queue as its link sees it, with the default weight.
func (q *Queue) LinkQueue() queue.LinkQueue {
	return queue.LinkQueue{
		Config: q.Config, Guarantee: q.Guarantee, Priority: q.Priority, Weight: cmp.Or(q.Weight, 1),
		Fair: fairness(q.Hosts, q.Fair),
	}
}

// fairness returns what shares a queue evenly.
func fairness(hosts, flows Key) queue.Fair {
	switch {
	case hosts.By != NoKey:
		return queue.FairHosts
	case flows.By != NoKey:
		return queue.FairFlows
	}
	return queue.FairNone
}

// Link is a rate shared by all queues with the same Link, and by the links below it.
type Link struct {
	Name string
	Rate meter.Rate // maximum; a link below another one may leave it unset

	// For a link below another one, see queue.TreeLink; weight 0 means 1.
	Link             *Link
	Guarantee        meter.Rate
	Priority, Weight int

	Up Upward // for packets from the customers
}

// Reach returns the maximum rate of the link: the lowest of its own and those of the links above.
func (l *Link) Reach() (rate meter.Rate) {
	for range queue.MaxLevels {
		if l == nil {
			break
		}
		rate, l = queue.Lowest(rate, l.Rate), l.Link
	}
	return rate
}

// Action returns the action for packets of a color, with the defaults.
func (c *Class) Action(color meter.Color) Action {
	if a := [3]*Action{c.Green, c.Yellow, c.Red}[color]; a != nil {
		return *a
	}
	return Action{Drop: color == meter.Red}
}
