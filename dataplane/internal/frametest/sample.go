package frametest

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Seeded returns a random source. A failed test logs the seed.
func Seeded(t testing.TB) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// Sample is a packet as values instead of bytes. matches classifies it by the words of the
// documentation of Match.
type Sample struct {
	Kind         dataplane.PacketKind
	Src, Dst     netip.Addr
	Proto        uint8
	Ports        bool // has ports: TCP, UDP or similar, and not a later fragment
	Sport, Dport uint16
	Dscp         uint8
	Tagged       bool
	Vlan         uint16
	Pcp          uint8
	Mark         uint32
	Ethertype    uint16 // 0: none, an unknown link type
	Customer     bool
	Length       int

	SrcMAC, DstMAC uint64
	Twice          bool // two VLAN tags
	Inner          uint16
	TCPFlags       uint8
	ICMPType       uint16 // type and code, of ICMP and ICMPv6
	Tunnel         Tunnel // of a packet of UDP
	TunnelID       uint32 // VNI or TEID
}

// Tunnel is a tunnel over UDP: the header that a packet has, and its destination port.
type Tunnel uint8

// Tunnels.
const (
	NoTunnel Tunnel = iota
	VXLAN
	OldVXLAN // to Linux's port
	GENEVE
	GTPU
)

var tunnelPorts = [...]uint16{VXLAN: 4789, OldVXLAN: 8472, GENEVE: 6081, GTPU: 2152}

// header returns the header of a tunnel.
func (t Tunnel) header(id uint32) []byte {
	switch t {
	case VXLAN, OldVXLAN:
		return binary.BigEndian.AppendUint32([]byte{8, 0, 0, 0}, id<<8)
	case GENEVE:
		return binary.BigEndian.AppendUint32([]byte{0, 0, 0x65, 0x58}, id<<8)
	case GTPU:
		return binary.BigEndian.AppendUint32([]byte{0x30, 255, 0, 0}, id)
	}
	return nil
}

// Matches reports whether the sample matches m.
func (s *Sample) Matches(m *dataplane.Match) bool {
	holds := func(list []dataplane.Range, has bool, value uint64) bool {
		if len(list) == 0 {
			return true
		}
		return has &&
			slices.ContainsFunc(list,
				func(r dataplane.Range) bool { return r.First <= value && value <= r.Last })
	}
	within := func(list []netip.Prefix, a netip.Addr) bool {
		return len(list) == 0 || slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	ip := s.Kind == dataplane.IPv4 || s.Kind == dataplane.IPv6
	if m.Customer && !s.Customer {
		return false
	}
	matchesNonIP := len(m.EtherType) + len(m.VLAN) + len(m.PCP) + len(m.Length) + len(m.InnerVLAN) +
		len(m.MAC) + len(m.SrcMAC) + len(m.DstMAC)
	if !ip && matchesNonIP == 0 {
		return false
	}
	if len(m.Proto) == 0 && len(m.SPort)+len(m.DPort) > 0 && s.Proto != ProtoTCP && s.Proto != ProtoUDP {
		return false
	}
	return within(m.Src, s.Src) && within(m.Dst, s.Dst) &&
		holds(m.Proto, ip, uint64(s.Proto)) &&
		holds(m.SPort, s.Ports, uint64(s.Sport)) && holds(m.DPort, s.Ports, uint64(s.Dport)) &&
		holds(m.DSCP, ip, uint64(s.Dscp)) &&
		holds(m.VLAN, s.Tagged, uint64(s.Vlan)) && holds(m.PCP, s.Tagged, uint64(s.Pcp)) &&
		holds(m.Mark, true, uint64(s.Mark)) &&
		holds(m.EtherType, s.Ethertype != 0, uint64(s.Ethertype)) &&
		holds(m.Length, true, uint64(s.Length)) &&
		holds(m.InnerVLAN, s.Twice, uint64(s.Inner)) &&
		holds(m.SrcMAC, s.Ethertype != 0, s.SrcMAC) && holds(m.DstMAC, s.Ethertype != 0, s.DstMAC) &&
		holds(m.MAC, s.Ethertype != 0, s.DstMAC) && // the direction is egress
		holds(m.TCPFlags, ip && s.Ports && s.Proto == ProtoTCP, uint64(s.TCPFlags)) &&
		holds(m.VNI, s.Tunnel != NoTunnel && s.Tunnel != GTPU, uint64(s.TunnelID)) &&
		holds(m.TEID, s.Tunnel == GTPU, uint64(s.TunnelID)) &&
		holds(m.ICMPType, ip && (s.Proto == 1 || s.Proto == 58), uint64(s.ICMPType)+
			map[bool]uint64{true: 1 << 16}[s.Proto == 58])
}

// Packet returns the sample as a parsed packet.
func (s *Sample) Packet() *dataplane.Packet {
	var ip, head []byte
	payload := Concat(Ports(s.Sport, s.Dport), make([]byte, 16))
	switch s.Proto {
	case ProtoTCP:
		payload[13] = s.TCPFlags
	case ProtoUDP:
		copy(payload[8:], s.Tunnel.header(s.TunnelID))
	case 1, 58:
		payload = binary.BigEndian.AppendUint16(nil, s.ICMPType)
		payload = append(payload, 0, 0, 0, 0, 0, 0)
	}
	p := &dataplane.Packet{Link: dataplane.LinkEthernet, Mark: s.Mark}
	switch s.Kind {
	case dataplane.IPv4:
		h := V4{Tos: s.Dscp<<2 | 2, Proto: s.Proto, Src: s.Src, Dst: s.Dst}
		if s.laterFragment() {
			h.Frag = 1
		}
		ip = h.Packet(payload)
	case dataplane.IPv6:
		h := V6{Class: s.Dscp<<2 | 1, Next: s.Proto, Src: s.Src, Dst: s.Dst}
		ip = h.Packet(payload)
		if s.laterFragment() {
			h.Next = 44
			ip = h.Packet(Fragment(s.Proto, 1), payload)
		}
	case dataplane.Malformed:
		ip = []byte{0x45}
	case dataplane.Other:
		ip = make([]byte, 28)
	}
	head = Ethernet(s.Ethertype)
	switch {
	case s.Tagged && s.Twice:
		head = Concat(Ethernet(EtherQinQ), Tag(uint16(s.Pcp), 1, s.Vlan, EtherVLAN),
			Tag(0, 0, s.Inner, s.Ethertype))
	case s.Tagged:
		head = Concat(Ethernet(EtherVLAN), Tag(uint16(s.Pcp), 1, s.Vlan, s.Ethertype))
	case s.Ethertype == 0:
		head = nil
		p.Link = 127
	}
	if head != nil {
		binary.BigEndian.PutUint16(head, uint16(s.DstMAC>>32))
		binary.BigEndian.PutUint32(head[2:], uint32(s.DstMAC))
		binary.BigEndian.PutUint16(head[6:], uint16(s.SrcMAC>>32))
		binary.BigEndian.PutUint32(head[8:], uint32(s.SrcMAC))
	}
	p.Data = Concat(head, ip)
	dataplane.Parse(p)
	if s.Customer {
		p.Customer = 1
	}
	return p
}

// laterFragment reports whether the packet is a fragment without a transport header.
func (s *Sample) laterFragment() bool {
	switch s.Proto {
	case ProtoTCP, ProtoUDP, ProtoSCTP, ProtoDCCP, ProtoUDPLite:
		return !s.Ports
	}
	return s.Proto != 1 && s.Proto != 58
}

// NearBound returns a value at or next to a bound of the list, or a random one.
func NearBound(r *rand.Rand, list []dataplane.Range, bound uint64) uint64 {
	if len(list) == 0 || r.IntN(8) == 0 {
		return r.Uint64N(bound + 1)
	}
	p := list[r.IntN(len(list))]
	v := []uint64{p.First, p.Last, p.First - 1, p.Last + 1, p.First + (p.Last-p.First)/2}[r.IntN(5)]
	return min(v, bound)
}

// RandomAddr returns an address at or next to the bounds of a prefix in the list.
func RandomAddr(r *rand.Rand, list []netip.Prefix, six bool) netip.Addr {
	list = slices.DeleteFunc(slices.Clone(list), func(p netip.Prefix) bool { return p.Addr().Is6() != six })
	if len(list) == 0 || r.IntN(8) == 0 {
		list = []netip.Prefix{RandomPrefix(r, six)}
	}
	p := list[r.IntN(len(list))].Masked()
	b := p.Addr().AsSlice()
	if r.IntN(2) == 0 { // the last address
		for i := p.Bits(); i < 8*len(b); i++ {
			b[i/8] |= 1 << (7 - i%8)
		}
	}
	a, _ := netip.AddrFromSlice(b)
	switch beside := []netip.Addr{a, a.Prev(), a.Next()}[r.IntN(3)]; {
	case beside.IsValid():
		return beside
	}
	return a
}

// RandomPrefix returns one of few prefixes, so that many contain each other.
func RandomPrefix(r *rand.Rand, six bool) netip.Prefix {
	base := []netip.Addr{
		netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("255.255.255.255"),
		netip.MustParseAddr("0.0.0.0"),
	}[r.IntN(3)]
	if six {
		base = []netip.Addr{
			netip.MustParseAddr("2001:db8::ffff:ffff:ffff:ffff"),
			netip.MustParseAddr("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), netip.MustParseAddr("::"),
			netip.MustParseAddr("::10.1.2.3"),
			netip.MustParseAddr("::ffff:10.1.2.3"),
		}[r.IntN(5)]
	}
	bits := r.IntN(base.BitLen() + 1)
	switch r.IntN(6) {
	case 0:
		bits = 0
	case 1:
		bits = base.BitLen()
	case 2:
		bits = base.BitLen() / 2
	}
	return netip.PrefixFrom(base, bits) // host bits may be set, and have no effect
}

// Bounds contains the largest values of the numeric fields, in the order of lists.
var Bounds = [...]uint64{
	0xff, 0xffff, 0xffff, 63, 0xfff, 7, math.MaxUint32, 0xffff, math.MaxUint32,
	0xfff, 0xff, 0x1ffff, 1<<48 - 1, 1<<48 - 1, 1<<48 - 1, 1<<24 - 1, math.MaxUint32,
}

func Lists(m *dataplane.Match) [17]*[]dataplane.Range {
	return [...]*[]dataplane.Range{
		&m.Proto, &m.SPort, &m.DPort, &m.DSCP, &m.VLAN, &m.PCP, &m.Mark, &m.EtherType, &m.Length,
		&m.InnerVLAN, &m.TCPFlags, &m.ICMPType, &m.MAC, &m.SrcMAC, &m.DstMAC, &m.VNI, &m.TEID,
	}
}

// RandomRanges returns up to four ranges, which may overlap, touch and repeat.
func RandomRanges(r *rand.Rand, bound uint64) []dataplane.Range {
	list := make([]dataplane.Range, 1+r.IntN(4))
	for i := range list {
		span := []uint64{1, 4, 300, bound + 1}[r.IntN(4)]
		first := r.Uint64N(min(span, bound+1))
		if r.IntN(4) == 0 {
			first = bound - first
		}
		last := first + r.Uint64N(min(span, bound-first+1))
		if r.IntN(6) == 0 {
			last = bound
		}
		list[i] = dataplane.Range{First: first, Last: last}
	}
	return list
}

// RandomMatch returns a match that uses each field with probability 1/sparse.
func RandomMatch(r *rand.Rand, sparse int) dataplane.Match {
	m := dataplane.Match{Customer: r.IntN(sparse) == 0}
	for i, list := range Lists(&m) {
		if r.IntN(sparse) != 0 {
			continue
		}
		*list = RandomRanges(r, Bounds[i])
		switch list {
		case &m.Proto:
			*list = append(*list, dataplane.Range{First: ProtoTCP, Last: ProtoTCP})
		case &m.EtherType:
			*list = append(*list, dataplane.Range{First: EtherIPv4, Last: EtherIPv4})
		case &m.Length:
			*list = append(*list, dataplane.Range{First: 0, Last: 40})
		}
	}
	for _, list := range []*[]netip.Prefix{&m.Src, &m.Dst} {
		for r.IntN(sparse) == 0 && len(*list) < 4 {
			*list = append(*list, RandomPrefix(r, r.IntN(2) == 0))
		}
	}
	return m
}

// AimedSample returns a sample of any kind, with values at the bounds of a match.
func AimedSample(r *rand.Rand, m *dataplane.Match) *Sample {
	s := &Sample{
		Kind: []dataplane.PacketKind{
			dataplane.IPv4, dataplane.IPv4, dataplane.IPv6, dataplane.IPv6, dataplane.Other,
			dataplane.Malformed,
		}[r.IntN(6)],
		Proto: uint8(NearBound(r, m.Proto, 0xff)),
		Sport: uint16(NearBound(r, m.SPort, 0xffff)), Dport: uint16(NearBound(r, m.DPort, 0xffff)),
		Dscp: uint8(NearBound(r, m.DSCP, 63)),
		Vlan: uint16(NearBound(r, m.VLAN, 0xfff)), Pcp: uint8(NearBound(r, m.PCP, 7)),
		Tagged: len(m.VLAN)+len(m.PCP) > 0 && r.IntN(8) != 0 || r.IntN(8) == 0,
		Mark:   uint32(NearBound(r, m.Mark, math.MaxUint32)),
		Length: int(min(NearBound(r, m.Length, math.MaxUint32), math.MaxInt)), Customer: r.IntN(2) == 0,
		SrcMAC: NearBound(r, m.SrcMAC, dataplane.MaxMAC),
		DstMAC: NearBound(r, append(slices.Clone(m.DstMAC), m.MAC...), dataplane.MaxMAC),
		Twice:  len(m.InnerVLAN) > 0, Inner: uint16(NearBound(r, m.InnerVLAN, 0xfff)),
		TCPFlags: uint8(NearBound(r, m.TCPFlags, 0xff)),
		ICMPType: uint16(NearBound(r, m.ICMPType, 0x1ffff)),
	}
	s.Tagged = s.Tagged || s.Twice && r.IntN(8) != 0
	s.Twice = s.Twice && s.Tagged
	if len(m.ICMPType) > 0 && r.IntN(2) == 0 {
		s.Proto = []uint8{1, 58}[r.IntN(2)]
	} else if r.IntN(2) == 0 {
		s.Proto = []uint8{ProtoTCP, ProtoUDP, ProtoSCTP}[r.IntN(3)]
	}
	if len(m.VNI)+len(m.TEID) > 0 && r.IntN(4) != 0 {
		s.Proto, s.Tunnel = ProtoUDP, []Tunnel{VXLAN, OldVXLAN, GENEVE, GTPU}[r.IntN(4)]
	}
	switch s.Proto {
	case ProtoTCP, ProtoUDP, ProtoSCTP, ProtoDCCP, ProtoUDPLite:
		s.Ports = r.IntN(6) != 0
	case 0, 43, 44, 51, 60, 135, 139, 140: // extension headers of IPv6
		s.Proto = 1
	}
	if s.Kind < dataplane.IPv4 || !s.Ports {
		s.Tunnel = NoTunnel
	}
	switch s.Tunnel {
	case NoTunnel:
		if slices.Contains(tunnelPorts[:], s.Dport) {
			s.Dport++
		}
	case GTPU:
		s.TunnelID = uint32(NearBound(r, m.TEID, math.MaxUint32))
	default:
		s.TunnelID = uint32(NearBound(r, m.VNI, 1<<24-1))
	}
	if s.Tunnel != NoTunnel {
		s.Dport = tunnelPorts[s.Tunnel]
	}
	switch s.Kind {
	case dataplane.IPv4:
		s.Ethertype = EtherIPv4
	case dataplane.IPv6:
		s.Ethertype = EtherIPv6
	case dataplane.Malformed:
		s.Ethertype = EtherIPv4
	case dataplane.Other:
		s.Ethertype = uint16(NearBound(r, m.EtherType, 0xffff))
		switch s.Ethertype {
		case 0, EtherIPv4, EtherIPv6, EtherVLAN, EtherQinQ, EtherQinQOld, EtherMPLS, EtherMPLSMC, EtherPPPoE:
			s.Ethertype = 0x0806
		}
	}
	if s.Kind < dataplane.IPv4 {
		s.Proto, s.Ports = 0, false
		if s.Kind == dataplane.Other && !s.Tagged && r.IntN(4) == 0 {
			s.Ethertype = 0 // an unknown link type
		}
	} else {
		s.Src = RandomAddr(r, m.Src, s.Kind == dataplane.IPv6)
		s.Dst = RandomAddr(r, m.Dst, s.Kind == dataplane.IPv6)
	}
	return s
}
