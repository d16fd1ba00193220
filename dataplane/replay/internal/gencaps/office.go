package main

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/google/gopacket/layers"
)

const (
	us = time.Microsecond
	ms = time.Millisecond
)

// office is ten seconds of a small network behind one gateway, captured on the
// link to the gateway.
func office() []byte {
	rng := rand.New(rand.NewPCG(1, 1))
	c := &capture{}
	spread := func(n int, each func(i int, at time.Duration)) {
		for i := range n {
			each(i, time.Duration(rng.Int64N(int64(9500*ms))))
		}
	}
	spread(33, func(i int, at time.Duration) {
		f := officeFlow(rng, i%3 == 2)
		f.sport, f.dport = uint16(32768+rng.IntN(28000)), []uint16{443, 443, 80, 22, 8443}[i%5]
		rtt := time.Duration(5+rng.IntN(40)) * ms
		c.tcp(rng, at, f, rtt, 200+rng.IntN(2200), 3000+rng.IntN(44000))
	})
	spread(40, func(i int, at time.Duration) { c.dns(rng, at, officeFlow(rng, i%4 == 3), i) })
	spread(4, func(i int, at time.Duration) { c.quic(rng, at, officeFlow(rng, i%2 == 1)) })
	spread(3, func(i int, at time.Duration) { c.arp(at, byte(11+i)) })
	spread(3, func(i int, at time.Duration) { c.neighbor(at, byte(11+i)) })
	for i := range 9 {
		at := time.Duration(i)*time.Second + 31*ms
		c.ping(at, officeFlow(rng, false), uint16(i))
		c.ping(at+400*ms, officeFlow(rng, true), uint16(i))
	}
	c.pieces()
	c.sort()
	c.snap(96)
	return pcapFormat{order: binary.LittleEndian, snap: 96, link: linkEthernet}.file(c.packets)
}

// officeFlow returns a flow from a host to a server.
func officeFlow(rng *rand.Rand, v6 bool) flow {
	host, server := byte(10+rng.IntN(6)), byte(20+rng.IntN(20))
	f := flow{smac: mac{2, 0, 0, 0, 0, host}, dmac: macGateway}
	if v6 {
		f.src = netip.AddrFrom16([16]byte{0x20, 1, 0x0d, 0xb8, 0, 1, 15: host})
		f.dst = netip.AddrFrom16([16]byte{0x20, 1, 0x0d, 0xb8, 0, 2, 15: server})
	} else {
		f.src = netip.AddrFrom4([4]byte{192, 0, 2, host})
		f.dst = netip.AddrFrom4([4]byte{198, 51, 100, server})
	}
	return f
}

// end is one side of a TCP connection.
type end struct {
	flow flow
	seq  uint32
}

// tcp adds a whole connection: a request of up bytes, an answer of down bytes in a doubling window,
// and an acknowledgement for every two segments.
func (c *capture) tcp(rng *rand.Rand, at time.Duration, f flow, rtt time.Duration, up, down int) {
	if rng.IntN(3) == 0 {
		f.ecn = 2 // ECT(0)
	}
	client, server := &end{f, rng.Uint32()}, &end{f.reverse(), rng.Uint32()}
	start := at
	send := func(from, to *end, flags string, payload int) {
		t := layers.TCP{Seq: from.seq, Ack: to.seq, Window: 501}
		for _, r := range flags {
			switch r {
			case 'S':
				t.SYN, t.Window = true, 64240
				from.seq++
			case 'F':
				t.FIN = true
				from.seq++
			case 'P':
				t.PSH = true
			case 'A':
				t.ACK = true
			}
		}
		if !t.ACK {
			t.Ack = 0
		}
		t.Options = tcpOptions(t.SYN, f.src.Is6(), uint32(at/ms))
		out := from.flow
		if payload == 0 {
			out.ecn = 0 // RFC 3168 §6.1.4: no ECT on SYN and pure ACKs
		}
		c.add(at, out.frame(out.tcp(t, filler(payload))))
		from.seq += uint32(payload)
	}
	mss := 1448
	if f.src.Is6() {
		mss = 1428
	}

	send(client, server, "S", 0)
	at += rtt
	send(server, client, "SA", 0)
	at += 40 * us
	send(client, server, "A", 0)
	for at += 300 * us; up > 0; at += 12 * us {
		send(client, server, "PA", min(up, mss))
		up -= mss
	}
	at += rtt
	send(server, client, "A", 0)
	at += 2 * ms
	for window := 4; down > 0; window *= 2 {
		for i := 0; i < window && down > 0; i++ {
			send(server, client, "PA", min(down, mss))
			down -= mss
			at += 120 * us
			if i&1 == 1 || down <= 0 {
				send(client, server, "A", 0)
				at += 8 * us
			}
		}
		at += rtt
	}
	// Keep-alive connections end later than their data.
	at = max(at+5*ms, start+time.Duration(rng.IntN(900))*ms)
	send(client, server, "FA", 0)
	at += rtt
	send(server, client, "FA", 0)
	at += 30 * us
	send(client, server, "A", 0)
}

// tcpOptions returns the options used by Linux: all on SYN, timestamps after
// it.
func tcpOptions(syn, v6 bool, now uint32) []layers.TCPOption {
	stamps := layers.TCPOption{
		OptionType: layers.TCPOptionKindTimestamps, OptionLength: 10,
		OptionData: be.AppendUint32(be.AppendUint32(nil, 1000+now), 2000+now),
	}
	nop := layers.TCPOption{OptionType: layers.TCPOptionKindNop, OptionLength: 1}
	if !syn {
		return []layers.TCPOption{nop, nop, stamps}
	}
	mss := []byte{5, 0xb4} // 1460
	if v6 {
		mss = []byte{5, 0xa0} // 1440
	}
	return []layers.TCPOption{
		{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: mss},
		{OptionType: layers.TCPOptionKindSACKPermitted, OptionLength: 2},
		stamps,
		nop,
		{OptionType: layers.TCPOptionKindWindowScale, OptionLength: 3, OptionData: []byte{7}},
	}
}

func (c *capture) dns(rng *rand.Rand, at time.Duration, f flow, i int) {
	f = f.ports(uint16(32768+rng.IntN(28000)), 53)
	kind, data := layers.DNSTypeA, []byte{203, 0, 113, byte(1 + i)}
	if i&1 == 1 {
		kind = layers.DNSTypeAAAA
		data = []byte{0x20, 1, 0x0d, 0xb8, 0, 3, 15: byte(1 + i)}
	}
	name := []byte([]string{"www.example.com", "mail.example.net", "cdn.static.example.org"}[i%3])
	query := layers.DNS{
		ID: uint16(rng.Uint32()), RD: true,
		Questions: []layers.DNSQuestion{{Name: name, Type: kind, Class: layers.DNSClassIN}},
	}
	c.add(at, f.frame(f.udp(serialize(&query))))
	answer := query
	answer.QR, answer.RA = true, true
	answer.Answers = []layers.DNSResourceRecord{
		{Name: name, Type: kind, Class: layers.DNSClassIN, TTL: 300, IP: data},
	}
	r := f.reverse()
	c.add(at+time.Duration(1+rng.IntN(20))*ms, r.frame(r.udp(serialize(&answer))))
}

// quic adds packets with the sizes of a QUIC connection: long headers padded to
// 1200 bytes (RFC 9000 §14.1), then short ones.
func (c *capture) quic(rng *rand.Rand, at time.Duration, f flow) {
	f = f.ports(uint16(32768+rng.IntN(28000)), 443)
	f.ecn = 2
	long := append([]byte{0xc3, 0, 0, 0, 1, 8}, filler(1194)...)
	r := f.reverse()
	c.add(at, f.frame(f.udp(long)))
	c.add(at+12*ms, r.frame(r.udp(long)))
	at += 13 * ms
	for range 24 {
		at += time.Duration(200+rng.IntN(9000)) * us
		c.add(at, r.frame(r.udp(append([]byte{0x41}, filler(1251)...))))
		if rng.IntN(3) == 0 {
			c.add(at+90*us, f.frame(f.udp(append([]byte{0x41}, filler(24+rng.IntN(20))...))))
		}
	}
}

func (c *capture) ping(at time.Duration, f flow, seq uint16) {
	body := slices.Concat(be.AppendUint16([]byte{0x12, 0x34}, seq), filler(56))
	echo := func(f flow, kind4, kind6 uint8) []byte {
		if f.src.Is4() {
			return f.ip(layers.IPProtocolICMPv4, &layers.ICMPv4{
				TypeCode: layers.CreateICMPv4TypeCode(kind4, 0), Id: 0x1234, Seq: seq,
			}, body[4:])
		}
		return f.ip(layers.IPProtocolICMPv6, &layers.ICMPv6{
			TypeCode: layers.CreateICMPv6TypeCode(kind6, 0),
		}, body)
	}
	r := f.reverse()
	c.add(at, f.frame(echo(f, layers.ICMPv4TypeEchoRequest, layers.ICMPv6TypeEchoRequest)))
	c.add(at+7*ms, r.frame(echo(r, layers.ICMPv4TypeEchoReply, layers.ICMPv6TypeEchoReply)))
}

// arp adds a request by the gateway, captured before it is padded, and the
// answer, which arrives padded.
func (c *capture) arp(at time.Duration, host byte) {
	to := mac{2, 0, 0, 0, 0, host}
	c.add(at, ether(macBroadcast, macGateway, typeARP, arpBody(1, macGateway, 1, mac{}, host)))
	c.add(at+300*us, pad(ether(macGateway, to, typeARP, arpBody(2, to, host, macGateway, 1)), 60))
}

// arpBody returns an ARP packet between two hosts of 192.0.2.0/24.
func arpBody(op byte, sender mac, sip byte, target mac, tip byte) []byte {
	return slices.Concat([]byte{0, 1, 8, 0, 6, 4, 0, op},
		sender[:], []byte{192, 0, 2, sip}, target[:], []byte{192, 0, 2, tip})
}

// neighbor adds IPv6 neighbor discovery (RFC 4861).
func (c *capture) neighbor(at time.Duration, host byte) {
	to := mac{2, 0, 0, 0, 0, host}
	target := netip.AddrFrom16([16]byte{0x20, 1, 0x0d, 0xb8, 0, 1, 15: host}).As16()
	f := flow{
		smac: macGateway, dmac: mac{0x33, 0x33, 0xff, 0, 0, host},
		src: netip.MustParseAddr("2001:db8:1::1"),
		dst: netip.AddrFrom16([16]byte{0xff, 2, 11: 1, 12: 0xff, 15: host}),
	}
	c.add(at, hopLimit255(f, layers.ICMPv6TypeNeighborSolicitation,
		slices.Concat(make([]byte, 4), target[:], []byte{1, 1}, macGateway[:])))
	f = flow{smac: to, dmac: macGateway, src: netip.AddrFrom16(target), dst: f.src}
	c.add(at+300*us, hopLimit255(f, layers.ICMPv6TypeNeighborAdvertisement,
		slices.Concat([]byte{0x60, 0, 0, 0}, target[:], []byte{2, 1}, to[:])))
}

func hopLimit255(f flow, kind uint8, body []byte) []byte {
	ip := f.ip(layers.IPProtocolICMPv6, &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(kind, 0)}, body)
	ip[7] = 255
	return f.frame(ip)
}

// pieces adds packets seldom seen in an office: fragments, extension headers, errors.
func (c *capture) pieces() {
	f4, f6 := flow4.ports(41000, 2049), flow6.ports(41000, 2049)
	at := 2 * time.Second
	for i, piece := range fragments4(f4.udp(filler(4000)), 0x4242, 1480) {
		c.add(at+time.Duration(i)*12*us, framed(piece))
	}
	late := fragments4(f4.udp(filler(4000)), 0x4243, 1480)
	slices.Reverse(late) // Linux once sent the last fragment first
	for i, piece := range late {
		c.add(at+ms+time.Duration(i)*12*us, framed(piece))
	}
	for i, piece := range fragments6(f6.udp(filler(3000)), 0x42424242, 1448) {
		c.add(at+2*ms+time.Duration(i)*12*us, framed(piece))
	}

	at = 4 * time.Second
	small := f6.udp(filler(64))
	for i, ip := range [][]byte{
		extend(small, extHopByHop, padN(8)),
		extend(small, extDestination, padN(16)),
		extend(small, extRouting, []byte{0, 0, 4, 0, 0, 0, 0, 0}), // SRH type, no segments left
		extend(extend(f6.tcp(layers.TCP{ACK: true, Window: 501}, nil), extDestination, padN(8)), extHopByHop,
			padN(8)),
		multicastReport(),
	} {
		c.add(at+time.Duration(i)*50*ms, framed(ip))
	}

	at = 6 * time.Second
	quoted := f4.udp(filler(32))
	r := flow4.reverse()
	c.add(at, r.frame(r.ip(layers.IPProtocolICMPv4, &layers.ICMPv4{
		TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeDestinationUnreachable, layers.ICMPv4CodePort),
	}, quoted)))
	r = flow6.reverse()
	c.add(at+ms, r.frame(r.ip(layers.IPProtocolICMPv6, &layers.ICMPv6{
		TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeTimeExceeded, 0),
	}, slices.Concat(make([]byte, 4), small))))
}

// multicastReport returns an MLDv2 report (RFC 3810) with a router alert.
func multicastReport() []byte {
	f := flow6
	f.dst = netip.MustParseAddr("ff02::16")
	group := netip.MustParseAddr("ff02::fb").As16()
	ip := f.ip(layers.IPProtocolICMPv6, &layers.ICMPv6{
		TypeCode: layers.CreateICMPv6TypeCode(143, 0),
	}, slices.Concat([]byte{0, 0, 0, 1, 4, 0, 0, 0}, group[:]))
	ip[7] = 1
	return extend(ip, extHopByHop, []byte{0, 0, 5, 2, 0, 0, 1, 0})
}
