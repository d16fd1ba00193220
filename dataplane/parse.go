package dataplane

import "encoding/binary"

// EtherTypes, PPP protocols and IP protocols interpreted by Parse.
const (
	etherIPv4    = 0x0800
	etherVLAN    = 0x8100
	etherIPv6    = 0x86dd
	etherMPLS    = 0x8847
	etherMPLSMC  = 0x8848
	etherPPPoE   = 0x8864
	etherQinQ    = 0x88a8
	etherQinQOld = 0x9100

	pppIPv4 = 0x0021
	pppIPv6 = 0x0057

	protoICMP   = 1
	protoICMPv6 = 58

	// Protocols with ports in the first 4 bytes of their header.
	protoTCP     = 6
	protoUDP     = 17
	protoDCCP    = 33
	protoSCTP    = 132
	protoUDPLite = 136
)

// Maximum numbers of headers. They bound the loops, in the kernel too. A packet with more
// VLAN tags or labels is not IP; a packet with more extension headers has no ports.
const (
	maxTags       = 3
	maxLabels     = 16
	maxExtensions = 16
)

func be16(b []byte) uint16 { return binary.BigEndian.Uint16(b) }
func be32(b []byte) uint32 { return binary.BigEndian.Uint32(b) }
func be64(b []byte) uint64 { return binary.BigEndian.Uint64(b) }

// Parse reads the headers in p.Data and sets the second group of fields of p: kind, offsets, l3
// length, addresses, protocol and ports. It reads nothing beyond len(p.Data), does not allocate and
// cannot fail. A packet without IP is Other. A packet ending within the fixed IP header (20 or 40
// bytes), or earlier, is Malformed, and so is one whose IPv4 total length is below its header
// length, unless it is 0. A packet ending later, in IPv4 options, IPv6 extension headers or ports,
// is IP without ports.
func Parse(p *Packet) {
	p.Proto, p.Fragment, p.Fragmented, p.HasPorts = 0, false, false, false
	p.Tags, p.HasEtherType, p.Tag, p.MPLS, p.L4, p.Parsed = 0, false, 0, 0, 0, true
	wire := max(p.WireLen, len(p.Data))
	kind, l3 := p.parseLink()
	l3 = min(l3, wire)
	p.Kind, p.WireLen, p.L3, p.L3Len = kind, wire, l3, wire-l3
	switch kind {
	case IPv4:
		p.parseIPv4()
	case IPv6:
		p.parseIPv6()
	}
}

// ParseOnce parses a packet unless it is parsed already: see Packet.Parsed.
func ParseOnce(p *Packet) {
	if !p.Parsed {
		Parse(p)
	}
}

// parseLink returns the offset of the network header, and its kind as given by the link
// header.
func (p *Packet) parseLink() (PacketKind, int) {
	switch p.Link {
	case LinkEthernet:
		return p.parseEtherType(12)
	case LinkSLL:
		return p.parseEtherType(14)
	case LinkSLL2:
		// The EtherType is in the first two bytes of this header (LINKTYPE_LINUX_SLL2).
		if len(p.Data) < 20 {
			return Malformed, 20
		}
		return p.parseNetwork(be16(p.Data), 20)
	case LinkNull, LinkLoop:
		if len(p.Data) < 4 {
			return Malformed, 4
		}
		return p.setEtherType(p.family()), 4
	case LinkRaw, LinkRawBSD, LinkRawOBSD:
		return p.setEtherType(p.version(0, Malformed)), 0
	case LinkIPv4:
		return p.setEtherType(IPv4), 0
	case LinkIPv6:
		return p.setEtherType(IPv6), 0
	}
	if p.Link.Known() {
		return p.parseRareLink(&links[p.Link])
	}
	return Other, 0
}

// parseEtherType continues after a link header whose last two bytes, at off, are the
// EtherType.
func (p *Packet) parseEtherType(off int) (PacketKind, int) {
	if off+2 > len(p.Data) {
		return Malformed, off + 2
	}
	return p.parseNetwork(be16(p.Data[off:]), off+2)
}

// family returns the kind for the address family in a loopback header. AF_INET is 2 on all
// systems. AF_INET6 is 24 on NetBSD and OpenBSD, 28 on FreeBSD and 30 on macOS.
func (p *Packet) family() PacketKind {
	family := be32(p.Data)
	if p.Link == LinkNull && family > 0xffff {
		family = binary.LittleEndian.Uint32(p.Data)
	}
	switch family {
	case 2:
		return IPv4
	case 24, 28, 30:
		return IPv6
	}
	return Other
}

// setEtherType sets the EtherType of a packet whose link header lacks it, and returns its kind.
func (p *Packet) setEtherType(k PacketKind) PacketKind {
	switch k {
	case IPv4:
		p.EtherType, p.HasEtherType = etherIPv4, true
	case IPv6:
		p.EtherType, p.HasEtherType = etherIPv6, true
	}
	return k
}

// parseNetwork continues at l3 with the header announced by EtherType t.
func (p *Packet) parseNetwork(t uint16, l3 int) (PacketKind, int) {
	p.HasEtherType = true
	for {
		p.EtherType = t
		switch t {
		case etherIPv4:
			return IPv4, l3
		case etherIPv6:
			return IPv6, l3
		case etherVLAN, etherQinQ, etherQinQOld:
			if p.Tags == maxTags {
				return Other, l3
			}
			if l3+4 > len(p.Data) {
				return Malformed, l3
			}
			if p.Tags == 0 {
				p.Tag = l3
			}
			p.Tags++
			t = be16(p.Data[l3+2:])
			l3 += 4
		case etherMPLS, etherMPLSMC:
			return p.parseMPLS(l3)
		case etherPPPoE:
			return p.parsePPPoE(l3)
		default:
			return Other, l3
		}
	}
}

// parseMPLS reads a label stack (RFC 3032 §2.1). Labels do not tell the kind of the
// payload; its first four bits do (RFC 4928 §3).
func (p *Packet) parseMPLS(l3 int) (PacketKind, int) {
	top := l3
	for range maxLabels {
		if l3+4 > len(p.Data) {
			return Malformed, l3
		}
		p.MPLS = top
		bottom := p.Data[l3+2]&1 != 0
		l3 += 4
		if bottom {
			return p.version(l3, Other), l3
		}
	}
	return Other, l3
}

// parsePPPoE reads a session header and the PPP protocol (RFC 2516 §4, §7).
func (p *Packet) parsePPPoE(l3 int) (PacketKind, int) {
	proto, size := p.pppProtocol(l3 + 6)
	switch {
	case size == 0:
		return Malformed, l3
	case proto == pppIPv4:
		return IPv4, l3 + 6 + size
	case proto == pppIPv6:
		return IPv6, l3 + 6 + size
	}
	return Other, l3 + 6 + size
}

// pppProtocol returns the PPP protocol at an offset, and its size: two bytes, or one if its first byte
// is odd (RFC 1661 §6.5). Size 0 means that it was not captured.
func (p *Packet) pppProtocol(at int) (proto uint16, size int) {
	switch {
	case at < len(p.Data) && p.Data[at]&1 == 1:
		return uint16(p.Data[at]), 1
	case at+1 < len(p.Data):
		return be16(p.Data[at:]), 2
	}
	return 0, 0
}

// version returns the kind for the IP version at l3, or otherwise if it is neither 4 nor 6.
func (p *Packet) version(l3 int, otherwise PacketKind) PacketKind {
	if l3 >= len(p.Data) {
		return Malformed
	}
	switch p.Data[l3] >> 4 {
	case 4:
		return IPv4
	case 6:
		return IPv6
	}
	return otherwise
}

// parseIPv4 reads the fixed header (RFC 791 §3.1). Its options must have been on the wire,
// but need not have been captured.
func (p *Packet) parseIPv4() {
	h := p.Data[min(p.L3, len(p.Data)):]
	if len(h) < 20 || h[0]>>4 != 4 {
		p.Kind = Malformed
		return
	}
	size, total := int(h[0]&0x0f)*4, int(be16(h[2:]))
	// 0: segmentation offload of more than 64 KiB
	if size < 20 || size > p.L3Len || total < size && total != 0 {
		p.Kind = Malformed
		return
	}
	p.trim(size, total)
	p.Src = Addr{Lo: uint64(be32(h[12:]))}
	p.Dst = Addr{Lo: uint64(be32(h[16:]))}
	p.Proto, p.FragmentProto = h[9], h[9]
	p.Fragment = be16(h[6:])&0x1fff != 0
	p.Fragmented = be16(h[6:])&0x3fff != 0 // offset or More Fragments
	if !p.Fragment {
		p.parsePorts(h, size)
	}
}

// parseIPv6 reads the fixed header and follows the extension headers (RFC 8200 §4) to the
// upper-layer protocol. If the chain is truncated, the packet has no ports.
func (p *Packet) parseIPv6() {
	h := p.Data[min(p.L3, len(p.Data)):]
	if len(h) < 40 || h[0]>>4 != 6 {
		p.Kind = Malformed
		return
	}
	p.trim(40, 40+int(be16(h[4:])))
	p.Src = Addr{be64(h[8:]), be64(h[16:])}
	p.Dst = Addr{be64(h[24:]), be64(h[32:])}
	p.Proto = h[6]
	h = h[:max(min(len(h), p.L3Len), 40)]
	off := 40
	for range maxExtensions {
		switch p.Proto {
		case 0, 43, 60, 135, 139, 140: // hop-by-hop, routing, destination, mobility, HIP, shim6
			if off+8 > len(h) {
				return
			}
			p.Proto = h[off]
			off += 8 * (int(h[off+1]) + 1)
		case 51: // authentication: its length is in units of 4 bytes (RFC 4302 §2.2)
			if off+8 > len(h) {
				return
			}
			p.Proto = h[off]
			off += 4 * (int(h[off+1]) + 2)
		case 44: // fragment
			if off+8 > len(h) {
				return
			}
			p.Proto = h[off]
			p.Fragment = be16(h[off+2:])&^7 != 0
			if !p.Fragmented && be16(h[off+2:])&^6 != 0 { // offset or More Fragments
				p.Fragmented, p.FragmentProto = true, p.Proto
			}
			off += 8
			if p.Fragment {
				return
			}
		default:
			p.parsePorts(h, off)
			return
		}
	}
}

// parsePorts reads the ports at off in the network packet h, if they were captured and are
// not padding.
func (p *Packet) parsePorts(h []byte, off int) {
	p.L4 = p.L3 + off
	if end := min(len(h), p.L3Len); protoHasPorts[p.Proto] && off+4 <= end {
		p.SrcPort, p.DstPort = be16(h[off:]), be16(h[off+2:])
		p.HasPorts = true
	}
}

// protoHasPorts is a table, because branches on the protocol would be mispredicted in mixed traffic.
var protoHasPorts = [256]bool{
	protoTCP: true, protoUDP: true, protoDCCP: true, protoSCTP: true, protoUDPLite: true,
}

// HeadersCut reports whether a packet of which len(p.Data) bytes were captured may lack headers, so
// that Parse would have found something else in the whole packet. It calls ParseOnce.
func (p *Packet) HeadersCut() bool {
	ParseOnce(p)
	if len(p.Data) >= p.WireLen || p.HasPorts || p.Fragment {
		return false
	}
	switch p.Kind {
	case Malformed:
		return len(p.Data) < p.L3+40 // up to the end of an IPv6 header
	case IPv6:
		switch p.Proto {
		case 0, 43, 44, 51, 60, 135, 139, 140:
			return true
		}
		fallthrough
	case IPv4:
		return protoHasPorts[p.Proto]
	}
	return false
}

// trim removes link-layer padding from the l3 length. Longer frames have no padding: one whose IP
// header claims a smaller length would cheat the meter.
func (p *Packet) trim(header, total int) {
	if p.WireLen <= p.PaddedLen() && header <= total && total <= p.L3Len {
		p.L3Len = total
	}
}

// PaddedLen returns the length to which the link pads shorter frames, without FCS, bytes: on Ethernet 60,
// plus 4 for each VLAN tag, plus the tag of a switch. 0: the link does not pad.
func (p *Packet) PaddedLen() int {
	least := 60 + 4*int(p.Tags)
	switch p.Link {
	case LinkEthernet, LinkSLL, LinkSLL2:
		return least
	case LinkDSA, LinkDSABrcm:
		return least + 4
	case LinkDSAEther:
		return least + 8
	}
	return 0
}
