package dataplane

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// seeded returns a random source. A failed test logs the seed.
func seeded(t testing.TB) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// sample is a packet as values instead of bytes. matches classifies it by the words of the
// documentation of Match.
type sample struct {
	kind         Kind
	src, dst     netip.Addr
	proto        uint8
	ports        bool // has ports: TCP, UDP or similar, and not a later fragment
	sport, dport uint16
	dscp         uint8
	tagged       bool
	vlan         uint16
	pcp          uint8
	mark         uint32
	ethertype    uint16 // 0: none, an unknown link type
	customer     bool
	length       int
}

// matches reports whether the sample matches m.
func (s *sample) matches(m *Match) bool {
	holds := func(list []Range, has bool, value uint32) bool {
		if len(list) == 0 {
			return true
		}
		return has && slices.ContainsFunc(list, func(r Range) bool { return r.First <= value && value <= r.Last })
	}
	within := func(list []netip.Prefix, a netip.Addr) bool {
		return len(list) == 0 || slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	ip := s.kind == IPv4 || s.kind == IPv6
	if m.Customer && !s.customer {
		return false
	}
	matchesNonIP := len(m.EtherType) + len(m.VLAN) + len(m.PCP) + len(m.Length)
	if !ip && matchesNonIP == 0 {
		return false
	}
	if len(m.Proto) == 0 && len(m.SPort)+len(m.DPort) > 0 && s.proto != protoTCP && s.proto != protoUDP {
		return false
	}
	return within(m.Src, s.src) && within(m.Dst, s.dst) &&
		holds(m.Proto, ip, uint32(s.proto)) &&
		holds(m.SPort, s.ports, uint32(s.sport)) && holds(m.DPort, s.ports, uint32(s.dport)) &&
		holds(m.DSCP, ip, uint32(s.dscp)) &&
		holds(m.VLAN, s.tagged, uint32(s.vlan)) && holds(m.PCP, s.tagged, uint32(s.pcp)) &&
		holds(m.Mark, true, s.mark) &&
		holds(m.EtherType, s.ethertype != 0, uint32(s.ethertype)) &&
		holds(m.Length, true, uint32(s.length))
}

// packet returns the sample as a parsed packet.
func (s *sample) packet() *Packet {
	var ip, head []byte
	p := &Packet{Link: LinkEthernet, Mark: s.mark}
	switch s.kind {
	case IPv4:
		h := v4{tos: s.dscp<<2 | 2, proto: s.proto, src: s.src, dst: s.dst}
		if !s.ports {
			h.frag = 1
		}
		ip = h.packet(ports(s.sport, s.dport))
	case IPv6:
		h := v6{class: s.dscp<<2 | 1, next: s.proto, src: s.src, dst: s.dst}
		ip = h.packet(ports(s.sport, s.dport))
		if !s.ports {
			h.next = 44
			ip = h.packet(fragment(s.proto, 1), ports(s.sport, s.dport))
		}
	case Malformed:
		ip = []byte{0x45}
	case Other:
		ip = make([]byte, 28)
	}
	head = ethernet(s.ethertype)
	switch {
	case s.tagged:
		head = concat(ethernet(etherVLAN), tag(uint16(s.pcp), 1, s.vlan, s.ethertype))
	case s.ethertype == 0:
		head = nil
		p.Link = 127
	}
	p.Data = concat(head, ip)
	Parse(p)
	if s.customer {
		p.Customer = 1
	}
	return p
}

// nearBound returns a value at or next to a bound of the list, or a random one.
func nearBound(r *rand.Rand, list []Range, bound uint32) uint32 {
	if len(list) == 0 || r.IntN(8) == 0 {
		return uint32(r.Uint64N(uint64(bound) + 1))
	}
	p := list[r.IntN(len(list))]
	v := []uint32{p.First, p.Last, p.First - 1, p.Last + 1, p.First + (p.Last-p.First)/2}[r.IntN(5)]
	return min(v, bound)
}

// randomAddr returns an address at or next to the bounds of a prefix in the list.
func randomAddr(r *rand.Rand, list []netip.Prefix, six bool) netip.Addr {
	list = slices.DeleteFunc(slices.Clone(list), func(p netip.Prefix) bool { return p.Addr().Is6() != six })
	if len(list) == 0 || r.IntN(8) == 0 {
		list = []netip.Prefix{randomPrefix(r, six)}
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

// randomPrefix returns one of few prefixes, so that many contain each other.
func randomPrefix(r *rand.Rand, six bool) netip.Prefix {
	base := []netip.Addr{netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("255.255.255.255"), netip.MustParseAddr("0.0.0.0")}[r.IntN(3)]
	if six {
		base = []netip.Addr{
			netip.MustParseAddr("2001:db8::ffff:ffff:ffff:ffff"), netip.MustParseAddr("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
			netip.MustParseAddr("::"), netip.MustParseAddr("::10.1.2.3"), netip.MustParseAddr("::ffff:10.1.2.3"),
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

// bounds contains the largest values of the numeric fields, in the order of lists.
var bounds = [...]uint32{0xff, 0xffff, 0xffff, 63, 0xfff, 7, math.MaxUint32, 0xffff, math.MaxUint32}

func lists(m *Match) [9]*[]Range {
	return [...]*[]Range{&m.Proto, &m.SPort, &m.DPort, &m.DSCP, &m.VLAN, &m.PCP, &m.Mark, &m.EtherType, &m.Length}
}

// randomRanges returns up to four ranges, which may overlap, touch and repeat.
func randomRanges(r *rand.Rand, bound uint32) []Range {
	list := make([]Range, 1+r.IntN(4))
	for i := range list {
		span := []uint64{1, 4, 300, uint64(bound) + 1}[r.IntN(4)]
		first := uint32(r.Uint64N(min(span, uint64(bound)+1)))
		if r.IntN(4) == 0 {
			first = bound - first
		}
		last := first + uint32(r.Uint64N(min(span, uint64(bound-first)+1)))
		if r.IntN(6) == 0 {
			last = bound
		}
		list[i] = Range{first, last}
	}
	return list
}

// randomMatch returns a match that uses each field with probability 1/sparse.
func randomMatch(r *rand.Rand, sparse int) Match {
	m := Match{Customer: r.IntN(sparse) == 0}
	for i, list := range lists(&m) {
		if r.IntN(sparse) != 0 {
			continue
		}
		*list = randomRanges(r, bounds[i])
		switch list {
		case &m.Proto:
			*list = append(*list, Range{protoTCP, protoTCP})
		case &m.EtherType:
			*list = append(*list, Range{etherIPv4, etherIPv4})
		case &m.Length:
			*list = append(*list, Range{0, 40})
		}
	}
	for _, list := range []*[]netip.Prefix{&m.Src, &m.Dst} {
		for r.IntN(sparse) == 0 && len(*list) < 4 {
			*list = append(*list, randomPrefix(r, r.IntN(2) == 0))
		}
	}
	return m
}

// aimedSample returns a sample of any kind, with values at the bounds of a match.
func aimedSample(r *rand.Rand, m *Match) *sample {
	s := &sample{
		kind:  []Kind{IPv4, IPv4, IPv6, IPv6, Other, Malformed}[r.IntN(6)],
		proto: uint8(nearBound(r, m.Proto, 0xff)),
		sport: uint16(nearBound(r, m.SPort, 0xffff)), dport: uint16(nearBound(r, m.DPort, 0xffff)),
		dscp: uint8(nearBound(r, m.DSCP, 63)),
		vlan: uint16(nearBound(r, m.VLAN, 0xfff)), pcp: uint8(nearBound(r, m.PCP, 7)),
		tagged: len(m.VLAN)+len(m.PCP) > 0 && r.IntN(8) != 0 || r.IntN(8) == 0,
		mark:   nearBound(r, m.Mark, math.MaxUint32),
		length: int(nearBound(r, m.Length, math.MaxUint32)), customer: r.IntN(2) == 0,
	}
	if r.IntN(2) == 0 {
		s.proto = []uint8{protoTCP, protoUDP, protoSCTP}[r.IntN(3)]
	}
	switch s.proto {
	case protoTCP, protoUDP, protoSCTP, protoDCCP, protoUDPLite:
		s.ports = r.IntN(6) != 0
	case 0, 43, 44, 51, 60, 135, 139, 140: // extension headers of IPv6
		s.proto = 1
	}
	switch s.kind {
	case IPv4:
		s.ethertype = etherIPv4
	case IPv6:
		s.ethertype = etherIPv6
	case Malformed:
		s.ethertype = etherIPv4
	case Other:
		s.ethertype = uint16(nearBound(r, m.EtherType, 0xffff))
		switch s.ethertype {
		case 0, etherIPv4, etherIPv6, etherVLAN, etherQinQ, etherQinQOld, etherMPLS, etherMPLSMC, etherPPPoE:
			s.ethertype = 0x0806
		}
	}
	if s.kind < IPv4 {
		s.proto, s.ports = 0, false
		if s.kind == Other && !s.tagged && r.IntN(4) == 0 {
			s.ethertype = 0 // an unknown link type
		}
	} else {
		s.src = randomAddr(r, m.Src, s.kind == IPv6)
		s.dst = randomAddr(r, m.Dst, s.kind == IPv6)
	}
	return s
}
