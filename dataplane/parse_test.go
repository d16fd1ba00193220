package dataplane

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"testing"
)

func TestParse(t *testing.T) {
	v4udp := v4{proto: protoUDP}.packet(udp)            // 28 bytes
	v6udp := v6{next: protoUDP}.packet(udp)             // 48 bytes
	long4 := v4{proto: protoUDP}.packet(padTo(udp, 80)) // 100 bytes
	long6 := v6{next: protoUDP}.packet(padTo(udp, 80))  // 120 bytes
	v4eth, v6eth := concat(ethernet(etherIPv4), long4), concat(ethernet(etherIPv6), long6)
	sll := func(t uint16) []byte { return concat(make([]byte, 14), binary.BigEndian.AppendUint16(nil, t)) }
	sll2 := func(t uint16) []byte { return concat(binary.BigEndian.AppendUint16(nil, t), make([]byte, 18)) }
	for _, test := range []struct {
		name  string
		link  LinkType
		frame []byte
		want  string
	}{
		// Link types.
		{"Ethernet, IPv4", LinkEthernet, v4eth, "ipv4 14+100 0800 proto 17 1000>2000"},
		{"Ethernet, IPv6", LinkEthernet, v6eth, "ipv6 14+120 86dd proto 17 1000>2000"},
		{"Ethernet, ARP", LinkEthernet, padTo(ethernet(0x0806), 60), "other 14+46 0806"},
		{"Ethernet, 802.3 length and LLC", LinkEthernet, padTo(ethernet(43), 60), "other 14+46 002b"},
		{"Ethernet, header alone", LinkEthernet, ethernet(etherIPv4), "malformed 14+0 0800"},
		{"Ethernet, header cut", LinkEthernet, ethernet(etherIPv4)[:13], "malformed 13+0"},
		{"Ethernet, nothing", LinkEthernet, nil, "malformed 0+0"},
		{"cooked, IPv4", LinkSLL, concat(sll(etherIPv4), long4), "ipv4 16+100 0800 proto 17 1000>2000"},
		{"cooked, tag", LinkSLL, concat(sll(etherVLAN), tag(1, 0, 7, etherIPv6), long6), "ipv6 20+120 86dd tags 1@16 proto 17 1000>2000"},
		{"cooked, cut", LinkSLL, sll(etherIPv4)[:15], "malformed 15+0"},
		{"cooked v2, IPv6", LinkSLL2, concat(sll2(etherIPv6), long6), "ipv6 20+120 86dd proto 17 1000>2000"},
		{"cooked v2, ARP", LinkSLL2, concat(sll2(0x0806), make([]byte, 28)), "other 20+28 0806"},
		{"cooked v2, cut", LinkSLL2, sll2(etherIPv4)[:19], "malformed 19+0"},
		{"null, little-endian", LinkNull, concat([]byte{2, 0, 0, 0}, v4udp), "ipv4 4+28 0800 proto 17 1000>2000"},
		{"null, big-endian", LinkNull, concat([]byte{0, 0, 0, 2}, v4udp), "ipv4 4+28 0800 proto 17 1000>2000"},
		{"null, IPv6 of NetBSD", LinkNull, concat([]byte{24, 0, 0, 0}, v6udp), "ipv6 4+48 86dd proto 17 1000>2000"},
		{"null, IPv6 of FreeBSD", LinkNull, concat([]byte{0, 0, 0, 28}, v6udp), "ipv6 4+48 86dd proto 17 1000>2000"},
		{"null, IPv6 of macOS", LinkNull, concat([]byte{30, 0, 0, 0}, v6udp), "ipv6 4+48 86dd proto 17 1000>2000"},
		{"null, another address family", LinkNull, concat([]byte{7, 0, 0, 0}, v4udp), "other 4+28"},
		{"cooked v2, only the header", LinkSLL2, sll2(etherIPv4), "malformed 20+0 0800"},
		{"null, only the header", LinkNull, []byte{2, 0, 0, 0}, "malformed 4+0 0800"},
		{"null, only the header of another family", LinkNull, []byte{7, 0, 0, 0}, "other 4+0"},
		{"null, cut", LinkNull, []byte{2, 0, 0}, "malformed 3+0"},
		{"loop", LinkLoop, concat([]byte{0, 0, 0, 24}, v6udp), "ipv6 4+48 86dd proto 17 1000>2000"},
		{"loop, little-endian", LinkLoop, concat([]byte{2, 0, 0, 0}, v4udp), "other 4+28"},
		{"raw, IPv4", LinkRaw, v4udp, "ipv4 0+28 0800 proto 17 1000>2000"},
		{"raw, IPv6", LinkRawBSD, v6udp, "ipv6 0+48 86dd proto 17 1000>2000"},
		{"raw of OpenBSD", LinkRawOBSD, v4udp, "ipv4 0+28 0800 proto 17 1000>2000"},
		{"raw, version 5", LinkRaw, patched(v4udp, 0, 0x55), "malformed 0+28"},
		{"raw, nothing", LinkRaw, nil, "malformed 0+0"},
		{"IPv4", LinkIPv4, v4udp, "ipv4 0+28 0800 proto 17 1000>2000"},
		{"IPv4, version 6", LinkIPv4, v6udp, "malformed 0+48 0800"},
		{"IPv6", LinkIPv6, v6udp, "ipv6 0+48 86dd proto 17 1000>2000"},
		{"IPv6, version 4", LinkIPv6, long4, "malformed 0+100 86dd"},
		{"PPP with address and control", LinkPPP, concat([]byte{0xff, 3, 0, 0x21}, v4udp), "ipv4 4+28 0800 proto 17 1000>2000"},
		{"PPP", LinkPPP, concat([]byte{0, 0x57}, v6udp), "ipv6 2+48 86dd proto 17 1000>2000"},
		{"PPP, one byte of protocol", LinkPPP, concat([]byte{0xff, 3, 0x21}, v4udp), "ipv4 3+28 0800 proto 17 1000>2000"},
		{"PPP, label", LinkPPP, concat([]byte{0xff, 3, 2, 0x81}, mplsLabel(16, 0, 1), v4udp), "ipv4 8+28 8847 mpls 4 proto 17 1000>2000"},
		{"PPP, LCP", LinkPPP, concat([]byte{0xff, 3, 0xc0, 0x21}, v4udp), "other 4+28"},
		{"PPP, cut", LinkPPP, []byte{0xff, 3, 0}, "malformed 3+0"},
		{"PPP, empty", LinkPPP, nil, "malformed 0+0"},
		{"PPP, an address or a protocol", LinkPPP, []byte{0xff}, "malformed 1+0"},
		{"PPP of pppd, a direction or a protocol", LinkPPPD, []byte{1}, "malformed 1+0"},
		{"PPP in HDLC framing, an address of either", LinkPPPHDLC, []byte{0x0f}, "malformed 1+0"},
		{"PPP in HDLC framing", LinkPPPHDLC, concat([]byte{0xff, 3, 0, 0x21}, v4udp), "ipv4 4+28 0800 proto 17 1000>2000"},
		{"Cisco HDLC in PPP framing", LinkPPPHDLC, concat([]byte{0x0f, 0, 0x86, 0xdd}, v6udp), "ipv6 4+48 86dd proto 17 1000>2000"},
		{"PPP of pppd", LinkPPPD, concat([]byte{1, 3, 0, 0x21}, v4udp), "ipv4 4+28 0800 proto 17 1000>2000"},
		{"PPPoE link", LinkPPPoE, concat(pppoe(pppIPv4), v4udp), "ipv4 8+28 0800 proto 17 1000>2000"},
		{"Cisco HDLC", LinkCiscoHDLC, concat([]byte{0x0f, 0, 8, 0}, v4udp), "ipv4 4+28 0800 proto 17 1000>2000"},
		{"Cisco HDLC, SLARP", LinkCiscoHDLC, concat([]byte{0x8f, 0, 0x80, 0x35}, make([]byte, 18)), "other 4+18 8035"},
		{"Cisco HDLC, cut", LinkCiscoHDLC, []byte{0x0f, 0, 8}, "malformed 3+0"},
		{"frame relay", LinkFrameRelay, concat([]byte{0x18, 0x41, 3, 0xcc}, v4udp), "ipv4 4+28 0800 proto 17 1000>2000"},
		{"frame relay, address of 4 bytes, padding, IPv6", LinkFrameRelay, concat([]byte{0x18, 0x40, 0x10, 0x41, 3, 0, 0x8e}, v6udp), "ipv6 7+48 86dd proto 17 1000>2000"},
		{"frame relay, address of 5 bytes", LinkFrameRelay, concat([]byte{0x18, 0x40, 0x10, 0x40, 0x41, 3, 0xcc}, v4udp), "malformed 4+31"},
		{"frame relay, SNAP", LinkFrameRelay, concat([]byte{0x18, 0x41, 3, 0, 0x80, 0, 0, 0, 8, 0}, v4udp), "ipv4 10+28 0800 proto 17 1000>2000"},
		{"frame relay, bridged", LinkFrameRelay, concat([]byte{0x18, 0x41, 3, 0, 0x80, 0, 0x80, 0xc2, 0, 7}, v4udp), "other 5+33"},
		{"frame relay, PPP", LinkFrameRelay, concat([]byte{0x18, 0x41, 3, 0xcf, 0, 0x21}, v4udp), "ipv4 6+28 0800 proto 17 1000>2000"},
		{"frame relay of Cisco", LinkFrameRelay, concat([]byte{0x18, 0x41, 8, 0}, v4udp), "ipv4 4+28 0800 proto 17 1000>2000"},
		{"frame relay, signaling", LinkFrameRelay, concat([]byte{0, 1, 8, 0}, v4udp), "other 2+30"},
		{"frame relay, Q.933", LinkFrameRelay, concat([]byte{0, 1, 3, 8}, v4udp), "other 4+28"},
		{"frame relay, cut", LinkFrameRelay, []byte{0x18, 0x41, 3}, "malformed 3+0"},
		{"frame relay, cut after padding", LinkFrameRelay, []byte{0x18, 0x41, 3, 0}, "malformed 4+0"},
		{"ATM", LinkATM, concat([]byte{0xaa, 0xaa, 3, 0, 0, 0, 8, 0}, v4udp), "ipv4 8+28 0800 proto 17 1000>2000"},
		{"ATM, bridged", LinkATM, concat([]byte{0xaa, 0xaa, 3, 0, 0x80, 0xc2, 0, 7}, v4udp), "other 0+36"},
		{"classical IP over ATM", LinkATMCLIP, concat([]byte{0xaa, 0xaa, 3, 0, 0, 0, 0x86, 0xdd}, v6udp), "ipv6 8+48 86dd proto 17 1000>2000"},
		{"classical IP over ATM without LLC", LinkATMCLIP, v4udp, "ipv4 0+28 0800 proto 17 1000>2000"},
		{"SunATM", LinkSunATM, concat(make([]byte, 4), []byte{0xaa, 0xaa, 3, 0, 0, 0, 8, 0}, v4udp), "ipv4 12+28 0800 proto 17 1000>2000"},
		{"FDDI", LinkFDDI, concat(make([]byte, 13), []byte{0xaa, 0xaa, 3, 0, 0, 0, 8, 0}, v4udp), "ipv4 21+28 0800 proto 17 1000>2000"},
		{"IP over Fibre Channel", LinkIPOverFC, concat(make([]byte, 16), []byte{0xaa, 0xaa, 3, 0, 0, 0, 8, 0}, v4udp), "ipv4 24+28 0800 proto 17 1000>2000"},
		{"FDDI, cut", LinkFDDI, make([]byte, 20), "malformed 20+0"},
		{"IP over IEEE 1394", LinkIEEE1394, concat(make([]byte, 16), []byte{8, 0}, v4udp), "ipv4 18+28 0800 proto 17 1000>2000"},
		{"IP over InfiniBand", LinkIPoIB, concat(make([]byte, 40), []byte{0x86, 0xdd, 0, 0}, v6udp), "ipv6 44+48 86dd proto 17 1000>2000"},
		{"Symantec firewall", LinkSymantec, concat(make([]byte, 6), []byte{8, 0}, make([]byte, 36), v4udp), "ipv4 44+28 0800 proto 17 1000>2000"},
		{"DSA", LinkDSA, concat(make([]byte, 16), []byte{8, 0}, v4udp), "ipv4 18+28 0800 proto 17 1000>2000"},
		{"DSA of Broadcom, tag", LinkDSABrcm, concat(make([]byte, 16), []byte{0x81, 0}, tag(1, 0, 7, etherIPv4), v4udp), "ipv4 22+28 0800 tags 1@18 proto 17 1000>2000"},
		{"DSA with an EtherType", LinkDSAEther, concat(make([]byte, 20), []byte{8, 0}, v4udp), "ipv4 22+28 0800 proto 17 1000>2000"},
		{"DSA, padded", LinkDSA, padTo(concat(make([]byte, 16), []byte{8, 0}, v4udp), 64), "ipv4 18+28 0800 proto 17 1000>2000"},
		{"DSA of Broadcom, tag, padded", LinkDSABrcm, padTo(concat(make([]byte, 16), []byte{0x81, 0}, tag(1, 0, 7, etherIPv4), v4udp), 68), "ipv4 22+28 0800 tags 1@18 proto 17 1000>2000"},
		{"DSA with an EtherType, padded", LinkDSAEther, padTo(concat(make([]byte, 20), []byte{8, 0}, v4udp), 68), "ipv4 22+28 0800 proto 17 1000>2000"},
		{"DSA, longer than padding", LinkDSA, padTo(concat(make([]byte, 16), []byte{8, 0}, v4udp), 65), "ipv4 18+47 0800 proto 17 1000>2000"},
		{"unknown link type", 127, v4udp, "other 0+28"},

		// VLAN tags.
		{"tag", LinkEthernet, concat(ethernet(etherVLAN), tag(5, 1, 100, etherIPv4), long4), "ipv4 18+100 0800 tags 1@14 proto 17 1000>2000"},
		{"priority tag", LinkEthernet, concat(ethernet(etherVLAN), tag(5, 0, 0, etherIPv4), long4), "ipv4 18+100 0800 tags 1@14 proto 17 1000>2000"},
		{"two tags", LinkEthernet, concat(ethernet(etherQinQ), tag(0, 0, 1, etherVLAN), tag(0, 0, 2, etherIPv6), long6), "ipv6 22+120 86dd tags 2@14 proto 17 1000>2000"},
		{"three tags", LinkEthernet, concat(ethernet(etherQinQOld), tag(0, 0, 1, etherQinQ), tag(0, 0, 2, etherVLAN), tag(0, 0, 3, etherIPv4), long4), "ipv4 26+100 0800 tags 3@14 proto 17 1000>2000"},
		{"four tags", LinkEthernet, concat(ethernet(etherVLAN), tag(0, 0, 1, etherVLAN), tag(0, 0, 2, etherVLAN), tag(0, 0, 3, etherVLAN), tag(0, 0, 4, etherIPv4), long4), "other 26+104 8100 tags 3@14"},
		{"tag and ARP", LinkEthernet, concat(ethernet(etherVLAN), tag(0, 0, 1, 0x0806), make([]byte, 42)), "other 18+42 0806 tags 1@14"},
		{"tag cut", LinkEthernet, concat(ethernet(etherVLAN), tag(0, 0, 1, etherIPv4)[:3]), "malformed 14+3 8100"},
		{"second tag cut", LinkEthernet, concat(ethernet(etherQinQ), tag(0, 0, 1, etherVLAN), tag(0, 0, 2, 0)[:2]), "malformed 18+2 8100 tags 1@14"},

		// MPLS, RFC 3032.
		{"label", LinkEthernet, concat(ethernet(etherMPLS), mplsLabel(16, 5, 1), long4), "ipv4 18+100 8847 mpls 14 proto 17 1000>2000"},
		{"multicast label", LinkEthernet, concat(ethernet(etherMPLSMC), mplsLabel(16, 5, 1), long6), "ipv6 18+120 8848 mpls 14 proto 17 1000>2000"},
		{"three labels after a tag", LinkEthernet, concat(ethernet(etherVLAN), tag(0, 0, 1, etherMPLS), mplsLabel(1, 1, 0), mplsLabel(2, 2, 0), mplsLabel(3, 3, 1), long4), "ipv4 30+100 8847 tags 1@14 mpls 18 proto 17 1000>2000"},
		{"pseudowire", LinkEthernet, concat(ethernet(etherMPLS), mplsLabel(16, 0, 1), make([]byte, 4), v4eth), "other 18+118 8847 mpls 14"},
		{"sixteen labels", LinkEthernet, concat(ethernet(etherMPLS), bytes.Repeat(mplsLabel(1, 0, 0), 15), mplsLabel(1, 0, 1), long4), "ipv4 78+100 8847 mpls 14 proto 17 1000>2000"},
		{"seventeen labels", LinkEthernet, concat(ethernet(etherMPLS), bytes.Repeat(mplsLabel(1, 0, 0), 16), mplsLabel(1, 0, 1), long4), "other 78+104 8847 mpls 14"},
		{"label cut", LinkEthernet, concat(ethernet(etherMPLS), mplsLabel(16, 5, 1)[:3]), "malformed 14+3 8847"},
		{"nothing after the label", LinkEthernet, concat(ethernet(etherMPLS), mplsLabel(16, 5, 1)), "malformed 18+0 8847 mpls 14"},
		{"IPv4 cut after the label", LinkEthernet, concat(ethernet(etherMPLS), mplsLabel(16, 5, 1), long4[:19]), "malformed 18+19 8847 mpls 14"},

		// PPPoE, RFC 2516.
		{"PPPoE, IPv4", LinkEthernet, concat(ethernet(etherPPPoE), pppoe(pppIPv4), long4), "ipv4 22+100 8864 proto 17 1000>2000"},
		{"PPPoE, IPv6 after a tag", LinkEthernet, concat(ethernet(etherVLAN), tag(0, 0, 7, etherPPPoE), pppoe(pppIPv6), long6), "ipv6 26+120 8864 tags 1@14 proto 17 1000>2000"},
		{"PPPoE, LCP", LinkEthernet, concat(ethernet(etherPPPoE), pppoe(0xc021), make([]byte, 60)), "other 22+60 8864"},
		{"PPPoE, only the header", LinkEthernet, concat(ethernet(etherPPPoE), pppoe(pppIPv4)), "malformed 22+0 8864"},
		{"PPPoE, cut", LinkEthernet, concat(ethernet(etherPPPoE), pppoe(pppIPv4)[:6]), "malformed 14+6 8864"},
		{"PPPoE, one byte of protocol, IPv4", LinkEthernet, concat(ethernet(etherPPPoE), compressed(0x21), long4), "ipv4 21+100 8864 proto 17 1000>2000"},
		{"PPPoE, one byte of protocol, IPv6 after a tag", LinkEthernet, concat(ethernet(etherVLAN), tag(0, 0, 7, etherPPPoE), compressed(0x57), long6), "ipv6 25+120 8864 tags 1@14 proto 17 1000>2000"},
		{"PPPoE, one byte of protocol, MPLS", LinkEthernet, concat(ethernet(etherPPPoE), compressed(0xfd), make([]byte, 60)), "other 21+60 8864"},
		{"PPPoE, one byte of protocol, cut after it", LinkEthernet, concat(ethernet(etherPPPoE), compressed(0x21)), "malformed 21+0 8864"},
		{"PPPoE, cut in two bytes of protocol", LinkEthernet, concat(ethernet(etherPPPoE), compressed(0)), "malformed 14+7 8864"},
		{"PPPoE discovery", LinkEthernet, concat(ethernet(0x8863), make([]byte, 60)), "other 14+60 8863"},

		// IPv4, RFC 791.
		{"4 bytes of options", LinkEthernet, concat(ethernet(etherIPv4), v4{proto: protoUDP, options: 4}.packet(padTo(udp, 80))), "ipv4 14+104 0800 proto 17 1000>2000"},
		{"40 bytes of options", LinkEthernet, concat(ethernet(etherIPv4), v4{proto: protoUDP, options: 40}.packet(padTo(udp, 80))), "ipv4 14+140 0800 proto 17 1000>2000"},
		{"options cut", LinkEthernet, concat(ethernet(etherIPv4), v4{options: 40}.packet(nil)[:59]), "malformed 14+59 0800"},
		{"IHL 4", LinkEthernet, patched(v4eth, 14, 0x44), "malformed 14+100 0800"},
		{"version 6 in IPv4", LinkEthernet, patched(v4eth, 14, 0x65), "malformed 14+100 0800"},
		{"first fragment", LinkEthernet, concat(ethernet(etherIPv4), v4{proto: protoUDP, frag: 0x2000}.packet(padTo(udp, 80))), "ipv4 14+100 0800 proto 17 first 1000>2000"},
		{"second fragment", LinkEthernet, concat(ethernet(etherIPv4), v4{proto: protoUDP, frag: 0x2001}.packet(padTo(udp, 80))), "ipv4 14+100 0800 proto 17 fragment"},
		{"last fragment", LinkEthernet, concat(ethernet(etherIPv4), v4{proto: protoUDP, frag: 0x1fff}.packet(padTo(udp, 80))), "ipv4 14+100 0800 proto 17 fragment"},
		{"don't fragment, reserved bit", LinkEthernet, concat(ethernet(etherIPv4), v4{proto: protoUDP, frag: 0xc000}.packet(padTo(udp, 80))), "ipv4 14+100 0800 proto 17 1000>2000"},
		{"total length of the header", LinkRaw, patched(v4{proto: protoUDP}.packet(udp), 2, 0, 20), "ipv4 0+28 0800 proto 17 1000>2000"},
		{"total length below the header", LinkRaw, patched(v4{proto: protoUDP}.packet(udp), 2, 0, 19), "malformed 0+28 0800"},
		{"total length 1", LinkRaw, patched(v4{proto: protoUDP}.packet(udp), 2, 0, 1), "malformed 0+28 0800"},
		{"total length below the header with options", LinkRaw, patched(v4{proto: protoUDP, options: 20}.packet(udp), 2, 0, 39), "malformed 0+48 0800"},
		{"total length 0, segmentation offload", LinkRaw, patched(v4{proto: protoUDP}.packet(udp), 2, 0, 0), "ipv4 0+28 0800 proto 17 1000>2000"},
		{"IPv4 in IPv4", LinkRaw, v4{proto: 4}.packet(v4{proto: protoUDP, src: dst4, dst: src4}.packet(udp)), "ipv4 0+48 0800 proto 4"},
		{"addresses", LinkRaw, v4{proto: 1, src: dst4, dst: netip.MustParseAddr("255.255.255.255")}.packet(nil), "ipv4 0+20 0800 proto 1 198.51.100.2>255.255.255.255"},

		// Ports.
		{"TCP", LinkRaw, v4{proto: protoTCP}.packet(concat(ports(65535, 1), make([]byte, 16))), "ipv4 0+40 0800 proto 6 65535>1"},
		{"SCTP", LinkRaw, v6{next: protoSCTP}.packet(ports(7, 9)), "ipv6 0+44 86dd proto 132 7>9"},
		{"DCCP", LinkRaw, v4{proto: protoDCCP}.packet(ports(7, 9)), "ipv4 0+24 0800 proto 33 7>9"},
		{"UDP-Lite", LinkRaw, v4{proto: protoUDPLite}.packet(ports(7, 9)), "ipv4 0+24 0800 proto 136 7>9"},
		{"ICMP has no ports", LinkRaw, v4{proto: 1}.packet(udp), "ipv4 0+28 0800 proto 1"},
		{"ports cut", LinkRaw, v4{proto: protoUDP}.packet(ports(7, 9)[:3]), "ipv4 0+23 0800 proto 17"},
		{"padding instead of ports", LinkEthernet, padTo(concat(ethernet(etherIPv4), v4{proto: protoUDP}.packet(nil)), 60), "ipv4 14+20 0800 proto 17"},
		{"padding instead of ports in IPv6", LinkEthernet, padTo(concat(ethernet(etherIPv6), v6{next: protoUDP}.packet(nil)), 60), "ipv6 14+40 86dd proto 17"},

		// IPv6, RFC 8200.
		{"hop-by-hop, routing, destination", LinkRaw, v6{next: 0}.packet(extension(43, 8), extension(60, 24), extension(protoUDP, 256), udp), "ipv6 0+336 86dd proto 17 1000>2000"},
		{"mobility, HIP, shim6", LinkRaw, v6{next: 135}.packet(extension(139, 8), extension(140, 16), extension(protoTCP, 8), udp), "ipv6 0+80 86dd proto 6 1000>2000"},
		{"authentication, in units of 4 bytes", LinkRaw, v6{next: 51}.packet([]byte{protoUDP, 4}, make([]byte, 22), udp), "ipv6 0+72 86dd proto 17 1000>2000"},
		{"no next header", LinkRaw, v6{next: 59}.packet(udp), "ipv6 0+48 86dd proto 59"},
		{"ESP", LinkRaw, v6{next: 50}.packet(udp), "ipv6 0+48 86dd proto 50"},
		{"first fragment", LinkRaw, v6{next: 44}.packet(fragment(protoUDP, 0), udp), "ipv6 0+56 86dd proto 17 first 1000>2000"},
		{"first fragment with another extension", LinkRaw, v6{next: 44}.packet(fragment(60, 0), extension(protoUDP, 8), udp), "ipv6 0+64 86dd proto 17 first of 60 1000>2000"},
		{"only fragment, RFC 6946", LinkRaw, v6{next: 44}.packet(patched(fragment(protoUDP, 0), 3, 6), udp), "ipv6 0+56 86dd proto 17 1000>2000"},
		{"fragment of a fragment", LinkRaw, v6{next: 44}.packet(fragment(44, 0), fragment(protoUDP, 1), udp), "ipv6 0+64 86dd proto 17 fragment of 44"},
		{"second fragment", LinkRaw, v6{next: 44}.packet(fragment(protoUDP, 1), udp), "ipv6 0+56 86dd proto 17 fragment"},
		{"last fragment", LinkRaw, v6{next: 44}.packet(fragment(60, 0x1fff), udp), "ipv6 0+56 86dd proto 60 fragment"},
		{"fragment after hop-by-hop", LinkRaw, v6{next: 0}.packet(extension(44, 8), fragment(protoTCP, 9), udp), "ipv6 0+64 86dd proto 6 fragment"},
		{"extension at the end", LinkRaw, v6{next: 0}.packet(extension(protoUDP, 8)), "ipv6 0+48 86dd proto 17"},
		{"authentication at the end", LinkRaw, v6{next: 51}.packet([]byte{protoUDP, 0, 0, 0, 0, 0, 0, 0}), "ipv6 0+48 86dd proto 17"},
		{"authentication cut", LinkRaw, v6{next: 51}.packet([]byte{protoUDP, 0, 0, 0, 0, 0, 0}), "ipv6 0+47 86dd proto 51"},
		{"fragment header at the end", LinkRaw, v6{next: 44}.packet(fragment(protoUDP, 1)), "ipv6 0+48 86dd proto 17 fragment"},
		{"fragment header cut", LinkRaw, v6{next: 44}.packet(fragment(protoUDP, 1)[:7]), "ipv6 0+47 86dd proto 44"},
		{"extension cut", LinkRaw, v6{next: 0}.packet(extension(protoUDP, 8)[:7]), "ipv6 0+47 86dd proto 0"},
		{"extension longer than the packet", LinkRaw, v6{next: 0}.packet([]byte{protoUDP, 9, 0, 0, 0, 0, 0, 0}, udp), "ipv6 0+56 86dd proto 17"},
		{"sixteen extensions", LinkRaw, v6{next: 60}.packet(bytes.Repeat(extension(60, 8), 15), extension(protoUDP, 8), udp), "ipv6 0+176 86dd proto 17"},
		{"fifteen extensions", LinkRaw, v6{next: 60}.packet(bytes.Repeat(extension(60, 8), 14), extension(protoUDP, 8), udp), "ipv6 0+168 86dd proto 17 1000>2000"},
		{"version 4 in IPv6", LinkEthernet, patched(v6eth, 14, 0x45), "malformed 14+120 86dd"},
		{"header cut", LinkEthernet, v6eth[:14+39], "malformed 14+39 86dd"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := Packet{Data: test.frame, Link: test.link}
			Parse(&p)
			if got := describe(&p); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if known := test.link != 127; test.link.Known() != known {
				t.Errorf("Known is %v, want %v", !known, known)
			}
		})
	}
}

// TestLinkTypeString checks the names of link types.
func TestLinkTypeString(t *testing.T) {
	for link, want := range map[LinkType]string{LinkEthernet: "1 (ETHERNET)", LinkSLL2: "276 (LINUX_SLL2)", 127: "127 (IEEE802_11_RADIOTAP)", 126: "126 (AURORA)", 400: "400"} {
		if got := link.String(); got != want {
			t.Errorf("link type %d is %q, want %q", uint16(link), got, want)
		}
	}
}

// TestL3Length checks that padding is not counted: only if Ethernet may have padded the
// frame, and only if the IP header has a possible length.
func TestL3Length(t *testing.T) {
	claim := func(total int) []byte { // an IPv4 packet without payload that claims a total length
		return patched(v4{proto: 1}.packet(nil), 2, byte(total>>8), byte(total))
	}
	claim6 := func(payload int) []byte {
		return patched(v6{next: 59}.packet(), 4, byte(payload>>8), byte(payload))
	}
	tags := func(n int, t uint16) []byte {
		if n == 0 {
			return ethernet(t)
		}
		b := ethernet(etherVLAN)
		for range n - 1 {
			b = concat(b, tag(0, 0, 1, etherVLAN))
		}
		return concat(b, tag(0, 0, 1, t))
	}
	opt := v4{options: 20}.packet(nil) // 40 bytes
	for _, test := range []struct {
		name string
		link LinkType
		head []byte
		wire int
		want int
	}{
		{"60 bytes, padded", LinkEthernet, concat(ethernet(etherIPv4), claim(29)), 60, 29},
		{"61 bytes, not padded", LinkEthernet, concat(ethernet(etherIPv4), claim(29)), 61, 47},
		{"below 60 bytes, before padding", LinkEthernet, concat(ethernet(etherIPv4), claim(29)), 43, 29},
		{"no padding", LinkEthernet, concat(ethernet(etherIPv4), claim(46)), 60, 46},
		{"only a header", LinkEthernet, concat(ethernet(etherIPv4), claim(20)), 60, 20},
		{"total length below the header", LinkEthernet, concat(ethernet(etherIPv4), claim(19)), 60, 46},
		{"total length below the header with options", LinkEthernet, concat(ethernet(etherIPv4), patched(opt, 2, 0, 39)), 60, 46},
		{"total length of the header with options", LinkEthernet, concat(ethernet(etherIPv4), opt), 60, 40},
		{"total length 0", LinkEthernet, concat(ethernet(etherIPv4), claim(0)), 60, 46},
		{"total length 0, segmentation offload", LinkEthernet, concat(ethernet(etherIPv4), claim(0)), 131086, 131072},
		{"total length above the frame", LinkEthernet, concat(ethernet(etherIPv4), claim(47)), 60, 46},
		{"total length too small", LinkEthernet, concat(ethernet(etherIPv4), claim(20)), 1014, 1000},
		{"64 bytes with a tag", LinkEthernet, concat(tags(1, etherIPv4), claim(29)), 64, 29},
		{"65 bytes with a tag", LinkEthernet, concat(tags(1, etherIPv4), claim(29)), 65, 47},
		{"68 bytes with two tags", LinkEthernet, concat(tags(2, etherIPv4), claim(29)), 68, 29},
		{"69 bytes with two tags", LinkEthernet, concat(tags(2, etherIPv4), claim(29)), 69, 47},
		{"72 bytes with three tags", LinkEthernet, concat(tags(3, etherIPv4), claim(29)), 72, 29},
		{"73 bytes with three tags", LinkEthernet, concat(tags(3, etherIPv4), claim(29)), 73, 47},
		{"60 bytes with a label", LinkEthernet, concat(ethernet(etherMPLS), mplsLabel(1, 0, 1), claim(29)), 60, 29},
		{"61 bytes with a label", LinkEthernet, concat(ethernet(etherMPLS), mplsLabel(1, 0, 1), claim(29)), 61, 43},
		{"60 bytes with PPPoE", LinkEthernet, concat(ethernet(etherPPPoE), pppoe(pppIPv4), claim(29)), 60, 29},
		{"IPv6, 60", LinkEthernet, concat(ethernet(etherIPv6), claim6(0)), 60, 40},
		{"IPv6, 61", LinkEthernet, concat(ethernet(etherIPv6), claim6(0)), 61, 47},
		{"IPv6, shorter payload", LinkEthernet, concat(ethernet(etherIPv6), claim6(3)), 60, 43},
		{"IPv6, payload of the frame", LinkEthernet, concat(ethernet(etherIPv6), claim6(6)), 60, 46},
		{"IPv6, payload above the frame", LinkEthernet, concat(ethernet(etherIPv6), claim6(7)), 60, 46},
		{"IPv6, BIG TCP", LinkEthernet, concat(ethernet(etherIPv6), claim6(0)), 70014, 70000},
		{"ARP", LinkEthernet, ethernet(0x0806), 60, 46},
		{"cooked, 60", LinkSLL, concat(make([]byte, 14), []byte{8, 0}, claim(20)), 60, 20},
		{"cooked, 61", LinkSLL, concat(make([]byte, 14), []byte{8, 0}, claim(20)), 61, 45},
		{"cooked v2, 60", LinkSLL2, concat([]byte{8, 0}, make([]byte, 18), claim(20)), 60, 20},
		{"cooked v2, 61", LinkSLL2, concat([]byte{8, 0}, make([]byte, 18), claim(20)), 61, 41},
		{"raw, not padded", LinkRaw, claim(20), 46, 46},
		{"loopback, not padded", LinkNull, concat([]byte{2, 0, 0, 0}, claim(20)), 46, 42},
	} {
		t.Run(test.name, func(t *testing.T) {
			// The capture may contain the whole frame or only its headers.
			for _, captured := range []int{len(test.head), min(test.wire, 2000)} {
				p := Packet{Data: padTo(test.head, captured), WireLen: test.wire, Link: test.link}
				if Parse(&p); p.L3Len != test.want {
					t.Errorf("%d bytes captured: l3 length %d, want %d", captured, p.L3Len, test.want)
				}
			}
		})
	}
}

// TestParseCut truncates frames with many headers after every byte. Parse must not read the
// memory after the end, and HeadersCut must tell whether it found less than in the whole frame.
func TestParseCut(t *testing.T) {
	for _, test := range []struct {
		name  string
		link  LinkType
		frame []byte
		l3    int // offset of the IP header
		ip    int // offset of the end of its fixed part
	}{
		{
			"tags, labels, IPv4 with options", LinkEthernet,
			concat(ethernet(etherQinQ), tag(1, 0, 1, etherVLAN), tag(2, 1, 2, etherMPLS), mplsLabel(1, 1, 0), mplsLabel(2, 2, 1),
				v4{proto: protoUDP, options: 12}.packet(padTo(udp, 60))),
			30, 50,
		},
		{
			"tag, PPPoE, IPv6 with extensions", LinkEthernet,
			concat(ethernet(etherVLAN), tag(1, 0, 1, etherPPPoE), pppoe(pppIPv6),
				v6{next: 0}.packet(extension(51, 16), []byte{44, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, fragment(protoTCP, 0), padTo(udp, 20))),
			26, 66,
		},
		{"cooked v2", LinkSLL2, concat([]byte{8, 0}, make([]byte, 18), v4{proto: protoTCP}.packet(padTo(udp, 60))), 20, 40},
		{"null", LinkNull, concat([]byte{30, 0, 0, 0}, v6{next: protoSCTP}.packet(padTo(udp, 60))), 4, 44},
		{"raw", LinkRaw, v4{proto: protoTCP, options: 4}.packet(padTo(udp, 60)), 0, 20},
		{"PPPoE, one byte of protocol", LinkEthernet, concat(ethernet(etherPPPoE), compressed(0x21), v4{proto: protoTCP}.packet(padTo(udp, 60))), 21, 41},
	} {
		t.Run(test.name, func(t *testing.T) {
			all := Packet{Data: test.frame, Link: test.link}
			Parse(&all)
			for n := range len(test.frame) + 1 {
				p := Packet{Data: slices.Clip(test.frame[:n]), WireLen: len(test.frame), Link: test.link}
				Parse(&p)
				got := describe(&p)
				q := Packet{Data: padTo(test.frame[:n], 200)[:n], WireLen: len(test.frame), Link: test.link}
				if Parse(&q); describe(&q) != got {
					t.Errorf("%d bytes: got %s, but %s with other memory behind the capture", n, got, describe(&q))
				}
				unparsed := Packet{Data: p.Data, WireLen: p.WireLen, Link: p.Link}
				if want := got != describe(&all); p.HeadersCut() != want || unparsed.HeadersCut() != want {
					t.Errorf("%d bytes: got %s, %s of all bytes: want headers cut %v", n, got, describe(&all), want)
				}
				if whole := n >= test.ip; p.IsIP() != whole || !whole && p.Kind != Malformed {
					t.Errorf("%d bytes: got %s, want IP from %d bytes on, malformed below", n, got, test.ip)
				}
				if n >= test.l3+1 && (p.L3 != test.l3 || p.L3Len != len(test.frame)-test.l3) {
					t.Errorf("%d bytes: got %s, want the l3 length on the wire", n, got)
				}
			}
		})
	}
}

// TestOptionsCut truncates a packet after every byte of its IPv4 options. The options must fit
// the length on the wire.
func TestOptionsCut(t *testing.T) {
	packet := v4{tos: 0xb8, proto: protoUDP, options: 40}.packet(padTo(udp, 100))
	for captured := range 65 {
		for wire, want := range map[int]string{
			160: "ipv4 0+160 0800 proto 17", 64: "ipv4 0+64 0800 proto 17", 60: "ipv4 0+60 0800 proto 17", 59: "malformed 0+59 0800",
		} {
			switch {
			case captured > wire:
				continue
			case captured < 20:
				want = fmt.Sprintf("malformed 0+%d 0800", wire)
			case captured >= 64 && wire >= 64:
				want += " 1000>2000"
			}
			p := Packet{Data: slices.Clip(packet[:captured]), WireLen: wire, Link: LinkIPv4}
			if Parse(&p); describe(&p) != want {
				t.Errorf("%d of %d bytes captured: got %s, want %s", captured, wire, describe(&p), want)
			}
			if dscp, ok := p.DSCP(); p.IsIP() && (!ok || dscp != 46) {
				t.Errorf("%d of %d bytes captured: DSCP %d (valid %v), want 46", captured, wire, dscp, ok)
			}
		}
	}
}

// TestParseResets checks that Parse overwrites the results of an earlier Parse.
func TestParseResets(t *testing.T) {
	p := Packet{Data: concat(ethernet(etherVLAN), tag(1, 1, 1, etherMPLS), mplsLabel(1, 1, 1), v4{proto: protoUDP}.packet(padTo(udp, 80)))}
	p.Link = LinkEthernet
	Parse(&p)
	p.Data, p.WireLen = v4{proto: 1, frag: 1}.packet(nil), 0
	p.Link = LinkRaw
	Parse(&p)
	if got, want := describe(&p), "ipv4 0+20 0800 proto 1 fragment"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	p.Data, p.WireLen, p.Link = nil, 0, 127
	Parse(&p)
	if got, want := describe(&p), "other 0+0"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestCutLink cuts frames of each link type whose header has several forms, after every byte. Unless the
// headers may be cut, Parse must find the same as in the whole frame. The frames are all sequences of
// the bytes that select a form.
func TestCutLink(t *testing.T) {
	signs := []byte{0x00, 0x01, 0x02, 0x03, 0x08, 0x0f, 0x21, 0x45, 0x80, 0x8e, 0xcc, 0xcf, 0xff}
	const length, wire = 5, 200
	headers := func(frame []byte, link LinkType) (p Packet) {
		p = Packet{Data: frame, WireLen: wire, Link: link}
		Parse(&p)
		return p
	}
	for link, before := range map[LinkType]int{LinkPPP: 0, LinkPPPHDLC: 0, LinkPPPD: 0, LinkPPPoE: 6, LinkFrameRelay: 0, LinkATMCLIP: 0} {
		frame := make([]byte, before+length)
		for n := range int(math.Pow(float64(len(signs)), length)) {
			for i := before; i < len(frame); i++ {
				frame[i] = signs[n%len(signs)]
				n /= len(signs)
			}
			whole := headers(frame, link)
			for size := range frame {
				cut := headers(frame[:size], link)
				if cut.HeadersCut() {
					continue
				}
				if cut.Data = frame; !reflect.DeepEqual(cut, whole) {
					t.Fatalf("link type %d, % x: got %s of %d bytes without cut headers, want %s", link, frame, describe(&cut), size, describe(&whole))
				}
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	deep := concat(ethernet(etherQinQ), tag(1, 0, 1, etherVLAN), tag(2, 1, 2, etherMPLS), mplsLabel(1, 1, 0), mplsLabel(2, 2, 1))
	f.Add(concat(deep, v4{proto: protoUDP, options: 12}.packet(udp)), uint16(LinkEthernet), 60)
	f.Add(concat(ethernet(etherPPPoE), pppoe(pppIPv6), v6{next: 0}.packet(extension(44, 8), fragment(protoTCP, 0), udp)), uint16(LinkEthernet), 1500)
	f.Add(concat([]byte{0x86, 0xdd}, make([]byte, 18), v6{next: 51}.packet(extension(60, 16), extension(protoUDP, 8), udp)), uint16(LinkSLL2), 0)
	f.Add(concat([]byte{2, 0, 0, 0}, v4{proto: protoSCTP}.packet(udp)), uint16(LinkNull), -1)
	f.Add(v4{proto: protoTCP}.packet(udp), uint16(LinkRaw), min(1<<40, math.MaxInt))
	f.Add(concat([]byte{0x45, 3, 0xe8}, udp), uint16(LinkPPPD), 200)
	f.Add(concat([]byte{0x0f, 0, 8, 0}, v4{proto: protoTCP}.packet(udp)), uint16(LinkPPPHDLC), 200)
	f.Fuzz(func(t *testing.T, data []byte, link uint16, wire int) {
		p := Packet{Data: slices.Clip(bytes.Clone(data)), WireLen: wire, Link: LinkType(link)}
		Parse(&p)
		once := describe(&p)
		if !bytes.Equal(p.Data, data) {
			t.Fatal("Parse wrote into the packet")
		}
		if p.WireLen != max(wire, len(data)) {
			t.Fatalf("%s: got %d bytes on the wire, want the larger of %d and %d", once, p.WireLen, wire, len(data))
		}
		if p.L3 < 0 || p.L3Len < 0 || p.L3+p.L3Len > p.WireLen {
			t.Fatalf("%s: outside of the %d bytes of the frame", once, p.WireLen)
		}
		if size := [...]int{IPv4: 20, IPv6: 40}[max(p.Kind, IPv4)]; p.IsIP() && p.L3+size > len(data) {
			t.Fatalf("%s: a header of %d bytes in a capture of %d", once, size, len(data))
		}
		if p.IsIP() && (p.L3Len < 20 || data[p.L3]>>4 != map[Kind]byte{IPv4: 4, IPv6: 6}[p.Kind]) {
			t.Fatalf("%s: wrong version or length: % x", once, data)
		}
		if p.Tags > 3 || p.Tags > 0 && p.Tag+2 > len(data) || p.MPLS != 0 && p.MPLS+4 > len(data) {
			t.Fatalf("%s: tag or label outside of the %d bytes", once, len(data))
		}
		if p.HasPorts && (!p.IsIP() || p.Fragment) {
			t.Fatalf("%s: a fragment or no IP, but with ports", once)
		}
		if Parse(&p); describe(&p) != once {
			t.Fatalf("first %s\nsecond %s", once, describe(&p))
		}
		for n := range len(data) {
			cut := Packet{Data: slices.Clip(data[:n]), WireLen: p.WireLen, Link: p.Link}
			if Parse(&cut); describe(&cut) != once && !cut.HeadersCut() {
				t.Fatalf("got %s of all bytes, %s of %d without cut headers", once, describe(&cut), n)
			}
		}
	})
}

func BenchmarkParse(b *testing.B) {
	for _, bench := range []struct {
		name  string
		frame []byte
	}{
		{"ipv4", concat(ethernet(etherIPv4), v4{proto: protoTCP}.packet(make([]byte, 1480)))},
		{"ipv6", concat(ethernet(etherIPv6), v6{next: protoTCP}.packet(make([]byte, 1460)))},
		{"qinq-mpls", concat(ethernet(etherQinQ), tag(1, 0, 1, etherVLAN), tag(2, 1, 2, etherMPLS), mplsLabel(2, 2, 1), v4{proto: protoUDP}.packet(make([]byte, 1400)))},
	} {
		b.Run(bench.name, func(b *testing.B) {
			p := Packet{Data: bench.frame, Link: LinkEthernet}
			for b.Loop() {
				Parse(&p)
			}
		})
	}
}
