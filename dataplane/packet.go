package dataplane

import (
	"encoding/binary"
	"net/netip"

	"github.com/a-seed-32e5a53f/shaper/marker"
)

// PacketKind is the kind of packet after the link header.
type PacketKind uint8

const (
	Malformed PacketKind = iota // a header is truncated, or contradicts the previous one
	Other                       // not IP
	IPv4
	IPv6
)

// String returns malformed, other, IPv4 or IPv6.
func (k PacketKind) String() string {
	return enumName(k, "Kind", []string{"malformed", "other", "IPv4", "IPv6"})
}

// Untaken returns the reason of an unclassified packet.
func (k PacketKind) Untaken() Reason {
	return [...]Reason{Malformed: BadPacket, Other: NotIP, IPv4: NoMeter, IPv6: NoMeter}[k]
}

// Addr is an IP address as a 128-bit number. An IPv4 address is in the low 32 bits;
// Packet.Kind tells the address family.
type Addr struct{ Hi, Lo uint64 }

// Packet is one packet. The caller sets the first group of fields, Parse the second.
type Packet struct {
	Data    []byte // captured bytes, from the link header on, without FCS; marks are written here
	WireLen int    // length on the wire, from the link header on, without FCS; Parse raises it to len(Data)
	Time    int64  // arrival time, ns
	// Time minus the packet's timestamp, ns: not 0 after a step of the capture's clock
	Shift int64
	Link  LinkType
	Mark  uint32 // skb mark
	ID    int64  // any number; copied to Verdict.ID
	// Segments is the number of segments of a GSO packet, each with its own link header; 0 means 1.
	// Each is Segment bytes long, but the last may be shorter. WireLen is the sum of their lengths.
	Segments, Segment int

	// Parsed is true if this group belongs to the first one. Parse sets it. Process and
	// ProcessBatch parse every packet; ProcessParsed and ParseOnce trust Parsed. A caller of
	// these that changes Data, WireLen, Link or Segments sets it to false.
	Parsed       bool
	Kind         PacketKind
	Proto        uint8  // upper-layer protocol; valid for IPv4 and IPv6
	Fragment     bool   // a fragment other than the first, without ports
	Fragmented   bool   // any fragment, the first included
	HasPorts     bool   // SrcPort and DstPort are valid
	Tags         uint8  // number of VLAN tags, at most 3
	HasEtherType bool   // EtherType is valid
	EtherType    uint16 // EtherType after the VLAN tags, or the length field of an 802.3 frame
	Tag          int    // offset of the TCI of the outer VLAN tag, bytes; valid if Tags > 0
	MPLS         int    // offset of the top label stack entry, bytes; 0 if there is none
	L3           int    // offset of the network header, bytes: the length of all headers before it
	// offset of the upper-layer header, bytes; 0 in fragments other than the first, in packets without IP,
	// and if a header before it is truncated
	L4       int
	L3Len    int // l3 length: the network packet on the wire, bytes; see Lengths in the package doc
	SrcPort  uint16
	DstPort  uint16
	Src, Dst Addr // valid for IPv4 and IPv6
	// FragmentProto is the protocol named by every fragment of a packet, in the IPv4
	// header or the IPv6 fragment header. It differs from Proto if more extension
	// headers follow the IPv6 fragment header. Valid if Fragmented.
	FragmentProto uint8
	// Customer is the number of the packet's customer, from 1, or 0 for none. The pipeline sets
	// it, because Parse does not know the customers.
	Customer uint32
	// Direction of the packet at the interface, which tells its inner side: the source at ingress, the
	// destination at egress. The pipeline sets it, from its plan.
	Direction Direction
}

// IsIP reports whether the IP header is valid.
func (p *Packet) IsIP() bool { return p.Kind >= IPv4 }

// DSCP returns the DSCP of the outer IP header, or false if the packet is not IP.
func (p *Packet) DSCP() (uint8, bool) {
	switch p.Kind {
	case IPv4:
		return marker.DSCPv4(p.Data[p.L3:]), true
	case IPv6:
		return marker.DSCPv6(p.Data[p.L3:]), true
	}
	return 0, false
}

// ECNCapable reports whether the packet may be marked instead of dropped: its ECN field
// is ECT(0), ECT(1) or CE (RFC 3168 §5).
func (p *Packet) ECNCapable() bool {
	switch p.Kind {
	case IPv4:
		return marker.ECNv4(p.Data[p.L3:]) != 0
	case IPv6:
		return marker.ECNv6(p.Data[p.L3:]) != 0
	}
	return false
}

// SetCE marks the packet Congestion Experienced if it is ECN-capable, and reports
// whether it is.
func (p *Packet) SetCE() bool {
	switch p.Kind {
	case IPv4:
		return marker.SetCEv4(p.Data[p.L3:])
	case IPv6:
		return marker.SetCEv6(p.Data[p.L3:])
	}
	return false
}

// VLAN returns the ID of the outer VLAN tag, or false without a tag.
func (p *Packet) VLAN() (uint16, bool) {
	if p.Tags == 0 {
		return 0, false
	}
	return be16(p.Data[p.Tag:]) & 0x0fff, true
}

// TwoVLANs returns the IDs of the two outermost VLAN tags, or false with fewer.
func (p *Packet) TwoVLANs() (outer, inner uint16, ok bool) {
	if p.Tags < 2 {
		return 0, 0, false
	}
	return be16(p.Data[p.Tag:]) & 0x0fff, be16(p.Data[p.Tag+4:]) & 0x0fff, true
}

// PCP returns the priority of the outer VLAN tag, or false without a tag.
func (p *Packet) PCP() (uint8, bool) {
	if p.Tags == 0 {
		return 0, false
	}
	return marker.PCP(p.Data[p.Tag:]), true
}

// Addresses returns the addresses of an IP packet. For any other packet they are
// meaningless.
func (p *Packet) Addresses() (src, dst netip.Addr) { return p.Src.netip(p.Kind), p.Dst.netip(p.Kind) }

// netip converts the address of a packet of kind k.
func (a Addr) netip(k PacketKind) netip.Addr {
	if k == IPv4 {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(a.Lo))
		return netip.AddrFrom4(b)
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], a.Hi)
	binary.BigEndian.PutUint64(b[8:], a.Lo)
	return netip.AddrFrom16(b)
}
