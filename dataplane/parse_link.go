package dataplane

// parseRareLink is parseLink for the link types of links with a form.
func (p *Packet) parseRareLink(l *link) (PacketKind, int) {
	switch l.form {
	case formEtherType:
		if l.size > len(p.Data) {
			return Malformed, l.size
		}
		return p.parseNetwork(be16(p.Data[l.at:]), l.size)
	case formSNAP:
		if kind := p.version(0, Other); p.Link == LinkATMCLIP && kind >= IPv4 { // LLC begins with 0xaa
			return p.setEtherType(kind), 0
		}
		return p.parseSNAP(l.at)
	case formPPP:
		return p.parsePPPLink()
	case formPPPoE:
		kind, l3 := p.parsePPPoE(0)
		return p.setEtherType(kind), l3
	case formFrameRelay:
		return p.parseFrameRelay()
	}
	return Other, 0
}

// parseSNAP reads an LLC header and a SNAP header at an offset, if they announce an EtherType
// (RFC 1042).
func (p *Packet) parseSNAP(at int) (PacketKind, int) {
	if at+8 > len(p.Data) {
		return Malformed, at + 8
	}
	if d := p.Data[at:]; be32(d) != 0xaaaa0300 || be16(d[4:]) != 0 {
		return Other, at
	}
	return p.parseNetwork(be16(p.Data[at+6:]), at+8)
}

// parsePPPLink reads PPP with or without the address and control bytes of RFC 1662 §3.1.
func (p *Packet) parsePPPLink() (PacketKind, int) {
	d, at := p.Data, 0
	switch {
	case len(d) < 2: // the byte is an address or a protocol
		return Malformed, 2
	case p.Link == LinkPPPHDLC && d[0]&0x7f == 0x0f: // unicast or multicast of Cisco HDLC (RFC 1547 §4.3.1)
		return p.parseEtherType(2)
	case d[1] == 3 && (d[0] == 0xff || p.Link == LinkPPPD):
		at = 2
	}
	return p.parsePPP(at)
}

// Protocols of PPP and frame relay announcing a label stack, IP, or another header.
const (
	pppMPLS   = 0x0281
	pppMPLSMC = 0x0283

	nlpidSNAP = 0x80
	nlpidIPv6 = 0x8e
	nlpidIPv4 = 0xcc
	nlpidPPP  = 0xcf
)

// parsePPP continues with the PPP protocol at an offset.
func (p *Packet) parsePPP(at int) (PacketKind, int) {
	proto, size := p.pppProtocol(at)
	switch {
	case size == 0:
		return Malformed, at + 2
	case proto == pppIPv4:
		return p.setEtherType(IPv4), at + size
	case proto == pppIPv6:
		return p.setEtherType(IPv6), at + size
	case proto == pppMPLS:
		return p.parseNetwork(etherMPLS, at+size)
	case proto == pppMPLSMC:
		return p.parseNetwork(etherMPLSMC, at+size)
	}
	return Other, at + size
}

// parseFrameRelay reads an address of 2 to 4 bytes, the last of which is odd, a control byte and a
// protocol (RFC 2427 §3, §4). In Cisco's encapsulation an EtherType follows the address.
func (p *Packet) parseFrameRelay() (PacketKind, int) {
	const unnumbered = 3
	d, at := p.Data, 1
	for at < 3 && at < len(d) && d[at]&1 == 0 {
		at++
	}
	if at < len(d) && d[at]&1 == 0 {
		return Malformed, at + 1
	}
	if at++; at+2 > len(d) {
		return Malformed, at + 2
	}
	if d[at] != unnumbered {
		if d[0]>>2 == 0 && d[1]>>4 == 0 {
			return Other, at // signaling, in data link connection 0
		}
		return p.parseEtherType(at)
	}
	if at++; d[at] == 0 { // padding
		if at++; at == len(d) {
			return Malformed, at
		}
	}
	switch d[at] {
	case nlpidIPv4:
		return p.setEtherType(IPv4), at + 1
	case nlpidIPv6:
		return p.setEtherType(IPv6), at + 1
	case nlpidPPP:
		return p.parsePPP(at + 1)
	case nlpidSNAP:
		if at+6 > len(d) {
			return Malformed, at + 6
		}
		if d[at+1]|d[at+2]|d[at+3] == 0 {
			return p.parseEtherType(at + 4)
		}
	}
	return Other, at + 1
}
