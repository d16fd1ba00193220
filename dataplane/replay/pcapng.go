package replay

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Block types, option codes and sizes of draft-ietf-opsawg-pcapng.
const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockPacket    = 2 // obsolete, but in use in old captures
	blockSimple    = 3
	blockEnhanced  = 6

	sectionMagic = 0x1a2b3c4d

	optionEnd      = 0
	optionTSResol  = 9
	optionFCSLen   = 13
	optionTSOffset = 14
	optionFlags    = 2 // epb_flags of a packet block

	blockOverhead  = 12 // block type and both lengths, bytes
	enhancedHeader = 28 // bytes before the data of an enhanced packet block

	// maxInterfaces bounds the memory for the interfaces of a section. The
	// format allows 2^32; an obsolete packet block can refer to 2^16.
	maxInterfaces = 1 << 16
)

// pcapng is the block format. Blocks other than packets are copied unchanged,
// so names, comments and statistics stay in the output.
type pcapng struct {
	w        *window
	givenFCS int // Config.FCS
	order    order
	ifaces   []*iface // interfaces of the current section
	section  bool
	// the latest block begins a section; until the next one, packets of the previous section are restamped
	entering bool
	entered  order  // byte order of the new section
	enhanced []byte // memory for restamp
}

// Times range from 1970 to 2261, UTC. In 63 bits of ns this leaves room for the
// difference of any two times, and for queueing delays after the last.
const (
	lastSecond = 9_214_646_399
	lastTime   = lastSecond*int64(1e9) + 999_999_999
)

// iface is an interface description: its timestamps, lengths and link type.
type iface struct {
	index   uint32
	link    dataplane.LinkType
	snap    uint32
	fcs     int // declared FCS at the end of each packet, bytes
	pseudo  *pseudo
	perSec  uint64 // time units per second
	offsetS int64  // offset to add to timestamps, seconds
}

func (f *pcapng) next(r *record) error {
	if f.entering {
		f.order, f.ifaces, f.section, f.entering = f.entered, nil, true, false
	}
	if err := f.w.need(blockOverhead); err != nil {
		if len(f.w.data) == 0 {
			return f.w.end(err)
		}
		return f.w.broken(err, fmt.Sprintf("the last block has %d bytes, fewer than the minimum of %d",
			len(f.w.data), blockOverhead))
	}
	h, order := f.w.data, f.order
	kind := order.u32(h)
	if kind == blockSection {
		switch {
		case binary.LittleEndian.Uint32(h[8:]) == sectionMagic:
			order.big = false
		case binary.BigEndian.Uint32(h[8:]) == sectionMagic:
			order.big = true
		default:
			return &BrokenError{
				Offset: f.w.off, Reason: fmt.Sprintf("a section's byte-order magic is % x", h[8:12]),
			}
		}
	} else if !f.section {
		return &BrokenError{Offset: f.w.off, Reason: "the first block is not a section header"}
	}
	size := order.u32(h[4:])
	if size < blockOverhead || size%4 != 0 || size > maxRecord {
		return &BrokenError{
			Offset: f.w.off, Reason: fmt.Sprintf("a block of type %#x claims %d bytes", kind, size),
		}
	}
	if err := f.w.need(int(size)); err != nil {
		return f.w.broken(err, fmt.Sprintf("the last block has %d of %d bytes", len(f.w.data), size))
	}
	raw := f.w.data[:size]
	if again := order.u32(raw[size-4:]); again != size {
		return &BrokenError{Offset: f.w.off, Reason: fmt.Sprintf(
			"a block of type %#x has two lengths, %d at its start and %d at its end", kind, size, again)}
	}
	*r = record{Packet: r.Packet, raw: raw, blockType: kind}
	body, reason := raw[8:size-4], ""
	if kind == blockSection {
		reason = f.enter(r, order, body)
	} else {
		reason = f.block(r, body)
	}
	if reason != "" {
		return &BrokenError{Offset: f.w.off, Reason: reason}
	}
	f.w.take(len(raw))
	return nil
}

func (f *pcapng) parse(r *record, raw []byte) {
	*r = record{Packet: r.Packet, raw: raw, blockType: f.order.u32(raw)}
	f.block(r, raw[8:len(raw)-4])
}

// block parses the body of a block. It returns the error as text, or "".
func (f *pcapng) block(r *record, body []byte) string {
	switch r.blockType {
	case blockInterface:
		return f.addInterface(body)
	case blockEnhanced, blockPacket:
		return f.enhancedPacket(r, body)
	case blockSimple:
		return f.simplePacket(r, body)
	}
	return ""
}

// enter parses the header of a section. The section begins with the next block.
func (f *pcapng) enter(r *record, o order, body []byte) string {
	if len(body) < 16 {
		return "a section header is too short"
	}
	if major := o.u16(body[4:]); major != 1 {
		return fmt.Sprintf("pcapng version %d is not 1", major)
	}
	// The output section differs in length if packets are dropped: set to
	// unspecified.
	for i := 8; i < 16; i++ {
		body[i] = 0xff
	}
	f.entering, f.entered, r.newSection = true, o, true
	return ""
}

func (f *pcapng) addInterface(body []byte) string {
	if len(body) < 8 {
		return "an interface description is too short"
	}
	if len(f.ifaces) == maxInterfaces {
		return fmt.Sprintf("a section has more than %d interfaces", maxInterfaces)
	}
	i := &iface{
		index:  uint32(len(f.ifaces)),
		link:   dataplane.LinkType(f.order.u16(body)),
		snap:   f.order.u32(body[4:]),
		perSec: 1e6,
	}
	if i.pseudo = pseudos[i.link]; i.pseudo != nil {
		i.fcs = i.pseudo.fcs
	}
	for o := body[8:]; len(o) >= 4; {
		code, n := f.order.u16(o), int(f.order.u16(o[2:]))
		padded := (n + 3) &^ 3
		if code == optionEnd {
			break
		}
		if 4+padded > len(o) {
			return "an interface description has an option beyond its end"
		}
		v := o[4 : 4+n]
		switch {
		case code == optionTSResol && n == 1:
			var ok bool
			if i.perSec, ok = unitsPerSecond(v[0]); !ok {
				return fmt.Sprintf("an interface has the time resolution %#x, finer than 64 bits can count",
					v[0])
			}
		case code == optionFCSLen && n == 1:
			i.fcs = fcsBytes(v[0])
		case code == optionTSOffset && n == 8:
			i.offsetS = int64(binary.LittleEndian.Uint64(v))
			if f.order.big {
				i.offsetS = int64(binary.BigEndian.Uint64(v))
			}
		}
		o = o[4+padded:]
	}
	f.ifaces = append(f.ifaces, i)
	return ""
}

// fcsBytes converts if_fcslen from bits to bytes. A value below 8 can only be
// bytes, as in the example of earlier drafts.
func fcsBytes(v byte) int {
	if v < 8 {
		return int(v)
	}
	return int(v) / 8
}

// packetFlags returns epb_flags, or 0.
func (f *pcapng) packetFlags(options []byte) uint32 {
	for o := options; len(o) >= 4; {
		code, n := f.order.u16(o), int(f.order.u16(o[2:]))
		padded := (n + 3) &^ 3
		if code == optionEnd || 4+padded > len(o) {
			break
		}
		if code == optionFlags && n == 4 {
			return f.order.u32(o[4:])
		}
		o = o[4+padded:]
	}
	return 0
}

// unitsPerSecond converts if_tsresol: a negative power of 10, or of 2 if the
// highest bit is set.
func unitsPerSecond(resol byte) (uint64, bool) {
	n := resol & 0x7f
	if resol&0x80 != 0 {
		return 1 << (n & 63), n < 64
	}
	if n > 19 {
		return 0, false
	}
	units := uint64(1)
	for range n {
		units *= 10
	}
	return units, true
}

func (f *pcapng) enhancedPacket(r *record, body []byte) string {
	if len(body) < 20 {
		return "a packet block is too short"
	}
	index := f.order.u32(body)
	if r.blockType == blockPacket {
		index = uint32(f.order.u16(body)) // the upper 16 bits count drops
	}
	if int64(index) >= int64(len(f.ifaces)) {
		return fmt.Sprintf("a packet refers to interface %d, but the section has %d", index, len(f.ifaces))
	}
	captured := f.order.u32(body[12:])
	if int64(captured) > int64(len(body)-20) {
		return fmt.Sprintf("a packet claims %d captured bytes in a block that has %d", captured, len(body)-20)
	}
	i := f.ifaces[index]
	r.isPacket, r.iface, r.Link = true, i, i.link
	r.Time, r.outOfRange = i.ns(uint64(f.order.u32(body[4:]))<<32 | uint64(f.order.u32(body[8:])))
	r.Data = body[20 : 20+captured : 20+captured]
	r.WireLen = wireLength(f.order.u32(body[16:]))
	padded := 20 + (int(captured)+3)&^3
	r.flags = f.packetFlags(body[min(padded, len(body)):])
	fcs := int(r.flags >> 5 & 0xf)
	if fcs == 0 {
		fcs = i.fcs
	}
	r.strip(i.pseudo, f.order, fcs, f.givenFCS)
	return ""
}

func (f *pcapng) simplePacket(r *record, body []byte) string {
	if len(f.ifaces) == 0 {
		return "a packet precedes the first interface description"
	}
	if len(body) < 4 {
		return "a simple packet block is too short"
	}
	i := f.ifaces[0]
	wire := f.order.u32(body)
	captured := min(int64(wire), int64(len(body)-4))
	if i.snap != 0 {
		captured = min(captured, int64(i.snap))
	}
	r.isPacket, r.iface, r.Link, r.untimed = true, i, i.link, true
	r.Time, _ = i.ns(0)
	r.Data = body[4 : 4+captured : 4+captured]
	r.WireLen = wireLength(wire)
	r.whole = r.Data
	r.strip(i.pseudo, f.order, i.fcs, f.givenFCS)
	return ""
}

// ns converts a timestamp to ns, rounded down. A time out of range becomes the
// nearest time in range, and outOfRange is set.
func (i *iface) ns(units uint64) (ns int64, outOfRange bool) {
	seconds, rest := units/i.perSec, units%i.perSec
	hi, lo := bits.Mul64(rest, 1e9)
	fraction, _ := bits.Div64(hi, lo, i.perSec)
	sum, carry := bits.Add64(seconds, uint64(i.offsetS), 0)
	switch {
	case i.offsetS < 0 && carry == 0: // negative sum
		return 0, true
	case i.offsetS >= 0 && carry == 1 || sum > lastSecond:
		return lastTime, true
	}
	return int64(sum)*1e9 + int64(fraction), false
}

// units converts ns to the interface's time units, rounded up. A time before
// the interface's first one becomes the first one.
func (i *iface) units(ns int64) (uint64, error) {
	seconds, rest := ns/1e9, ns%1e9
	if seconds < i.offsetS {
		return 0, nil
	}
	hi, whole := bits.Mul64(uint64(seconds)-uint64(i.offsetS), i.perSec)
	restHi, restLo := bits.Mul64(uint64(rest), i.perSec)
	fraction, left := bits.Div64(restHi, restLo, 1e9)
	if left > 0 {
		fraction++
	}
	sum, carry := bits.Add64(whole, fraction, 0)
	if hi != 0 || carry != 0 {
		return 0, errTimestamp
	}
	return sum, nil
}

func (f *pcapng) restamp(r *record, ns int64) error {
	units, err := r.iface.units(ns)
	if err != nil {
		return err
	}
	if r.blockType == blockSimple {
		f.enhance(r)
	}
	f.order.put32(r.raw[12:], uint32(units>>32))
	f.order.put32(r.raw[16:], uint32(units))
	return nil
}

// enhance converts a simple packet block, which lacks a timestamp, to an enhanced one.
func (f *pcapng) enhance(r *record) {
	captured := r.whole
	padded := (len(captured) + 3) &^ 3
	size := enhancedHeader + padded + 4
	f.enhanced = slices.Grow(f.enhanced[:0], size)
	raw := f.enhanced[:size]
	f.order.put32(raw, blockEnhanced)
	f.order.put32(raw[4:], uint32(len(raw)))
	f.order.put32(raw[8:], r.iface.index)
	f.order.put32(raw[20:], uint32(len(captured)))
	copy(raw[24:28], r.raw[8:]) // the original length
	clear(raw[copy(raw[enhancedHeader:], captured)+enhancedHeader:])
	f.order.put32(raw[len(raw)-4:], uint32(len(raw)))
	r.raw, r.blockType = raw, blockEnhanced
}
