package oracle

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

type kind int

const (
	nonIP kind = iota
	malformed
	ipv4
	ipv6
)

// frame holds the fields of a captured packet's headers.
type frame struct {
	kind   kind
	wire   int64 // bytes on the wire, without FCS
	unread bool  // of an unsupported link type
	header int64 // bytes of link header, as far as it was parsed
	l3     int64 // bytes of the IP packet, or of the data after the link header

	ethernet bool
	cooked   bool

	tags         int // number of VLAN tags
	hasVLAN      bool
	vlan, pcp    int   // of the outer tag
	inner        int   // VLAN ID of the second tag; 0 if there is none
	tagAt        int64 // offset of the outer tag
	hasMPLS      bool
	mplsTC       int   // of the outer label
	labelAt      int64 // offset of the outer label
	hasEthertype bool
	ethertype    int // after the VLAN tags

	// Fields of the IP header; only if isIP.
	trafficClass byte
	src, dst     netip.Addr
	proto        int
	hasPorts     bool
	sport, dport int

	// In any fragment, also the first: the protocol named by all fragments of the packet.
	fragmented    bool
	fragmentProto int

	rare
}

func (f frame) isIP() bool { return f.kind == ipv4 || f.kind == ipv6 }
func (f frame) dscp() int  { return int(f.trafficClass >> 2) }
func (f frame) ecn() int   { return int(f.trafficClass & 3) }

const (
	linkNull     = 0
	linkEthernet = 1
	linkPPP      = 9
	linkRaw12    = 12
	linkRaw14    = 14
	linkPPPHDLC  = 50
	linkRaw      = 101
	linkLoop     = 108
	linkSLL      = 113
	linkIPv4     = 228
	linkIPv6     = 229
	linkSLL2     = 276
)

const (
	etherIPv4  = 0x0800
	etherIPv6  = 0x86dd
	etherMPLS  = 0x8847
	etherMPLSm = 0x8848
	etherPPPoE = 0x8864
)

func parseFrame(linkType int, data []byte, wire int64) frame {
	p := parser{data: data, frame: frame{wire: wire}}
	p.link(linkType)
	p.macs()
	if !p.isIP() {
		p.l3 = max(0, p.wire-p.header)
	}
	return p.frame
}

// parser walks through the captured bytes, outermost header first.
type parser struct {
	frame
	data []byte
}

// rest returns the captured bytes after the link header.
func (p *parser) rest() []byte { return p.data[p.header:] }

// has reports whether n more captured bytes exist; otherwise the packet is malformed.
func (p *parser) has(n int) bool {
	if len(p.rest()) < n {
		p.kind = malformed
		return false
	}
	return true
}

func (p *parser) link(linkType int) {
	switch linkType {
	case linkEthernet:
		p.ethernet = true
		p.behind(14, 12)
	case linkSLL:
		p.cooked = true
		p.behind(16, 14)
	case linkSLL2:
		p.cooked = true
		p.behind(20, 0)
	case linkRaw, linkRaw12, linkRaw14:
		p.ipByNibble(malformed)
	case linkIPv4:
		p.implied(etherIPv4)
		p.ip4()
	case linkIPv6:
		p.implied(etherIPv6)
		p.ip6()
	case linkPPP, linkPPPHDLC:
		p.ppp(linkType)
	case linkNull, linkLoop:
		if !p.has(4) {
			p.header = min(4, p.wire)
			return
		}
		family := binary.BigEndian.Uint32(p.data)
		if linkType == linkNull && family > 0xffff {
			family = binary.LittleEndian.Uint32(p.data)
		}
		p.header = 4
		switch family {
		case 2:
			p.implied(etherIPv4)
			p.ip4()
		case 24, 28, 30: // the BSDs and macOS differ
			p.implied(etherIPv6)
			p.ip6()
		}
	default:
		p.unread = true
	}
}

// ppp continues after the framing of RFC 1662: the address and control bytes may be left out, and so may
// the first byte of the protocol (RFC 1661, 6.5). Cisco HDLC under the same link type begins with 0x0f or
// 0x8f.
func (p *parser) ppp(linkType int) {
	if !p.has(2) { // one byte may be the address, or a protocol of one byte
		p.header = min(2, p.wire)
		return
	}
	if linkType == linkPPPHDLC && (p.data[0] == 0x0f || p.data[0] == 0x8f) {
		p.behind(4, 2)
		return
	}
	if p.data[0] == 0xff && p.data[1] == 0x03 {
		p.header = 2
	}
	proto, size := 0, int64(1)
	if p.has(1) {
		if proto = int(p.rest()[0]); proto%2 == 0 {
			size = 2
			if p.has(2) {
				proto = be16(p.rest())
			}
		}
	}
	if p.kind == malformed {
		p.header = min(p.header+2, p.wire)
		return
	}
	p.header += size
	switch proto {
	case 0x0021:
		p.implied(etherIPv4)
		p.ip4()
	case 0x0057:
		p.implied(etherIPv6)
		p.ip6()
	case 0x0281, 0x0283:
		p.implied(map[int]int{0x0281: etherMPLS, 0x0283: etherMPLSm}[proto])
		p.mpls()
	}
}

// behind continues after a link header of n bytes with its type field at typeAt. A truncated header
// still counts in full, by the size of its link type.
func (p *parser) behind(n int64, typeAt int) {
	if !p.has(int(n)) {
		p.header = min(n, p.wire)
		return
	}
	proto := be16(p.data[typeAt:])
	p.header = n
	p.ether(proto)
}

// implied sets the ethertype of a link layer without a type field.
func (p *parser) implied(ethertype int) { p.hasEthertype, p.ethertype = true, ethertype }

// ether continues after a type field with the value proto.
func (p *parser) ether(proto int) {
	p.hasEthertype, p.ethertype = true, proto
	for p.tags < 3 && (proto == 0x8100 || proto == 0x88a8 || proto == 0x9100) {
		if !p.has(4) {
			return
		}
		tci := be16(p.rest())
		proto = be16(p.rest()[2:])
		p.tags++
		if p.tags == 1 {
			p.hasVLAN = true
			p.tagAt = p.header
			p.vlan, p.pcp = tci&0xfff, tci>>13
		}
		if p.tags == 2 {
			p.inner = tci & 0xfff
		}
		p.header += 4
		p.ethertype = proto
	}

	switch proto {
	case etherIPv4:
		p.ip4()
	case etherIPv6:
		p.ip6()
	case etherMPLS, etherMPLSm:
		p.mpls()
	case etherPPPoE:
		if !p.has(7) {
			return
		}
		ppp, size := int(p.rest()[6]), int64(7)
		if ppp%2 == 0 { // the first of two bytes
			if !p.has(8) {
				return
			}
			ppp, size = be16(p.rest()[6:]), 8
		}
		p.header += size
		switch ppp {
		case 0x0021:
			p.ip4()
		case 0x0057:
			p.ip6()
		}
	}
}

func (p *parser) mpls() {
	for bottom := false; !bottom; {
		if !p.has(4) {
			return
		}
		label := binary.BigEndian.Uint32(p.rest())
		if !p.hasMPLS {
			p.hasMPLS = true
			p.mplsTC = int(label >> 9 & 7)
			p.labelAt = p.header
		}
		p.header += 4
		bottom = label>>8&1 == 1
	}
	p.ipByNibble(nonIP)
}

// ipByNibble reads the IP version from the packet; otherwise is for any other version.
func (p *parser) ipByNibble(otherwise kind) {
	if !p.has(1) {
		return
	}
	version := p.rest()[0] >> 4
	if version != 4 && version != 6 {
		p.kind = otherwise
		return
	}
	if !p.hasEthertype {
		p.implied(map[byte]int{4: etherIPv4, 6: etherIPv6}[version])
	}
	if version == 4 {
		p.ip4()
	} else {
		p.ip6()
	}
}

func (p *parser) ip4() {
	if !p.has(20) {
		return
	}
	ip := p.rest()
	headerLength := int(ip[0]&15) * 4
	total := be16(ip[2:]) // 0 after segmentation offload
	if ip[0]>>4 != 4 || headerLength < 20 || int64(headerLength) > p.wire-p.header || 0 < total &&
		total < headerLength {
		p.kind = malformed
		return
	}
	p.kind = ipv4
	p.trafficClass = ip[1]
	p.src = netip.AddrFrom4([4]byte(ip[12:16]))
	p.dst = netip.AddrFrom4([4]byte(ip[16:20]))
	p.proto = int(ip[9])
	p.setL3(int64(headerLength), int64(total))

	offset, more := be16(ip[6:])&0x1fff, be16(ip[6:])&0x2000 != 0
	p.fragmented, p.fragmentProto = more || offset > 0, p.proto
	if offset == 0 { // not a later fragment
		p.ports(p.packet()[min(headerLength, len(p.packet())):])
	}
}

func (p *parser) ip6() {
	if !p.has(40) {
		return
	}
	ip := p.rest()
	if ip[0]>>4 != 6 {
		p.kind = malformed
		return
	}
	p.kind = ipv6
	p.trafficClass = byte(be16(ip) >> 4)
	p.src = netip.AddrFrom16([16]byte(ip[8:24]))
	p.dst = netip.AddrFrom16([16]byte(ip[24:40]))
	p.proto = int(ip[6])
	p.setL3(40, 40+int64(be16(ip[4:])))

	rest := p.packet()
	rest = rest[min(40, len(rest)):]
	for {
		var n int // bytes of this extension header
		switch p.proto {
		case 0, 43, 60, 135, 139, 140: // hop-by-hop, routing, destination, mobility, HIP, shim6
			if len(rest) >= 8 {
				n = (int(rest[1]) + 1) * 8
			}
		case 44: // fragment
			n = 8
		case 51: // authentication
			if len(rest) >= 8 {
				n = (int(rest[1]) + 2) * 4
			}
		default:
			p.ports(rest)
			return
		}
		if n == 0 || len(rest) < 8 {
			return // truncated: the protocol is the missing header's
		}
		laterFragment := p.proto == 44 && be16(rest[2:])>>3 != 0
		anyFragment := laterFragment || p.proto == 44 && rest[3]&1 == 1
		p.proto = int(rest[0])
		if anyFragment && !p.fragmented {
			p.fragmented, p.fragmentProto = true, p.proto
		}
		rest = rest[min(n, len(rest)):] // the next header is known, even if it is truncated
		if laterFragment {
			return
		}
	}
}

// setL3 trims padding to the total length of the IP header, if the frame is short enough for
// padding by Ethernet, and the total length is plausible.
func (p *parser) setL3(headerLength, total int64) {
	p.l3 = max(0, p.wire-p.header)
	short := p.wire <= 60+4*int64(p.tags)
	if (p.ethernet || p.cooked) && short && headerLength <= total && total <= p.l3 {
		p.l3 = total
	}
}

// packet returns the captured bytes of the IP packet, without padding.
func (p *parser) packet() []byte {
	return p.rest()[:min(int64(len(p.rest())), p.l3)]
}

func (p *parser) ports(transport []byte) {
	p.upper(transport)
	switch p.proto {
	case 6, 17, 33, 132, 136: // TCP, UDP, DCCP, SCTP, UDP-Lite
		if len(transport) >= 4 {
			p.hasPorts = true
			p.sport, p.dport = be16(transport), be16(transport[2:])
		}
	}
}

func be16(b []byte) int { return int(binary.BigEndian.Uint16(b)) }

// mostLength is the maximum of a length.
const mostLength = 1<<32 - 1

// lengthRule determines the metered bytes of a frame.
type lengthRule struct {
	base     string // l3, l2 or l1
	overhead int64
	mpu      int64
}

func (r lengthRule) meteredBytes(f frame) (int64, error) {
	length := f.l3
	if r.base != "l3" {
		if !f.ethernet {
			return 0, fmt.Errorf("length %s needs an Ethernet link layer", r.base)
		}
		length = f.wire
		if r.base == "l1" {
			length = max(60, f.wire) + 24
		}
	}
	return min(max(length+r.overhead, r.mpu, 0), mostLength), nil
}
