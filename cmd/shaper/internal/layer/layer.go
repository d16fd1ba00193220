// Package layer decodes the headers of a packet for people. Its decoders are registered with
// gopacket, which runs them one after the other. gopacket/layers decodes more, but linking it costs
// every start of the program 4 ms and 8 MB: it fills two tables of 65,536 rows.
package layer

import (
	"fmt"
	"sync"

	"github.com/google/gopacket"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// firstType is the smallest layer type reserved for programs by gopacket.
const firstType = 1000

// Layer types of this package.
const (
	ethernet = gopacket.LayerType(firstType + iota)
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
// to read a header. They return the decoder of the payload.
var protocols = map[gopacket.LayerType]struct {
	name string
	read func(*header) gopacket.Decoder
}{
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

// register registers the layer types with gopacket.
var register = sync.OnceFunc(func() {
	for t, p := range protocols {
		decode := func(data []byte, to gopacket.PacketBuilder) error {
			h := header{data: data}
			next := p.read(&h)
			to.AddLayer(&decoded{t, h}) // with the fields before an error
			if h.err != nil {
				return fmt.Errorf("%s: %w", p.name, h.err)
			}
			return to.NextDecoder(next)
		}
		gopacket.RegisterLayerType(int(t),
			gopacket.LayerTypeMetadata{Name: p.name, Decoder: gopacket.DecodeFunc(decode)})
	}
})

// decoded is a header, as a layer of gopacket.
type decoded struct {
	kind gopacket.LayerType
	header
}

func (d *decoded) LayerType() gopacket.LayerType { return d.kind }
func (d *decoded) LayerContents() []byte         { return d.data[:d.bit/8] }
func (d *decoded) LayerPayload() []byte          { return d.data[d.bit/8:] }
func (d *decoded) String() string                { return d.text.String() }

// links are the decoders of the link types known to dataplane.Parse.
var links = map[dataplane.LinkType]gopacket.Decoder{
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

// Decode returns the layers of a packet. After an error the last one is a gopacket.DecodeFailure.
func Decode(link dataplane.LinkType, data []byte) []gopacket.Layer {
	register()
	first := links[link]
	if first == nil {
		first = gopacket.DecodeFunc(func([]byte, gopacket.PacketBuilder) error {
			return fmt.Errorf("link type %v cannot be read", link)
		})
	}
	return gopacket.NewPacket(data, first, gopacket.NoCopy).Layers()
}
