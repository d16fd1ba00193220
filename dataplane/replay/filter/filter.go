package filter

import (
	"encoding/binary"
	"fmt"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Filter is a compiled expression. Its methods must not be called concurrently.
type Filter struct {
	test test
	view view
}

// Error is an error in an expression.
type Error struct {
	Column int // from 1, bytes
	Reason string
}

func (e *Error) Error() string { return fmt.Sprintf("%d: %s", e.Column, e.Reason) }

// New compiles an expression. The error is an *Error.
func New(expression string) (*Filter, error) {
	p := parser{lexer: lexer{text: expression}}
	t, err := p.parse()
	if err != nil {
		return nil, err
	}
	return &Filter{test: t}, nil
}

// Match reports whether the filter chooses a packet. It reads Data, WireLen and Link.
func (f *Filter) Match(p *dataplane.Packet) bool {
	if !p.Link.Known() {
		return false
	}
	f.view = view{data: p.Data, link: p.Link, wire: uint32(max(p.WireLen, 0))}
	f.view.readLink()
	return f.test(&f.view) && !f.view.beyond
}

// view is a packet under test.
type view struct {
	data      []byte
	link      dataplane.LinkType
	header    uint64 // length of the link header, bytes
	parsed    bool   // dataplane read the link header: a network header of kind etherType follows it
	etherType uint32 // valid if parsed; 0 for none
	wire      uint32 // length on the wire, bytes
	beyond    bool   // a test read beyond the captured bytes
}

// test is a part of a filter.
type test func(v *view) bool

// number is an operand of a comparison.
type number func(v *view) uint32

// load reads size bytes, 1, 2 or 4, at an offset.
func (v *view) load(offset uint64, size int) uint32 {
	if offset+uint64(size) > uint64(len(v.data)) {
		v.beyond = true
		return 0
	}
	b := v.data[offset:]
	switch size {
	case 1:
		return uint32(b[0])
	case 2:
		return uint32(binary.BigEndian.Uint16(b))
	}
	return binary.BigEndian.Uint32(b)
}

// readLink finds the end of the link header.
func (v *view) readLink() {
	switch v.link {
	case dataplane.LinkEthernet:
		v.header = 14
	case dataplane.LinkSLL:
		v.header = 16
	case dataplane.LinkSLL2:
		v.header = 20
	case dataplane.LinkNull, dataplane.LinkLoop:
		v.header = 4
	case dataplane.LinkRaw, dataplane.LinkRawBSD, dataplane.LinkRawOBSD, dataplane.LinkIPv4,
		dataplane.LinkIPv6:
	default:
		p := dataplane.Packet{Data: v.data, Link: v.link}
		dataplane.Parse(&p)
		v.parsed, v.header = true, uint64(p.L3)
		if p.HasEtherType {
			v.etherType = uint32(p.EtherType)
		}
	}
}

// payload returns the offset of the header after the link header and some VLAN tags.
func (v *view) payload(tags int) uint64 { return v.header + 4*uint64(tags) }

const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherRARP = 0x8035
	etherIPv6 = 0x86dd
)

// hasType tests the EtherType after some VLAN tags.
func hasType(want uint32, tags int) test {
	return func(v *view) bool {
		if v.parsed {
			return tags == 0 && v.etherType == want
		}
		switch v.link {
		case dataplane.LinkEthernet, dataplane.LinkSLL:
			return v.load(v.payload(tags)-2, 2) == want
		case dataplane.LinkSLL2:
			if tags == 0 {
				return v.load(0, 2) == want
			}
			return v.load(v.payload(tags)-2, 2) == want
		case dataplane.LinkIPv4:
			return want == etherIPv4
		case dataplane.LinkIPv6:
			return want == etherIPv6
		case dataplane.LinkNull, dataplane.LinkLoop:
			return v.hasFamily(want)
		}
		switch want { // raw IP: the first four bits are the version
		case etherIPv4:
			return v.load(v.payload(tags), 1)>>4 == 4
		case etherIPv6:
			return v.load(v.payload(tags), 1)>>4 == 6
		}
		return false
	}
}

// hasFamily tests the address family of a loopback header as dataplane does, for all systems
// and both byte orders.
func (v *view) hasFamily(want uint32) bool {
	v.load(0, 4)
	p := dataplane.Packet{Data: v.data, Link: v.link}
	dataplane.Parse(&p)
	return p.HasEtherType && uint32(p.EtherType) == want
}

// at returns the number of size bytes at an offset after the link header.
func at(offset uint64, size, tags int) number {
	return func(v *view) uint32 { return v.load(v.payload(tags)+offset, size) }
}

// transport returns the offset of the header after an IPv4 header.
func (v *view) transport(tags int) uint64 {
	l3 := v.payload(tags)
	return l3 + uint64(v.load(l3, 1)&0xf)*4
}

func equals(n number, want uint32) test { return func(v *view) bool { return n(v) == want } }

func and(a, b test) test { return func(v *view) bool { return a(v) && b(v) } }

// or does not try b if a read beyond the packet: libpcap excludes the packet at once.
func or(a, b test) test { return func(v *view) bool { return a(v) || !v.beyond && b(v) } }

func not(a test) test { return func(v *view) bool { return !a(v) } }

// sides combines tests of the source and the destination.
func sides(d direction, side func(dst bool) test) test {
	switch d {
	case isSrc:
		return side(false)
	case isDst:
		return side(true)
	case isBoth:
		return and(side(false), side(true))
	}
	return or(side(false), side(true))
}
