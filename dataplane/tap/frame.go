package tap

import "github.com/a-seed-32e5a53f/shaper/dataplane"

// Kinds of GSO in a struct virtio_net_hdr, VIRTIO_NET_HDR_GSO_*.
const (
	gsoTCP4 = 1
	gsoTCP6 = 4
	gsoECN  = 0x80 // a flag
)

// describe makes a buffer, a header and a frame, a packet: one that is still to
// be cut counts as what it will be cut into (virtio 1.2 §5.1.6.2).
func describe(p *dataplane.Packet, b []byte) {
	frame := b[HeaderLen:]
	p.Data, p.WireLen, p.Link = frame, len(frame), dataplane.LinkEthernet
	p.Segments, p.Segment = 0, 0
	kind, size := b[headerGSO]&^gsoECN, int(host16(b[headerSize:]))
	if kind == 0 || size == 0 {
		return
	}
	headers := int(host16(b[headerHdrLen:])) // a hint, where there is no better
	if b[headerFlags]&needsCsum != 0 {
		headers = int(host16(b[headerCsumStart:])) // so far those before the transport's
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

// pool keeps buffers that are not in use, by size.
type pool struct {
	free [len(sizes)][][]byte
	kept int // bytes
}

// sizes are those of buffers: of a small packet, of one of Ethernet, of a jumbo
// frame, and of whatever a port may read.
var sizes = [...]int{256, 2048, 16 << 10, MaxFrame}

// keep bounds what a pool keeps, in bytes.
const keep = 16 << 20

// copy returns a copy of a buffer.
func (p *pool) copy(b []byte) []byte {
	i := sizeOf(b)
	var out []byte
	if n := len(p.free[i]); n > 0 {
		out, p.free[i] = p.free[i][n-1], p.free[i][:n-1]
		p.kept -= cap(out)
	} else {
		out = make([]byte, sizes[i])
	}
	return append(out[:0], b...)
}

// sizeOf is which size a copy of b has.
func sizeOf(b []byte) int {
	i := 0
	for i < len(sizes)-1 && sizes[i] < len(b) {
		i++
	}
	return i
}

// put takes a buffer back.
func (p *pool) put(b []byte) {
	if p.kept+cap(b) > keep {
		return
	}
	for i, size := range sizes {
		if cap(b) == size {
			p.free[i] = append(p.free[i], b)
			p.kept += size
		}
	}
}
