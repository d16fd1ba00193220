package dataplane

import (
	"net/netip"
	"slices"
)

// Range is an inclusive range of values.
type Range struct{ First, Last uint64 }

// Match is the condition for a packet to belong to a class. A packet must match every non-empty
// list. It matches a list if it matches any entry, so a packet without the field does not match.
// The zero Match matches every IP packet.
//
// A non-IP or malformed packet matches only if EtherType, VLAN, PCP, InnerVLAN, Length or a list of MAC
// addresses is set.
type Match struct {
	Src, Dst     []netip.Prefix
	Proto        []Range // upper-layer protocol; default TCP and UDP if a port is set
	SPort, DPort []Range // ports; only the first fragment of a packet has them
	DSCP         []Range
	VLAN, PCP    []Range // of the outer VLAN tag
	InnerVLAN    []Range // ID of the second VLAN tag
	TCPFlags     []Range // flags of TCP as a byte, FIN in bit 0
	ICMPType     []Range // see Packet.ICMPType
	MAC          []Range // of the inner side, see Packet.InsideMAC
	SrcMAC       []Range // as numbers of 48 bits
	DstMAC       []Range
	VNI          []Range // of VXLAN and GENEVE, see Packet.VNI
	TEID         []Range // of GTP-U, see Packet.TEID
	Mark         []Range // skb mark
	EtherType    []Range // after VLAN tags
	Length       []Range // metered length, bytes
	// Cgroups are paths of cgroup v2, such as /system.slice/backup.service. A packet matches if its socket
	// is in one of them or below. Only packets sent by sockets of the kernel plane's namespace are known
	// to have one.
	Cgroups  []string
	Customer bool // only packets of a customer of the policy
}

// MatchesNonIP reports whether packets without a valid IP header can match.
func (m *Match) MatchesNonIP() bool {
	return len(m.EtherType)+len(m.VLAN)+len(m.PCP)+len(m.InnerVLAN)+len(m.Length)+
		len(m.MAC)+len(m.SrcMAC)+len(m.DstMAC) > 0
}

// MatchesAllIP reports whether every packet with a valid IP header matches, or with Customer every such
// packet of customers.
func (m *Match) MatchesAllIP() bool {
	limited := func(f MatchField) bool { return len(*f.List(m)) > 0 }
	return len(m.Src)+len(m.Dst)+len(m.Cgroups) == 0 && !slices.ContainsFunc(matchFields[:], limited)
}

// protocols returns Proto with its default.
func (m *Match) protocols() []Range {
	if len(m.Proto) == 0 && len(m.SPort)+len(m.DPort) > 0 {
		return []Range{{protoTCP, protoTCP}, {protoUDP, protoUDP}}
	}
	return m.Proto
}

// MatchField describes a numeric field of Match.
type MatchField struct {
	Name  string                  // as spelled in policy files
	Max   uint64                  // largest value
	List  func(m *Match) *[]Range // returns the ranges of the field
	value func(p *Packet, n int) (v uint64, ok bool)
}

// Indexes of MatchFields.
const (
	proto = iota
	sport
	dport
	dscp
	vlan
	pcp
	ethertype
	mark
	length
	innerVLAN
	tcpFlags
	icmpType
	mac
	srcMAC
	dstMAC
	vni
	teid
)

// MatchFields describes the numeric fields of Match: first those of at most 16 bits, which some packets do
// not have, then mark and length, which every packet has, then rare ones, which some packets do not have.
// Do not change it.
var MatchFields = matchFields[:]

var matchFields = [...]MatchField{
	proto: {
		"proto", 0xff, func(m *Match) *[]Range { return &m.Proto },
		func(p *Packet, _ int) (uint64, bool) { return uint64(p.Proto), p.IsIP() },
	},
	sport: {
		"sport", 0xffff, func(m *Match) *[]Range { return &m.SPort },
		func(p *Packet, _ int) (uint64, bool) { return uint64(p.SrcPort), p.HasPorts },
	},
	dport: {
		"dport", 0xffff, func(m *Match) *[]Range { return &m.DPort },
		func(p *Packet, _ int) (uint64, bool) { return uint64(p.DstPort), p.HasPorts },
	},
	dscp: {
		"dscp", 63, func(m *Match) *[]Range { return &m.DSCP },
		func(p *Packet, _ int) (uint64, bool) { v, ok := p.DSCP(); return uint64(v), ok },
	},
	vlan: {
		"vlan", 0xfff, func(m *Match) *[]Range { return &m.VLAN },
		func(p *Packet, _ int) (uint64, bool) { v, ok := p.VLAN(); return uint64(v), ok },
	},
	pcp: {
		"pcp", 7, func(m *Match) *[]Range { return &m.PCP },
		func(p *Packet, _ int) (uint64, bool) { v, ok := p.PCP(); return uint64(v), ok },
	},
	ethertype: {
		"ethertype", 0xffff, func(m *Match) *[]Range { return &m.EtherType },
		func(p *Packet, _ int) (uint64, bool) { return uint64(p.EtherType), p.HasEtherType },
	},
	mark: {
		"mark", 1<<32 - 1, func(m *Match) *[]Range { return &m.Mark },
		func(p *Packet, _ int) (uint64, bool) { return uint64(p.Mark), true },
	},
	length: {
		"length", 1<<32 - 1, func(m *Match) *[]Range { return &m.Length },
		func(_ *Packet, n int) (uint64, bool) { return uint64(n), true },
	},
	innerVLAN: {
		"inner-vlan", 0xfff, func(m *Match) *[]Range { return &m.InnerVLAN },
		func(p *Packet, _ int) (uint64, bool) { _, v, ok := p.TwoVLANs(); return uint64(v), ok },
	},
	tcpFlags: {
		"tcp-flags", 0xff, func(m *Match) *[]Range { return &m.TCPFlags },
		func(p *Packet, _ int) (uint64, bool) { v, ok := p.TCPFlags(); return uint64(v), ok },
	},
	icmpType: {
		"icmp-type", 0x1ffff, func(m *Match) *[]Range { return &m.ICMPType },
		func(p *Packet, _ int) (uint64, bool) { v, ok := p.ICMPType(); return uint64(v), ok },
	},
	mac: {
		"mac", MaxMAC, func(m *Match) *[]Range { return &m.MAC },
		func(p *Packet, _ int) (uint64, bool) { return p.InsideMAC() },
	},
	srcMAC: {
		"src-mac", MaxMAC, func(m *Match) *[]Range { return &m.SrcMAC },
		func(p *Packet, _ int) (uint64, bool) { return p.SrcMAC() },
	},
	dstMAC: {
		"dst-mac", MaxMAC, func(m *Match) *[]Range { return &m.DstMAC },
		func(p *Packet, _ int) (uint64, bool) { return p.DstMAC() },
	},
	vni: {
		"vni", 1<<24 - 1, func(m *Match) *[]Range { return &m.VNI },
		func(p *Packet, _ int) (uint64, bool) { return p.VNI() },
	},
	teid: {
		"teid", 1<<32 - 1, func(m *Match) *[]Range { return &m.TEID },
		func(p *Packet, _ int) (uint64, bool) { return p.TEID() },
	},
}

// MaxMAC is the largest MAC address as a number.
const MaxMAC = 1<<48 - 1

// NeedsMAC reports whether the match has a list of MAC addresses, which only packets of Ethernet have.
func (m *Match) NeedsMAC() bool { return len(m.MAC)+len(m.SrcMAC)+len(m.DstMAC) > 0 }

// Value returns the field of a parsed packet with metered length n, or false if the packet
// does not have the field.
func (f *MatchField) Value(p *Packet, n int) (v uint64, ok bool) { return f.value(p, n) }

// Ranges returns the ranges of the field in a match, with the default.
func (f *MatchField) Ranges(m *Match) []Range {
	if f == &matchFields[proto] {
		return m.protocols()
	}
	return *f.List(m)
}

// Covers reports whether m matches every packet matched by other. It may return false although it
// does, if an entry of other is covered only by several entries of m together.
func (m *Match) Covers(other *Match) bool {
	if m.Customer && !other.Customer {
		return false
	}
	if !m.MatchesNonIP() && other.MatchesNonIP() &&
		len(other.protocols())+len(other.Src)+len(other.Dst)+len(other.DSCP)+len(other.TCPFlags)+
			len(other.ICMPType)+len(other.VNI)+len(other.TEID)+len(other.Cgroups) == 0 {
		return false // other matches packets without an IP header
	}
	for f := range matchFields {
		if f := &matchFields[f]; !covers(f.Ranges(m), f.Ranges(other), containsRange) {
			return false
		}
	}
	return covers(m.Src, other.Src, containsPrefix) && covers(m.Dst, other.Dst, containsPrefix) &&
		covers(m.Cgroups, other.Cgroups, ContainsCgroup)
}

// covers reports whether list a is empty, and so accepts everything, or each entry of b is in
// an entry of a.
func covers[T any](a, b []T, contains func(outer, inner T) bool) bool {
	return len(a) == 0 || len(b) != 0 && !slices.ContainsFunc(b, func(inner T) bool {
		return !slices.ContainsFunc(a, func(outer T) bool { return contains(outer, inner) })
	})
}

func containsRange(outer, inner Range) bool {
	return outer.First <= inner.First && inner.Last <= outer.Last
}

func containsPrefix(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

// Misses returns the key of the first list not matched by a parsed packet with metered length n. It
// returns "" if the packet matches, and "ip" if only its IP header is missing. To classify packets,
// use a Classifier, which is faster.
func (m *Match) Misses(p *Packet, n int) string {
	switch {
	case m.Customer && p.Customer == 0:
		return "customer"
	case !p.matchesPrefixes(m.Src, p.Src):
		return "src"
	case !p.matchesPrefixes(m.Dst, p.Dst):
		return "dst"
	case len(m.Cgroups) > 0:
		return "cgroup" // no plane in user space knows it
	}
	for f := range matchFields {
		list := matchFields[f].Ranges(m)
		if len(list) == 0 {
			continue
		}
		v, ok := matchFields[f].Value(p, n)
		if !ok || !slices.ContainsFunc(list, func(r Range) bool { return r.First <= v && v <= r.Last }) {
			return matchFields[f].Name
		}
	}
	if !p.IsIP() && !m.MatchesNonIP() {
		return "ip"
	}
	return ""
}

// matchesPrefixes reports whether a list of prefixes is empty or contains an address of
// the packet.
func (p *Packet) matchesPrefixes(list []netip.Prefix, a Addr) bool {
	return len(list) == 0 || p.IsIP() &&
		slices.ContainsFunc(list, func(r netip.Prefix) bool { return r.Contains(a.netip(p.Kind)) })
}

// Overlaps reports whether a packet can match both m and other. It may return true although no
// packet can, if m and other require different protocols of the network layer.
func (m *Match) Overlaps(other *Match) bool {
	for f := range matchFields {
		if f := &matchFields[f]; !overlap(f.Ranges(m), f.Ranges(other), rangesOverlap) {
			return false
		}
	}
	return overlap(m.Src, other.Src, netip.Prefix.Overlaps) &&
		overlap(m.Dst, other.Dst, netip.Prefix.Overlaps) &&
		overlap(m.Cgroups, other.Cgroups, func(a, b string) bool {
			return ContainsCgroup(a, b) || ContainsCgroup(b, a)
		})
}

// overlap reports whether a list is empty, and so accepts everything, or an entry of a overlaps
// an entry of b.
func overlap[T any](a, b []T, overlaps func(a, b T) bool) bool {
	return len(a) == 0 || len(b) == 0 || slices.ContainsFunc(a, func(x T) bool {
		return slices.ContainsFunc(b, func(y T) bool { return overlaps(x, y) })
	})
}

func rangesOverlap(a, b Range) bool { return a.First <= b.Last && b.First <= a.Last }
