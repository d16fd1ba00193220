package tap

import (
	"encoding/binary"
	"net"
	"slices"
	"testing"
)

// udpPacket describes a UDP packet in a buffer.
type udpPacket struct {
	dst     net.HardwareAddr // nil: a fixed one
	tags    []byte           // VLAN tags
	v6      bool
	tos     byte // traffic class
	ttl     byte // hop limit
	id      uint16
	frag    uint16
	host    byte // last byte of the source address; that of the destination is 1
	port    uint16
	payload []byte
	partial bool // leave the checksum to the device
}

// buffer builds the packet. room is the spare capacity after it.
func (d udpPacket) buffer(room int) []byte {
	b := make([]byte, HeaderLen, HeaderLen+100+len(d.payload)+room)
	if d.dst == nil {
		d.dst = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	}
	b = append(append(b, d.dst...), 2, 0, 0, 0, 0, 2)
	b = append(b, d.tags...)
	n := uint16(8 + len(d.payload))
	be := binary.BigEndian
	at := 0
	if d.v6 {
		b = be.AppendUint16(b, 0x86dd)
		b = append(b, 6<<4|d.tos>>4, d.tos<<4, 0, 7)
		b = append(be.AppendUint16(b, n), 17, d.ttl)
		src, dst := [16]byte{0xfd, 15: d.host}, [16]byte{0xfd, 15: 1}
		b = append(append(b, src[:]...), dst[:]...)
		at = len(b)
	} else {
		b = be.AppendUint16(b, 0x0800)
		at = len(b) + 20
		b = be.AppendUint16(append(b, 0x45, d.tos), 20+n)
		b = be.AppendUint16(be.AppendUint16(b, d.id), d.frag)
		b = append(b, d.ttl, 17, 0, 0, 10, 0, 0, d.host, 10, 0, 0, 1)
		be.PutUint16(b[at-10:], slowChecksum(b[at-20:at]))
	}
	b = be.AppendUint16(be.AppendUint16(b, d.port), 4789)
	b = be.AppendUint16(b, n)
	b = append(append(b, 0, 0), d.payload...)
	if d.partial {
		b[0] = 1
		binary.NativeEndian.PutUint16(b[6:], uint16(at-HeaderLen))
		binary.NativeEndian.PutUint16(b[8:], 6)
		be.PutUint16(b[at+6:], ^slowChecksum(pseudoHeader(b, at)))
	} else {
		fillUDP(b, at)
	}
	return b[: len(b) : len(b)+room]
}

// slowChecksum is the checksum of RFC 1071, word by word.
func slowChecksum(b []byte) uint16 {
	var sum uint32
	for i, v := range b {
		sum += uint32(v) << (8 * (1 - i%2))
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// pseudoHeader returns the pseudo header for the UDP datagram at udp.
func pseudoHeader(b []byte, udp int) []byte {
	addrs := b[udp-8 : udp]
	if b[udp-40]>>4 == 6 && be16(b[udp-42:]) == 0x86dd {
		addrs = b[udp-32 : udp]
	}
	return binary.BigEndian.AppendUint32(append(slices.Clone(addrs), 0, 17),
		uint32(len(b)-udp))[:len(addrs)+6]
}

// fillUDP writes the checksum of the datagram at udp.
func fillUDP(b []byte, udp int) {
	copy(b[udp+6:], []byte{0, 0})
	check := slowChecksum(append(pseudoHeader(b, udp), b[udp:]...))
	if check == 0 {
		check = 0xffff
	}
	binary.BigEndian.PutUint16(b[udp+6:], check)
}

// splitGSO splits a super packet like the kernel, and checks the fields that
// the kernel relies on.
func splitGSO(t testing.TB, b []byte) (segments [][]byte) {
	t.Helper()
	host, be := binary.NativeEndian, binary.BigEndian
	hdrLen, size, start := int(host.Uint16(b[2:])), int(host.Uint16(b[4:])), int(host.Uint16(b[6:]))
	if b[0] != 1 || host.Uint16(b[8:]) != 6 || hdrLen != start+8 {
		t.Fatalf("invalid virtio header of a super packet: % x", b[:HeaderLen])
	}
	udp := HeaderLen + start
	headers, payload := b[:udp+8], b[udp+8:]
	v4 := be.Uint16(b[udp-22:]) == 0x0800 && b[udp-20] == 0x45
	if want := ^slowChecksum(pseudoHeader(b, udp)); be.Uint16(b[udp+6:]) != want ||
		int(be.Uint16(b[udp+4:])) != len(b)-udp {
		t.Fatalf("UDP header % x, want the sum %#x", b[udp:udp+8], want)
	}
	if v4 && (slowChecksum(b[udp-20:udp]) != 0 || int(be.Uint16(b[udp-18:])) != len(b)-udp+20) ||
		!v4 && int(be.Uint16(b[udp-36:])) != len(b)-udp {
		t.Fatalf("invalid length or checksum in IP header % x", b[udp-40:udp])
	}
	if size == 0 || len(payload) <= size || len(payload) > 64*size || len(b)-udp+20 > 65535 {
		t.Fatalf("invalid super packet: %d bytes in segments of %d", len(payload), size)
	}
	for part := range slices.Chunk(payload, size) {
		s := append(slices.Clone(headers), part...)
		clear(s[:HeaderLen])
		if v4 {
			be.PutUint16(s[udp-18:], uint16(28+len(part)))
			be.PutUint16(s[udp-16:], be.Uint16(b[udp-16:])+uint16(len(segments)))
			be.PutUint16(s[udp-10:], 0)
			be.PutUint16(s[udp-10:], slowChecksum(s[udp-20:udp]))
		} else {
			be.PutUint16(s[udp-36:], uint16(8+len(part)))
		}
		be.PutUint16(s[udp+4:], uint16(8+len(part)))
		fillUDP(s, udp)
		segments = append(segments, s)
	}
	return segments
}
