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
	return len(m.EtherType)+len(m.VLAN)+len(m.PCP)+len(m.Length) > 0
}

// protocols is Proto, or what ports imply in its absence.
func (m *Match) protocols() []Range {
	if len(m.Proto) == 0 && len(m.SPort)+len(m.DPort) > 0 {
		return []Range{{protoTCP, protoTCP}, {protoUDP, protoUDP}}
	}
	return m.Proto
}

// field is a number that a packet is matched by. Addresses are apart.
type field uint8

// Every packet has a mark and a length, of 32 bits; the fields before them are
// small enough for a table, and a packet may lack them.
const (
	proto field = iota
	sport
	dport
	dscp
	vlan
	pcp
	ethertype
	numFields

	mark   = numFields
	length = numFields + 1
)

var matchFields = [...]struct {
	name   string
	max    uint32 // largest value
	ranges func(m *Match) []Range
}{
	proto:     {"proto", 0xff, (*Match).protocols},
	sport:     {"sport", 0xffff, func(m *Match) []Range { return m.SPort }},
	dport:     {"dport", 0xffff, func(m *Match) []Range { return m.DPort }},
	dscp:      {"dscp", 63, func(m *Match) []Range { return m.DSCP }},
	vlan:      {"vlan", 0xfff, func(m *Match) []Range { return m.VLAN }},
	pcp:       {"pcp", 7, func(m *Match) []Range { return m.PCP }},
	ethertype: {"ethertype", 0xffff, func(m *Match) []Range { return m.EtherType }},
	mark:      {"mark", 1<<32 - 1, func(m *Match) []Range { return m.Mark }},
	length:    {"length", 1<<32 - 1, func(m *Match) []Range { return m.Length }},
}

func (f field) max() uint32             { return matchFields[f].max }
func (f field) ranges(m *Match) []Range { return matchFields[f].ranges(m) }

// match collects the faults of a Match.
func (f *faults) match(m *Match) {
	for _, field := range matchFields {
		for _, r := range field.ranges(m) {
			if r.First > r.Last {
				f.add(m, field.name, fmt.Sprintf("range %d-%d is empty: the smaller number goes first", r.First, r.Last))
			} else if r.Last > field.max {
				f.add(m, field.name, fmt.Sprintf("%d is above %d", r.Last, field.max))
			}
		}
	}
	f.prefixes(m, "src", m.Src)
	f.prefixes(m, "dst", m.Dst)
}

func (f *faults) prefixes(m *Match, name string, list []netip.Prefix) {
	for _, p := range list {
		if !p.IsValid() {
			f.add(m, name, "is not a valid prefix")
		}
	}
}

// Covers says whether m takes every packet that other takes. It may miss a
// cover that takes several of m's entries together.
func (m *Match) Covers(other *Match) bool {
	if !m.below() && other.below() && len(other.protocols())+len(other.Src)+len(other.Dst)+len(other.DSCP) == 0 {
		return false // other takes packets without an IP header
	}
	for _, f := range matchFields {
		if !coversRanges(f.ranges(m), f.ranges(other)) {
			return false
		}
	}
	return coversPrefixes(m.Src, other.Src) && coversPrefixes(m.Dst, other.Dst)
}

func coversRanges(a, b []Range) bool {
	if len(a) == 0 {
		return true
	}
	return len(b) != 0 && !slices.ContainsFunc(b, func(r Range) bool {
		return !slices.ContainsFunc(a, func(s Range) bool { return s.First <= r.First && r.Last <= s.Last })
	})
}

func coversPrefixes(a, b []netip.Prefix) bool {
	if len(a) == 0 {
		return true
	}
	return len(b) != 0 && !slices.ContainsFunc(b, func(p netip.Prefix) bool {
		return !slices.ContainsFunc(a, func(q netip.Prefix) bool { return q.Bits() <= p.Bits() && q.Contains(p.Addr()) })
	})
}

// Misses returns the first key that keeps m from taking p, which was parsed; ""
// where m takes it, and "ip" where all that is wrong is that p has no IP header.
// n is the metered length. Classifier is the fast way to the same answer.
func (m *Match) Misses(p *Packet, n int) string {
	switch {
	case !p.within(m.Src, p.Src):
		return "src"
	case !p.within(m.Dst, p.Dst):
		return "dst"
	}
	for f, known := range matchFields {
		list := known.ranges(m)
		if len(list) == 0 {
			continue
		}
		v, ok := p.number(field(f), n)
		if !ok || !slices.ContainsFunc(list, func(r Range) bool { return r.First <= v && v <= r.Last }) {
			return known.name
		}
	}
	if !p.IsIP() && !m.below() {
		return "ip"
	}
	return ""
}

// within says whether a list asks nothing, or holds one of the packet's
// addresses.
func (p *Packet) within(list []netip.Prefix, a Addr) bool {
	return len(list) == 0 || p.IsIP() && slices.ContainsFunc(list, func(r netip.Prefix) bool { return r.Contains(a.netip(p.Kind)) })
}

// number is what a packet of metered length n is matched by, or false where it
// does not have the field.
func (p *Packet) number(f field, n int) (v uint32, ok bool) {
	switch f {
	case proto:
		return uint32(p.Proto), p.IsIP()
	case sport:
		return uint32(p.SrcPort), p.HasPorts
	case dport:
		return uint32(p.DstPort), p.HasPorts
	case dscp:
		v, ok := p.DSCP()
		return uint32(v), ok
	case vlan:
		v, ok := p.vlan()
		return uint32(v), ok
	case pcp:
		v, ok := p.pcp()
		return uint32(v), ok
	case ethertype:
		return uint32(p.EtherType), p.HasEtherType
	case mark:
		return p.Mark, true
	}
	return uint32(n), true
}
