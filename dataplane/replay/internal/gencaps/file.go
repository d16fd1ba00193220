package main

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
	"time"
)

// Link types, https://www.tcpdump.org/linktypes.html.
const (
	linkNull     = 0
	linkEthernet = 1
	linkRaw      = 101
	linkSLL      = 113
	linkUser0    = 147
	linkSLL2     = 276
)

// base is the time zero of every capture.
var base = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// order is a byte order for appending.
type order = binary.AppendByteOrder

// packet is a packet as captured.
type packet struct {
	at      time.Duration // since base
	data    []byte        // as captured
	wire    int           // length on the wire, at least len(data)
	carry   bool          // written with a fraction over one second
	comment string        // pcapng only
}

// capture collects the packets of a file.
type capture struct {
	packets []packet
}

func (c *capture) add(at time.Duration, frame []byte) {
	c.packets = append(c.packets, packet{at: at, data: frame, wire: len(frame)})
}

// sort sorts packets by time, stably.
func (c *capture) sort() {
	slices.SortStableFunc(c.packets, func(a, b packet) int { return int(a.at - b.at) })
}

// snap truncates the captured bytes, not the original length.
func (c *capture) snap(n int) {
	for i := range c.packets {
		p := &c.packets[i]
		p.data = p.data[:min(n, len(p.data))]
	}
}

// pcapFormat holds the parameters of a classic pcap file.
type pcapFormat struct {
	order order
	nano  bool
	snap  uint32
	link  uint32
}

// file encodes packets by draft-ietf-opsawg-pcap: a header of 24 bytes, then 16
// bytes per packet.
func (f pcapFormat) file(packets []packet) []byte {
	magic, unit := uint32(0xa1b2c3d4), int64(time.Microsecond)
	if f.nano {
		magic, unit = 0xa1b23c4d, 1
	}
	o := f.order
	b := o.AppendUint32(nil, magic)
	b = o.AppendUint16(b, 2)
	b = o.AppendUint16(b, 4)
	b = o.AppendUint64(b, 0) // two reserved words
	b = o.AppendUint32(b, f.snap)
	b = o.AppendUint32(b, f.link)
	for _, p := range packets {
		ns := base.UnixNano() + int64(p.at)
		sec, fraction := ns/1e9, ns%1e9
		if p.carry {
			sec, fraction = sec-1, fraction+1e9
		}
		b = o.AppendUint32(b, uint32(sec))
		b = o.AppendUint32(b, uint32(fraction/unit))
		b = o.AppendUint32(b, uint32(len(p.data)))
		b = o.AppendUint32(b, uint32(p.wire))
		b = append(b, p.data...)
	}
	return b
}

// Block types and options of draft-ietf-opsawg-pcapng.
const (
	blockSection    = 0x0a0d0d0a
	blockInterface  = 1
	blockSimple     = 3
	blockNames      = 4
	blockStatistics = 5
	blockEnhanced   = 6
	blockCustom     = 0x00000bad
	blockLocal      = 0x80000abc // first bit set: for local use, unknown to all readers

	optEnd     = 0
	optComment = 1

	optSectionHardware = 2
	optSectionOS       = 3
	optSectionProgram  = 4

	optInterfaceName        = 2
	optInterfaceDescription = 3
	optInterfaceSpeed       = 8
	optInterfaceResolution  = 9
	optInterfaceOffset      = 14

	optPacketFlags = 2

	optStatisticsReceived = 4
	optStatisticsDropped  = 5
)

// pcapng appends blocks to buf.
type pcapng struct {
	order order
	buf   []byte
}

func (f *pcapng) block(kind uint32, parts ...[]byte) {
	body := slices.Concat(parts...)
	body = append(body, make([]byte, -len(body)&3)...)
	size := uint32(len(body) + 12)
	f.buf = f.order.AppendUint32(f.buf, kind)
	f.buf = f.order.AppendUint32(f.buf, size)
	f.buf = append(f.buf, body...)
	f.buf = f.order.AppendUint32(f.buf, size)
}

// option encodes an option; optEnd without a value ends the list.
func (f *pcapng) option(code uint16, value []byte) []byte {
	b := f.order.AppendUint16(nil, code)
	b = f.order.AppendUint16(b, uint16(len(value)))
	b = append(b, value...)
	return append(b, make([]byte, -len(value)&3)...)
}

func (f *pcapng) words(values ...uint32) []byte {
	var b []byte
	for _, v := range values {
		b = f.order.AppendUint32(b, v)
	}
	return b
}

func (f *pcapng) section(options ...[]byte) {
	b := f.words(0x1a2b3c4d)
	b = f.order.AppendUint16(b, 1)
	b = f.order.AppendUint16(b, 0)
	b = f.order.AppendUint64(b, 1<<64-1) // unspecified section length
	f.block(blockSection, append([][]byte{b}, options...)...)
}

func (f *pcapng) iface(link uint16, snap uint32, options ...[]byte) {
	b := f.order.AppendUint16(nil, link)
	b = f.order.AppendUint16(b, 0)
	b = f.order.AppendUint32(b, snap)
	f.block(blockInterface, append([][]byte{b}, options...)...)
}

// enhanced writes p with a timestamp in the units of its interface.
func (f *pcapng) enhanced(iface uint32, stamp uint64, p packet, options ...[]byte) {
	head := f.words(iface, uint32(stamp>>32), uint32(stamp), uint32(len(p.data)), uint32(p.wire))
	data := append(slices.Clone(p.data), make([]byte, -len(p.data)&3)...)
	if p.comment != "" {
		options = append(options, f.option(optComment, []byte(p.comment)), f.option(optEnd, nil))
	}
	f.block(blockEnhanced, append([][]byte{head, data}, options...)...)
}

// stamp returns the time of at in units of 10^-digits seconds.
func stamp(at time.Duration, digits int) uint64 {
	ns := uint64(base.UnixNano() + int64(at))
	for ; digits < 9; digits++ {
		ns /= 10
	}
	return ns
}

// stamp2 returns the time of at in units of 2^-bits seconds, bits <= 30.
func stamp2(at time.Duration, bits int) uint64 {
	ns := uint64(base.UnixNano() + int64(at))
	return ns/1e9<<bits | ns%1e9<<bits/1e9
}

// gzipStored wraps b in stored blocks (RFC 1951 §3.2.4), which do not depend on the release of
// compress/flate. The header is without name and time.
func gzipStored(b []byte) []byte {
	le := binary.LittleEndian
	out := []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255}
	for rest := b; ; {
		n := min(len(rest), 0xffff)
		final := byte(0)
		if n == len(rest) {
			final = 1
		}
		out = append(out, final)
		out = le.AppendUint16(out, uint16(n))
		out = le.AppendUint16(out, ^uint16(n))
		out = append(out, rest[:n]...)
		if rest = rest[n:]; len(rest) == 0 {
			break
		}
	}
	out = le.AppendUint32(out, crc32.ChecksumIEEE(b))
	return le.AppendUint32(out, uint32(len(b)))
}
