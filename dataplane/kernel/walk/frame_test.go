package walk

import (
	"bytes"
	"encoding/binary"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

var (
	from4, to4 = [4]byte{192, 0, 2, 1}, [4]byte{192, 0, 2, 2}
	from6, to6 = [16]byte{0x20, 1, 0xd, 0xb8, 15: 1}, [16]byte{0x20, 1, 0xd, 0xb8, 15: 2}
)

// ethernet returns the addresses of a frame. The caller appends the EtherType.
func ethernet() []byte { return []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2} }

// ipv4 appends a header with options of 4*words bytes, for a payload of payload bytes.
func ipv4(b []byte, words int, tos, proto byte, payload int, fragment uint16, src, dst [4]byte) []byte {
	start := len(b)
	b = append(b, byte(0x45+words), tos)
	b = kerneltest.Be16(b, uint16(20+4*words+payload), 1, fragment)
	b = append(b, 64, proto, 0, 0)
	b = append(append(b, src[:]...), dst[:]...)
	b = append(b, bytes.Repeat([]byte{1}, 4*words)...)
	sum := uint32(0)
	for i := start; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[start+10:], ^uint16(sum))
	return b
}

// ipv6 appends a header for a payload of payload bytes.
func ipv6(b []byte, class, next byte, payload int, src, dst [16]byte) []byte {
	b = binary.BigEndian.AppendUint32(b, 6<<28|uint32(class)<<20|0x54321)
	b = append(kerneltest.Be16(b, uint16(payload)), next, 64)
	return append(append(b, src[:]...), dst[:]...)
}

// tcp appends a header with options of 4*words bytes.
func tcp(b []byte, words int, sport, dport uint16) []byte {
	b = kerneltest.Be16(b, sport, dport, 0, 1, 0, 1)
	b = append(b, byte(5+words)<<4, 0x10)
	return append(kerneltest.Be16(b, 1000, 0, 0), bytes.Repeat([]byte{1}, 4*words)...)
}

// udp appends a header for a payload of payload bytes.
func udp(b []byte, sport, dport uint16, payload int) []byte {
	return kerneltest.Be16(b, sport, dport, uint16(8+payload), 0)
}

// datagram is a frame with an IPv4 packet of n bytes.
func datagram(at int64, tos byte, n int) dataplane.Packet { return datagramTo(to4, at, tos, n) }

// datagramTo is a datagram to another address.
func datagramTo(to [4]byte, at int64, tos byte, n int) dataplane.Packet {
	b := ipv4(kerneltest.Be16(ethernet(), 0x800), 0, tos, 17, n-20, 0, from4, to)
	b = append(b, make([]byte, n-20)...)
	return dataplane.Packet{Time: at, Data: b, WireLen: len(b), Link: dataplane.LinkEthernet}
}

// bare is an IPv4 header without a link header. Its DSCP is the input color, and a length rule
// with Overhead -20 makes its metered length n bytes.
func bare(mark uint32, in meter.Color, n int, now int64) dataplane.Packet {
	b := make([]byte, 20)
	b[0], b[1] = 0x45, byte(in)<<2
	return dataplane.Packet{Data: b, WireLen: 20 + n, Link: dataplane.LinkRaw, Mark: mark, Time: now}
}

// framed is an Ethernet frame with n metered bytes under a length rule with Overhead -20.
func framed(in meter.Color, n int, now int64) dataplane.Packet {
	// long enough that no byte counts as Ethernet padding
	b := ipv4(kerneltest.Be16(ethernet(), 0x800), 0, byte(in)<<2, 6, min(n, 1000), 0, from4, to4)
	return dataplane.Packet{Data: b, WireLen: len(b) + n, Link: dataplane.LinkEthernet, Time: now}
}

// bySource is an IPv4 frame from a source address to a UDP port.
func bySource(source uint32, port uint16, n int, now int64) dataplane.Packet {
	b := ipv4(kerneltest.Be16(ethernet(), 0x800), 0, 0, 17, n-20, 0,
		[4]byte(binary.BigEndian.AppendUint32(nil, source)), to4)
	b = udp(b, 9, port, n-28)
	return dataplane.Packet{Data: append(b, make([]byte, n-28)...), Link: dataplane.LinkEthernet, Time: now}
}
