package oracle

import "net/netip"

// tunnel is what a datagram to the port of a tunnel carries.
type tunnel struct {
	hasVNI, hasTEID    bool
	vni, teid          int
	innerSrc, innerDst netip.Addr // of an IP packet; otherwise invalid
}

// scanner takes bytes from the front of a header.
type scanner struct {
	rest  []byte
	ended bool // there were too few
}

func (s *scanner) take(n int) []byte {
	if n > len(s.rest) {
		s.ended = true
		return make([]byte, n)
	}
	out := s.rest[:n]
	s.rest = s.rest[n:]
	return out
}

func (s *scanner) byte() int { return int(s.take(1)[0]) }

// enter reads the tunnel in a UDP datagram.
func (t *tunnel) enter(datagram []byte) {
	s := &scanner{rest: datagram}
	udp := s.take(8)
	header := s.take(8)
	if s.ended {
		return
	}
	id := be16(header[4:])<<16 | be16(header[6:])
	switch be16(udp[2:]) {
	case 4789, 8472: // RFC 7348; the second by Linux
		if header[0]>>3&1 == 1 {
			t.hasVNI, t.vni = true, id/256
			t.frame(s)
		}
	case 6081: // RFC 8926
		if header[0] < 64 {
			t.hasVNI, t.vni = true, id/256
			s.take(int(header[0]) * 4)
			if be16(header[2:]) == 0x6558 {
				t.frame(s)
			} else {
				t.network(s, be16(header[2:]))
			}
		}
	case 2152: // TS 29.281
		if header[0]/16 == 3 {
			t.hasTEID, t.teid = true, id
			if header[1] == 255 {
				t.user(s, int(header[0]%8))
			}
		}
	}
}

// user reads what follows the fixed header of GTP-U with the flags E, S and PN.
func (t *tunnel) user(s *scanner, flags int) {
	next := 0
	if flags != 0 {
		optional := s.take(4)
		if flags >= 4 {
			next = int(optional[3])
		}
	}
	for count := 0; next != 0; count++ {
		words := s.byte()
		if words == 0 || count == 4 || s.ended {
			return
		}
		content := s.take(words*4 - 1)
		next = int(content[len(content)-1])
	}
	if len(s.rest) == 0 || s.ended {
		return
	}
	t.network(s, map[byte]int{4: etherIPv4, 6: etherIPv6}[s.rest[0]>>4])
}

// frame reads a frame of Ethernet with up to two VLAN tags.
func (t *tunnel) frame(s *scanner) {
	s.take(12)
	for range 3 {
		ethertype := be16(s.take(2))
		if ethertype != 0x8100 && ethertype != 0x88a8 {
			t.network(s, ethertype)
			return
		}
		s.take(2)
	}
}

// network reads the addresses of an IP packet.
func (t *tunnel) network(s *scanner, ethertype int) {
	version := map[int]int{etherIPv4: 4, etherIPv6: 6}[ethertype]
	at, size := 12, 4
	if version == 6 {
		at, size = 8, 16
	}
	fixed := s.take(at + 2*size)
	if s.ended || version == 0 || int(fixed[0]>>4) != version {
		return
	}
	t.innerSrc, _ = netip.AddrFromSlice(fixed[at : at+size])
	t.innerDst, _ = netip.AddrFromSlice(fixed[at+size:])
}
