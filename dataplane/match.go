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

// MatchField is a number that packets are matched by. Addresses are apart.
type MatchField struct {
	Name string                  // in policies
	Max  uint32                  // largest value
	List func(m *Match) *[]Range // its ranges in a match
	// value of a packet of metered length n, or false if the packet lacks the field.
	value func(p *Packet, n int) (v uint32, ok bool)
}

// field is an index of MatchFields.
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

// MatchFields are all fields.
var MatchFields = matchFields[:]

var matchFields = [...]MatchField{
	proto: {
		"proto", 0xff, func(m *Match) *[]Range { return &m.Proto },
		func(p *Packet, _ int) (uint32, bool) { return uint32(p.Proto), p.IsIP() },
	},
	sport: {
		"sport", 0xffff, func(m *Match) *[]Range { return &m.SPort },
		func(p *Packet, _ int) (uint32, bool) { return uint32(p.SrcPort), p.HasPorts },
	},
	dport: {
		"dport", 0xffff, func(m *Match) *[]Range { return &m.DPort },
		func(p *Packet, _ int) (uint32, bool) { return uint32(p.DstPort), p.HasPorts },
	},
	dscp: {
		"dscp", 63, func(m *Match) *[]Range { return &m.DSCP },
		func(p *Packet, _ int) (uint32, bool) { v, ok := p.DSCP(); return uint32(v), ok },
	},
	vlan: {
		"vlan", 0xfff, func(m *Match) *[]Range { return &m.VLAN },
		func(p *Packet, _ int) (uint32, bool) { v, ok := p.VLAN(); return uint32(v), ok },
	},
	pcp: {
		"pcp", 7, func(m *Match) *[]Range { return &m.PCP },
		func(p *Packet, _ int) (uint32, bool) { v, ok := p.PCP(); return uint32(v), ok },
	},
	ethertype: {
		"ethertype", 0xffff, func(m *Match) *[]Range { return &m.EtherType },
		func(p *Packet, _ int) (uint32, bool) { return uint32(p.EtherType), p.HasEtherType },
	},
	mark: {
		"mark", 1<<32 - 1, func(m *Match) *[]Range { return &m.Mark },
		func(p *Packet, _ int) (uint32, bool) { return p.Mark, true },
	},
	length: {
		"length", 1<<32 - 1, func(m *Match) *[]Range { return &m.Length },
		func(_ *Packet, n int) (uint32, bool) { return uint32(n), true },
	},
}

// Value returns the value of a packet that was parsed, of metered length n, or false if
// the packet lacks the field.
func (f *MatchField) Value(p *Packet, n int) (v uint32, ok bool) { return f.value(p, n) }

// ranges are those that a match asks for, also by other fields.
func (f field) ranges(m *Match) []Range {
	if f == proto {
		return m.protocols()
	}
	return *matchFields[f].List(m)
}

// check adds the errors of a match.
func (m *Match) check(errs *errorList) {
	for _, field := range matchFields {
		for _, r := range *field.List(m) {
			if r.First > r.Last {
				errs.add(m, field.Name, fmt.Sprintf("range %d-%d is empty: the smaller number goes first", r.First, r.Last))
			} else if r.Last > field.Max {
				errs.add(m, field.Name, fmt.Sprintf("%d is above %d", r.Last, field.Max))
			}
		}
	}
	m.checkPrefixes(errs, "src", m.Src)
	m.checkPrefixes(errs, "dst", m.Dst)
}

func (m *Match) checkPrefixes(errs *errorList, name string, list []netip.Prefix) {
	for _, p := range list {
		if !p.IsValid() {
			errs.add(m, name, "is not a valid prefix")
		}
	}
}

// Covers says whether m takes every packet that other takes. It may miss a
// cover that takes several of m's entries together.
func (m *Match) Covers(other *Match) bool {
	if !m.below() && other.below() && len(other.protocols())+len(other.Src)+len(other.Dst)+len(other.DSCP) == 0 {
		return false // other takes packets without an IP header
	}
	for f := range matchFields {
		if f := field(f); !coversRanges(f.ranges(m), f.ranges(other)) {
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
	for f := range matchFields {
		list := field(f).ranges(m)
		if len(list) == 0 {
			continue
		}
		v, ok := matchFields[f].Value(p, n)
		if !ok || !slices.ContainsFunc(list, func(r Range) bool { return r.First <= v && v <= r.Last }) {
			return matchFields[f].Name
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
