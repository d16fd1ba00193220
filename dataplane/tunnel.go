package dataplane

// UDP ports of tunnels. Linux sends VXLAN to 8472 by default.
const (
	portGTPU     = 2152
	portVXLAN    = 4789
	portGENEVE   = 6081
	portVXLANOld = 8472
)

// Lengths of headers, bytes.
const (
	udpHeader    = 8
	tunnelHeader = 8 // of VXLAN, GENEVE and GTP-U, without options
)

// Maximum numbers of headers before the network header in a tunnel. They bound the loops, in the kernel too.
const (
	maxInnerTags     = 2
	maxGTPExtensions = 4
)

// tunnel returns the destination port of a tunnel, and the bytes after the header of UDP. The port is 0 if
// the packet has no valid header of a tunnel to this port.
func (p *Packet) tunnel() (port uint16, b []byte) {
	udp := p.upperBytes()
	if p.Proto != protoUDP || len(udp) < udpHeader+tunnelHeader {
		return 0, nil
	}
	port, b = be16(udp[2:]), udp[udpHeader:]
	valid := false
	switch port {
	case portVXLAN, portVXLANOld:
		valid = b[0]&0x08 != 0 // with a VNI
	case portGENEVE:
		valid = b[0]>>6 == 0 // version 0
	case portGTPU:
		valid = b[0]&0xf0 == 0x30 // version 1, and not GTP'
	}
	if !valid {
		return 0, nil
	}
	return port, b
}

// VNI returns the network of a packet of VXLAN (RFC 7348 §5), to UDP port 4789 or 8472, or of GENEVE (RFC
// 8926 §3.4), to port 6081. It returns false for other packets, for fragments other than the first, and if
// the header of the tunnel is not among the captured bytes of the packet.
func (p *Packet) VNI() (uint64, bool) {
	switch port, b := p.tunnel(); port {
	case portVXLAN, portVXLANOld, portGENEVE:
		return uint64(be32(b[4:]) >> 8), true
	}
	return 0, false
}

// TEID returns the tunnel of a packet of GTP-U, version 1 (3GPP TS 29.281 §5.1), to UDP port 2152. It returns
// false as VNI does.
func (p *Packet) TEID() (uint64, bool) {
	port, b := p.tunnel()
	if port != portGTPU {
		return 0, false
	}
	return uint64(be32(b[4:])), true
}

// Inner returns the addresses of the IP packet in a tunnel of VXLAN, GENEVE or GTP-U, as VNI and TEID find
// it. kind is IPv4 or IPv6. It is Other if there is no tunnel, if it does not carry IP, and if the fixed IP
// header is not among the captured bytes.
func (p *Packet) Inner() (kind PacketKind, src, dst Addr) {
	t, b := p.inTunnel()
	if t == etherBridged {
		t, b = inFrame(b)
	}
	if len(b) == 0 {
		return Other, src, dst
	}
	switch version := b[0] >> 4; {
	case version == 4 && len(b) >= 20 && (t == etherIPv4 || t == anyIP):
		return IPv4, Addr{Lo: uint64(be32(b[12:]))}, Addr{Lo: uint64(be32(b[16:]))}
	case version == 6 && len(b) >= 40 && (t == etherIPv6 || t == anyIP):
		return IPv6, Addr{be64(b[8:]), be64(b[16:])}, Addr{be64(b[24:]), be64(b[32:])}
	}
	return Other, src, dst
}

// InsideInner returns the address of the side that the interface faces, of Inner.
func (p *Packet) InsideInner() (kind PacketKind, a Addr) {
	kind, src, dst := p.Inner()
	if p.Direction == Ingress {
		return kind, src
	}
	return kind, dst
}

const (
	etherBridged = 0x6558  // a frame of Ethernet follows
	anyIP        = 0x10000 // no EtherType: IPv4 or IPv6 follows
)

// inTunnel returns the EtherType of what a tunnel carries, and its bytes; none without a tunnel.
func (p *Packet) inTunnel() (t uint32, b []byte) {
	port, b := p.tunnel()
	switch port {
	case portVXLAN, portVXLANOld:
		return etherBridged, b[tunnelHeader:]
	case portGENEVE:
		options := 4 * int(b[0]&0x3f)
		return uint32(be16(b[2:])), b[min(tunnelHeader+options, len(b)):]
	case portGTPU:
		const gpdu = 255 // message type of user data
		if b[1] == gpdu {
			return anyIP, afterGTP(b)
		}
	}
	return 0, nil
}

// afterGTP returns the bytes after the header of GTP-U and its extensions (3GPP TS 29.281 §5.2), or none.
func afterGTP(b []byte) []byte {
	if b[0]&0x07 == 0 {
		return b[tunnelHeader:]
	}
	if len(b) < tunnelHeader+4 {
		return nil
	}
	next := b[tunnelHeader+3]
	if b[0]&0x04 == 0 { // only sequence or N-PDU numbers
		next = 0
	}
	b = b[tunnelHeader+4:]
	for i := 0; next != 0; i++ {
		if i == maxGTPExtensions || len(b) == 0 {
			return nil
		}
		size := 4 * int(b[0])
		if size == 0 || size > len(b) {
			return nil
		}
		next, b = b[size-1], b[size:]
	}
	return b
}

// inFrame returns the EtherType after the VLAN tags of a frame of Ethernet, and the bytes after it.
func inFrame(b []byte) (t uint32, after []byte) {
	const header = 14
	if len(b) < header {
		return 0, nil
	}
	t, b = uint32(be16(b[header-2:])), b[header:]
	for i := 0; i < maxInnerTags && (t == etherVLAN || t == etherQinQ) && len(b) >= 4; i++ {
		t, b = uint32(be16(b[2:])), b[4:]
	}
	return t, b
}
