package main

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/google/gopacket/layers"
)

// tags contains every link header between Ethernet and IP which a shaper must parse, with different
// values of its priority bits.
func tags() []byte {
	c := &capture{}
	at := time.Duration(0)
	add := func(frame []byte) {
		c.add(at, frame)
		at += ms
	}
	v4 := func(dscp uint8, n int) []byte { return flow4.marked(dscp).udp(filler(n)) }
	v6 := func(dscp uint8, n int) []byte { return flow6.marked(dscp).udp(filler(n)) }

	for pcp := range uint16(8) {
		dei := pcp & 1
		dscp := uint8(pcp << 3)
		c4, c6 := framed(v4(dscp, 100)), framed(v6(dscp, 200))
		add(tagged(c4, tag{typeVLAN, pcp, 0, 10}))
		add(tagged(c6, tag{typeVLAN, pcp, 1, 20}))
		add(tagged(c4, tag{typeVLAN, pcp, 0, 0})) // priority tag
		add(tagged(c4, tag{typeQinQ, pcp, dei, 100}, tag{typeVLAN, 7 - pcp, 0, 10}))
		add(tagged(c6, tag{typeQinQ, pcp, dei, 100}, tag{typeVLAN, 7 - pcp, 1 - dei, 20}))
		add(tagged(c4, tag{typeVLAN, pcp, dei, 300}, tag{typeVLAN, 1, 0, 301}))
		add(tagged(c6, tag{typeQinQ91, pcp, dei, 4094}, tag{typeVLAN, 2, 0, 1}))
		add(tagged(c4, tag{typeQinQ, pcp, dei, 100}, tag{typeQinQ, 3, 0, 200}, tag{typeVLAN, 4, 1, 10}))
		add(tagged(c6, tag{typeVLAN, pcp, dei, 1}, tag{typeVLAN, 5, 0, 2}, tag{typeVLAN, 6, 1, 3}))
	}
	for tc := range uint32(8) {
		labels := []label{{16001, tc}, {24000, 7 - tc}, {1048575, 2}}
		for _, ip := range [][]byte{v4(uint8(tc<<3), 100), v6(uint8(tc<<3), 200)} {
			for n := 1; n <= 3; n++ {
				add(mpls(typeMPLS, ip, labels[:n]...))
			}
			add(tagged(mpls(typeMPLS, ip, labels[:2]...), tag{typeVLAN, uint16(tc), 0, 30}))
			add(tagged(mpls(typeMPLS, ip, labels[0]), tag{typeQinQ, uint16(tc), 1, 100},
				tag{typeVLAN, 0, 0, 30}))
		}
	}
	add(mpls(typeMPLS, v4(dscpEF, 100), label{0, 5}))      // IPv4 explicit null
	add(mpls(typeMPLS, v6(dscpEF, 100), label{2, 5}))      // IPv6 explicit null
	add(mpls(typeMPLSM, v4(dscpEF, 100), label{16001, 5})) // upstream-assigned (RFC 5332)
	// A pseudowire: an Ethernet frame after a control word (RFC 4385).
	wire := slices.Concat(make([]byte, 4), framed(v4(dscpEF, 100)))
	add(mpls(typeMPLS, wire, label{16001, 5}, label{17, 0}))

	c.pppoe(&at)
	return pcapFormat{order: binary.LittleEndian, snap: 262144, link: linkEthernet}.file(c.packets)
}

func mpls(kind uint16, payload []byte, labels ...label) []byte {
	return ether(macGateway, macA, kind, stack(payload, labels...))
}

// pppoe adds one session: discovery, link setup, traffic, end.
func (c *capture) pppoe(at *time.Duration) {
	const session = 0x1234
	add := func(frame []byte) {
		c.add(*at, frame)
		*at += ms
	}
	discovery := func(dst, src mac, code byte, id uint16, tags ...byte) []byte {
		b := be.AppendUint16([]byte{0x11, code}, id)
		b = be.AppendUint16(b, uint16(len(tags)))
		return pad(ether(dst, src, typePPPoED, b, tags), 60)
	}
	service := []byte{1, 1, 0, 0}                                     // Service-Name, any
	named := append(slices.Clone(service), 1, 2, 0, 3, 'b', 'a', 's') // AC-Name
	add(discovery(macBroadcast, macA, 0x09, 0, service...))
	add(discovery(macA, macGateway, 0x07, 0, named...))
	add(discovery(macGateway, macA, 0x19, 0, service...))
	add(discovery(macA, macGateway, 0x65, session, service...))

	out := func(protocol uint16, payload []byte) []byte {
		return ether(macGateway, macA, typePPPoE, pppoe(session, protocol, payload))
	}
	add(pad(out(pppLCP, []byte{1, 1, 0, 8, 1, 4, 5, 0xd4}), 60)) // Configure-Request, MRU 1492
	for _, dscp := range []uint8{dscpBE, dscpAF11, dscpAF12, dscpAF13, dscpAF41, dscpEF, dscpCS6} {
		v4, v6 := flow4.marked(dscp), flow6.marked(dscp)
		add(out(pppIPv4, v4.udp(filler(100))))
		add(out(pppIPv6, v6.udp(filler(200))))
		add(tagged(out(pppIPv4, v4.udp(filler(100))), tag{typeVLAN, 5, 0, 7}))
		add(tagged(out(pppIPv6, v6.udp(filler(200))), tag{typeQinQ, 1, 1, 100}, tag{typeVLAN, 6, 0, 7}))
		add(out(pppIPv4, v4.tcp(layers.TCP{ACK: true, Window: 501}, nil)))
	}
	add(out(pppIPv4, flow4.udp(filler(1492-28)))) // the longest packet allowed by PPPoE
	add(pad(out(pppLCP, []byte{9, 1, 0, 8, 0, 0, 0, 0}), 60))
	add(discovery(macGateway, macA, 0xa7, session))
}
