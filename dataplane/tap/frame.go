package tap

import "github.com/a-seed-32e5a53f/shaper/dataplane"

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

// pool keeps unused buffers by size.
type pool struct {
	free  [len(sizes)][][]byte
	bytes int // capacity of all buffers in free, bytes
}

// sizes are the buffer sizes: for a small packet, an Ethernet frame, a jumbo
// frame, and the largest frame of a port.
var sizes = [...]int{256, 2048, 16 << 10, MaxFrame}

// maxPool bounds the memory of a pool, in bytes.
const maxPool = 16 << 20

// copy returns a copy of a buffer.
func (p *pool) copy(b []byte) []byte {
	i := sizeIndex(b)
	var out []byte
	if n := len(p.free[i]); n > 0 {
		out, p.free[i] = p.free[i][n-1], p.free[i][:n-1]
		p.bytes -= cap(out)
	} else {
		out = make([]byte, sizes[i])
	}
	return append(out[:0], b...)
}

// sizeIndex returns the index in sizes of the smallest buffer for b.
func sizeIndex(b []byte) int {
	i := 0
	for i < len(sizes)-1 && sizes[i] < len(b) {
		i++
	}
	return i
}

// put returns a buffer to the pool.
func (p *pool) put(b []byte) {
	if p.bytes+cap(b) > maxPool {
		return
	}
	for i, size := range sizes {
		if cap(b) == size {
			p.free[i] = append(p.free[i], b)
			p.bytes += size
		}
	}
}
