package dataplane

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Frames are built from parts, outermost first, such as
// concat(ethernet(etherVLAN), tag(5, 0, 100, etherIPv4), v4{proto: protoUDP}.packet(udp)).

func concat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// ethernet returns an Ethernet header.
func ethernet(t uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}, t)
}

// tag returns the control information of a VLAN tag and the next EtherType.
func tag(pcp, dei, vid, t uint16) []byte {
	b := binary.BigEndian.AppendUint16(nil, pcp<<13|dei<<12|vid)
	return binary.BigEndian.AppendUint16(b, t)
}

// mplsLabel returns a label stack entry; bottom is 1 for the last one.
func mplsLabel(n, tc, bottom uint32) []byte {
	return binary.BigEndian.AppendUint32(nil, n<<12|tc<<9|bottom<<8|64)
}

// compressed is pppoe with a protocol of one byte (RFC 1661 §6.5).
func compressed(proto byte) []byte { return []byte{0x11, 0, 0, 9, 0, 42, proto} }

// pppoe returns a PPPoE session header and the PPP protocol.
func pppoe(proto uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{0x11, 0, 0, 9, 0, 42}, proto)
}

// ports returns the first 4 bytes of a transport header; udp is a header of 8 bytes.
func ports(src, dst uint16) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, src), dst)
}

var udp = concat(ports(1000, 2000), make([]byte, 4))

var (
	src4, dst4 = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.2")
	src6, dst6 = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8:ffff::2")
)

// v4 is an IPv4 header; the default addresses are src4 and dst4.
type v4 struct {
	tos, proto byte
	frag       uint16 // flags and offset
	options    int    // bytes, a multiple of 4
	src, dst   netip.Addr
}

// packet returns header and payload, with a valid total length and checksum.
func (h v4) packet(payload []byte) []byte {
	b := make([]byte, 20+h.options)
	b[0], b[1], b[8], b[9] = 0x40|byte(len(b)/4), h.tos, 64, h.proto
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)+len(payload)))
	binary.BigEndian.PutUint16(b[6:], h.frag)
	copy(b[12:], orAddr(h.src, src4).AsSlice())
	copy(b[16:], orAddr(h.dst, dst4).AsSlice())
	for i := range h.options {
		b[20+i] = 1 // no operation
	}
	binary.BigEndian.PutUint16(b[10:], checksum(b))
	return concat(b, payload)
}

// v6 is an IPv6 header; the default addresses are src6 and dst6.
type v6 struct {
	class, next byte
	src, dst    netip.Addr
}

func (h v6) packet(payload ...[]byte) []byte {
	b := make([]byte, 40)
	b[0], b[1], b[6], b[7] = 0x60|h.class>>4, h.class<<4|0x0a, h.next, 64
	binary.BigEndian.PutUint16(b[4:], uint16(len(concat(payload...))))
	copy(b[8:], orAddr(h.src, src6).AsSlice())
	copy(b[24:], orAddr(h.dst, dst6).AsSlice())
	return concat(b, concat(payload...))
}

func orAddr(a, b netip.Addr) netip.Addr {
	if a.IsValid() {
		return a
	}
	return b
}

// extension returns an extension header of size bytes, a multiple of 8.
func extension(next byte, size int) []byte {
	b := make([]byte, size)
	b[0], b[1] = next, byte(size/8-1)
	return b
}

// fragment returns an IPv6 fragment header with More Fragments; offset is in units of 8
// bytes.
func fragment(next byte, offset uint16) []byte {
	return binary.BigEndian.AppendUint32([]byte{next, 0, byte(offset >> 5), byte(offset<<3 | 1)}, 7)
}

// checksum returns the checksum of RFC 1071. Over a header with a valid checksum it is 0.
func checksum(header []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// padTo extends a frame to size with bytes that are not zero: a header read from padding
// changes the result.
func padTo(frame []byte, size int) []byte {
	return concat(frame, bytes.Repeat([]byte{0xee}, size-len(frame)))
}

// patched returns the frame with some bytes replaced, for invalid headers.
func patched(frame []byte, at int, b ...byte) []byte {
	frame = bytes.Clone(frame)
	copy(frame[at:], b)
	return frame
}

// describe returns the valid results of Parse as text, such as
//
//	ipv6 18+28 0800 tags 1@14 mpls 18 proto 17 first of 60 1000>2000
//
// These are the kind, offset and l3 length, the EtherType, the number of tags and the offset
// of the outer one, the offset of the top label, the protocol, "first" or "fragment" for a
// first or later fragment, the protocol that all fragments name if it differs, and the
// ports. Addresses follow, unless they are the defaults above.
func describe(p *Packet) string {
	b := fmt.Appendf(nil, "%s %d+%d", [...]string{"malformed", "other", "ipv4", "ipv6"}[p.Kind], p.L3, p.L3Len)
	if p.HasEtherType {
		b = fmt.Appendf(b, " %04x", p.EtherType)
	}
	if p.Tags > 0 {
		b = fmt.Appendf(b, " tags %d@%d", p.Tags, p.Tag)
	}
	if p.MPLS != 0 {
		b = fmt.Appendf(b, " mpls %d", p.MPLS)
	}
	if !p.IsIP() {
		return string(b)
	}
	b = fmt.Appendf(b, " proto %d", p.Proto)
	switch {
	case p.Fragment:
		b = append(b, " fragment"...)
	case p.Fragmented:
		b = append(b, " first"...)
	}
	if p.Fragmented && p.FragmentProto != p.Proto {
		b = fmt.Appendf(b, " of %d", p.FragmentProto)
	}
	if p.HasPorts {
		b = fmt.Appendf(b, " %d>%d", p.SrcPort, p.DstPort)
	}
	if src, dst := address(p.Kind, p.Src), address(p.Kind, p.Dst); !(src == src4 && dst == dst4 || src == src6 && dst == dst6) {
		b = fmt.Appendf(b, " %v>%v", src, dst)
	}
	return string(b)
}

// address converts an address, independently of Addr.netip.
func address(k Kind, a Addr) netip.Addr {
	if k == IPv4 {
		return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(a.Lo))))
	}
	b := binary.BigEndian.AppendUint64(nil, a.Hi)
	return netip.AddrFrom16([16]byte(binary.BigEndian.AppendUint64(b, a.Lo)))
}

// values returns ranges of one value each.
// values returns a range for each value.
func values(values ...uint32) []Range {
	list := make([]Range, len(values))
	for i, v := range values {
		list[i] = Range{v, v}
	}
	return list
}

// prefixes parses prefixes.
func prefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, len(texts))
	for i, s := range texts {
		list[i] = netip.MustParsePrefix(s)
	}
	return list
}
