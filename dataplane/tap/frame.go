package tap

import (
	"math/bits"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// GSO types in struct virtio_net_hdr, VIRTIO_NET_HDR_GSO_*.
const (
	gsoTCP4 = 1
	gsoTCP6 = 4
	gsoECN  = 0x80 // flag
)

// describe fills in a packet from a buffer, a virtio header and a frame. A GSO frame counts as its
// later segments (virtio 1.2 §5.1.6.2).
func describe(p *dataplane.Packet, b []byte) {
	frame := b[HeaderLen:]
	p.Data, p.WireLen, p.Link = frame, len(frame), dataplane.LinkEthernet
	p.Segments, p.Segment = 0, 0
	kind, size := b[headerGSO]&^gsoECN, int(host16(b[headerSize:]))
	if kind == 0 || size == 0 {
		return
	}
	headers := int(host16(b[headerHdrLen:])) // a hint, used if the checksum fields are not set
	if b[headerFlags]&needsCsum != 0 {
		headers = int(host16(b[headerCsumStart:])) // so far without the transport header
		switch {
		case kind == gsoUDP:
			headers += udpLen
		case (kind == gsoTCP4 || kind == gsoTCP6) && headers+12 < len(frame):
			headers += int(frame[headers+12]>>4) * 4
		default:
			return
		}
	}
	if n := (len(frame) - headers + size - 1) / size; n > 1 {
		p.Segments, p.Segment = n, headers+size
		p.WireLen += (n - 1) * headers
	}
}

// pool keeps unused buffers by the class of their size.
type pool struct {
	free  [80][][]byte
	bytes int // capacity of all buffers in free, bytes
}

// maxPool bounds the memory of a pool, in bytes.
const maxPool = 16 << 20

// sizeClass returns the size of the buffer for n bytes, and its class. The size is n rounded up by less
// than an eighth or 32 bytes, and at most MaxFrame.
func sizeClass(n int) (class, size int) {
	n = max(n, 1)
	shift := max(bits.Len(uint(n-1))-4, 5)
	units := (n-1)>>shift + 1
	return (shift-5)*8 + units, min(units<<shift, MaxFrame)
}

// copy returns a copy of a buffer.
func (p *pool) copy(b []byte) []byte {
	class, size := sizeClass(len(b))
	var out []byte
	if n := len(p.free[class]); n > 0 {
		out, p.free[class] = p.free[class][n-1], p.free[class][:n-1]
		p.bytes -= cap(out)
	} else {
		out = make([]byte, size)
	}
	return append(out[:0], b...)
}

// put returns a buffer to the pool.
func (p *pool) put(b []byte) {
	class, size := sizeClass(cap(b))
	if size != cap(b) || p.bytes+size > maxPool {
		return
	}
	p.free[class] = append(p.free[class], b)
	p.bytes += size
}
