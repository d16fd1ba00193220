package tap

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// coalescer merges the UDP packets of a batch into super packets, one or more
// per flow. The kernel splits them into the same packets again (UDP GSO, Linux
// 6.2).
type coalescer struct {
	open  []super // super packets of different flows, still able to grow
	spare [][]byte
}

// maxFlows is the maximum number of open super packets.
const maxFlows = 32

// newCoalescer returns a coalescer with a number of spare buffers to merge
// into.
func newCoalescer(spare int) *coalescer {
	c := &coalescer{open: make([]super, 0, maxFlows)}
	for range spare {
		c.spare = append(c.spare, make([]byte, 0, MaxFrame))
	}
	return c
}

// coalesce appends to out the frames to write instead of frames: super packets,
// and all other frames unchanged. Packets are merged only if the kernel
// restores them byte for byte, so not if a checksum is wrong or missing. There
// are two exceptions. A checksum left to the device is filled in, and an IPv4
// packet with DF gets another id, which has no meaning there (RFC 6864 §4.1).
//
// Packets of a flow stay in order. No packet overtakes a frame other than a whole UDP packet,
// because it may be of any flow. A super packet takes the position of its first packet. It grows in
// the buffer of that packet up to its capacity, then in a spare buffer. The elements of frames are
// not changed, and out must not share their array. coalesce allocates only if out grows.
func (c *coalescer) coalesce(out, frames [][]byte) [][]byte {
	spare := c.spare
	for _, b := range frames {
		s := super{b: b, index: len(out)}
		if !s.parse() {
			c.close(out)
		} else if i := c.find(&s); i < 0 {
			if len(c.open) == maxFlows {
				c.close(out)
			}
			c.open = append(c.open, s)
		} else if c.open[i].merge(b, &spare) {
			continue
		} else {
			c.open[i].finish(out)
			c.open[i] = s
		}
		out = append(out, b)
	}
	c.close(out)
	return out
}

// find returns the index of the open super packet of the flow of s, or -1.
func (c *coalescer) find(s *super) int {
	ports := s.ports()
	for i := range c.open {
		o := &c.open[i]
		if o.ports() == ports && bytes.Equal(o.addresses(), s.addresses()) {
			return i
		}
	}
	return -1
}

// close completes all open super packets.
func (c *coalescer) close(out [][]byte) {
	for i := range c.open {
		c.open[i].finish(out)
	}
	c.open = c.open[:0]
}

// maxSegments is UDP_MAX_SEGMENTS of kernels before 6.9; later ones accept 128.
const maxSegments = 64

// Headers of a super packet, whose IP header is without options, and fields of struct
// virtio_net_hdr.
const (
	udpLen     = 8
	udpSum     = 6 // offset of the checksum in the UDP header
	protoUDP   = 17
	maxTags    = 2
	typeIPv4   = 0x0800
	typeIPv6   = 0x86dd
	typeVLAN   = 0x8100 // IEEE 802.1Q
	typeSVLAN  = 0x88a8 // IEEE 802.1ad
	dontFrag   = 0x4000
	dataValid  = 2 // VIRTIO_NET_HDR_F_DATA_VALID
	gsoUDP     = 5 // VIRTIO_NET_HDR_GSO_UDP_L4
	headerGSO  = 1
	headerSize = 4 // segment size: payload bytes of each segment
	headerSum  = 8 // offset of the checksum from headerCsumStart
)

// super is a UDP packet and the packets merged into it. All offsets are into b.
type super struct {
	b      []byte
	index  int  // index in out
	ip     int  // offset of the IP header
	udp    int  // offset of the UDP header
	addrs  int  // length of the two addresses in bytes; they end at udp
	size   int  // payload of each segment except the last, bytes
	n      int  // number of segments
	closed bool // the last segment is shorter, so no segment can follow
}

// parse finds the headers and reports whether packets may be merged into b.
// Checksums are verified later, when there is another packet.
func (s *super) parse() bool {
	const shortest = HeaderLen + macsLen + 2 + 20 + udpLen + 1 // all offsets up to a tag are within b
	b := s.b
	if len(b) < shortest {
		return false
	}
	s.ip = HeaderLen + macsLen + 2
	kind := be16(b[s.ip-2:])
	for tags := 0; kind == typeVLAN || kind == typeSVLAN; tags++ {
		if tags == maxTags {
			return false
		}
		s.ip += tagLen
		kind = be16(b[s.ip-2:])
	}
	switch kind {
	case typeIPv4:
		s.udp, s.addrs = s.ip+20, 2*4
		if b[s.ip] != 4<<4|20/4 || b[s.ip+9] != protoUDP || be16(b[s.ip+6:])&^dontFrag != 0 {
			return false
		}
	case typeIPv6:
		s.udp, s.addrs = s.ip+40, 2*16
		if b[s.ip]>>4 != 6 || b[s.ip+6] != protoUDP {
			return false
		}
	default:
		return false
	}
	s.n, s.size = 1, len(b)-s.udp-udpLen
	return s.size > 0 && s.consistent(b)
}

// consistent reports whether the lengths in the headers match b, and its virtio
// header requests nothing but possibly the UDP checksum.
func (s *super) consistent(b []byte) bool {
	if b[headerFlags]&^(needsCsum|dataValid) != 0 || b[headerGSO] != 0 {
		return false
	}
	if b[headerFlags]&needsCsum != 0 &&
		(int(host16(b[headerCsumStart:])) != s.udp-HeaderLen || host16(b[headerSum:]) != udpSum) {
		return false
	}
	at, from := s.lengthField()
	return int(be16(b[at:])) == len(b)-from && int(be16(b[s.udp+4:])) == len(b)-s.udp
}

// lengthField returns the offset of the length in the IP header, and the offset of the first byte
// counted.
func (s *super) lengthField() (at, from int) {
	if s.v4() {
		return s.ip + 2, s.ip
	}
	return s.ip + 4, s.udp
}

func (s *super) v4() bool { return s.addrs == 2*4 }

func (s *super) ports() uint32 { return binary.NativeEndian.Uint32(s.b[s.udp:]) }

func (s *super) addresses() []byte { return s.b[s.udp-s.addrs : s.udp] }

// merge appends the payload of b, a consistent packet of the same flow, or returns false.
func (s *super) merge(b []byte, spare *[][]byte) bool {
	payload := len(b) - s.udp - udpLen // negative if the headers of b are shorter
	if payload <= 0 || payload > s.size || s.closed || s.n == maxSegments || len(s.b)+payload-s.ip > 1<<16-1 {
		return false
	}
	if !s.sameHeaders(b) || s.n == 1 && !s.checksumsValid(s.b) || !s.checksumsValid(b) {
		return false
	}
	if len(s.b)+payload > cap(s.b) {
		if len(*spare) == 0 || cap((*spare)[0]) < len(s.b)+payload {
			return false
		}
		s.b = append((*spare)[0][:0], s.b...)
		*spare = (*spare)[1:]
	}
	s.b = append(s.b, b[s.udp+udpLen:]...)
	s.n++
	s.closed = payload < s.size
	return true
}

// sameHeaders compares the parts of the link and IP headers copied by the kernel, and the IPv4 id,
// which it counts up.
func (s *super) sameHeaders(b []byte) bool {
	at, _ := s.lengthField()
	rest := at + 2
	if s.v4() {
		rest = s.ip + 12
		if be16(b[s.ip+6:]) != be16(s.b[s.ip+6:]) || be16(b[s.ip+8:]) != be16(s.b[s.ip+8:]) {
			return false
		}
		if be16(b[s.ip+6:])&dontFrag == 0 && be16(b[s.ip+4:]) != be16(s.b[s.ip+4:])+uint16(s.n) {
			return false
		}
	}
	return bytes.Equal(b[rest:s.udp], s.b[rest:s.udp]) && bytes.Equal(b[HeaderLen:at], s.b[HeaderLen:at])
}

// checksumsValid reports whether the checksums of a packet equal the kernel's.
func (s *super) checksumsValid(b []byte) bool {
	if s.v4() {
		// The kernel writes a sum of 0 as 0, never as 0xffff.
		if be16(b[s.ip+10:]) == 0xffff || foldWords(addWords(0, b[s.ip:s.udp])) != 0xffff {
			return false
		}
	}
	check, pseudo := be16(b[s.udp+udpSum:]), s.pseudo(b)
	if b[headerFlags]&needsCsum != 0 {
		return check == foldWords(pseudo)
	}
	return check != 0 && foldWords(addWords(pseudo, b[s.udp:])) == 0xffff
}

// pseudo returns the sum of the pseudo header (RFC 768, RFC 8200 §8.1).
func (s *super) pseudo(b []byte) uint64 {
	return addWords(uint64(protoUDP+len(b)-s.udp), b[s.udp-s.addrs:s.udp])
}

// finish completes the headers of a super packet: its lengths and checksums,
// and the segmentation in the virtio header.
func (s *super) finish(out [][]byte) {
	if s.n == 1 {
		return
	}
	b := s.b
	out[s.index] = b
	b[headerFlags], b[headerGSO] = needsCsum, gsoUDP
	setHost16(b[headerHdrLen:], s.udp+udpLen-HeaderLen)
	setHost16(b[headerSize:], s.size)
	setHost16(b[headerCsumStart:], s.udp-HeaderLen)
	setHost16(b[headerSum:], udpSum)

	at, from := s.lengthField()
	setBE16(b[at:], uint16(len(b)-from))
	if s.v4() {
		setBE16(b[s.ip+10:], 0)
		setBE16(b[s.ip+10:], ^foldWords(addWords(0, b[s.ip:s.udp])))
	}
	setBE16(b[s.udp+4:], uint16(len(b)-s.udp))
	// partial sum: the kernel adds the rest and complements it
	setBE16(b[s.udp+udpSum:], foldWords(s.pseudo(b)))
}

// addWords adds b to a sum, as big-endian 16-bit words, padded with a zero byte
// if the length is odd. foldWords reduces the sum to one word (RFC 1071).
func addWords(acc uint64, b []byte) uint64 {
	var carry uint64
	for len(b) >= 32 {
		acc, carry = bits.Add64(acc, binary.BigEndian.Uint64(b), 0)
		acc, carry = bits.Add64(acc, binary.BigEndian.Uint64(b[8:]), carry)
		acc, carry = bits.Add64(acc, binary.BigEndian.Uint64(b[16:]), carry)
		acc, carry = bits.Add64(acc, binary.BigEndian.Uint64(b[24:]), carry)
		acc += carry // cannot overflow: a sum with a carry is not all ones
		b = b[32:]
	}
	acc = acc>>32 + acc&(1<<32-1)
	for len(b) >= 4 {
		acc += uint64(binary.BigEndian.Uint32(b))
		b = b[4:]
	}
	var tail [4]byte
	copy(tail[:], b)
	return acc + uint64(binary.BigEndian.Uint32(tail[:]))
}

func foldWords(acc uint64) uint16 {
	acc = acc>>32 + acc&(1<<32-1)
	acc = acc>>16 + acc&(1<<16-1)
	acc = acc>>16 + acc&(1<<16-1)
	return uint16(acc>>16 + acc)
}

func be16(b []byte) uint16       { return binary.BigEndian.Uint16(b) }
func setBE16(b []byte, v uint16) { binary.BigEndian.PutUint16(b, v) }
func host16(b []byte) uint16     { return binary.NativeEndian.Uint16(b) }
func setHost16(b []byte, v int)  { binary.NativeEndian.PutUint16(b, uint16(v)) }
