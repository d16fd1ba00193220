// Package frametest builds packets and policies for the tests of dataplane and the packages below it.
package frametest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Frames are built from parts, outermost first, such as
// Concat(Ethernet(EtherVLAN), Tag(5, 0, 100, EtherIPv4), V4{Proto: ProtoUDP}.Packet(UDP)).

// Concat joins the parts of a frame.
func Concat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// Ethernet returns an Ethernet header.
func Ethernet(t uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}, t)
}

// Tag returns the control information of a VLAN tag and the next EtherType.
func Tag(pcp, dei, vid, t uint16) []byte {
	b := binary.BigEndian.AppendUint16(nil, pcp<<13|dei<<12|vid)
	return binary.BigEndian.AppendUint16(b, t)
}

// MplsLabel returns a label stack entry; bottom is 1 for the last one.
func MplsLabel(n, tc, bottom uint32) []byte {
	return binary.BigEndian.AppendUint32(nil, n<<12|tc<<9|bottom<<8|64)
}

// Compressed is pppoe with a protocol of one byte (RFC 1661 §6.5).
func Compressed(proto byte) []byte { return []byte{0x11, 0, 0, 9, 0, 42, proto} }

// PPPoE returns a PPPoE session header and the PPP protocol.
func PPPoE(proto uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{0x11, 0, 0, 9, 0, 42}, proto)
}

// Ports returns the first 4 bytes of a transport header; udp is a header of 8 bytes.
func Ports(src, dst uint16) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, src), dst)
}

var UDP = Concat(Ports(1000, 2000), make([]byte, 4))

var (
	Src4, Dst4 = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.2")
	Src6, Dst6 = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8:ffff::2")
)

// V4 is an IPv4 header; the default addresses are src4 and dst4.
type V4 struct {
	Tos, Proto byte
	Frag       uint16 // flags and offset
	Options    int    // bytes, a multiple of 4
	Src, Dst   netip.Addr
}

// Packet returns header and payload, with a valid total length and checksum.
func (h V4) Packet(payload []byte) []byte {
	b := make([]byte, 20+h.Options)
	b[0], b[1], b[8], b[9] = 0x40|byte(len(b)/4), h.Tos, 64, h.Proto
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)+len(payload)))
	binary.BigEndian.PutUint16(b[6:], h.Frag)
	copy(b[12:], OrAddr(h.Src, Src4).AsSlice())
	copy(b[16:], OrAddr(h.Dst, Dst4).AsSlice())
	for i := range h.Options {
		b[20+i] = 1 // no operation
	}
	binary.BigEndian.PutUint16(b[10:], Checksum(b))
	return Concat(b, payload)
}

// V6 is an IPv6 header; the default addresses are src6 and dst6.
type V6 struct {
	Class, Next byte
	Src, Dst    netip.Addr
}

func (h V6) Packet(payload ...[]byte) []byte {
	b := make([]byte, 40)
	b[0], b[1], b[6], b[7] = 0x60|h.Class>>4, h.Class<<4|0x0a, h.Next, 64
	binary.BigEndian.PutUint16(b[4:], uint16(len(Concat(payload...))))
	copy(b[8:], OrAddr(h.Src, Src6).AsSlice())
	copy(b[24:], OrAddr(h.Dst, Dst6).AsSlice())
	return Concat(b, Concat(payload...))
}

func OrAddr(a, b netip.Addr) netip.Addr {
	if a.IsValid() {
		return a
	}
	return b
}

// Extension returns an extension header of size bytes, a multiple of 8.
func Extension(next byte, size int) []byte {
	b := make([]byte, size)
	b[0], b[1] = next, byte(size/8-1)
	return b
}

// Fragment returns an IPv6 fragment header with More Fragments; offset is in units of 8
// bytes.
func Fragment(next byte, offset uint16) []byte {
	return binary.BigEndian.AppendUint32([]byte{next, 0, byte(offset >> 5), byte(offset<<3 | 1)}, 7)
}

// Checksum returns the checksum of RFC 1071. Over a header with a valid checksum it is 0.
func Checksum(header []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// PadTo extends a frame to size with bytes that are not zero: a header read from padding
// changes the result.
func PadTo(frame []byte, size int) []byte {
	return Concat(frame, bytes.Repeat([]byte{0xee}, size-len(frame)))
}

// Patched returns the frame with some bytes replaced, for invalid headers.
func Patched(frame []byte, at int, b ...byte) []byte {
	frame = bytes.Clone(frame)
	copy(frame[at:], b)
	return frame
}

// Describe returns the valid results of Parse as text, such as
//
//	ipv6 18+28 0800 tags 1@14 mpls 18 proto 17 first of 60 1000>2000
//
// These are the kind, offset and l3 length, the EtherType, the number of tags and the offset
// of the outer one, the offset of the top label, the protocol, "first" or "fragment" for a
// first or later fragment, the protocol that all fragments name if it differs, and the
// ports. Addresses follow, unless they are the defaults above.
func Describe(p *dataplane.Packet) string {
	b := fmt.Appendf(nil, "%s %d+%d", [...]string{"malformed", "other", "ipv4", "ipv6"}[p.Kind], p.L3,
		p.L3Len)
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
	if src, dst := Address(p.Kind, p.Src),
		Address(p.Kind, p.Dst); !(src == Src4 && dst == Dst4 || src == Src6 && dst == Dst6) {
		b = fmt.Appendf(b, " %v>%v", src, dst)
	}
	return string(b)
}

// Address converts an address, independently of Addr.netip.
func Address(k dataplane.PacketKind, a dataplane.Addr) netip.Addr {
	if k == dataplane.IPv4 {
		return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(a.Lo))))
	}
	b := binary.BigEndian.AppendUint64(nil, a.Hi)
	return netip.AddrFrom16([16]byte(binary.BigEndian.AppendUint64(b, a.Lo)))
}

// Values returns ranges of one value each.
// values returns a range for each value.
func Values[T int | uint8 | uint16 | uint32 | uint64](values ...T) []dataplane.Range {
	list := make([]dataplane.Range, len(values))
	for i, v := range values {
		list[i] = dataplane.Range{First: uint64(v), Last: uint64(v)}
	}
	return list
}

// Prefixes parses prefixes.
func Prefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, len(texts))
	for i, s := range texts {
		list[i] = netip.MustParsePrefix(s)
	}
	return list
}
