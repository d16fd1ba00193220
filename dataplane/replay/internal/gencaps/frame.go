package main

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// EtherTypes.
const (
	typeIPv4   = 0x0800
	typeARP    = 0x0806
	typeVLAN   = 0x8100
	typeIPv6   = 0x86dd
	typeMPLS   = 0x8847
	typeMPLSM  = 0x8848
	typePPPoED = 0x8863
	typePPPoE  = 0x8864
	typeQinQ   = 0x88a8
	typeQinQ91 = 0x9100 // before 802.1ad
	typeLLDP   = 0x88cc
	typeLocal  = 0x88b5 // IEEE 802 local experimental
)

// DSCPs of RFC 2597, 3246 and 2474.
const (
	dscpBE   = 0
	dscpAF11 = 10
	dscpAF12 = 12
	dscpAF13 = 14
	dscpAF41 = 34
	dscpEF   = 46
	dscpCS6  = 48
)

var be = binary.BigEndian

type mac [6]byte

var (
	macA         = mac{2, 0, 0, 0, 0, 1}
	macGateway   = mac{2, 0, 0, 0, 0, 0xfe}
	macBroadcast = mac{255, 255, 255, 255, 255, 255}
	macSTP       = mac{1, 0x80, 0xc2, 0, 0, 0}
	macLLDP      = mac{1, 0x80, 0xc2, 0, 0, 0x0e}
)

// ether returns an Ethernet frame without FCS and padding.
func ether(dst, src mac, kind uint16, parts ...[]byte) []byte {
	b := slices.Concat(dst[:], src[:])
	b = be.AppendUint16(b, kind)
	return append(b, slices.Concat(parts...)...)
}

// framed wraps an IP packet in Ethernet, with the type by its version.
func framed(ip []byte) []byte {
	return ether(macGateway, macA, etherType(ip), ip)
}

func etherType(ip []byte) uint16 {
	if ip[0]>>4 == 6 {
		return typeIPv6
	}
	return typeIPv4
}

// pad fills a frame with zeros up to n bytes.
func pad(frame []byte, n int) []byte {
	return append(frame, make([]byte, max(0, n-len(frame)))...)
}

// filler returns n bytes of payload, easy to recognize in a dump.
func filler(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// tag is a VLAN tag.
type tag struct {
	tpid uint16
	pcp  uint16
	dei  uint16
	vid  uint16
}

// tagged inserts tags, the outermost first, after the addresses of frame.
func tagged(frame []byte, tags ...tag) []byte {
	var b []byte
	for _, t := range tags {
		b = be.AppendUint16(b, t.tpid)
		b = be.AppendUint16(b, t.pcp<<13|t.dei<<12|t.vid)
	}
	return slices.Insert(slices.Clone(frame), 12, b...)
}

// label is an MPLS label with its traffic class (RFC 3032, RFC 5462).
type label struct {
	value, tc uint32
}

// stack puts labels before payload. The last one carries the bottom-of-stack bit.
func stack(payload []byte, labels ...label) []byte {
	var b []byte
	for i, l := range labels {
		word := l.value<<12 | l.tc<<9 | 64
		if i == len(labels)-1 {
			word |= 1 << 8
		}
		b = be.AppendUint32(b, word)
	}
	return append(b, payload...)
}

// PPP protocols.
const (
	pppIPv4 = 0x0021
	pppIPv6 = 0x0057
	pppLCP  = 0xc021
)

// pppoe returns a PPPoE session payload (RFC 2516 §6).
func pppoe(session, protocol uint16, payload []byte) []byte {
	b := []byte{0x11, 0}
	b = be.AppendUint16(b, session)
	b = be.AppendUint16(b, uint16(len(payload)+2))
	b = be.AppendUint16(b, protocol)
	return append(b, payload...)
}

// flow is one direction of a conversation.
type flow struct {
	smac, dmac   mac
	src, dst     netip.Addr
	sport, dport uint16
	dscp, ecn    uint8
}

var (
	flow4 = flow{
		smac: macA, dmac: macGateway, sport: 40000, dport: 5001,
		src: netip.MustParseAddr("192.0.2.10"), dst: netip.MustParseAddr("198.51.100.20"),
	}
	flow6 = flow{
		smac: macA, dmac: macGateway, sport: 40000, dport: 5001,
		src: netip.MustParseAddr("2001:db8:1::10"), dst: netip.MustParseAddr("2001:db8:2::20"),
	}
)

func (f flow) marked(dscp uint8) flow {
	f.dscp = dscp
	return f
}

func (f flow) ports(sport, dport uint16) flow {
	f.sport, f.dport = sport, dport
	return f
}

func (f flow) reverse() flow {
	f.smac, f.dmac = f.dmac, f.smac
	f.src, f.dst = f.dst, f.src
	f.sport, f.dport = f.dport, f.sport
	return f
}

func (f flow) frame(ip []byte) []byte {
	return ether(f.dmac, f.smac, etherType(ip), ip)
}

func (f flow) udp(payload []byte) []byte {
	return f.ip(layers.IPProtocolUDP, &layers.UDP{
		SrcPort: layers.UDPPort(f.sport), DstPort: layers.UDPPort(f.dport),
	}, payload)
}

func (f flow) tcp(t layers.TCP, payload []byte) []byte {
	t.SrcPort, t.DstPort = layers.TCPPort(f.sport), layers.TCPPort(f.dport)
	return f.ip(layers.IPProtocolTCP, &t, payload)
}

// ip returns an IP packet with lengths and checksums filled in. If l4 is nil,
// payload follows the IP header.
func (f flow) ip(proto layers.IPProtocol, l4 gopacket.SerializableLayer, payload []byte) []byte {
	var network gopacket.NetworkLayer
	var stack []gopacket.SerializableLayer
	tos := f.dscp<<2 | f.ecn
	if f.src.Is4() {
		ip := &layers.IPv4{
			Version: 4, TOS: tos, TTL: 64, Flags: layers.IPv4DontFragment, Protocol: proto,
			SrcIP: f.src.AsSlice(), DstIP: f.dst.AsSlice(),
		}
		network, stack = ip, append(stack, ip)
	} else {
		ip := &layers.IPv6{
			Version: 6, TrafficClass: tos, HopLimit: 64, NextHeader: proto,
			SrcIP: f.src.AsSlice(), DstIP: f.dst.AsSlice(),
		}
		network, stack = ip, append(stack, ip)
	}
	if l4 != nil {
		if c, ok := l4.(interface {
			SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
		}); ok {
			must(c.SetNetworkLayerForChecksum(network))
		}
		stack = append(stack, l4)
	}
	return serialize(append(stack, gopacket.Payload(payload))...)
}

func serialize(stack ...gopacket.SerializableLayer) []byte {
	buf := gopacket.NewSerializeBuffer()
	options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	must(gopacket.SerializeLayers(buf, options, stack...))
	return slices.Clone(buf.Bytes())
}

// must reports errors caused only by mistakes in this program.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// checksum4 sets the header checksum of an IPv4 packet (RFC 1071).
func checksum4(ip []byte) []byte {
	be.PutUint16(ip[10:], 0)
	var sum uint32
	for i := 0; i < int(ip[0]&15)*4; i += 2 {
		sum += uint32(be.Uint16(ip[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	be.PutUint16(ip[10:], ^uint16(sum))
	return ip
}

// totalLength forges the total length of an IPv4 packet; the checksum is good.
func totalLength(ip []byte, n int) []byte {
	be.PutUint16(ip[2:], uint16(n))
	return checksum4(ip)
}

// options4 puts options, a multiple of four bytes, into an IPv4 packet.
func options4(ip, options []byte) []byte {
	ip = slices.Insert(slices.Clone(ip), 20, options...)
	ip[0] += byte(len(options) / 4)
	return totalLength(ip, len(ip))
}

// fragments4 splits an IPv4 packet without options into fragments with payloads
// of at most size bytes, a multiple of eight.
func fragments4(ip []byte, id uint16, size int) [][]byte {
	var all [][]byte
	for at := 20; at < len(ip); at += size {
		end := min(at+size, len(ip))
		f := slices.Concat(ip[:20], ip[at:end])
		be.PutUint16(f[4:], id)
		be.PutUint16(f[6:], uint16((at-20)/8))
		if end < len(ip) {
			f[6] |= 0x20
		}
		all = append(all, totalLength(f, len(f)))
	}
	return all
}

// IPv6 extension headers, RFC 8200 §4.
const (
	extHopByHop    = 0
	extRouting     = 43
	extFragment    = 44
	extNone        = 59
	extDestination = 60
)

// extend inserts an extension header of a kind directly after the IPv6 header.
// It replaces the first byte of ext with the previous next header.
func extend(ip []byte, kind byte, ext []byte) []byte {
	ip = slices.Insert(slices.Clone(ip), 40, ext...)
	ip[40], ip[6] = ip[6], kind
	be.PutUint16(ip[4:], uint16(len(ip)-40))
	return ip
}

// padN returns an options header of n bytes, a multiple of eight and at most
// 256.
func padN(n int) []byte {
	b := make([]byte, n)
	b[1] = byte(n/8 - 1)
	b[2], b[3] = 1, byte(n-4)
	return b
}

// fragments6 splits the payload of an IPv6 packet, like fragments4.
func fragments6(ip []byte, id uint32, size int) [][]byte {
	var all [][]byte
	for at := 40; at < len(ip); at += size {
		end := min(at+size, len(ip))
		all = append(all, fragment6(slices.Concat(ip[:40], ip[at:end]), id, at-40, end < len(ip)))
	}
	return all
}

// fragment6 returns one fragment; offset is in bytes, a multiple of eight.
func fragment6(ip []byte, id uint32, offset int, more bool) []byte {
	header := []byte{0, 0}
	word := uint16(offset)
	if more {
		word |= 1
	}
	header = be.AppendUint16(header, word)
	return extend(ip, extFragment, be.AppendUint32(header, id))
}
