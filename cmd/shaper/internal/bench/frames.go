package main

import (
	"math/rand/v2"
	"net"
	"sync"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// numFrames is small enough for the headers to stay in a core's cache, as they do after DMA by
// a network card.
const numFrames = 4096

// frames are Ethernet frames without FCS: IMIX, 70 % IPv4 and 30 % IPv6, 55 % TCP and 40 % UDP,
// a fifth with a VLAN tag.
var frames = sync.OnceValue(func() [][]byte {
	r := rand.New(rand.NewPCG(791, 8200))
	all := make([][]byte, numFrames)
	for i := range all {
		all[i] = frame(r, imix[r.IntN(len(imix))]-4)
	}
	return all
})

// services are some of the ports matched by classes.
var services = [...]uint16{
	22, 25, 53, 80, 80, 443, 443, 443, 443, 500, 587, 993, 3306, 5060, 8080, 16500, 51820,
}

// codepoints are the DSCPs of arriving packets.
var codepoints = [...]uint8{0, 0, 0, 0, 0, 0, 0, 8, 34, 36, 46, 48}

var (
	nets4 = [...]net.IP{
		{10, 1, 0, 0},
		{10, 9, 0, 0},
		{172, 20, 0, 0},
		{192, 168, 0, 0},
		{198, 51, 100, 0},
		{203, 0, 113, 0},
		{10, 200, 0, 0},
	}
	nets6 = [...]string{"2001:db8:1::", "2001:db8:9::", "2001:db8:200::", "2001:db8:ffff::"}
)

func address4(r *rand.Rand) net.IP {
	ip := append(net.IP(nil), nets4[r.IntN(len(nets4))]...)
	ip[3] = byte(r.Uint32())
	return ip
}

func address6(r *rand.Rand) net.IP {
	ip := net.ParseIP(nets6[r.IntN(len(nets6))])
	ip[15] = byte(r.Uint32())
	return ip
}

// frame returns a frame of size bytes, or longer if its headers need more.
func frame(r *rand.Rand, size int) []byte {
	eth := &layers.Ethernet{
		SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2},
		EthernetType: layers.EthernetTypeIPv4,
	}
	stack, headers := []gopacket.SerializableLayer{eth}, 14
	next := &eth.EthernetType
	if r.IntN(5) == 0 {
		tag := &layers.Dot1Q{VLANIdentifier: uint16(100 * (1 + r.IntN(4))), Priority: uint8(r.IntN(8))}
		*next, next = layers.EthernetTypeDot1Q, &tag.Type
		stack, headers = append(stack, tag), headers+4
	}

	proto, tos := layers.IPProtocolTCP, codepoints[r.IntN(len(codepoints))]<<2
	switch n := r.IntN(100); {
	case n < 5:
		proto = layers.IPProtocolICMPv4
	case n < 45:
		proto = layers.IPProtocolUDP
	}
	var ip gopacket.NetworkLayer
	if r.IntN(10) < 7 {
		*next = layers.EthernetTypeIPv4
		v4 := &layers.IPv4{
			Version: 4, TTL: 64, TOS: tos, Protocol: proto, SrcIP: address4(r), DstIP: address4(r),
		}
		ip, stack, headers = v4, append(stack, v4), headers+20
	} else {
		*next = layers.EthernetTypeIPv6
		if proto == layers.IPProtocolICMPv4 {
			proto = layers.IPProtocolICMPv6
		}
		v6 := &layers.IPv6{
			Version: 6, HopLimit: 64, TrafficClass: tos, NextHeader: proto, SrcIP: address6(r),
			DstIP: address6(r),
		}
		ip, stack, headers = v6, append(stack, v6), headers+40
	}
	src, dst := 1024+uint16(r.IntN(60000)), services[r.IntN(len(services))]
	switch proto {
	case layers.IPProtocolTCP:
		tcp := &layers.TCP{
			SrcPort: layers.TCPPort(src), DstPort: layers.TCPPort(dst), ACK: true, Window: 1000,
		}
		must(0, tcp.SetNetworkLayerForChecksum(ip))
		stack, headers = append(stack, tcp), headers+20
	case layers.IPProtocolUDP:
		udp := &layers.UDP{SrcPort: layers.UDPPort(src), DstPort: layers.UDPPort(dst)}
		must(0, udp.SetNetworkLayerForChecksum(ip))
		stack, headers = append(stack, udp), headers+8
	}
	stack = append(stack, gopacket.Payload(make([]byte, max(size-headers, 8))))
	b := gopacket.NewSerializeBuffer()
	must(0, gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		stack...))
	return b.Bytes()
}
