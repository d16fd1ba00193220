// Package layer decodes the headers of a packet for people. gopacket/layers decodes more, but linking
// it costs every start of the program 4 ms and 8 MB: it fills two tables of 65,536 rows.
package layer

import (
	"fmt"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Type is the type of a layer.
type Type int

// Types of layers.
const (
	payload Type = iota
	fragment
	failure   // not decoded because of an error
	byVersion // IP by its version, and other data as a payload
	atmCLIP   // IP by its version, and other data as LLC
	ethernet
	dot1Q
	mpls
	pppoe
	ppp
	sll
	sll2
	loopback
	ciscoHDLC
	pppHDLC
	pppd
	frameRelay
	ipoib
	ieee1394
	symantec
	dsa
	dsaEther
	fddi
	fibreChannel
	sunATM
	llc
	snap
	arp
	ipv4
	ipv6
	ipv6HopByHop
	ipv6Routing
	ipv6Fragment
	ipv6Destination
	ipsecAH
	ipsecESP
	gre
	etherIP
	tcp
	udp
	udpLite
	dccp
	sctp
	sctpChunk
	icmpv4
	icmpv6
	icmpv6Error
	icmpv6Echo
	icmpv6Neighbor
	igmp
	ospf
	vrrp
	vxlan
	geneve
	gtpv1U
	dns
	ntp
	dhcpv4
	dhcpv6
	sip
	bfd
	radius
)

// protocols are the names of the layer types, most of them as in gopacket/layers, and the functions
// to read a header. They return the type of the next layer.
var protocols = map[Type]struct {
	name string
	read func(*header) Type
}{
	payload: {"Payload", readRest}, fragment: {"Fragment", readRest}, failure: {"DecodeFailure", nil},
	ethernet: {"Ethernet", readEthernet}, dot1Q: {"Dot1Q", readDot1Q}, mpls: {"MPLS", readMPLS},
	pppoe: {"PPPoE", readPPPoE}, ppp: {"PPP", readPPP}, sll: {"Linux SLL", readSLL},
	sll2: {"Linux SLL2", readSLL2}, loopback: {"Loopback", readLoopback},
	ciscoHDLC: {"CiscoHDLC", readCiscoHDLC}, pppHDLC: {"PPP", readPPPHDLC}, pppd: {"PPP", readPPPD},
	frameRelay: {"FrameRelay", readFrameRelay}, ipoib: {"IPoIB", readIPoIB},
	ieee1394: {"IEEE1394", readIEEE1394}, symantec: {"Symantec", readSymantec}, dsa: {"DSA", switchTag(4)},
	dsaEther: {"DSA", switchTag(8)}, fddi: {"FDDI", beforeLLC(13)},
	fibreChannel: {"FibreChannel", beforeLLC(16)}, sunATM: {"SunATM", beforeLLC(4)}, llc: {"LLC", readLLC},
	snap: {"SNAP", readSNAP}, arp: {"ARP", readARP}, ipv4: {"IPv4", readIPv4}, ipv6: {"IPv6", readIPv6},
	ipv6HopByHop: {"IPv6HopByHop", readOptions}, ipv6Routing: {"IPv6Routing", readRouting},
	ipv6Fragment: {"IPv6Fragment", readFragment}, ipv6Destination: {"IPv6Destination", readOptions},
	ipsecAH: {"IPSecAH", readAH}, ipsecESP: {"IPSecESP", readESP}, gre: {"GRE", readGRE},
	etherIP: {"EtherIP", readEtherIP}, tcp: {"TCP", readTCP}, udp: {"UDP", readUDP},
	udpLite: {"UDPLite", readUDPLite}, dccp: {"DCCP", readDCCP}, sctp: {"SCTP", readSCTP},
	sctpChunk: {"SCTPChunk", readSCTPChunk}, icmpv4: {"ICMPv4", readICMPv4}, icmpv6: {"ICMPv6", readICMPv6},
	icmpv6Error: {"ICMPv6Error", readICMPv6Error}, icmpv6Echo: {"ICMPv6Echo", readICMPv6Echo},
	icmpv6Neighbor: {"ICMPv6Neighbor", readICMPv6Neighbor}, igmp: {"IGMP", readIGMP},
	ospf: {"OSPF", readOSPF}, vrrp: {"VRRP", readVRRP}, vxlan: {"VXLAN", readVXLAN},
	geneve: {"Geneve", readGeneve}, gtpv1U: {"GTPv1U", readGTPv1U}, dns: {"DNS", readDNS},
	ntp: {"NTP", readNTP}, dhcpv4: {"DHCPv4", readDHCPv4}, dhcpv6: {"DHCPv6", readDHCPv6},
	sip: {"SIP", readSIP}, bfd: {"BFD", readBFD},
	radius: {"RADIUS", readRADIUS},
}

// links are the types of the first layer by the link types known to dataplane.Parse.
var links = map[dataplane.LinkType]Type{
	dataplane.LinkEthernet: ethernet, dataplane.LinkSLL: sll, dataplane.LinkSLL2: sll2,
	dataplane.LinkNull: loopback, dataplane.LinkLoop: loopback, dataplane.LinkRaw: byVersion,
	dataplane.LinkRawBSD: byVersion, dataplane.LinkRawOBSD: byVersion, dataplane.LinkIPv4: ipv4,
	dataplane.LinkIPv6: ipv6, dataplane.LinkPPP: ppp, dataplane.LinkPPPHDLC: pppHDLC,
	dataplane.LinkPPPD: pppd, dataplane.LinkPPPoE: pppoe, dataplane.LinkCiscoHDLC: ciscoHDLC,
	dataplane.LinkFrameRelay: frameRelay, dataplane.LinkIPoIB: ipoib, dataplane.LinkIEEE1394: ieee1394,
	dataplane.LinkSymantec: symantec, dataplane.LinkDSA: dsa, dataplane.LinkDSABrcm: dsa,
	dataplane.LinkDSAEther: dsaEther, dataplane.LinkFDDI: fddi, dataplane.LinkIPOverFC: fibreChannel,
	dataplane.LinkSunATM: sunATM, dataplane.LinkATM: llc, dataplane.LinkATMCLIP: atmCLIP,
}

// Layer is a header of a packet, or the data after the headers.
type Layer struct {
	Type     Type
	Contents []byte // the header
	Payload  []byte // the rest of the packet without padding
	Fields   string // names and values
}

// Decode returns the layers of a packet. After an error the last one is a DecodeFailure.
func Decode(link dataplane.LinkType, data []byte) (layers []Layer) {
	failed := func(err error) Layer {
		return Layer{Type: failure, Contents: data, Fields: "Packet decoding error: " + err.Error()}
	}
	next, ok := links[link]
	if !ok {
		return []Layer{failed(fmt.Errorf("link type %v cannot be read", link))}
	}
	for {
		this, h := next.of(data), header{data: data}
		next = protocols[this].read(&h)
		n := h.bit / 8
		data = h.data[n:]
		layers = append(layers, Layer{this, h.data[:n], data, h.text.String()}) // with the fields before an error
		if h.err != nil {
			return append(layers, failed(fmt.Errorf("%v: %w", this, h.err)))
		}
		if len(data) == 0 {
			return layers
		}
	}
}

// of returns the type of data, which the types byVersion and atmCLIP leave to its first byte.
func (t Type) of(data []byte) Type {
	if t != byVersion && t != atmCLIP {
		return t
	}
	if len(data) > 0 {
		switch data[0] >> 4 {
		case 4:
			return ipv4
		case 6:
			return ipv6
		}
	}
	if t == atmCLIP {
		return llc
	}
	return payload
}

// String returns the name of the type.
func (t Type) String() string { return protocols[t].name }

// readRest reads data that is not decoded.
func readRest(h *header) Type {
	n := len(h.bytes(h.left()))
	fmt.Fprintf(&h.text, "%d byte(s)", n)
	return payload
}
