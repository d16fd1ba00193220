package dataplane

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/a-seed-32e5a53f/shaper/marker"
)

// LinkType is a link-layer header type as captures number it (LINKTYPE_ and
// DLT_ values of the pcap registry).
type LinkType uint16

// Link types that Parse understands. All others are Other packets whose link
// header is unknown.
const (
	LinkNull     LinkType = 0 // BSD loopback, address family in either byte order
	LinkEthernet LinkType = 1
	LinkRawBSD   LinkType = 12 // DLT_RAW
	LinkRawOBSD  LinkType = 14 // DLT_RAW on OpenBSD
	LinkRaw      LinkType = 101
	LinkLoop     LinkType = 108 // OpenBSD loopback, address family in network byte order
	LinkSLL      LinkType = 113 // Linux cooked v1
	LinkIPv4     LinkType = 228
	LinkIPv6     LinkType = 229
	LinkSLL2     LinkType = 276 // Linux cooked v2
)

// Known says whether Parse understands the link type.
func (l LinkType) Known() bool {
	switch l {
	case LinkNull, LinkEthernet, LinkRawBSD, LinkRawOBSD, LinkRaw, LinkLoop, LinkSLL, LinkIPv4, LinkIPv6, LinkSLL2:
		return true
	}
	return false
}

// linkNames are the names that the pcap registry gives to link types, those
// that people meet.
var linkNames = map[LinkType]string{
	LinkNull: "NULL", LinkEthernet: "ETHERNET", LinkRawBSD: "RAW", LinkRawOBSD: "RAW", LinkRaw: "RAW", LinkLoop: "LOOP",
	LinkSLL: "LINUX_SLL", LinkIPv4: "IPV4", LinkIPv6: "IPV6", LinkSLL2: "LINUX_SLL2",
	9: "PPP", 104: "C_HDLC", 105: "IEEE802_11", 119: "IEEE802_11_PRISM", 127: "IEEE802_11_RADIOTAP", 163: "IEEE802_11_AVS",
	189: "USB_LINUX", 195: "IEEE802_15_4_WITHFCS", 201: "BLUETOOTH_HCI_H4_WITH_PHDR", 220: "USB_LINUX_MMAPPED", 239: "NFLOG",
}

// String returns the number and the name.
func (l LinkType) String() string {
	if name := linkNames[l]; name != "" {
		return fmt.Sprintf("%d (%s)", uint16(l), name)
	}
	return strconv.Itoa(int(l))
}

// Kind says what Parse found behind the link header.
type Kind uint8

const (
	Malformed Kind = iota // a header is cut short or contradicts the one before it
	Other                 // not IP
	IPv4
	IPv6
)

// Untaken is the reason of a packet that no class takes.
func (k Kind) Untaken() Reason {
	return [...]Reason{Malformed: BadPacket, Other: NotIP, IPv4: NoMeter, IPv6: NoMeter}[k]
}

// Addr is an address as a 128-bit number; IPv4 is in its low 32 bits. The
// packet's Kind tells the two apart.
type Addr struct{ Hi, Lo uint64 }

// Packet is one packet on its way through the program. Its source fills in
// the first group of fields, Parse the second.
type Packet struct {
	Data    []byte // captured bytes from the link header on, without FCS; marks are written here
	WireLen int    // bytes on the wire from the link header on, without FCS, at least len(Data)
	Time    int64  // ns
	Link    LinkType
	Mark    uint32 // skb mark
	ID      int64  // the source's own; verdicts have it
	// A GSO packet leaves as Segments packets of Segment bytes each from the
	// link header on, the last may be shorter; WireLen is their sum. 0 is one.
	Segments, Segment int

	Kind         Kind
	Proto        uint8  // upper-layer protocol, valid for IPv4 and IPv6
	Fragment     bool   // a fragment that is not the first: no ports
	Fragmented   bool   // any fragment of several, the first too
	HasPorts     bool   // SrcPort and DstPort are valid
	Tags         uint8  // VLAN tags, at most 3
	HasEtherType bool   // EtherType is valid
	EtherType    uint16 // what comes after the VLAN tags; an 802.3 length stands as it is
	Tag          int    // offset of the outer VLAN tag's TCI, valid where Tags > 0
	MPLS         int    // offset of the top label stack entry, 0 without one
	L3           int    // offset of the network header: the length of the link header
	L3Len        int    // bytes of the network packet on the wire (SPEC: l3 length)
	SrcPort      uint16
	DstPort      uint16
	Src, Dst     Addr // valid for IPv4 and IPv6
	// FragmentProto is the protocol that each fragment of a packet names, in the
	// IPv4 header or the IPv6 fragment header. Of an IPv6 packet whose first
	// fragment has more extension headers it is not Proto. Valid where Fragmented.
	FragmentProto uint8
}

// IsIP says whether the packet has an IP header.
func (p *Packet) IsIP() bool { return p.Kind >= IPv4 }

// DSCP returns the codepoint of the outer IP header, or false without one.
func (p *Packet) DSCP() (uint8, bool) {
	switch p.Kind {
	case IPv4:
		return marker.DSCPv4(p.Data[p.L3:]), true
	case IPv6:
		return marker.DSCPv6(p.Data[p.L3:]), true
	}
	return 0, false
}

// ECNCapable says whether the packet's sender understands marks of congestion
// (RFC 3168 §5), or one was set already.
func (p *Packet) ECNCapable() bool {
	switch p.Kind {
	case IPv4:
		return marker.ECNv4(p.Data[p.L3:]) != 0
	case IPv6:
		return marker.ECNv6(p.Data[p.L3:]) != 0
	}
	return false
}

// SetCE sets Congestion Experienced, and says whether the packet is
// ECN-capable.
func (p *Packet) SetCE() bool {
	switch p.Kind {
	case IPv4:
		return marker.SetCEv4(p.Data[p.L3:])
	case IPv6:
		return marker.SetCEv6(p.Data[p.L3:])
	}
	return false
}

// VLAN returns the outer VLAN id, or false without a tag.
func (p *Packet) VLAN() (uint16, bool) {
	if p.Tags == 0 {
		return 0, false
	}
	return be16(p.Data[p.Tag:]) & 0x0fff, true
}

// PCP returns the priority of the outer VLAN tag, or false without a tag.
func (p *Packet) PCP() (uint8, bool) {
	if p.Tags == 0 {
		return 0, false
	}
	return marker.PCP(p.Data[p.Tag:]), true
}

// Addresses returns the addresses of an IP packet.
func (p *Packet) Addresses() (src, dst netip.Addr) { return p.Src.netip(p.Kind), p.Dst.netip(p.Kind) }

// netip is the address as the standard library has it.
func (a Addr) netip(k Kind) netip.Addr {
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
