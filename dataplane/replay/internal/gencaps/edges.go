package main

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/google/gopacket/layers"
)

// edge is a frame easily misread by parsers. The names are those of the table in the captures'
// README.
type edge struct {
	name  string
	frame []byte
	cut   int // captured length; 0: the whole frame, -1: nothing
	wire  int // original length; 0: len(frame)
}

func edges() []byte {
	c := &capture{}
	for i, e := range edgeRows() {
		p := packet{at: time.Duration(i) * ms, data: e.frame, wire: max(e.wire, len(e.frame))}
		switch {
		case e.cut < 0:
			p.data = nil
		case e.cut > 0:
			p.data = p.data[:e.cut]
		}
		c.packets = append(c.packets, p)
	}
	return pcapFormat{order: binary.LittleEndian, snap: 262144, link: linkEthernet}.file(c.packets)
}

func edgeRows() []edge {
	return slices.Concat(paddingEdges(), lengthEdges(), headerEdges(), extensionEdges(), cutEdges(),
		linkEdges(), codepointEdges())
}

var (
	vlan10     = tag{typeVLAN, 3, 0, 10}
	arpRequest = arpBody(1, macA, 10, mac{}, 1)
)

// paddingEdges returns frames longer than their IP packet, on both sides of the
// maximum length of Ethernet padding.
func paddingEdges() []edge {
	udp18 := flow4.udp(filler(18)) // 46 bytes, fills a frame exactly
	udp1 := flow4.udp(filler(1))   // 29 bytes
	ack := flow4.tcp(layers.TCP{ACK: true, Window: 501}, nil)
	none4 := flow4.ip(255, nil, nil)
	none6 := flow6.ip(extNone, nil, nil)
	return []edge{
		{name: "UDP of 46 bytes fills 60 without padding", frame: framed(udp18)},
		{name: "UDP of 29 bytes, padded to 60", frame: pad(framed(udp1), 60)},
		{name: "UDP of 29 bytes, 43-byte frame as its sender sees it", frame: framed(udp1)},
		{name: "UDP of 29 bytes, padded to 50 only", frame: pad(framed(udp1), 50)},
		{name: "TCP ACK of 40 bytes, padded to 60", frame: pad(framed(ack), 60)},
		{name: "IPv4 header and nothing else, padded to 60", frame: pad(framed(none4), 60)},
		{name: "IPv4 header and nothing else, 34-byte frame", frame: framed(none4)},
		{name: "IPv6 header and nothing else, padded to 60", frame: pad(framed(none6), 60)},
		{name: "TCP ACK of 40 bytes in 61, one more than padding gives", frame: pad(framed(ack), 61)},
		{name: "one VLAN tag, padded to 64", frame: pad(tagged(framed(ack), vlan10), 64)},
		{name: "one VLAN tag, padded to 60", frame: pad(tagged(framed(ack), vlan10), 60)},
		{
			name:  "one VLAN tag, 65 bytes, one more than padding gives",
			frame: pad(tagged(framed(ack), vlan10), 65),
		},
		{
			name:  "two VLAN tags, padded to 68",
			frame: pad(tagged(framed(ack), tag{typeQinQ, 3, 0, 100}, vlan10), 68),
		},
		{
			name:  "two VLAN tags, 69 bytes, one more than padding gives",
			frame: pad(tagged(framed(ack), tag{typeQinQ, 3, 0, 100}, vlan10), 69),
		},
		{
			name:  "MPLS label, UDP of 29 bytes, padded to 60",
			frame: pad(mpls(typeMPLS, udp1, label{16001, 3}), 60),
		},
		{
			name:  "PPPoE, UDP of 29 bytes, padded to 60",
			frame: pad(ether(macGateway, macA, typePPPoE, pppoe(1, pppIPv4, udp1)), 60),
		},
		{name: "ARP, padded to 60", frame: pad(ether(macBroadcast, macA, typeARP, arpRequest), 60)},
	}
}

// lengthEdges returns IP headers with a length different from the frame's.
func lengthEdges() []edge {
	ip4 := func(claim int) []byte { return framed(totalLength(flow4.udp(filler(972)), claim)) }
	short4 := func(claim int) []byte { return pad(framed(totalLength(flow4.udp(filler(12)), claim)), 60) }
	ip6 := func(claim uint16) []byte {
		ip := flow6.udp(filler(960))
		be.PutUint16(ip[4:], claim)
		return framed(ip)
	}
	segment4, segment6 := flow4.tcp(layers.TCP{ACK: true}, filler(200)),
		flow6.tcp(layers.TCP{ACK: true}, filler(200))
	be.PutUint16(segment6[4:], 0)
	jumbogram := extend(flow6.tcp(layers.TCP{ACK: true}, filler(200)), extHopByHop,
		[]byte{0, 0, 0xc2, 4, 0, 1, 0x11, 0x48})
	be.PutUint16(jumbogram[4:], 0)
	return []edge{
		{name: "IPv4 total length 0, frame of 1014", frame: ip4(0)},
		{
			name:  "IPv4 total length 0, segment of 65550 on the wire",
			frame: framed(totalLength(segment4, 0)), cut: 96, wire: 65550,
		},
		{
			name:  "IPv4 total length 0, BIG TCP of 131086 on the wire",
			frame: framed(totalLength(segment4, 0)), cut: 96, wire: 131086,
		},
		{name: "IPv4 total length 0, padded to 60", frame: short4(0)},
		{name: "IPv4 total length 19, below its header, padded to 60", frame: short4(19)},
		{name: "IPv4 total length 20, UDP header behind it, padded to 60", frame: short4(20)},
		{name: "IPv4 total length 47 in 46 bytes, padded to 60", frame: short4(47)},
		{name: "IPv4 total length 1500 in a frame of 60", frame: short4(1500)},
		{name: "IPv4 total length 1500 in a frame of 1014", frame: ip4(1500)},
		{name: "IPv4 total length 999 in a frame of 1014", frame: ip4(999)},
		{name: "IPv4 total length 40 in a frame of 1014, forged", frame: ip4(40)},
		{
			name: "IPv6 payload length 0, BIG TCP of 70014 on the wire", frame: framed(segment6), cut: 96,
			wire: 70014,
		},
		{
			name:  "IPv6 payload length 0, jumbo option (RFC 2675), 70014 on the wire",
			frame: framed(jumbogram), cut: 96, wire: 70014,
		},
		{name: "IPv6 payload length 0 in a frame of 1022", frame: ip6(0)},
		{name: "IPv6 payload length 1460 in a frame of 1022", frame: ip6(1460)},
		{name: "IPv6 payload length 20 in a frame of 1022, forged", frame: ip6(20)},
		{name: "jumbo frame, IPv4 total length 9000", frame: framed(flow4.udp(filler(8972))), cut: 96},
		{name: "jumbo frame, IPv6 payload length 8960", frame: framed(flow6.udp(filler(8952))), cut: 96},
		{name: "IPv4 total length 65535", frame: framed(flow4.udp(filler(65507))), cut: 96},
	}
}

// headerEdges returns unusual and invalid IPv4 headers and transport headers.
func headerEdges() []edge {
	udp := func() []byte { return flow4.udp(filler(100)) }
	first := func(b byte) []byte {
		ip := udp()
		ip[0] = b
		return ip
	}
	nops := make([]byte, 40)
	for i := range nops {
		nops[i] = 1
	}
	badSum := udp()
	badSum[10] ^= 0xff
	pieces := fragments4(flow4.udp(filler(2000)), 0x4242, 800)
	shortOffset := flow4.tcp(layers.TCP{ACK: true}, filler(20))
	shortOffset[32] = 4 << 4
	zeroUDP := udp()
	be.PutUint16(zeroUDP[24:], 0)
	return []edge{
		{name: "IPv4 with 40 bytes of options, IHL 15", frame: framed(options4(udp(), nops))},
		{name: "IPv4 with router alert, IHL 6", frame: framed(options4(udp(), []byte{148, 4, 0, 0}))},
		{name: "IPv4, IHL 15 cut in its options", frame: framed(options4(udp(), nops)), cut: 60},
		{name: "IPv4, IHL 15 with a total length of 40", frame: framed(totalLength(first(0x4f), 40))},
		{name: "IPv4, IHL 15 in a frame of 54", frame: framed(first(0x4f)[:40])},
		{name: "IPv4, IHL 4", frame: framed(first(0x44))},
		{name: "IPv4, IHL 0", frame: framed(first(0x40))},
		{name: "version 6 in EtherType IPv4", frame: ether(macGateway, macA, typeIPv4, first(0x65))},
		{name: "version 5 in EtherType IPv4", frame: ether(macGateway, macA, typeIPv4, first(0x55))},
		{name: "version 0 in EtherType IPv4", frame: ether(macGateway, macA, typeIPv4, first(0x05))},
		{name: "version 4 in EtherType IPv6", frame: ether(macGateway, macA, typeIPv6, udp())},
		{name: "version 5 behind an MPLS label", frame: mpls(typeMPLS, first(0x55), label{16001, 3})},
		{name: "IPv4 with a wrong header checksum", frame: framed(badSum)},
		{name: "IPv4 first fragment", frame: framed(pieces[0])},
		{name: "IPv4 fragment in the middle", frame: framed(pieces[1])},
		{name: "IPv4 last fragment", frame: framed(pieces[2])},
		{
			name:  "IPv4 UDP with 4 bytes of its header",
			frame: pad(framed(flow4.ip(layers.IPProtocolUDP, nil, filler(4))), 60),
		},
		{
			name:  "IPv4 TCP with 10 bytes of its header",
			frame: pad(framed(flow4.ip(layers.IPProtocolTCP, nil, filler(10))), 60),
		},
		{name: "IPv4 TCP with a data offset of 4", frame: framed(shortOffset)},
		{name: "IPv4 UDP with UDP length 0", frame: framed(zeroUDP)},
		{
			name:  "IPv4 GRE with IPv4 in it",
			frame: framed(flow4.ip(layers.IPProtocolGRE, nil, slices.Concat([]byte{0, 0, 8, 0}, udp()))),
		},
		{name: "IPv4 in IPv4", frame: framed(flow4.ip(layers.IPProtocolIPv4, nil, udp()))},
		{name: "IPv6 in IPv4", frame: framed(flow4.ip(layers.IPProtocolIPv6, nil, flow6.udp(filler(100))))},
		{name: "IPv4 ESP", frame: framed(flow4.ip(layers.IPProtocolESP, nil, filler(96)))},
		{name: "IPv4 SCTP", frame: framed(flow4.ip(layers.IPProtocolSCTP, nil,
			slices.Concat([]byte{0x13, 0x89, 0x13, 0x8a}, make([]byte, 24))))},
	}
}

// extensionEdges returns IPv6 packets with chains of extension headers.
func extensionEdges() []edge {
	udp := flow6.udp(filler(100))
	chain := extend(extend(extend(udp, extDestination, padN(8)), extRouting, make([]byte, 8)), extHopByHop,
		padN(16))
	many := udp
	for range 12 {
		many = extend(many, extDestination, padN(8))
	}
	beyond := extend(udp, extDestination, padN(8))
	beyond[41] = 255
	pieces := fragments6(flow6.udp(filler(2000)), 0x42424242, 800)
	return []edge{
		{name: "IPv6, hop-by-hop, routing, destination, UDP", frame: framed(chain)},
		{name: "IPv6, twelve destination headers, UDP", frame: framed(many)},
		{
			name:  "IPv6, destination header of 256 bytes, UDP",
			frame: framed(extend(udp, extDestination, padN(256))),
		},
		{name: "IPv6, destination header longer than the frame", frame: framed(beyond)},
		{name: "IPv6, chain cut in its second header", frame: framed(chain), cut: 14 + 40 + 16 + 4},
		{name: "IPv6 first fragment", frame: framed(pieces[0])},
		{name: "IPv6 fragment in the middle", frame: framed(pieces[1])},
		{name: "IPv6 last fragment", frame: framed(pieces[2])},
		{name: "IPv6 atomic fragment (RFC 6946)", frame: framed(fragment6(udp, 1, 0, false))},
		{name: "IPv6, next header 253", frame: framed(flow6.ip(253, nil, filler(40)))},
		{name: "IPv6, no next header, bytes behind it", frame: framed(flow6.ip(extNone, nil, filler(40)))},
		{
			name:  "IPv6 UDP with 4 bytes of its header",
			frame: framed(flow6.ip(layers.IPProtocolUDP, nil, filler(4))),
		},
		{name: "IPv4 in IPv6", frame: framed(flow6.ip(layers.IPProtocolIPv4, nil, flow4.udp(filler(100))))},
	}
}

// cutEdges returns one valid frame truncated by the snap length at and inside
// each layer.
func cutEdges() []edge {
	v4 := tagged(framed(flow4.marked(dscpAF11).tcp(layers.TCP{ACK: true}, filler(400))), vlan10)
	v6 := framed(flow6.marked(dscpAF11).udp(filler(400)))
	labeled := mpls(typeMPLS, flow4.udp(filler(400)), label{16001, 3}, label{16002, 3})
	session := ether(macGateway, macA, typePPPoE, pppoe(1, pppIPv4, flow4.udp(filler(400))))
	return []edge{
		{name: "cut to nothing", frame: v4, cut: -1},
		{name: "cut in the addresses, at 6", frame: v4, cut: 6},
		{name: "cut before the EtherType, at 12", frame: v4, cut: 12},
		{name: "cut in the EtherType, at 13", frame: v4, cut: 13},
		{name: "cut before the VLAN tag's number, at 14", frame: v4, cut: 14},
		{name: "cut in the VLAN tag, at 16", frame: v4, cut: 16},
		{name: "cut behind the VLAN tag, at 18", frame: v4, cut: 18},
		{name: "cut behind the first byte of IPv4, at 19", frame: v4, cut: 19},
		{name: "cut before the last byte of IPv4, at 37", frame: v4, cut: 37},
		{name: "cut behind IPv4, at 38", frame: v4, cut: 38},
		{name: "cut between the TCP ports, at 40", frame: v4, cut: 40},
		{name: "cut behind the TCP ports, at 42", frame: v4, cut: 42},
		{name: "cut before IPv6, at 14", frame: v6, cut: 14},
		{name: "cut in the traffic class, at 15", frame: v6, cut: 15},
		{name: "cut before the last byte of IPv6, at 53", frame: v6, cut: 53},
		{name: "cut behind IPv6, at 54", frame: v6, cut: 54},
		{name: "cut behind the UDP ports, at 58", frame: v6, cut: 58},
		{name: "cut in the first MPLS label, at 16", frame: labeled, cut: 16},
		{name: "cut behind the first MPLS label, at 18", frame: labeled, cut: 18},
		{name: "cut behind the MPLS stack, at 22", frame: labeled, cut: 22},
		{name: "cut in PPPoE, at 18", frame: session, cut: 18},
		{name: "cut in the PPP protocol, at 21", frame: session, cut: 21},
		{name: "cut behind PPP, at 22", frame: session, cut: 22},
	}
}

// linkEdges returns frames too short on the wire or without an IP packet.
func linkEdges() []edge {
	udp := flow4.udp(filler(100))
	stp := []byte{0x42, 0x42, 3, 38: 0}
	snap := slices.Concat([]byte{0xaa, 0xaa, 3, 0, 0, 0, 8, 0}, udp)
	bottomless := stack(nil, make([]label, 8)...)
	bottomless[len(bottomless)-2] &^= 1
	four := tagged(framed(udp), tag{typeVLAN, 0, 0, 1}, tag{typeVLAN, 1, 0, 2}, tag{typeVLAN, 2, 0, 3},
		tag{typeVLAN, 3, 0, 4})
	return []edge{
		{name: "frame of 0 bytes", frame: nil},
		{name: "frame of 1 byte", frame: []byte{2}},
		{name: "frame of 13 bytes", frame: framed(udp)[:13]},
		{name: "frame of 14 bytes, EtherType IPv4 and no more", frame: framed(udp)[:14]},
		{name: "frame of 33 bytes, IPv4 header one byte short", frame: framed(udp)[:33]},
		{name: "frame of 53 bytes, IPv6 header one byte short", frame: framed(flow6.udp(filler(100)))[:53]},
		{name: "frame of 16 bytes, ends in its VLAN tag", frame: tagged(framed(udp), vlan10)[:16]},
		{name: "frame of 18 bytes, ends behind its VLAN tag", frame: tagged(framed(udp), vlan10)[:18]},
		{
			name:  "802.3 LLC, spanning tree, padded to 60",
			frame: pad(ether(macSTP, macA, uint16(len(stp)), stp), 60),
		},
		{name: "802.3 SNAP with IPv4 in it", frame: ether(macGateway, macA, uint16(len(snap)), snap)},
		{
			name: "length field 1500, the largest", frame: ether(macGateway, macA, 1500, make([]byte, 1500)),
			cut: 96,
		},
		{
			name:  "type field 1535, neither length nor EtherType",
			frame: ether(macGateway, macA, 1535, make([]byte, 64)),
		},
		{name: "LLDP", frame: pad(ether(macLLDP, macA, typeLLDP,
			[]byte{2, 7, 4, 2, 0, 0, 0, 0, 1, 4, 2, 7, '1', 6, 2, 0, 120, 0, 0}), 60)},
		{name: "EtherType 0x88b5, local experiment", frame: ether(macGateway, macA, typeLocal, filler(100))},
		{
			name:  "VLAN tag with ARP behind it",
			frame: tagged(ether(macBroadcast, macA, typeARP, arpRequest), vlan10),
		},
		{name: "four VLAN tags", frame: four},
		{
			name:  "eight MPLS labels and no bottom of stack",
			frame: ether(macGateway, macA, typeMPLS, bottomless),
		},
		{name: "PPPoE session with LCP", frame: pad(
			ether(macGateway, macA, typePPPoE, pppoe(1, pppLCP, []byte{9, 1, 0, 8, 0, 0, 0, 0})), 60)},
		{
			name:  "PPPoE length larger than the frame",
			frame: ether(macGateway, macA, typePPPoE, []byte{0x11, 0, 0, 1, 5, 0xdc, 0, 0x21}, udp),
		},
		{
			name:  "PPPoE version 2",
			frame: ether(macGateway, macA, typePPPoE, []byte{0x21, 0, 0, 1, 0, 130, 0, 0x21}, udp),
		},
	}
}

// codepointEdges returns all values of ECN, and the largest DSCP.
func codepointEdges() []edge {
	var rows []edge
	for ecn, name := range []string{"Not-ECT", "ECT(1)", "ECT(0)", "CE"} {
		for _, f := range []flow{flow4, flow6} {
			f.dscp, f.ecn = dscpAF11, uint8(ecn)
			version := "IPv4 "
			if f.src.Is6() {
				version = "IPv6 "
			}
			rows = append(rows, edge{name: version + name, frame: framed(f.udp(filler(100)))})
		}
	}
	all4, all6 := flow4.marked(63), flow6.marked(63)
	all4.ecn, all6.ecn = 3, 3
	return append(rows,
		edge{name: "IPv4 TOS 0xff", frame: framed(all4.udp(filler(100)))},
		edge{name: "IPv6 traffic class 0xff", frame: framed(all6.udp(filler(100)))},
	)
}
