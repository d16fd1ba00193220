package layer

import (
	"fmt"
	"strings"

	"github.com/google/gopacket"
)

// udpPorts are the protocols in UDP, by port. The payload of TCP is a part of a stream.
var udpPorts = map[int]gopacket.LayerType{
	53: dns, 67: dhcpv4, 68: dhcpv4, 123: ntp, 546: dhcpv6, 547: dhcpv6, 1812: radius, 2152: gtpv1U,
	3784: bfd, 4789: vxlan, 5060: sip, 6081: geneve,
}

// ports reads the source port and the destination port.
func (h *header) ports() (src, dst int) { return h.num("SrcPort", 16), h.num("DstPort", 16) }

func readTCP(h *header) gopacket.Decoder {
	h.ports()
	h.num("Seq", 32)
	h.num("Ack", 32)
	size := 4 * h.num("DataOffset", 4)
	h.take(3)
	h.flags("NS", "CWR", "ECE", "URG", "ACK", "PSH", "RST", "SYN", "FIN")
	h.num("Window", 16)
	h.num("Checksum", 16)
	h.num("Urgent", 16)
	if size < 20 {
		h.fail("a length of %d bytes is below the minimum of 20", size)
		return nil
	}
	h.put("Options", tcpOptions(h.bytes(size-20)))
	return gopacket.LayerTypePayload
}

var tcpOptionNames = map[byte]string{
	2: "MSS", 3: "WindowScale", 4: "SACKPermitted", 5: "SACK", 8: "Timestamps",
}

// tcpOptions lists the options except padding.
func tcpOptions(b []byte) string {
	var list []string
	for len(b) > 0 && b[0] != 0 {
		if b[0] == 1 {
			b = b[1:]
			continue
		}
		if len(b) < 2 || b[1] < 2 || int(b[1]) > len(b) {
			list = append(list, fmt.Sprintf("malformed:%x", b))
			break
		}
		name := tcpOptionNames[b[0]]
		switch n := b[1]; {
		case name == "":
			name = fmt.Sprint(b[0])
			fallthrough
		case n > 4:
			list = append(list, fmt.Sprintf("%s:%x", name, b[2:n]))
		case n == 4:
			list = append(list, fmt.Sprintf("%s:%d", name, int(b[2])<<8|int(b[3])))
		case n == 3:
			list = append(list, fmt.Sprintf("%s:%d", name, b[2]))
		default:
			list = append(list, name)
		}
		b = b[b[1]:]
	}
	return "[" + strings.Join(list, " ") + "]"
}

func readUDP(h *header) gopacket.Decoder {
	src, dst := h.ports()
	length := h.num("Length", 16)
	h.num("Checksum", 16)
	if length != 0 { // 0: a jumbogram (RFC 2675 §4)
		h.limit(max(length-8, 0))
	}
	for _, port := range []int{dst, src} {
		if t, ok := udpPorts[port]; ok {
			return t
		}
	}
	return gopacket.LayerTypePayload
}

func readUDPLite(h *header) gopacket.Decoder {
	h.ports()
	h.num("ChecksumCoverage", 16)
	h.num("Checksum", 16)
	return gopacket.LayerTypePayload
}

func readDCCP(h *header) gopacket.Decoder {
	h.ports()
	size := 4 * h.num("DataOffset", 8)
	h.num("CCVal", 4)
	h.num("CsCov", 4)
	h.num("Checksum", 16)
	h.take(3)
	h.num("Type", 4)
	h.flag("ExtendedSequenceNumbers")
	h.until("Options", size)
	return gopacket.LayerTypePayload
}

func readSCTP(h *header) gopacket.Decoder {
	h.ports()
	h.num("VerificationTag", 32)
	h.num("Checksum", 32)
	return sctpChunk
}

func readSCTPChunk(h *header) gopacket.Decoder {
	h.enum("Type", 8, map[int]string{
		0: "Data", 1: "Init", 2: "InitAck", 3: "Sack", 4: "Heartbeat", 5: "HeartbeatAck", 6: "Abort",
		7: "Shutdown", 8: "ShutdownAck", 9: "Error", 10: "CookieEcho", 11: "CookieAck",
		14: "ShutdownComplete",
	})
	h.num("Flags", 8)
	size := h.num("Length", 16)
	h.until("Value", size)
	h.bytes(min(-size&3, h.left()))
	return sctpChunk
}

var icmpv4Types = map[int]string{
	0: "EchoReply", 3: "DestinationUnreachable", 4: "SourceQuench", 5: "Redirect", 8: "EchoRequest",
	9: "RouterAdvertisement", 10: "RouterSolicitation", 11: "TimeExceeded", 12: "ParameterProblem",
	13: "TimestampRequest",
	14: "TimestampReply",
}

func readICMPv4(h *header) gopacket.Decoder {
	kind := h.enum("Type", 8, icmpv4Types)
	h.num("Code", 8)
	h.num("Checksum", 16)
	h.num("Id", 16)
	h.num("Seq", 16)
	switch kind {
	case 3, 4, 5, 11, 12: // the packet in error
		return byVersion
	}
	return gopacket.LayerTypePayload
}

var icmpv6Types = map[int]string{
	1: "DestinationUnreachable", 2: "PacketTooBig", 3: "TimeExceeded", 4: "ParameterProblem",
	128: "EchoRequest", 129: "EchoReply", 130: "MLDQuery", 131: "MLDReport", 132: "MLDDone",
	133: "RouterSolicitation", 134: "RouterAdvertisement", 135: "NeighborSolicitation",
	136: "NeighborAdvertisement", 137: "Redirect", 143: "MLDv2Report",
}

func readICMPv6(h *header) gopacket.Decoder {
	kind := h.enum("Type", 8, icmpv6Types)
	h.num("Code", 8)
	h.num("Checksum", 16)
	switch kind {
	case 1, 2, 3, 4:
		return icmpv6Error
	case 128, 129:
		return icmpv6Echo
	case 135, 136:
		return icmpv6Neighbor
	}
	return gopacket.LayerTypePayload
}

func readICMPv6Error(h *header) gopacket.Decoder {
	h.num("Parameter", 32)
	return byVersion // the packet in error
}

func readICMPv6Echo(h *header) gopacket.Decoder {
	h.num("Identifier", 16)
	h.num("SeqNumber", 16)
	return gopacket.LayerTypePayload
}

func readICMPv6Neighbor(h *header) gopacket.Decoder {
	h.flags("Router", "Solicited", "Override")
	h.take(29)
	h.ip("TargetAddress", 16)
	h.hex("Options", h.left())
	return gopacket.LayerTypePayload
}

func readIGMP(h *header) gopacket.Decoder {
	h.enum("Type", 8, map[int]string{
		0x11: "MembershipQuery", 0x12: "MembershipReportV1", 0x16: "MembershipReportV2", 0x17: "LeaveGroup",
		0x22: "MembershipReportV3",
	})
	h.num("MaxResponseTime", 8)
	h.num("Checksum", 16)
	h.ip("GroupAddress", 4)
	return gopacket.LayerTypePayload
}

func readOSPF(h *header) gopacket.Decoder {
	h.num("Version", 8)
	h.enum("Type", 8, map[int]string{
		1: "Hello", 2: "DatabaseDescription", 3: "LinkStateRequest", 4: "LinkStateUpdate",
		5: "LinkStateAcknowledgment",
	})
	h.num("PacketLength", 16)
	h.ip("RouterID", 4)
	h.ip("AreaID", 4)
	h.num("Checksum", 16)
	h.num("AuType", 16)
	h.put("Authentication", h.take(64))
	return gopacket.LayerTypePayload
}

func readVRRP(h *header) gopacket.Decoder {
	h.num("Version", 4)
	h.num("Type", 4)
	h.num("VirtualRtrID", 8)
	h.num("Priority", 8)
	count := h.num("CountIPAddr", 8)
	h.num("AuthType", 8)
	h.num("AdverInt", 8)
	h.num("Checksum", 16)
	for range count {
		h.ip("IPAddress", 4)
	}
	return gopacket.LayerTypePayload
}
