package filter

import (
	"encoding/binary"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// IP protocols.
const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoSCTP   = 132
	protoICMPv6 = 58
	fragment6   = 44 // IPv6 fragment header
)

// protocol is a keyword for a protocol.
type protocol struct {
	ether  uint32 // EtherType; 0 for a protocol over IP
	number uint32 // of a protocol over IP
	v4, v6 bool   // IP versions in which the keyword finds it
	index  int    // keyword[...] reads this header
}

// Headers read by keyword[...].
const (
	noIndex = iota
	indexLink
	indexNetwork
	indexTransport4
	indexTransport6
)

var protocols = map[string]protocol{
	"ether": {index: indexLink},
	"ip":    {ether: etherIPv4, index: indexNetwork},
	"ip6":   {ether: etherIPv6, index: indexNetwork},
	"arp":   {ether: etherARP, index: indexNetwork},
	"rarp":  {ether: etherRARP, index: indexNetwork},
	"tcp":   {0, protoTCP, true, true, indexTransport4},
	"udp":   {0, protoUDP, true, true, indexTransport4},
	"sctp":  {0, protoSCTP, true, true, indexTransport4},
	"icmp":  {0, protoICMP, true, false, indexTransport4},
	"icmp6": {0, protoICMPv6, false, true, indexTransport6},
	"igmp":  {0, 2, true, false, indexTransport4},
	"igrp":  {0, 9, true, false, indexTransport4},
	"pim":   {0, 103, true, true, indexTransport4},
	"vrrp":  {0, 112, true, false, indexTransport4},
	"carp":  {0, 112, true, false, indexTransport4},
	"ah":    {0, 51, true, true, noIndex},
	"esp":   {0, 50, true, true, noIndex},
}

// hasField tests whether keyword[...] can read a packet, as libpcap does: the protocol follows the fixed
// header, and a fragment is the first one. In IPv6 it may not be behind a fragment header.
func (p protocol) hasField(tags int) test {
	switch p.index {
	case indexLink:
		return nil
	case indexTransport4:
		return and(overIP(p.number, true, false, tags), firstFragment(tags))
	case indexTransport6:
		return and(hasType(etherIPv6, tags), equals(at(6, 1, tags), p.number))
	}
	return p.test(tags)
}

// test tests whether a packet is of the protocol.
func (p protocol) test(tags int) test {
	if p.ether != 0 {
		return hasType(p.ether, tags)
	}
	return overIP(p.number, p.v4, p.v6, tags)
}

// overIP tests the protocol over IP. In IPv6, only a fragment header may be before it.
func overIP(number uint32, v4, v6 bool, tags int) test {
	in4 := and(hasType(etherIPv4, tags), equals(at(9, 1, tags), number))
	next := at(6, 1, tags)
	in6 := and(hasType(etherIPv6, tags),
		or(equals(next, number), and(equals(next, fragment6), equals(at(40, 1, tags), number))))
	switch {
	case !v6:
		return in4
	case !v4:
		return in6
	}
	return or(in4, in6)
}

// firstFragment tests an IPv4 packet for being whole or a first fragment.
func firstFragment(tags int) test {
	offset := at(6, 2, tags)
	return func(v *view) bool { return offset(v)&0x1fff == 0 }
}

// network is a set of addresses: those whose words are equal after the mask is applied.
type network struct{ words, mask []uint32 }

func (n network) is6() bool { return len(n.words) == 4 }

// test tests an address at an offset after the link header. It also reads words without a bit in
// the mask, so a packet ending before them is excluded.
func (n network) test(offset uint64, tags int) test {
	t := test(func(*view) bool { return true })
	for i, want := range n.words {
		mask, word := n.mask[i], at(offset+uint64(i)*4, 4, tags)
		t = and(t, func(v *view) bool { return word(v)&mask == want })
	}
	return t
}

// hosts tests the addresses of a packet. ether is the protocol, or 0 for each one with such
// addresses.
func hosts(n network, ether uint32, d direction, tags int) test {
	in := func(ether uint32, src, dst uint64) test {
		return sides(d, func(isDst bool) test {
			offset := src
			if isDst {
				offset = dst
			}
			return and(hasType(ether, tags), n.test(offset, tags))
		})
	}
	switch {
	case n.is6():
		return in(etherIPv6, 8, 24)
	case ether == etherIPv4:
		return in(ether, 12, 16)
	case ether != 0:
		return in(ether, 14, 24)
	}
	return or(or(in(etherIPv4, 12, 16), in(etherARP, 14, 24)), in(etherRARP, 14, 24))
}

// stations tests the addresses of an Ethernet header.
func stations(mac [6]byte, d direction) test {
	return sides(d, func(isDst bool) test {
		offset := uint64(6)
		if isDst {
			offset = 0
		}
		high, low := uint32(binary.BigEndian.Uint16(mac[:])), binary.BigEndian.Uint32(mac[2:])
		return func(v *view) bool {
			return v.link == dataplane.LinkEthernet && v.load(offset+2, 4) == low && v.load(offset, 2) == high
		}
	})
}

// ports tests the ports of TCP, UDP and SCTP, or of the protocol number. IPv6 extension headers
// are not skipped.
func ports(from, to, number uint32, d direction, tags int) test {
	numbers := []uint32{protoTCP, protoUDP, protoSCTP}
	if number != 0 {
		numbers = []uint32{number}
	}
	has := func(next uint64) test {
		proto := at(next, 1, tags)
		return func(v *view) bool { return slices.Contains(numbers, proto(v)) }
	}
	port := func(transport func(v *view) uint64) test {
		return sides(d, func(isDst bool) test {
			offset := uint64(0)
			if isDst {
				offset = 2
			}
			return func(v *view) bool {
				n := v.load(transport(v)+offset, 2)
				return from <= n && n <= to
			}
		})
	}
	in6 := and(has(6), port(func(v *view) uint64 { return v.payload(tags) + 40 }))
	in4 := and(and(has(9), firstFragment(tags)), port(func(v *view) uint64 { return v.transport(tags) }))
	return or(and(hasType(etherIPv6, tags), in6), and(hasType(etherIPv4, tags), in4))
}

// vlan tests for a tag after some others, and for its ID unless negative.
func vlan(id int, tags int) test {
	tagged := or(or(hasType(0x8100, tags), hasType(0x88a8, tags)), hasType(0x9100, tags))
	if id < 0 {
		return tagged
	}
	tci := at(0, 2, tags)
	return and(tagged, func(v *view) bool { return tci(v)&0xfff == uint32(id) })
}
