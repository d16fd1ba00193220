package layer

import (
	"fmt"
	"maps"
	"strings"

	"github.com/google/gopacket"
)

// Tables of the protocols in the payload.
var (
	etherTypes = map[int]gopacket.LayerType{
		0x0800: ipv4, 0x0806: arp, 0x6558: ethernet, 0x8100: dot1Q, 0x86dd: ipv6, 0x880b: ppp, 0x8847: mpls,
		0x8848: mpls, 0x8863: pppoe, 0x8864: pppoe, 0x88a8: dot1Q, 0x9100: dot1Q,
	}
	linuxTypes  = withLLC(etherTypes) // of SLL and SLL2: small numbers are Linux's own, not lengths
	pppTypes    = map[int]gopacket.LayerType{0x21: ipv4, 0x57: ipv6, 0x281: mpls, 0x283: mpls}
	ipProtocols = map[int]gopacket.LayerType{
		0: ipv6HopByHop, 1: icmpv4, 2: igmp, 4: ipv4, 6: tcp, 17: udp, 33: dccp, 41: ipv6, 43: ipv6Routing,
		44: ipv6Fragment, 47: gre, 50: ipsecESP, 51: ipsecAH, 58: icmpv6, 60: ipv6Destination, 89: ospf,
		94: ipv4, 97: etherIP, 112: vrrp, 132: sctp, 136: udpLite, 137: mpls,
	}
)

// withLLC adds ETH_P_802_2 of Linux.
func withLLC(types map[int]gopacket.LayerType) map[int]gopacket.LayerType {
	types = maps.Clone(types)
	types[4] = llc
	return types
}

// byVersion decodes IP by its version, and other data as a payload.
var byVersion = gopacket.DecodeFunc(func(data []byte, p gopacket.PacketBuilder) error {
	if len(data) > 0 {
		switch data[0] >> 4 {
		case 4:
			return ipv4.Decode(data, p)
		case 6:
			return ipv6.Decode(data, p)
		}
	}
	return gopacket.LayerTypePayload.Decode(data, p)
})

func readEthernet(h *header) gopacket.Decoder {
	h.mac("DstMAC")
	h.mac("SrcMAC")
	return h.etherType("EthernetType")
}

// etherType reads an EtherType, or the length of an IEEE 802.3 frame.
func (h *header) etherType(name string) gopacket.Decoder {
	if at := h.bit / 8; h.left() >= 2 && h.data[at] < 6 {
		h.limit(h.num("Length", 16))
		return llc
	}
	return h.protocol(name, 16, etherTypes)
}

func readDot1Q(h *header) gopacket.Decoder {
	h.num("Priority", 3)
	h.flag("DropEligible")
	h.num("VLANIdentifier", 12)
	return h.etherType("Type")
}

func readMPLS(h *header) gopacket.Decoder {
	h.num("Label", 20)
	h.num("TrafficClass", 3)
	bottom := h.flag("StackBottom")
	h.num("TTL", 8)
	if bottom {
		return byVersion
	}
	return mpls
}

func readPPPoE(h *header) gopacket.Decoder {
	h.num("Version", 4)
	h.num("Type", 4)
	code := h.enum("Code", 8,
		map[int]string{0: "PPP", 9: "PADI", 7: "PADO", 0x19: "PADR", 0x65: "PADS", 0xa7: "PADT"})
	h.num("SessionId", 16)
	h.limit(h.num("Length", 16))
	if code == 0 {
		return ppp
	}
	return gopacket.LayerTypePayload
}

func readPPP(h *header) gopacket.Decoder {
	if len(h.data) > 1 && h.data[0] == 0xff && h.data[1] == 3 {
		h.hex("AddressControl", 2)
	}
	if h.left() > 0 && h.data[h.bit/8]&1 == 1 { // compressed (RFC 1661 §6.5)
		return h.protocol("PPPType", 8, pppTypes)
	}
	return h.protocol("PPPType", 16, pppTypes)
}

// packetTypes are those of Linux.
var packetTypes = map[int]string{0: "host", 1: "broadcast", 2: "multicast", 3: "otherhost", 4: "outgoing"}

func readSLL(h *header) gopacket.Decoder {
	h.enum("PacketType", 16, packetTypes)
	h.num("AddrType", 16)
	h.address(h.num("AddrLen", 16))
	return h.protocol("EthernetType", 16, linuxTypes)
}

func readSLL2(h *header) gopacket.Decoder {
	next := h.protocol("EthernetType", 16, linuxTypes)
	h.take(16)
	h.num("InterfaceIndex", 32)
	h.num("AddrType", 16)
	h.enum("PacketType", 8, packetTypes)
	h.address(h.num("AddrLen", 8))
	return next
}

// address reads an address of n bytes in a field of 8.
func (h *header) address(n int) {
	b := h.bytes(8)
	h.put("Addr", fmt.Sprintf("%x", b[:min(n, len(b))]))
}

// readLoopback reads an address family in the byte order of the capturing host.
func readLoopback(h *header) gopacket.Decoder {
	family := h.take(32)
	if family > 0xffff {
		family = family>>24 | family>>8&0xff00
	}
	h.put("Family", family)
	return byVersion
}

func readLLC(h *header) gopacket.Decoder {
	dsap, ssap := h.num("DSAP", 8), h.num("SSAP", 8)
	control := 8
	if h.left() > 0 && h.data[2]&3 != 3 { // not an unnumbered frame
		control = 16
	}
	h.num("Control", control)
	if dsap == 0xaa && ssap == 0xaa {
		return snap
	}
	return gopacket.LayerTypePayload
}

func readSNAP(h *header) gopacket.Decoder {
	h.hex("OrganizationalCode", 3)
	return h.protocol("Type", 16, etherTypes)
}

func readARP(h *header) gopacket.Decoder {
	h.enum("AddrType", 16, map[int]string{1: "Ethernet"})
	h.protocol("Protocol", 16, etherTypes)
	hardware, protocol := h.num("HwAddressSize", 8), h.num("ProtAddressSize", 8)
	h.num("Operation", 16)
	for _, who := range []string{"Source", "Dst"} {
		h.hex(who+"HwAddress", hardware)
		if protocol == 4 {
			h.ip(who+"ProtAddress", protocol)
		} else {
			h.hex(who+"ProtAddress", protocol)
		}
	}
	return gopacket.LayerTypePayload
}

func readIPv4(h *header) gopacket.Decoder {
	h.num("Version", 4)
	size := 4 * h.num("IHL", 4)
	h.num("TOS", 8)
	length := h.num("Length", 16)
	h.num("Id", 16)
	var flags []string
	for _, name := range []string{"Evil", "DF", "MF"} {
		if h.take(1) == 1 {
			flags = append(flags, name)
		}
	}
	h.put("Flags", strings.Join(flags, "|"))
	offset := h.num("FragOffset", 13)
	h.num("TTL", 8)
	next := h.protocol("Protocol", 8, ipProtocols)
	h.num("Checksum", 16)
	h.ip("SrcIP", 4)
	h.ip("DstIP", 4)
	h.until("Options", size)
	if length != 0 { // 0: set by segmentation offload
		if length < size {
			h.fail("a total length of %d bytes is below the header's %d", length, size)
		}
		h.limit(length - size)
	}
	if offset > 0 || len(flags) > 0 && flags[len(flags)-1] == "MF" {
		return gopacket.DecodeFragment
	}
	return next
}

func readIPv6(h *header) gopacket.Decoder {
	h.num("Version", 4)
	h.num("TrafficClass", 8)
	h.num("FlowLabel", 20)
	length := h.num("Length", 16)
	next := h.protocol("NextHeader", 8, ipProtocols)
	h.num("HopLimit", 8)
	h.ip("SrcIP", 16)
	h.ip("DstIP", 16)
	if length != 0 { // 0: a jumbogram, or set by segmentation offload
		h.limit(length)
	}
	return next
}

// extension reads the begin of an IPv6 extension header, and returns its length.
func (h *header) extension() (size int, next gopacket.Decoder) {
	next = h.protocol("NextHeader", 8, ipProtocols)
	return 8 + 8*h.num("HeaderLength", 8), next
}

func readOptions(h *header) gopacket.Decoder {
	size, next := h.extension()
	h.until("Options", size)
	return next
}

func readRouting(h *header) gopacket.Decoder {
	size, next := h.extension()
	h.num("RoutingType", 8)
	h.num("SegmentsLeft", 8)
	h.until("Data", size)
	return next
}

func readFragment(h *header) gopacket.Decoder {
	h.protocol("NextHeader", 8, ipProtocols)
	h.num("Reserved1", 8)
	h.num("FragmentOffset", 13)
	h.num("Reserved2", 2)
	h.flag("MoreFragments")
	h.num("Identification", 32)
	return gopacket.DecodeFragment
}

func readAH(h *header) gopacket.Decoder {
	next := h.protocol("NextHeader", 8, ipProtocols)
	size := 8 + 4*h.num("HeaderLength", 8)
	h.num("Reserved", 16)
	h.num("SPI", 32)
	h.num("Seq", 32)
	h.until("AuthenticationData", size)
	return next
}

func readESP(h *header) gopacket.Decoder {
	h.num("SPI", 32)
	h.num("Seq", 32)
	h.put("Encrypted", fmt.Sprintf("%d byte(s)", len(h.bytes(h.left()))))
	return gopacket.LayerTypePayload
}

func readGRE(h *header) gopacket.Decoder {
	checksum, routing, key, seq := h.flag("ChecksumPresent"), h.flag("RoutingPresent"), h.flag("KeyPresent"),
		h.flag("SeqPresent")
	h.flag("StrictSourceRoute")
	h.num("RecursionControl", 3)
	ack := h.flag("AckPresent")
	h.num("Flags", 4)
	h.num("Version", 3)
	next := h.protocol("Protocol", 16, etherTypes)
	if checksum || routing {
		h.num("Checksum", 16)
		h.num("Offset", 16)
	}
	for _, f := range []struct {
		present bool
		name    string
	}{{key, "Key"}, {seq, "Seq"}, {ack, "Ack"}} {
		if f.present {
			h.num(f.name, 32)
		}
	}
	// RFC 1701: a zero entry is the last
	for family, n := 1, 1; routing && h.err == nil && (family != 0 || n != 0); {
		family = h.num("AddressFamily", 16)
		h.num("SREOffset", 8)
		n = h.num("SRELength", 8)
		h.hex("RoutingInformation", n)
	}
	return next
}

func readEtherIP(h *header) gopacket.Decoder {
	h.num("Version", 4)
	h.num("Reserved", 12)
	return ethernet
}
