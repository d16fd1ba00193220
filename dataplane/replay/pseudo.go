package replay

import (
	"encoding/binary"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Link types of packets behind a pseudo-header. The capturing system writes it before a packet of
// another link type.
const (
	linkSLIP        dataplane.LinkType = 8
	linkENC         dataplane.LinkType = 109 // IPsec interface of the BSDs
	linkPFLOG       dataplane.LinkType = 117 // log of the BSDs' packet filter
	linkPPI         dataplane.LinkType = 192
	linkPPPDir      dataplane.LinkType = 204
	linkHDLCDir     dataplane.LinkType = 205
	linkFrameDir    dataplane.LinkType = 206
	linkIPNET       dataplane.LinkType = 226 // Solaris
	linkNFLOG       dataplane.LinkType = 239 // log of Linux's packet filter
	linkAnalyzer    dataplane.LinkType = 240
	linkTransparent dataplane.LinkType = 241
	linkPKTAP       dataplane.LinkType = 258 // macOS
	linkDSAPrepend  dataplane.LinkType = 282
)

// pseudo describes a pseudo-header.
type pseudo struct {
	size int // length, bytes; 0: read reads it
	link dataplane.LinkType
	read func(data []byte, flags *uint32) (size int, link dataplane.LinkType, ok bool)
	fcs  int // FCS of every packet, bytes
}

var pseudos = map[dataplane.LinkType]*pseudo{
	linkSLIP:        {read: directed(16, dataplane.LinkRaw)},
	linkENC:         {size: 12, link: dataplane.LinkRaw},
	linkPFLOG:       {read: readPFLOG},
	linkPPI:         {read: readPPI},
	linkPPPDir:      {read: directed(1, dataplane.LinkPPP)},
	linkHDLCDir:     {read: directed(1, dataplane.LinkCiscoHDLC)},
	linkFrameDir:    {read: directed(1, dataplane.LinkFrameRelay)},
	linkIPNET:       {size: 24, link: dataplane.LinkRaw},
	linkNFLOG:       {},
	linkAnalyzer:    {size: 4, link: dataplane.LinkEthernet, fcs: 4},
	linkTransparent: {size: 12, link: dataplane.LinkEthernet, fcs: 4}, // with the preamble
	linkPKTAP:       {read: readPKTAP},
	linkDSAPrepend:  {size: 4, link: dataplane.LinkEthernet},
}

// directed returns the reader of a pseudo-header whose first byte is 0 for received packets.
func directed(size int, link dataplane.LinkType) func([]byte, *uint32) (int, dataplane.LinkType, bool) {
	return func(data []byte, flags *uint32) (int, dataplane.LinkType, bool) {
		if len(data) > 0 {
			setWay(flags, data[0] == 0)
		}
		return size, link, true
	}
}

// setWay sets the direction in flags without one.
func setWay(flags *uint32, in bool) {
	switch {
	case *flags&flagsDirection != 0:
	case in:
		*flags |= flagsInbound
	default:
		*flags |= flagsOutbound
	}
}

// Minimum lengths stated in a pseudo-header, bytes.
const (
	leastPFLOG = 45 // of OpenBSD 3.4, as in tcpdump
	leastPPI   = 8
	leastPKTAP = 40 // up to the flags
)

// readPFLOG reads a header whose first byte is its length without padding.
func readPFLOG(data []byte, flags *uint32) (int, dataplane.LinkType, bool) {
	const way, in, out = 60, 1, 2
	if len(data) == 0 || data[0] < leastPFLOG {
		return 0, 0, false
	}
	if size := int(data[0]); size > way && len(data) > way && (data[way] == in || data[way] == out) {
		setWay(flags, data[way] == in)
	}
	return (int(data[0]) + 3) &^ 3, dataplane.LinkRaw, true
}

// readPPI reads a header with its length and the link type of the packet.
func readPPI(data []byte, _ *uint32) (int, dataplane.LinkType, bool) {
	if len(data) < leastPPI {
		return 0, 0, false
	}
	size, link := int(binary.LittleEndian.Uint16(data[2:])), binary.LittleEndian.Uint32(data[4:])
	return size, dataplane.LinkType(link), size >= leastPPI && link>>16 == 0
}

// readPKTAP reads a header with its length, the link type of the packet and its direction.
func readPKTAP(data []byte, flags *uint32) (int, dataplane.LinkType, bool) {
	const in, out = 1, 2
	if len(data) < leastPKTAP {
		return 0, 0, false
	}
	size, link := binary.LittleEndian.Uint32(data), binary.LittleEndian.Uint32(data[8:])
	if size < leastPKTAP || link>>16 != 0 {
		return 0, 0, false
	}
	if way := binary.LittleEndian.Uint32(data[36:]) & (in | out); way == in || way == out {
		setWay(flags, way == in)
	}
	return int(min(size, 1<<16)), dataplane.LinkType(link), true
}

// unwrap removes the pseudo-header of a packet from both lengths, and sets the link type of the
// packet behind it. If the pseudo-header cannot be read, the packet keeps its link type.
func (r *record) unwrap(p *pseudo, o order) {
	if r.Link == linkNFLOG {
		r.unwrapNFLOG(o)
		return
	}
	size, link, ok := p.size, p.link, true
	if p.read != nil {
		size, link, ok = p.read(r.Data, &r.flags)
	}
	if !ok {
		return
	}
	r.Link = link
	r.Data, r.WireLen = r.Data[min(size, len(r.Data)):], max(r.WireLen-size, 0)
}

// unwrapNFLOG finds the packet in the attributes of an NFLOG message, which are in the byte order
// of the capture. If only its beginning was logged, its length on the wire is taken from its IP
// header, which the kernel checked.
func (r *record) unwrapNFLOG(o order) {
	const (
		header, attribute     = 4, 4 // bytes before the attributes, and before the value of one
		packetHeader, payload = 1, 9
		inet, inet6           = 2, 10 // address families
		etherIPv4, etherIPv6  = 0x0800, 0x86dd
	)
	d := r.Data
	if len(d) < header {
		return
	}
	links := map[byte]dataplane.LinkType{inet: dataplane.LinkIPv4, inet6: dataplane.LinkIPv6}
	link, known := links[d[0]]
	for d = d[header:]; len(d) >= attribute; {
		size, kind := int(o.u16(d)), o.u16(d[2:])&0x7fff
		if size < attribute {
			return
		}
		value := d[attribute:max(attribute, min(size, len(d)))]
		switch {
		case kind == packetHeader && len(value) >= 2 && !known: // of a bridge
			link = map[uint16]dataplane.LinkType{
				etherIPv4: dataplane.LinkIPv4, etherIPv6: dataplane.LinkIPv6,
			}[binary.BigEndian.Uint16(value)]
			known = link != 0
		case kind == payload && known:
			r.Link, r.Data, r.WireLen = link, value, max(size-attribute, len(value), loggedLength(value))
			return
		}
		d = d[min((size+3)&^3, len(d)):]
	}
}

// loggedLength returns the length in an IP header, or 0.
func loggedLength(d []byte) int {
	switch {
	case len(d) >= 4 && d[0]>>4 == 4:
		return int(binary.BigEndian.Uint16(d[2:]))
	case len(d) >= 6 && d[0]>>4 == 6 && binary.BigEndian.Uint16(d[4:]) > 0:
		return 40 + int(binary.BigEndian.Uint16(d[4:]))
	}
	return 0
}
