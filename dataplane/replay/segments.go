package replay

import (
	"cmp"
	"encoding/binary"
	"fmt"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

const (
	protoTCP = 6
	protoUDP = 17

	tcpHeader  = 20 // without options, bytes
	tcpSYN     = 0x02
	tcpACK     = 0x10
	optionsEnd = 0
	optionsNop = 1
	optionMSS  = 2

	// MinMSS is tcp_min_snd_mss of Linux, bytes: smaller ones are attacks.
	MinMSS = 48
	// leastSegment is the smallest payload of a segment if options fill the MSS, bytes.
	leastSegment = 8
	// jumboOption is the hop-by-hop header of BIG TCP (RFC 2675), which segments lack, bytes.
	jumboOption = 8
	// usualPacket is the size up to which a packet of a connection with unknown MSS is
	// one packet: the MTU of Ethernet, bytes.
	usualPacket = 1500
	// encapsulation is the maximum length of headers in front of IP in a frame whose IP header is
	// not found, bytes.
	encapsulation = 64
	udpHeader     = 8
	// MaxUDPSegment is the largest payload of a UDP datagram over IPv4, bytes.
	MaxUDPSegment = 1<<16 - 1 - 20 - udpHeader
	// maxDatagrams is UDP_MAX_SEGMENTS of Linux.
	maxDatagrams = 128
	// largestPacket is GSO_MAX_SIZE of Linux, 8 * 65535 bytes. The length of a larger packet is
	// forged.
	largestPacket = 8 * 65535

	// maxConnections bounds the table of connections: the cutter knows at least this
	// number of the latest ones, and at most twice as many.
	maxConnections = 1 << 16
)

// sizes are the maximum segment sizes in the SYNs of a connection, bytes. Both are 0 if none
// was captured.
type sizes struct{ small, large int }

// cutter finds packets captured before segmentation (TSO, UDP GSO) or after coalescing (GRO), and
// describes them to the engine as the segments on the wire. Live planes count them in the same way.
// It counts long packets left uncut.
//
// The payload of a TCP segment is the MSS less the TCP and IP options (RFC 6691). The MSS is the
// smaller one of those in both SYNs: Linux announces its own limit in its SYN, which also applies
// to its own segments. A packet within the larger one is not cut, because routers may lower the MSS
// in SYNs, which then differs from the one in use.
type cutter struct {
	unknown  sizes // of connections whose SYN was not captured
	datagram int   // payload of a segment of UDP, bytes; 0 if unknown
	largest  int   // packets up to this size need not be cut, bytes
	latest   map[connection]sizes
	earlier  map[connection]sizes
	count    int64 // packets cut
}

func newCutter(mss, datagram int) cutter {
	c := cutter{unknown: sizes{mss, mss}, datagram: datagram, largest: usualPacket}
	if datagram > 0 {
		c.largest = min(c.largest, 20+udpHeader+datagram)
	}
	if mss > 0 {
		c.largest = min(c.largest, mss+20+tcpHeader)
	}
	return c
}

// plain reports whether a packet is a small IPv4 packet without options, and no TCP SYN: most
// packets are. It is inlined, and without branches on the protocol.
func (c *cutter) plain(p *dataplane.Packet) bool {
	const l3 = 14
	d := p.Data
	return p.Link == dataplane.LinkEthernet && len(d) >= l3+20+tcpHeader && p.WireLen <= c.largest+l3 &&
		d[12] == 0x08 && d[13] == 0 && d[l3] == 0x45 && (d[l3+9]^protoTCP)|(^d[l3+20+13]&tcpSYN) != 0
}

// packet cuts a packet if it is a super-packet.
func (c *cutter) packet(r *run, p *dataplane.Packet) {
	if c.skips(p) {
		return
	}
	dataplane.ParseOnce(p)
	size := ipLength(p)
	switch {
	case p.Kind == dataplane.Malformed || p.Fragmented || size > largestPacket:
	case p.Kind == dataplane.Other:
		if p.Link.Known() && size > usualPacket+encapsulation {
			r.noteUncut(p)
		}
	case p.Proto == protoTCP:
		c.tcp(r, p, size)
	case p.Proto == protoUDP && !isTunnel(p):
		c.udp(r, p, size)
	case size > usualPacket:
		r.noteUncut(p)
	}
}

// isTunnel reports whether a UDP packet is probably part of a tunnel. The segments of a
// super-packet in a tunnel repeat the headers in it, too.
func isTunnel(p *dataplane.Packet) bool {
	switch p.DstPort {
	case 2152, 4789, 6081, 8472: // GTP-U, VXLAN, Geneve, and VXLAN of Linux
		return p.HasPorts
	}
	return false
}

// noteUncut notes a packet left uncut.
func (r *run) noteUncut(p *dataplane.Packet) {
	r.noteOf(p.ID, uncutOther)
	if s := &r.seen[uncutOther]; s.packets == 1 {
		s.text = fmt.Sprintf(s.text, protocolText(p))
	}
}

// protocolText names the outermost protocol other than TCP and plain UDP.
func protocolText(p *dataplane.Packet) string {
	const leastEtherType = 0x600 // smaller ones are lengths (IEEE 802.3 §3.2.6)
	switch {
	case p.Kind != dataplane.Other && p.Proto == protoUDP:
		return fmt.Sprintf("UDP port %d", p.DstPort)
	case p.Kind != dataplane.Other:
		return string(dataplane.AppendProto(nil, p.Proto))
	case p.HasEtherType && p.EtherType >= leastEtherType:
		return fmt.Sprintf("EtherType %#04x", p.EtherType)
	}
	return "no IP packet"
}

// udp cuts a UDP packet of size bytes.
func (c *cutter) udp(r *run, p *dataplane.Packet, size int) {
	headers := p.L4 + udpHeader
	payload := p.L3 + size - headers
	n := 0 // unknown
	if c.datagram > 0 && p.HasPorts {
		n = (payload + c.datagram - 1) / c.datagram
	}
	switch {
	case n == 1:
	case n > 1 && n <= maxDatagrams:
		setSegments(p, n, headers+c.datagram, (n-1)*headers)
		c.count++
		if size <= usualPacket {
			r.noteOf(p.ID, shortCut)
		}
	case size > usualPacket && c.datagram > 0:
		r.noteOf(p.ID, uncutGiven)
	case size > usualPacket:
		r.noteOf(p.ID, uncutUDP)
	}
}

// tcp cuts a TCP packet of size bytes, and reads the MSS of a SYN.
func (c *cutter) tcp(r *run, p *dataplane.Packet, size int) {
	if !p.HasPorts {
		if size > usualPacket {
			r.noteOf(p.ID, uncut)
		}
		return
	}
	conn, _ := connectionOf(p)
	header := tcpHeader // even if only the ports were captured
	if tcp := p.Data[p.L4:]; len(tcp) >= tcpHeader {
		header = max(int(tcp[12]>>4)*4, tcpHeader)
		if flags := tcp[13]; flags&tcpSYN != 0 {
			c.learn(conn, tcp[tcpHeader:min(header, len(tcp))], flags&tcpACK != 0)
		}
	}
	switch mss := c.of(conn); {
	case mss != sizes{}:
		c.cut(p, size, header, mss)
	case size > usualPacket:
		r.noteOf(p.ID, uncut)
	}
}

// ipLength returns the length in the IP header, which excludes a trailer of the link, bytes. BIG
// TCP and some drivers leave it 0.
func ipLength(p *dataplane.Packet) int {
	if length := statedLength(p); length > 0 {
		return min(length, p.L3Len)
	}
	return p.L3Len
}

// statedLength returns the length in the IP header, or 0 for none, bytes.
func statedLength(p *dataplane.Packet) int {
	switch p.Kind {
	case dataplane.IPv4:
		return int(be16(p.Data[p.L3+2:]))
	case dataplane.IPv6:
		if length := int(be16(p.Data[p.L3+4:])); length > 0 {
			return length + 40
		}
	}
	return 0
}

// headerOf returns the length of an IP header without options, bytes.
func headerOf(kind dataplane.PacketKind) int {
	if kind == dataplane.IPv6 {
		return 40
	}
	return 20
}

// cut describes an IP packet of length bytes, with a TCP header of header bytes, as segments if
// its payload is too large for one.
func (c *cutter) cut(p *dataplane.Packet, length, header int, mss sizes) {
	headers, fixed, jumbo := p.L4+header, headerOf(p.Kind), 0
	if p.Kind == dataplane.IPv6 && p.L4-p.L3 == fixed+jumboOption && p.Data[p.L3+4]|p.Data[p.L3+5] == 0 {
		jumbo = jumboOption
	}
	options := headers - p.L3 - fixed - tcpHeader - jumbo
	payload, size := p.L3+length-headers, max(mss.small-options, leastSegment)
	if payload <= max(mss.large-options, size) {
		return
	}
	n := (payload + size - 1) / size
	headers -= jumbo
	setSegments(p, n, headers+size, (n-1)*headers-jumbo)
	c.count++
}

// setSegments describes a packet as n segments of size bytes. Together they exceed the packet by more
// bytes. The lengths that Parse found become invalid.
func setSegments(p *dataplane.Packet, n, size, more int) {
	p.Segments, p.Segment, p.Parsed = n, size, false
	p.WireLen += more
}

// skips reports quickly whether a packet is small and no SYN. It returns false if unsure.
func (c *cutter) skips(p *dataplane.Packet) bool {
	const l3 = 14
	d := p.Data
	if p.Link != dataplane.LinkEthernet || len(d) < l3+20 {
		return p.WireLen <= c.largest && len(d) < 20+tcpHeader // of IPv4 and TCP
	}
	if p.WireLen > c.largest+l3 {
		return false
	}
	proto, tcp := d[l3+9], l3+int(d[l3]&0xf)*4
	switch be16(d[12:]) {
	case 0x0800:
	case 0x86dd:
		proto, tcp = d[l3+6], l3+40
	default:
		return false
	}
	switch proto {
	case protoTCP:
		return tcp+13 >= len(d) || d[tcp+13]&tcpSYN == 0
	case protoUDP:
		return true
	}
	return false
}

// learn stores the MSS in a SYN, which may be the answer to another. options are the captured
// part of the TCP options. A SYN without the option is not used: its MSS
// would be 536 (RFC 9293 §3.7.1), which many senders ignore.
func (c *cutter) learn(conn connection, options []byte, answer bool) {
	for len(options) > 0 && options[0] != optionsEnd {
		switch {
		case options[0] == optionsNop:
			options = options[1:]
			continue
		case len(options) < 2 || options[1] < 2 || int(options[1]) > len(options):
			return // broken, or not captured
		case options[0] != optionMSS || options[1] != 4:
			options = options[options[1]:]
			continue
		}
		mss := max(int(be16(options[2:])), MinMSS)
		known := sizes{mss, mss}
		if other := c.find(conn); answer && other != (sizes{}) {
			known = sizes{min(mss, other.small), max(mss, other.large)}
		}
		c.store(conn, known)
		c.largest = min(c.largest, known.large+headerOf(conn.kind)+tcpHeader)
		return
	}
}

// of returns the MSS of a connection.
func (c *cutter) of(conn connection) sizes { return cmp.Or(c.find(conn), c.unknown) }

// find returns the MSS in the SYNs of a connection.
func (c *cutter) find(conn connection) sizes {
	mss := c.latest[conn]
	if mss == (sizes{}) && c.earlier != nil {
		if mss = c.earlier[conn]; mss != (sizes{}) {
			c.store(conn, mss)
		}
	}
	return mss
}

func (c *cutter) store(conn connection, mss sizes) {
	if c.latest == nil || len(c.latest) == maxConnections {
		c.earlier, c.latest = c.latest, map[connection]sizes{}
	}
	c.latest[conn] = mss
}

func be16(b []byte) uint16 { return binary.BigEndian.Uint16(b) }
