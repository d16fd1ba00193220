package dataplane_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
)

func TestParse(t *testing.T) {
	v4udp := frametest.V4{Proto: frametest.ProtoUDP}.Packet(frametest.UDP)                      // 28 bytes
	v6udp := frametest.V6{Next: frametest.ProtoUDP}.Packet(frametest.UDP)                       // 48 bytes
	long4 := frametest.V4{Proto: frametest.ProtoUDP}.Packet(frametest.PadTo(frametest.UDP, 80)) // 100 bytes
	long6 := frametest.V6{Next: frametest.ProtoUDP}.Packet(frametest.PadTo(frametest.UDP, 80))  // 120 bytes
	v4eth, v6eth := frametest.Concat(frametest.Ethernet(frametest.EtherIPv4), long4),
		frametest.Concat(frametest.Ethernet(frametest.EtherIPv6), long6)
	sll := func(t uint16) []byte {
		return frametest.Concat(make([]byte, 14), binary.BigEndian.AppendUint16(nil, t))
	}
	sll2 := func(t uint16) []byte {
		return frametest.Concat(binary.BigEndian.AppendUint16(nil, t), make([]byte, 18))
	}
	for _, test := range []struct {
		name  string
		link  dataplane.LinkType
		frame []byte
		want  string
	}{
		// Link types.
		{"Ethernet, IPv4", dataplane.LinkEthernet, v4eth, "ipv4 14+100 0800 proto 17 1000>2000"},
		{"Ethernet, IPv6", dataplane.LinkEthernet, v6eth, "ipv6 14+120 86dd proto 17 1000>2000"},
		{"Ethernet, ARP", dataplane.LinkEthernet, frametest.PadTo(frametest.Ethernet(0x0806), 60), "other 14+46 0806"},
		{"Ethernet, 802.3 length and LLC", dataplane.LinkEthernet, frametest.PadTo(frametest.Ethernet(43), 60), "other 14+46 002b"},
		{"Ethernet, header alone", dataplane.LinkEthernet, frametest.Ethernet(frametest.EtherIPv4), "malformed 14+0 0800"},
		{"Ethernet, header cut", dataplane.LinkEthernet, frametest.Ethernet(frametest.EtherIPv4)[:13], "malformed 13+0"},
		{"Ethernet, nothing", dataplane.LinkEthernet, nil, "malformed 0+0"},
		{"cooked, IPv4", dataplane.LinkSLL, frametest.Concat(sll(frametest.EtherIPv4), long4), "ipv4 16+100 0800 proto 17 1000>2000"},
		{"cooked, tag", dataplane.LinkSLL, frametest.Concat(sll(frametest.EtherVLAN), frametest.Tag(1, 0, 7, frametest.EtherIPv6), long6), "ipv6 20+120 86dd tags 1@16 proto 17 1000>2000"},
		{"cooked, cut", dataplane.LinkSLL, sll(frametest.EtherIPv4)[:15], "malformed 15+0"},
		{"cooked v2, IPv6", dataplane.LinkSLL2, frametest.Concat(sll2(frametest.EtherIPv6), long6), "ipv6 20+120 86dd proto 17 1000>2000"},
		{"cooked v2, ARP", dataplane.LinkSLL2, frametest.Concat(sll2(0x0806), make([]byte, 28)), "other 20+28 0806"},
		{"cooked v2, cut", dataplane.LinkSLL2, sll2(frametest.EtherIPv4)[:19], "malformed 19+0"},
		{"null, little-endian", dataplane.LinkNull, frametest.Concat([]byte{2, 0, 0, 0}, v4udp), "ipv4 4+28 0800 proto 17 1000>2000"},
		{"null, big-endian", dataplane.LinkNull, frametest.Concat([]byte{0, 0, 0, 2}, v4udp), "ipv4 4+28 0800 proto 17 1000>2000"},
		{"null, IPv6 of NetBSD", dataplane.LinkNull, frametest.Concat([]byte{24, 0, 0, 0}, v6udp), "ipv6 4+48 86dd proto 17 1000>2000"},
		{"null, IPv6 of FreeBSD", dataplane.LinkNull, frametest.Concat([]byte{0, 0, 0, 28}, v6udp), "ipv6 4+48 86dd proto 17 1000>2000"},
		{"null, IPv6 of macOS", dataplane.LinkNull, frametest.Concat([]byte{30, 0, 0, 0}, v6udp), "ipv6 4+48 86dd proto 17 1000>2000"},
		{"null, another address family", dataplane.LinkNull, frametest.Concat([]byte{7, 0, 0, 0}, v4udp), "other 4+28"},
		{"cooked v2, only the header", dataplane.LinkSLL2, sll2(frametest.EtherIPv4), "malformed 20+0 0800"},
		{"null, only the header", dataplane.LinkNull, []byte{2, 0, 0, 0}, "malformed 4+0 0800"},
		{"null, only the header of another family", dataplane.LinkNull, []byte{7, 0, 0, 0}, "other 4+0"},
		{"null, cut", dataplane.LinkNull, []byte{2, 0, 0}, "malformed 3+0"},
		{"loop", dataplane.LinkLoop, frametest.Concat([]byte{0, 0, 0, 24}, v6udp), "ipv6 4+48 86dd proto 17 1000>2000"},
		{"loop, little-endian", dataplane.LinkLoop, frametest.Concat([]byte{2, 0, 0, 0}, v4udp), "other 4+28"},
		{"raw, IPv4", dataplane.LinkRaw, v4udp, "ipv4 0+28 0800 proto 17 1000>2000"},
		{"raw, IPv6", dataplane.LinkRawBSD, v6udp, "ipv6 0+48 86dd proto 17 1000>2000"},
		{"raw of OpenBSD", dataplane.LinkRawOBSD, v4udp, "ipv4 0+28 0800 proto 17 1000>2000"},
		{"raw, version 5", dataplane.LinkRaw, frametest.Patched(v4udp, 0, 0x55), "malformed 0+28"},
		{"raw, nothing", dataplane.LinkRaw, nil, "malformed 0+0"},
		{"IPv4", dataplane.LinkIPv4, v4udp, "ipv4 0+28 0800 proto 17 1000>2000"},
		{"IPv4, version 6", dataplane.LinkIPv4, v6udp, "malformed 0+48 0800"},
		{"IPv6", dataplane.LinkIPv6, v6udp, "ipv6 0+48 86dd proto 17 1000>2000"},
		{"IPv6, version 4", dataplane.LinkIPv6, long4, "malformed 0+100 86dd"},
		{"PPP with address and control", dataplane.LinkPPP, frametest.Concat([]byte{0xff, 3, 0, 0x21}, v4udp), "ipv4 4+28 0800 proto 17 1000>2000"},
		{"PPP", dataplane.LinkPPP, frametest.Concat([]byte{0, 0x57}, v6udp), "ipv6 2+48 86dd proto 17 1000>2000"},
		{"PPP, one byte of protocol", dataplane.LinkPPP, frametest.Concat([]byte{0xff, 3, 0x21}, v4udp), "ipv4 3+28 0800 proto 17 1000>2000"},
		{"PPP, label", dataplane.LinkPPP, frametest.Concat([]byte{0xff, 3, 2, 0x81}, frametest.MplsLabel(16, 0, 1), v4udp), "ipv4 8+28 8847 mpls 4 proto 17 1000>2000"},
		{"PPP, LCP", dataplane.LinkPPP, frametest.Concat([]byte{0xff, 3, 0xc0, 0x21}, v4udp), "other 4+28"},
		{"PPP, cut", dataplane.LinkPPP, []byte{0xff, 3, 0}, "malformed 3+0"},
		{"PPP, empty", dataplane.LinkPPP, nil, "malformed 0+0"},
		{"PPP, an address or a protocol", dataplane.LinkPPP, []byte{0xff}, "malformed 1+0"},
		{"PPP of pppd, a direction or a protocol", dataplane.LinkPPPD, []byte{1}, "malformed 1+0"},
		{"PPP in HDLC framing, an address of either", dataplane.LinkPPPHDLC, []byte{0x0f}, "malformed 1+0"},
		{"PPP in HDLC framing", dataplane.LinkPPPHDLC, frametest.Concat([]byte{0xff, 3, 0, 0x21}, v4udp), "ipv4 4+28 0800 proto 17 1000>2000"},
		{"Cisco HDLC in PPP framing", dataplane.LinkPPPHDLC, frametest.Concat([]byte{0x0f, 0, 0x86, 0xdd}, v6udp), "ipv6 4+48 86dd proto 17 1000>2000"},
		{"PPP of pppd", dataplane.LinkPPPD, frametest.Concat([]byte{1, 3, 0, 0x21}, v4udp), "ipv4 4+28 0800 proto 17 1000>2000"},
		{"PPPoE link", dataplane.LinkPPPoE, frametest.Concat(frametest.PPPoE(frametest.PPPIPv4), v4udp), "ipv4 8+28 0800 proto 17 1000>2000"},
		{"Cisco HDLC", dataplane.LinkCiscoHDLC, frametest.Concat([]byte{0x0f, 0, 8, 0}, v4udp), "ipv4 4+28 0800 proto 17 1000>2000"},
		{"Cisco HDLC, SLARP", dataplane.LinkCiscoHDLC, frametest.Concat([]byte{0x8f, 0, 0x80, 0x35}, make([]byte, 18)), "other 4+18 8035"},
		{"Cisco HDLC, cut", dataplane.LinkCiscoHDLC, []byte{0x0f, 0, 8}, "malformed 3+0"},
		{"frame relay", dataplane.LinkFrameRelay, frametest.Concat([]byte{0x18, 0x41, 3, 0xcc}, v4udp), "ipv4 4+28 0800 proto 17 1000>2000"},
		{"frame relay, address of 4 bytes, padding, IPv6", dataplane.LinkFrameRelay, frametest.Concat([]byte{0x18, 0x40, 0x10, 0x41, 3, 0, 0x8e}, v6udp), "ipv6 7+48 86dd proto 17 1000>2000"},
		{"frame relay, address of 5 bytes", dataplane.LinkFrameRelay, frametest.Concat([]byte{0x18, 0x40, 0x10, 0x40, 0x41, 3, 0xcc}, v4udp), "malformed 4+31"},
		{"frame relay, SNAP", dataplane.LinkFrameRelay, frametest.Concat([]byte{0x18, 0x41, 3, 0, 0x80, 0, 0, 0, 8, 0}, v4udp), "ipv4 10+28 0800 proto 17 1000>2000"},
		{"frame relay, bridged", dataplane.LinkFrameRelay, frametest.Concat([]byte{0x18, 0x41, 3, 0, 0x80, 0, 0x80, 0xc2, 0, 7}, v4udp), "other 5+33"},
		{"frame relay, PPP", dataplane.LinkFrameRelay, frametest.Concat([]byte{0x18, 0x41, 3, 0xcf, 0, 0x21}, v4udp), "ipv4 6+28 0800 proto 17 1000>2000"},
		{"frame relay of Cisco", dataplane.LinkFrameRelay, frametest.Concat([]byte{0x18, 0x41, 8, 0}, v4udp), "ipv4 4+28 0800 proto 17 1000>2000"},
		{"frame relay, signaling", dataplane.LinkFrameRelay, frametest.Concat([]byte{0, 1, 8, 0}, v4udp), "other 2+30"},
		{"frame relay, Q.933", dataplane.LinkFrameRelay, frametest.Concat([]byte{0, 1, 3, 8}, v4udp), "other 4+28"},
		{"frame relay, cut", dataplane.LinkFrameRelay, []byte{0x18, 0x41, 3}, "malformed 3+0"},
		{"frame relay, cut after padding", dataplane.LinkFrameRelay, []byte{0x18, 0x41, 3, 0}, "malformed 4+0"},
		{"ATM", dataplane.LinkATM, frametest.Concat([]byte{0xaa, 0xaa, 3, 0, 0, 0, 8, 0}, v4udp), "ipv4 8+28 0800 proto 17 1000>2000"},
		{"ATM, bridged", dataplane.LinkATM, frametest.Concat([]byte{0xaa, 0xaa, 3, 0, 0x80, 0xc2, 0, 7}, v4udp), "other 0+36"},
		{"classical IP over ATM", dataplane.LinkATMCLIP, frametest.Concat([]byte{0xaa, 0xaa, 3, 0, 0, 0, 0x86, 0xdd}, v6udp), "ipv6 8+48 86dd proto 17 1000>2000"},
		{"classical IP over ATM without LLC", dataplane.LinkATMCLIP, v4udp, "ipv4 0+28 0800 proto 17 1000>2000"},
		{"SunATM", dataplane.LinkSunATM, frametest.Concat(make([]byte, 4), []byte{0xaa, 0xaa, 3, 0, 0, 0, 8, 0}, v4udp), "ipv4 12+28 0800 proto 17 1000>2000"},
		{"FDDI", dataplane.LinkFDDI, frametest.Concat(make([]byte, 13), []byte{0xaa, 0xaa, 3, 0, 0, 0, 8, 0}, v4udp), "ipv4 21+28 0800 proto 17 1000>2000"},
		{"IP over Fibre Channel", dataplane.LinkIPOverFC, frametest.Concat(make([]byte, 16), []byte{0xaa, 0xaa, 3, 0, 0, 0, 8, 0}, v4udp), "ipv4 24+28 0800 proto 17 1000>2000"},
		{"FDDI, cut", dataplane.LinkFDDI, make([]byte, 20), "malformed 20+0"},
		{"IP over IEEE 1394", dataplane.LinkIEEE1394, frametest.Concat(make([]byte, 16), []byte{8, 0}, v4udp), "ipv4 18+28 0800 proto 17 1000>2000"},
		{"IP over InfiniBand", dataplane.LinkIPoIB, frametest.Concat(make([]byte, 40), []byte{0x86, 0xdd, 0, 0}, v6udp), "ipv6 44+48 86dd proto 17 1000>2000"},
		{"Symantec firewall", dataplane.LinkSymantec, frametest.Concat(make([]byte, 6), []byte{8, 0}, make([]byte, 36), v4udp), "ipv4 44+28 0800 proto 17 1000>2000"},
		{"DSA", dataplane.LinkDSA, frametest.Concat(make([]byte, 16), []byte{8, 0}, v4udp), "ipv4 18+28 0800 proto 17 1000>2000"},
		{"DSA of Broadcom, tag", dataplane.LinkDSABrcm, frametest.Concat(make([]byte, 16), []byte{0x81, 0}, frametest.Tag(1, 0, 7, frametest.EtherIPv4), v4udp), "ipv4 22+28 0800 tags 1@18 proto 17 1000>2000"},
		{"DSA with an EtherType", dataplane.LinkDSAEther, frametest.Concat(make([]byte, 20), []byte{8, 0}, v4udp), "ipv4 22+28 0800 proto 17 1000>2000"},
		{"DSA, padded", dataplane.LinkDSA, frametest.PadTo(frametest.Concat(make([]byte, 16), []byte{8, 0}, v4udp), 64), "ipv4 18+28 0800 proto 17 1000>2000"},
		{"DSA of Broadcom, tag, padded", dataplane.LinkDSABrcm, frametest.PadTo(frametest.Concat(make([]byte, 16), []byte{0x81, 0}, frametest.Tag(1, 0, 7, frametest.EtherIPv4), v4udp), 68), "ipv4 22+28 0800 tags 1@18 proto 17 1000>2000"},
		{"DSA with an EtherType, padded", dataplane.LinkDSAEther, frametest.PadTo(frametest.Concat(make([]byte, 20), []byte{8, 0}, v4udp), 68), "ipv4 22+28 0800 proto 17 1000>2000"},
		{"DSA, longer than padding", dataplane.LinkDSA, frametest.PadTo(frametest.Concat(make([]byte, 16), []byte{8, 0}, v4udp), 65), "ipv4 18+47 0800 proto 17 1000>2000"},
		{"unknown link type", 127, v4udp, "other 0+28"},

		// VLAN tags.
		{"tag", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherVLAN), frametest.Tag(5, 1, 100, frametest.EtherIPv4), long4), "ipv4 18+100 0800 tags 1@14 proto 17 1000>2000"},
		{"priority tag", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherVLAN), frametest.Tag(5, 0, 0, frametest.EtherIPv4), long4), "ipv4 18+100 0800 tags 1@14 proto 17 1000>2000"},
		{"two tags", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherQinQ), frametest.Tag(0, 0, 1, frametest.EtherVLAN), frametest.Tag(0, 0, 2, frametest.EtherIPv6), long6), "ipv6 22+120 86dd tags 2@14 proto 17 1000>2000"},
		{"three tags", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherQinQOld), frametest.Tag(0, 0, 1, frametest.EtherQinQ), frametest.Tag(0, 0, 2, frametest.EtherVLAN), frametest.Tag(0, 0, 3, frametest.EtherIPv4), long4), "ipv4 26+100 0800 tags 3@14 proto 17 1000>2000"},
		{"four tags", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherVLAN), frametest.Tag(0, 0, 1, frametest.EtherVLAN), frametest.Tag(0, 0, 2, frametest.EtherVLAN), frametest.Tag(0, 0, 3, frametest.EtherVLAN), frametest.Tag(0, 0, 4, frametest.EtherIPv4), long4), "other 26+104 8100 tags 3@14"},
		{"tag and ARP", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherVLAN), frametest.Tag(0, 0, 1, 0x0806), make([]byte, 42)), "other 18+42 0806 tags 1@14"},
		{"tag cut", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherVLAN), frametest.Tag(0, 0, 1, frametest.EtherIPv4)[:3]), "malformed 14+3 8100"},
		{"second tag cut", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherQinQ), frametest.Tag(0, 0, 1, frametest.EtherVLAN), frametest.Tag(0, 0, 2, 0)[:2]), "malformed 18+2 8100 tags 1@14"},

		// MPLS, RFC 3032.
		{"label", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherMPLS), frametest.MplsLabel(16, 5, 1), long4), "ipv4 18+100 8847 mpls 14 proto 17 1000>2000"},
		{"multicast label", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherMPLSMC), frametest.MplsLabel(16, 5, 1), long6), "ipv6 18+120 8848 mpls 14 proto 17 1000>2000"},
		{"three labels after a tag", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherVLAN), frametest.Tag(0, 0, 1, frametest.EtherMPLS), frametest.MplsLabel(1, 1, 0), frametest.MplsLabel(2, 2, 0), frametest.MplsLabel(3, 3, 1), long4), "ipv4 30+100 8847 tags 1@14 mpls 18 proto 17 1000>2000"},
		{"pseudowire", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherMPLS), frametest.MplsLabel(16, 0, 1), make([]byte, 4), v4eth), "other 18+118 8847 mpls 14"},
		{"sixteen labels", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherMPLS), bytes.Repeat(frametest.MplsLabel(1, 0, 0), 15), frametest.MplsLabel(1, 0, 1), long4), "ipv4 78+100 8847 mpls 14 proto 17 1000>2000"},
		{"seventeen labels", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherMPLS), bytes.Repeat(frametest.MplsLabel(1, 0, 0), 16), frametest.MplsLabel(1, 0, 1), long4), "other 78+104 8847 mpls 14"},
		{"label cut", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherMPLS), frametest.MplsLabel(16, 5, 1)[:3]), "malformed 14+3 8847"},
		{"nothing after the label", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherMPLS), frametest.MplsLabel(16, 5, 1)), "malformed 18+0 8847 mpls 14"},
		{"IPv4 cut after the label", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherMPLS), frametest.MplsLabel(16, 5, 1), long4[:19]), "malformed 18+19 8847 mpls 14"},

		// PPPoE, RFC 2516.
		{"PPPoE, IPv4", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherPPPoE), frametest.PPPoE(frametest.PPPIPv4), long4), "ipv4 22+100 8864 proto 17 1000>2000"},
		{"PPPoE, IPv6 after a tag", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherVLAN), frametest.Tag(0, 0, 7, frametest.EtherPPPoE), frametest.PPPoE(frametest.PPPIPv6), long6), "ipv6 26+120 8864 tags 1@14 proto 17 1000>2000"},
		{"PPPoE, LCP", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherPPPoE), frametest.PPPoE(0xc021), make([]byte, 60)), "other 22+60 8864"},
		{"PPPoE, only the header", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherPPPoE), frametest.PPPoE(frametest.PPPIPv4)), "malformed 22+0 8864"},
		{"PPPoE, cut", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherPPPoE), frametest.PPPoE(frametest.PPPIPv4)[:6]), "malformed 14+6 8864"},
		{"PPPoE, one byte of protocol, IPv4", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherPPPoE), frametest.Compressed(0x21), long4), "ipv4 21+100 8864 proto 17 1000>2000"},
		{"PPPoE, one byte of protocol, IPv6 after a tag", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherVLAN), frametest.Tag(0, 0, 7, frametest.EtherPPPoE), frametest.Compressed(0x57), long6), "ipv6 25+120 8864 tags 1@14 proto 17 1000>2000"},
		{"PPPoE, one byte of protocol, MPLS", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherPPPoE), frametest.Compressed(0xfd), make([]byte, 60)), "other 21+60 8864"},
		{"PPPoE, one byte of protocol, cut after it", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherPPPoE), frametest.Compressed(0x21)), "malformed 21+0 8864"},
		{"PPPoE, cut in two bytes of protocol", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherPPPoE), frametest.Compressed(0)), "malformed 14+7 8864"},
		{"PPPoE discovery", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(0x8863), make([]byte, 60)), "other 14+60 8863"},

		// IPv4, RFC 791.
		{"4 bytes of options", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherIPv4), frametest.V4{Proto: frametest.ProtoUDP, Options: 4}.Packet(frametest.PadTo(frametest.UDP, 80))), "ipv4 14+104 0800 proto 17 1000>2000"},
		{"40 bytes of options", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherIPv4), frametest.V4{Proto: frametest.ProtoUDP, Options: 40}.Packet(frametest.PadTo(frametest.UDP, 80))), "ipv4 14+140 0800 proto 17 1000>2000"},
		{"options cut", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherIPv4), frametest.V4{Options: 40}.Packet(nil)[:59]), "malformed 14+59 0800"},
		{"IHL 4", dataplane.LinkEthernet, frametest.Patched(v4eth, 14, 0x44), "malformed 14+100 0800"},
		{"version 6 in IPv4", dataplane.LinkEthernet, frametest.Patched(v4eth, 14, 0x65), "malformed 14+100 0800"},
		{"first fragment", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherIPv4), frametest.V4{Proto: frametest.ProtoUDP, Frag: 0x2000}.Packet(frametest.PadTo(frametest.UDP, 80))), "ipv4 14+100 0800 proto 17 first 1000>2000"},
		{"second fragment", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherIPv4), frametest.V4{Proto: frametest.ProtoUDP, Frag: 0x2001}.Packet(frametest.PadTo(frametest.UDP, 80))), "ipv4 14+100 0800 proto 17 fragment"},
		{"last fragment", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherIPv4), frametest.V4{Proto: frametest.ProtoUDP, Frag: 0x1fff}.Packet(frametest.PadTo(frametest.UDP, 80))), "ipv4 14+100 0800 proto 17 fragment"},
		{"don't fragment, reserved bit", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherIPv4), frametest.V4{Proto: frametest.ProtoUDP, Frag: 0xc000}.Packet(frametest.PadTo(frametest.UDP, 80))), "ipv4 14+100 0800 proto 17 1000>2000"},
		{"total length of the header", dataplane.LinkRaw, frametest.Patched(frametest.V4{Proto: frametest.ProtoUDP}.Packet(frametest.UDP), 2, 0, 20), "ipv4 0+28 0800 proto 17 1000>2000"},
		{"total length below the header", dataplane.LinkRaw, frametest.Patched(frametest.V4{Proto: frametest.ProtoUDP}.Packet(frametest.UDP), 2, 0, 19), "malformed 0+28 0800"},
		{"total length 1", dataplane.LinkRaw, frametest.Patched(frametest.V4{Proto: frametest.ProtoUDP}.Packet(frametest.UDP), 2, 0, 1), "malformed 0+28 0800"},
		{"total length below the header with options", dataplane.LinkRaw, frametest.Patched(frametest.V4{Proto: frametest.ProtoUDP, Options: 20}.Packet(frametest.UDP), 2, 0, 39), "malformed 0+48 0800"},
		{"total length 0, segmentation offload", dataplane.LinkRaw, frametest.Patched(frametest.V4{Proto: frametest.ProtoUDP}.Packet(frametest.UDP), 2, 0, 0), "ipv4 0+28 0800 proto 17 1000>2000"},
		{"IPv4 in IPv4", dataplane.LinkRaw, frametest.V4{Proto: 4}.Packet(frametest.V4{Proto: frametest.ProtoUDP, Src: frametest.Dst4, Dst: frametest.Src4}.Packet(frametest.UDP)), "ipv4 0+48 0800 proto 4"},
		{"addresses", dataplane.LinkRaw, frametest.V4{Proto: 1, Src: frametest.Dst4, Dst: netip.MustParseAddr("255.255.255.255")}.Packet(nil), "ipv4 0+20 0800 proto 1 198.51.100.2>255.255.255.255"},

		// Ports.
		{"TCP", dataplane.LinkRaw, frametest.V4{Proto: frametest.ProtoTCP}.Packet(frametest.Concat(frametest.Ports(65535, 1), make([]byte, 16))), "ipv4 0+40 0800 proto 6 65535>1"},
		{"SCTP", dataplane.LinkRaw, frametest.V6{Next: frametest.ProtoSCTP}.Packet(frametest.Ports(7, 9)), "ipv6 0+44 86dd proto 132 7>9"},
		{"DCCP", dataplane.LinkRaw, frametest.V4{Proto: frametest.ProtoDCCP}.Packet(frametest.Ports(7, 9)), "ipv4 0+24 0800 proto 33 7>9"},
		{"UDP-Lite", dataplane.LinkRaw, frametest.V4{Proto: frametest.ProtoUDPLite}.Packet(frametest.Ports(7, 9)), "ipv4 0+24 0800 proto 136 7>9"},
		{"ICMP has no ports", dataplane.LinkRaw, frametest.V4{Proto: 1}.Packet(frametest.UDP), "ipv4 0+28 0800 proto 1"},
		{"ports cut", dataplane.LinkRaw, frametest.V4{Proto: frametest.ProtoUDP}.Packet(frametest.Ports(7, 9)[:3]), "ipv4 0+23 0800 proto 17"},
		{"padding instead of ports", dataplane.LinkEthernet, frametest.PadTo(frametest.Concat(frametest.Ethernet(frametest.EtherIPv4), frametest.V4{Proto: frametest.ProtoUDP}.Packet(nil)), 60), "ipv4 14+20 0800 proto 17"},
		{"padding instead of ports in IPv6", dataplane.LinkEthernet, frametest.PadTo(frametest.Concat(frametest.Ethernet(frametest.EtherIPv6), frametest.V6{Next: frametest.ProtoUDP}.Packet(nil)), 60), "ipv6 14+40 86dd proto 17"},

		// IPv6, RFC 8200.
		{"hop-by-hop, routing, destination", dataplane.LinkRaw, frametest.V6{Next: 0}.Packet(frametest.Extension(43, 8), frametest.Extension(60, 24), frametest.Extension(frametest.ProtoUDP, 256), frametest.UDP), "ipv6 0+336 86dd proto 17 1000>2000"},
		{"mobility, HIP, shim6", dataplane.LinkRaw, frametest.V6{Next: 135}.Packet(frametest.Extension(139, 8), frametest.Extension(140, 16), frametest.Extension(frametest.ProtoTCP, 8), frametest.UDP), "ipv6 0+80 86dd proto 6 1000>2000"},
		{"authentication, in units of 4 bytes", dataplane.LinkRaw, frametest.V6{Next: 51}.Packet([]byte{frametest.ProtoUDP, 4}, make([]byte, 22), frametest.UDP), "ipv6 0+72 86dd proto 17 1000>2000"},
		{"no next header", dataplane.LinkRaw, frametest.V6{Next: 59}.Packet(frametest.UDP), "ipv6 0+48 86dd proto 59"},
		{"ESP", dataplane.LinkRaw, frametest.V6{Next: 50}.Packet(frametest.UDP), "ipv6 0+48 86dd proto 50"},
		{"first fragment", dataplane.LinkRaw, frametest.V6{Next: 44}.Packet(frametest.Fragment(frametest.ProtoUDP, 0), frametest.UDP), "ipv6 0+56 86dd proto 17 first 1000>2000"},
		{"first fragment with another extension", dataplane.LinkRaw, frametest.V6{Next: 44}.Packet(frametest.Fragment(60, 0), frametest.Extension(frametest.ProtoUDP, 8), frametest.UDP), "ipv6 0+64 86dd proto 17 first of 60 1000>2000"},
		{"only fragment, RFC 6946", dataplane.LinkRaw, frametest.V6{Next: 44}.Packet(frametest.Patched(frametest.Fragment(frametest.ProtoUDP, 0), 3, 6), frametest.UDP), "ipv6 0+56 86dd proto 17 1000>2000"},
		{"fragment of a fragment", dataplane.LinkRaw, frametest.V6{Next: 44}.Packet(frametest.Fragment(44, 0), frametest.Fragment(frametest.ProtoUDP, 1), frametest.UDP), "ipv6 0+64 86dd proto 17 fragment of 44"},
		{"second fragment", dataplane.LinkRaw, frametest.V6{Next: 44}.Packet(frametest.Fragment(frametest.ProtoUDP, 1), frametest.UDP), "ipv6 0+56 86dd proto 17 fragment"},
		{"last fragment", dataplane.LinkRaw, frametest.V6{Next: 44}.Packet(frametest.Fragment(60, 0x1fff), frametest.UDP), "ipv6 0+56 86dd proto 60 fragment"},
		{"fragment after hop-by-hop", dataplane.LinkRaw, frametest.V6{Next: 0}.Packet(frametest.Extension(44, 8), frametest.Fragment(frametest.ProtoTCP, 9), frametest.UDP), "ipv6 0+64 86dd proto 6 fragment"},
		{"extension at the end", dataplane.LinkRaw, frametest.V6{Next: 0}.Packet(frametest.Extension(frametest.ProtoUDP, 8)), "ipv6 0+48 86dd proto 17"},
		{"authentication at the end", dataplane.LinkRaw, frametest.V6{Next: 51}.Packet([]byte{frametest.ProtoUDP, 0, 0, 0, 0, 0, 0, 0}), "ipv6 0+48 86dd proto 17"},
		{"authentication cut", dataplane.LinkRaw, frametest.V6{Next: 51}.Packet([]byte{frametest.ProtoUDP, 0, 0, 0, 0, 0, 0}), "ipv6 0+47 86dd proto 51"},
		{"fragment header at the end", dataplane.LinkRaw, frametest.V6{Next: 44}.Packet(frametest.Fragment(frametest.ProtoUDP, 1)), "ipv6 0+48 86dd proto 17 fragment"},
		{"fragment header cut", dataplane.LinkRaw, frametest.V6{Next: 44}.Packet(frametest.Fragment(frametest.ProtoUDP, 1)[:7]), "ipv6 0+47 86dd proto 44"},
		{"extension cut", dataplane.LinkRaw, frametest.V6{Next: 0}.Packet(frametest.Extension(frametest.ProtoUDP, 8)[:7]), "ipv6 0+47 86dd proto 0"},
		{"extension longer than the packet", dataplane.LinkRaw, frametest.V6{Next: 0}.Packet([]byte{frametest.ProtoUDP, 9, 0, 0, 0, 0, 0, 0}, frametest.UDP), "ipv6 0+56 86dd proto 17"},
		{"sixteen extensions", dataplane.LinkRaw, frametest.V6{Next: 60}.Packet(bytes.Repeat(frametest.Extension(60, 8), 15), frametest.Extension(frametest.ProtoUDP, 8), frametest.UDP), "ipv6 0+176 86dd proto 17"},
		{"fifteen extensions", dataplane.LinkRaw, frametest.V6{Next: 60}.Packet(bytes.Repeat(frametest.Extension(60, 8), 14), frametest.Extension(frametest.ProtoUDP, 8), frametest.UDP), "ipv6 0+168 86dd proto 17 1000>2000"},
		{"version 4 in IPv6", dataplane.LinkEthernet, frametest.Patched(v6eth, 14, 0x45), "malformed 14+120 86dd"},
		{"header cut", dataplane.LinkEthernet, v6eth[:14+39], "malformed 14+39 86dd"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := dataplane.Packet{Data: test.frame, Link: test.link}
			dataplane.Parse(&p)
			if got := frametest.Describe(&p); got != test.want {
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
	for link, want := range map[dataplane.LinkType]string{
		dataplane.LinkEthernet: "1 (ETHERNET)", dataplane.LinkSLL2: "276 (LINUX_SLL2)",
		127: "127 (IEEE802_11_RADIOTAP)", 126: "126 (AURORA)", 400: "400",
	} {
		if got := link.String(); got != want {
			t.Errorf("link type %d is %q, want %q", uint16(link), got, want)
		}
	}
}

// TestL3Length checks that padding is not counted: only if Ethernet may have padded the
// frame, and only if the IP header has a possible length.
func TestL3Length(t *testing.T) {
	claim := func(total int) []byte { // an IPv4 packet without payload that claims a total length
		return frametest.Patched(frametest.V4{Proto: 1}.Packet(nil), 2, byte(total>>8), byte(total))
	}
	claim6 := func(payload int) []byte {
		return frametest.Patched(frametest.V6{Next: 59}.Packet(), 4, byte(payload>>8), byte(payload))
	}
	tags := func(n int, t uint16) []byte {
		if n == 0 {
			return frametest.Ethernet(t)
		}
		b := frametest.Ethernet(frametest.EtherVLAN)
		for range n - 1 {
			b = frametest.Concat(b, frametest.Tag(0, 0, 1, frametest.EtherVLAN))
		}
		return frametest.Concat(b, frametest.Tag(0, 0, 1, t))
	}
	opt := frametest.V4{Options: 20}.Packet(nil) // 40 bytes
	for _, test := range []struct {
		name string
		link dataplane.LinkType
		head []byte
		wire int
		want int
	}{
		{"60 bytes, padded", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherIPv4), claim(29)), 60, 29},
		{"61 bytes, not padded", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherIPv4), claim(29)), 61, 47},
		{"below 60 bytes, before padding", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherIPv4), claim(29)), 43, 29},
		{"no padding", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherIPv4), claim(46)), 60, 46},
		{"only a header", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherIPv4), claim(20)), 60, 20},
		{"total length below the header", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherIPv4), claim(19)), 60, 46},
		{"total length below the header with options", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherIPv4), frametest.Patched(opt, 2, 0, 39)), 60, 46},
		{"total length of the header with options", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherIPv4), opt), 60, 40},
		{"total length 0", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherIPv4), claim(0)), 60, 46},
		{"total length 0, segmentation offload", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherIPv4), claim(0)), 131086, 131072},
		{"total length above the frame", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherIPv4), claim(47)), 60, 46},
		{"total length too small", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherIPv4), claim(20)), 1014, 1000},
		{"64 bytes with a tag", dataplane.LinkEthernet, frametest.Concat(tags(1, frametest.EtherIPv4), claim(29)), 64, 29},
		{"65 bytes with a tag", dataplane.LinkEthernet, frametest.Concat(tags(1, frametest.EtherIPv4), claim(29)), 65, 47},
		{"68 bytes with two tags", dataplane.LinkEthernet, frametest.Concat(tags(2, frametest.EtherIPv4), claim(29)), 68, 29},
		{"69 bytes with two tags", dataplane.LinkEthernet, frametest.Concat(tags(2, frametest.EtherIPv4), claim(29)), 69, 47},
		{"72 bytes with three tags", dataplane.LinkEthernet, frametest.Concat(tags(3, frametest.EtherIPv4), claim(29)), 72, 29},
		{"73 bytes with three tags", dataplane.LinkEthernet, frametest.Concat(tags(3, frametest.EtherIPv4), claim(29)), 73, 47},
		{"60 bytes with a label", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherMPLS), frametest.MplsLabel(1, 0, 1), claim(29)), 60, 29},
		{"61 bytes with a label", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherMPLS), frametest.MplsLabel(1, 0, 1), claim(29)), 61, 43},
		{"60 bytes with PPPoE", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherPPPoE), frametest.PPPoE(frametest.PPPIPv4), claim(29)), 60, 29},
		{"IPv6, 60", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherIPv6), claim6(0)), 60, 40},
		{"IPv6, 61", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherIPv6), claim6(0)), 61, 47},
		{"IPv6, shorter payload", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherIPv6), claim6(3)), 60, 43},
		{"IPv6, payload of the frame", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherIPv6), claim6(6)), 60, 46},
		{"IPv6, payload above the frame", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherIPv6), claim6(7)), 60, 46},
		{"IPv6, BIG TCP", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherIPv6), claim6(0)), 70014, 70000},
		{"ARP", dataplane.LinkEthernet, frametest.Ethernet(0x0806), 60, 46},
		{"cooked, 60", dataplane.LinkSLL, frametest.Concat(make([]byte, 14), []byte{8, 0}, claim(20)), 60, 20},
		{"cooked, 61", dataplane.LinkSLL, frametest.Concat(make([]byte, 14), []byte{8, 0}, claim(20)), 61, 45},
		{"cooked v2, 60", dataplane.LinkSLL2, frametest.Concat([]byte{8, 0}, make([]byte, 18), claim(20)), 60, 20},
		{"cooked v2, 61", dataplane.LinkSLL2, frametest.Concat([]byte{8, 0}, make([]byte, 18), claim(20)), 61, 41},
		{"raw, not padded", dataplane.LinkRaw, claim(20), 46, 46},
		{"loopback, not padded", dataplane.LinkNull, frametest.Concat([]byte{2, 0, 0, 0}, claim(20)), 46, 42},
	} {
		t.Run(test.name, func(t *testing.T) {
			// The capture may contain the whole frame or only its headers.
			for _, captured := range []int{len(test.head), min(test.wire, 2000)} {
				p := dataplane.Packet{
					Data: frametest.PadTo(test.head, captured), WireLen: test.wire, Link: test.link,
				}
				if dataplane.Parse(&p); p.L3Len != test.want {
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
		link  dataplane.LinkType
		frame []byte
		l3    int // offset of the IP header
		ip    int // offset of the end of its fixed part
	}{
		{
			"tags, labels, IPv4 with options", dataplane.LinkEthernet,
			frametest.Concat(frametest.Ethernet(frametest.EtherQinQ),
				frametest.Tag(1, 0, 1, frametest.EtherVLAN), frametest.Tag(2, 1, 2, frametest.EtherMPLS),
				frametest.MplsLabel(1, 1, 0), frametest.MplsLabel(2, 2, 1),
				frametest.V4{
					Proto: frametest.ProtoUDP, Options: 12,
				}.Packet(frametest.PadTo(frametest.UDP, 60))),
			30, 50,
		},
		{
			"tag, PPPoE, IPv6 with extensions", dataplane.LinkEthernet,
			frametest.Concat(frametest.Ethernet(frametest.EtherVLAN),
				frametest.Tag(1, 0, 1, frametest.EtherPPPoE), frametest.PPPoE(frametest.PPPIPv6),
				frametest.V6{Next: 0}.Packet(frametest.Extension(51, 16),
					[]byte{44, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, frametest.Fragment(frametest.ProtoTCP, 0),
					frametest.PadTo(frametest.UDP, 20))),
			26, 66,
		},
		{"cooked v2", dataplane.LinkSLL2, frametest.Concat([]byte{8, 0}, make([]byte, 18), frametest.V4{Proto: frametest.ProtoTCP}.Packet(frametest.PadTo(frametest.UDP, 60))), 20, 40},
		{"null", dataplane.LinkNull, frametest.Concat([]byte{30, 0, 0, 0}, frametest.V6{Next: frametest.ProtoSCTP}.Packet(frametest.PadTo(frametest.UDP, 60))), 4, 44},
		{"raw", dataplane.LinkRaw, frametest.V4{Proto: frametest.ProtoTCP, Options: 4}.Packet(frametest.PadTo(frametest.UDP, 60)), 0, 20},
		{"PPPoE, one byte of protocol", dataplane.LinkEthernet, frametest.Concat(frametest.Ethernet(frametest.EtherPPPoE), frametest.Compressed(0x21), frametest.V4{Proto: frametest.ProtoTCP}.Packet(frametest.PadTo(frametest.UDP, 60))), 21, 41},
	} {
		t.Run(test.name, func(t *testing.T) {
			all := dataplane.Packet{Data: test.frame, Link: test.link}
			dataplane.Parse(&all)
			for n := range len(test.frame) + 1 {
				p := dataplane.Packet{
					Data: slices.Clip(test.frame[:n]), WireLen: len(test.frame), Link: test.link,
				}
				dataplane.Parse(&p)
				got := frametest.Describe(&p)
				q := dataplane.Packet{
					Data: frametest.PadTo(test.frame[:n], 200)[:n], WireLen: len(test.frame), Link: test.link,
				}
				if dataplane.Parse(&q); frametest.Describe(&q) != got {
					t.Errorf("%d bytes: got %s, but %s with other memory behind the capture", n, got,
						frametest.Describe(&q))
				}
				unparsed := dataplane.Packet{Data: p.Data, WireLen: p.WireLen, Link: p.Link}
				if want := got != frametest.Describe(&all); p.HeadersCut() != want ||
					unparsed.HeadersCut() != want {
					t.Errorf("%d bytes: got %s, %s of all bytes: want headers cut %v", n, got,
						frametest.Describe(&all), want)
				}
				if whole := n >= test.ip; p.IsIP() != whole || !whole && p.Kind != dataplane.Malformed {
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
	packet := frametest.V4{
		Tos: 0xb8, Proto: frametest.ProtoUDP, Options: 40,
	}.Packet(frametest.PadTo(frametest.UDP, 100))
	for captured := range 65 {
		for wire, want := range map[int]string{
			160: "ipv4 0+160 0800 proto 17", 64: "ipv4 0+64 0800 proto 17", 60: "ipv4 0+60 0800 proto 17",
			59: "malformed 0+59 0800",
		} {
			switch {
			case captured > wire:
				continue
			case captured < 20:
				want = fmt.Sprintf("malformed 0+%d 0800", wire)
			case captured >= 64 && wire >= 64:
				want += " 1000>2000"
			}
			p := dataplane.Packet{
				Data: slices.Clip(packet[:captured]), WireLen: wire, Link: dataplane.LinkIPv4,
			}
			if dataplane.Parse(&p); frametest.Describe(&p) != want {
				t.Errorf("%d of %d bytes captured: got %s, want %s", captured, wire, frametest.Describe(&p),
					want)
			}
			if dscp, ok := p.DSCP(); p.IsIP() && (!ok || dscp != 46) {
				t.Errorf("%d of %d bytes captured: DSCP %d (valid %v), want 46", captured, wire, dscp, ok)
			}
		}
	}
}

// TestParseResets checks that Parse overwrites the results of an earlier Parse.
func TestParseResets(t *testing.T) {
	p := dataplane.Packet{Data: frametest.Concat(frametest.Ethernet(frametest.EtherVLAN),
		frametest.Tag(1, 1, 1, frametest.EtherMPLS), frametest.MplsLabel(1, 1, 1),
		frametest.V4{Proto: frametest.ProtoUDP}.Packet(frametest.PadTo(frametest.UDP, 80)))}
	p.Link = dataplane.LinkEthernet
	dataplane.Parse(&p)
	p.Data, p.WireLen = frametest.V4{Proto: 1, Frag: 1}.Packet(nil), 0
	p.Link = dataplane.LinkRaw
	dataplane.Parse(&p)
	if got, want := frametest.Describe(&p), "ipv4 0+20 0800 proto 1 fragment"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	p.Data, p.WireLen, p.Link = nil, 0, 127
	dataplane.Parse(&p)
	if got, want := frametest.Describe(&p), "other 0+0"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestCutLink cuts frames of each link type whose header has several forms, after every byte. Unless the
// headers may be cut, Parse must find the same as in the whole frame. The frames are all sequences of
// the bytes that select a form.
func TestCutLink(t *testing.T) {
	signs := []byte{0x00, 0x01, 0x02, 0x03, 0x08, 0x0f, 0x21, 0x45, 0x80, 0x8e, 0xcc, 0xcf, 0xff}
	const length, wire = 5, 200
	headers := func(frame []byte, link dataplane.LinkType) (p dataplane.Packet) {
		p = dataplane.Packet{Data: frame, WireLen: wire, Link: link}
		dataplane.Parse(&p)
		return p
	}
	for link, before := range map[dataplane.LinkType]int{
		dataplane.LinkPPP: 0, dataplane.LinkPPPHDLC: 0, dataplane.LinkPPPD: 0, dataplane.LinkPPPoE: 6,
		dataplane.LinkFrameRelay: 0, dataplane.LinkATMCLIP: 0,
	} {
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
					t.Fatalf("link type %d, % x: got %s of %d bytes without cut headers, want %s", link,
						frame, frametest.Describe(&cut), size, frametest.Describe(&whole))
				}
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	deep := frametest.Concat(frametest.Ethernet(frametest.EtherQinQ),
		frametest.Tag(1, 0, 1, frametest.EtherVLAN), frametest.Tag(2, 1, 2, frametest.EtherMPLS),
		frametest.MplsLabel(1, 1, 0), frametest.MplsLabel(2, 2, 1))
	f.Add(frametest.Concat(deep, frametest.V4{Proto: frametest.ProtoUDP, Options: 12}.Packet(frametest.UDP)),
		uint16(dataplane.LinkEthernet), 60)
	f.Add(frametest.Concat(frametest.Ethernet(frametest.EtherPPPoE), frametest.PPPoE(frametest.PPPIPv6),
		frametest.V6{Next: 0}.Packet(
			frametest.Extension(44, 8), frametest.Fragment(frametest.ProtoTCP, 0),
			frametest.UDP)), uint16(dataplane.LinkEthernet), 1500)
	f.Add(frametest.Concat([]byte{0x86, 0xdd}, make([]byte, 18), frametest.V6{Next: 51}.Packet(
		frametest.Extension(60, 16), frametest.Extension(frametest.ProtoUDP, 8),
		frametest.UDP)), uint16(dataplane.LinkSLL2), 0)
	f.Add(
		frametest.Concat([]byte{2, 0, 0, 0}, frametest.V4{Proto: frametest.ProtoSCTP}.Packet(frametest.UDP)),
		uint16(dataplane.LinkNull), -1)
	f.Add(frametest.V4{Proto: frametest.ProtoTCP}.Packet(frametest.UDP), uint16(dataplane.LinkRaw),
		min(1<<40, math.MaxInt))
	f.Add(frametest.Concat([]byte{0x45, 3, 0xe8}, frametest.UDP), uint16(dataplane.LinkPPPD), 200)
	f.Add(frametest.Concat([]byte{0x0f, 0, 8, 0},
		frametest.V4{Proto: frametest.ProtoTCP}.Packet(frametest.UDP)), uint16(dataplane.LinkPPPHDLC), 200)
	f.Fuzz(func(t *testing.T, data []byte, link uint16, wire int) {
		p := dataplane.Packet{
			Data: slices.Clip(bytes.Clone(data)), WireLen: wire, Link: dataplane.LinkType(link),
		}
		dataplane.Parse(&p)
		once := frametest.Describe(&p)
		if !bytes.Equal(p.Data, data) {
			t.Fatal("Parse wrote into the packet")
		}
		if p.WireLen != max(wire, len(data)) {
			t.Fatalf("%s: got %d bytes on the wire, want the larger of %d and %d", once, p.WireLen, wire,
				len(data))
		}
		if p.L3 < 0 || p.L3Len < 0 || p.L3+p.L3Len > p.WireLen {
			t.Fatalf("%s: outside of the %d bytes of the frame", once, p.WireLen)
		}
		if size := [...]int{dataplane.IPv4: 20, dataplane.IPv6: 40}[max(p.Kind, dataplane.IPv4)]; p.IsIP() &&
			p.L3+size > len(data) {
			t.Fatalf("%s: a header of %d bytes in a capture of %d", once, size, len(data))
		}
		if p.IsIP() &&
			(p.L3Len < 20 ||
				data[p.L3]>>4 != map[dataplane.PacketKind]byte{
					dataplane.IPv4: 4, dataplane.IPv6: 6,
				}[p.Kind]) {
			t.Fatalf("%s: wrong version or length: % x", once, data)
		}
		if p.Tags > 3 || p.Tags > 0 && p.Tag+2 > len(data) || p.MPLS != 0 && p.MPLS+4 > len(data) {
			t.Fatalf("%s: tag or label outside of the %d bytes", once, len(data))
		}
		if p.HasPorts && (!p.IsIP() || p.Fragment) {
			t.Fatalf("%s: a fragment or no IP, but with ports", once)
		}
		if dataplane.Parse(&p); frametest.Describe(&p) != once {
			t.Fatalf("first %s\nsecond %s", once, frametest.Describe(&p))
		}
		for n := range len(data) {
			cut := dataplane.Packet{Data: slices.Clip(data[:n]), WireLen: p.WireLen, Link: p.Link}
			if dataplane.Parse(&cut); frametest.Describe(&cut) != once && !cut.HeadersCut() {
				t.Fatalf("got %s of all bytes, %s of %d without cut headers", once, frametest.Describe(&cut),
					n)
			}
		}
	})
}

func BenchmarkParse(b *testing.B) {
	for _, bench := range []struct {
		name  string
		frame []byte
	}{
		{"ipv4", frametest.Concat(frametest.Ethernet(frametest.EtherIPv4), frametest.V4{Proto: frametest.ProtoTCP}.Packet(make([]byte, 1480)))},
		{"ipv6", frametest.Concat(frametest.Ethernet(frametest.EtherIPv6), frametest.V6{Next: frametest.ProtoTCP}.Packet(make([]byte, 1460)))},
		{"qinq-mpls", frametest.Concat(frametest.Ethernet(frametest.EtherQinQ), frametest.Tag(1, 0, 1, frametest.EtherVLAN), frametest.Tag(2, 1, 2, frametest.EtherMPLS), frametest.MplsLabel(2, 2, 1), frametest.V4{Proto: frametest.ProtoUDP}.Packet(make([]byte, 1400)))},
	} {
		b.Run(bench.name, func(b *testing.B) {
			p := dataplane.Packet{Data: bench.frame, Link: dataplane.LinkEthernet}
			for b.Loop() {
				dataplane.Parse(&p)
			}
		})
	}
}
