package dataplane

import (
	"fmt"
	"net/netip"
	"slices"
)

// Range is an inclusive range of values.
type Range struct{ First, Last uint32 }

// Match says which packets a class takes. A list means any of; several lists
// mean all of; an empty list asks nothing. The zero Match takes every IP
// packet.
//
// Ports without Proto match TCP and UDP, and never a fragment that is not the
// first. VLAN and PCP are the outer tag's. Length is the metered length.
// A packet that is not IP, or malformed, is taken only by a Match with
// EtherType, VLAN, PCP or Length.
type Match struct {
	Src, Dst     []netip.Prefix
	Proto        []Range
	SPort, DPort []Range
	DSCP         []Range
	VLAN, PCP    []Range
	Mark         []Range
	EtherType    []Range
	Length       []Range
}

// below names what a Match may ask of a packet without an IP header.
func (m *Match) below() bool {
	return m.EtherType != nil || m.VLAN != nil || m.PCP != nil || m.Length != nil
}

// protocols is Proto, or what ports imply in its absence.
func (m *Match) protocols() []Range {
	if m.Proto == nil && (m.SPort != nil || m.DPort != nil) {
		return []Range{{protoTCP, protoTCP}, {protoUDP, protoUDP}}
	}
	return m.Proto
}

// field is one thing a packet is matched by: a list of ranges in a Match, and
// a value, or none, in a packet of the metered length n.
type field struct {
	name   string
	max    uint32 // largest value
	ranges func(m *Match) []Range
	value  func(p *Packet, n int) (uint32, bool)
}

// fields are all numeric fields; addresses are apart.
var fields = [...]field{
	{"proto", 0xff, (*Match).protocols, func(p *Packet, _ int) (uint32, bool) { return uint32(p.Proto), p.IsIP() }},
	{"sport", 0xffff, func(m *Match) []Range { return m.SPort }, func(p *Packet, _ int) (uint32, bool) { return uint32(p.SrcPort), p.HasPorts }},
	{"dport", 0xffff, func(m *Match) []Range { return m.DPort }, func(p *Packet, _ int) (uint32, bool) { return uint32(p.DstPort), p.HasPorts }},
	{"dscp", 63, func(m *Match) []Range { return m.DSCP }, func(p *Packet, _ int) (uint32, bool) { v, ok := p.DSCP(); return uint32(v), ok }},
	{"vlan", 0xfff, func(m *Match) []Range { return m.VLAN }, func(p *Packet, _ int) (uint32, bool) { v, ok := p.vlan(); return uint32(v), ok }},
	{"pcp", 7, func(m *Match) []Range { return m.PCP }, func(p *Packet, _ int) (uint32, bool) { v, ok := p.pcp(); return uint32(v), ok }},
	{"mark", 1<<32 - 1, func(m *Match) []Range { return m.Mark }, func(p *Packet, _ int) (uint32, bool) { return p.Mark, true }},
	{"ethertype", 0xffff, func(m *Match) []Range { return m.EtherType }, func(p *Packet, _ int) (uint32, bool) { return uint32(p.EtherType), p.HasEtherType }},
	{"length", 1<<32 - 1, func(m *Match) []Range { return m.Length }, func(_ *Packet, n int) (uint32, bool) { return uint32(n), true }},
}

// match collects the faults of a Match.
func (f *faults) match(m *Match) {
	for _, field := range fields {
		for _, r := range field.ranges(m) {
			if r.First > r.Last {
				f.add(m, field.name, fmt.Sprintf("range %d-%d is empty: the smaller number goes first", r.First, r.Last))
			} else if r.Last > field.max {
				f.add(m, field.name, fmt.Sprintf("%d is above %d", r.Last, field.max))
			}
		}
	}
	for name, prefixes := range map[string][]netip.Prefix{"src": m.Src, "dst": m.Dst} {
		for _, p := range prefixes {
			if !p.IsValid() {
				f.add(m, name, "is not a valid prefix")
			}
		}
	}
}

// Covers says whether m takes every packet that other takes. It may miss a
// cover that takes several of m's entries together.
func (m *Match) Covers(other *Match) bool {
	if !m.below() && other.below() && (other.protocols() == nil && other.Src == nil && other.Dst == nil && other.DSCP == nil) {
		return false // other takes packets without an IP header
	}
	for _, f := range fields {
		if !coversRanges(f.ranges(m), f.ranges(other)) {
			return false
		}
	}
	return coversPrefixes(m.Src, other.Src) && coversPrefixes(m.Dst, other.Dst)
}

func coversRanges(a, b []Range) bool {
	if a == nil {
		return true
	}
	return b != nil && !slices.ContainsFunc(b, func(r Range) bool {
		return !slices.ContainsFunc(a, func(s Range) bool { return s.First <= r.First && r.Last <= s.Last })
	})
}

func coversPrefixes(a, b []netip.Prefix) bool {
	if a == nil {
		return true
	}
	return b != nil && !slices.ContainsFunc(b, func(p netip.Prefix) bool {
		return !slices.ContainsFunc(a, func(q netip.Prefix) bool { return q.Bits() <= p.Bits() && q.Contains(p.Addr()) })
	})
}
