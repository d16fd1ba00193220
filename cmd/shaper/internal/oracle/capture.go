package oracle

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"time"
)

// packet is one record of a capture.
type packet struct {
	time     *big.Int // ns since the epoch
	shift    big.Int  // time of the replay minus time, ns
	untimed  bool     // neither it nor an earlier one carries a timestamp
	section  int      // number of the section in a pcapng file
	linkType int
	wire     int64 // bytes on the wire, without FCS
	data     []byte
	fcs      int64  // bytes of FCS on the wire
	check    []byte // captured part of the FCS, after data
}

// withoutFCS removes the frame check sequence, the last n bytes on the wire, from the packet.
func (p packet) withoutFCS(n int64) packet {
	p.fcs = min(n, p.wire)
	p.wire -= p.fcs
	end := min(int64(len(p.data)), p.wire)
	p.data, p.check = p.data[:end], p.data[end:]
	return p
}

var errCut = errors.New("capture breaks off")

// readCapture reads a pcap or pcapng file, which may be gzipped. With an error, it also returns
// the packets before the error.
func readCapture(path string) ([]packet, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var cut error
	if bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			return nil, err
		}
		data, cut = io.ReadAll(z)
	}
	if len(data) < 4 {
		return nil, errCut
	}
	var packets []packet
	if binary.BigEndian.Uint32(data) == blockSection {
		packets, err = readPcapng(data)
	} else {
		packets, err = readPcap(data)
	}
	return packets, errors.Join(cut, err)
}

func readPcap(data []byte) ([]packet, error) {
	if len(data) < 24 {
		return nil, errCut
	}
	var order binary.ByteOrder
	var tick int64 // unit of the fraction, ns
	switch binary.BigEndian.Uint32(data) {
	case 0xa1b2c3d4:
		order, tick = binary.BigEndian, 1000
	case 0xd4c3b2a1:
		order, tick = binary.LittleEndian, 1000
	case 0xa1b23c4d:
		order, tick = binary.BigEndian, 1
	case 0x4d3cb2a1:
		order, tick = binary.LittleEndian, 1
	default:
		return nil, errors.New("neither pcap nor pcapng")
	}
	word := order.Uint32(data[20:])
	linkType, fcs := int(word&0xffff), int64(0)
	if word>>26&1 == 1 {
		fcs = 2 * int64(word>>28)
	}
	data = data[24:]

	var packets []packet
	for len(data) > 0 {
		if len(data) < 16 {
			return packets, errCut
		}
		seconds := int64(order.Uint32(data))
		fraction := int64(order.Uint32(data[4:]))
		captured := int64(order.Uint32(data[8:]))
		original := int64(order.Uint32(data[12:]))
		data = data[16:]
		if int64(len(data)) < captured {
			return packets, errCut
		}
		packets = append(packets, packet{
			time:     big.NewInt(seconds*1e9 + fraction*tick),
			linkType: linkType,
			wire:     max(original, captured),
			data:     data[:captured],
		}.withoutFCS(fcs))
		data = data[captured:]
	}
	return packets, nil
}

const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockPacket    = 2 // obsolete
	blockSimple    = 3
	blockEnhanced  = 6
)

// Timestamps before 1970 or after 2261 count as the nearest supported time, UTC.
var (
	earliest = new(big.Int)
	latest   = big.NewInt(time.Date(2261, 12, 31, 23, 59, 59, 999_999_999, time.UTC).UnixNano())
)

// iface is an interface description block.
type iface struct {
	linkType int
	snapLen  int64
	fcs      int64    // bytes of FCS at the end of each packet
	tick     *big.Rat // unit of time, ns
	offset   *big.Int // ns
}

func readPcapng(data []byte) ([]packet, error) {
	var packets []packet
	var order binary.ByteOrder
	var ifaces []iface
	last := new(big.Int) // time of the previous packet
	untimed := true      // no timestamp so far
	section := 0

	for len(data) > 0 {
		if len(data) < 12 {
			return packets, errCut
		}
		if binary.BigEndian.Uint32(data) == blockSection {
			switch binary.BigEndian.Uint32(data[8:]) {
			case 0x1a2b3c4d:
				order = binary.BigEndian
			case 0x4d3c2b1a:
				order = binary.LittleEndian
			default:
				return packets, errors.New("section without byte order")
			}
			ifaces = nil
			section++
		}
		blockType := order.Uint32(data)
		size := int64(order.Uint32(data[4:]))
		if size < 12 || size%4 != 0 {
			return packets, fmt.Errorf("block of %d bytes", size)
		}
		if int64(len(data)) < size {
			return packets, errCut
		}
		body := data[8 : size-4]
		data = data[size:]

		if blockType == blockInterface {
			i, err := readInterface(order, body)
			if err != nil {
				return packets, err
			}
			ifaces = append(ifaces, i)
			continue
		}

		// The fields of the three blocks with packets, at their offsets.
		var id, captured, original int64
		var stamp *big.Int
		var content []byte
		u32 := func(at int) int64 { return int64(order.Uint32(body[at:])) }
		ticks := func(at int) *big.Int {
			high := new(big.Int).Lsh(big.NewInt(u32(at)), 32)
			return high.Add(high, big.NewInt(u32(at+4)))
		}
		switch blockType {
		case blockEnhanced:
			if len(body) < 20 {
				return packets, errCut
			}
			id, stamp, captured, original = u32(0), ticks(4), u32(12), u32(16)
			content = body[20:]
		case blockPacket:
			if len(body) < 20 {
				return packets, errCut
			}
			id = int64(order.Uint16(body))
			stamp, captured, original = ticks(4), u32(12), u32(16)
			content = body[20:]
		case blockSimple:
			if len(body) < 4 {
				return packets, errCut
			}
			original = u32(0)
			captured = original
			content = body[4:]
		default:
			continue
		}
		if id >= int64(len(ifaces)) {
			return packets, fmt.Errorf("packet of interface %d, which is not described", id)
		}
		i := ifaces[id]
		if blockType == blockSimple && i.snapLen > 0 {
			captured = min(captured, i.snapLen)
		}
		if captured > int64(len(content)) {
			return packets, errCut
		}
		fcs := i.fcs
		if blockType != blockSimple && (captured+3)/4*4 <= int64(len(content)) {
			eachOption(order, content[(captured+3)/4*4:], func(code int, value []byte) {
				if code == 2 && len(value) == 4 && order.Uint32(value)>>5&15 > 0 { // epb_flags
					fcs = int64(order.Uint32(value) >> 5 & 15)
				}
			})
		}
		if stamp == nil && len(packets) == 0 {
			stamp = new(big.Int) // the earliest possible
		} else if stamp != nil {
			untimed = false
		}
		if stamp != nil {
			ns := new(big.Rat).Mul(new(big.Rat).SetInt(stamp), i.tick)
			last = new(big.Int).Add(floor(ns), i.offset)
			if last.Cmp(earliest) < 0 {
				last = earliest
			} else if last.Cmp(latest) > 0 {
				last = latest
			}
		}
		packets = append(packets, packet{
			time:     last,
			untimed:  untimed,
			section:  section,
			linkType: i.linkType,
			wire:     max(original, captured),
			data:     content[:captured],
		}.withoutFCS(fcs))
	}
	return packets, nil
}

func readInterface(order binary.ByteOrder, body []byte) (iface, error) {
	if len(body) < 8 {
		return iface{}, errCut
	}
	i := iface{
		linkType: int(order.Uint16(body)),
		snapLen:  int64(order.Uint32(body[4:])),
		tick:     whole(1000), // default: microseconds
		offset:   new(big.Int),
	}
	complete := eachOption(order, body[8:], func(code int, value []byte) {
		switch {
		case code == 9 && len(value) == 1: // if_tsresol
			base, exponent := int64(10), int64(value[0])
			if value[0]&0x80 != 0 {
				base, exponent = 2, int64(value[0]&0x7f)
			}
			units := new(big.Int).Exp(big.NewInt(base), big.NewInt(exponent), nil)
			i.tick = new(big.Rat).SetFrac(big.NewInt(1e9), units)
		case code == 13 && len(value) == 1: // if_fcslen, in bits; some writers give bytes
			if i.fcs = int64(value[0]); i.fcs >= 8 {
				i.fcs /= 8
			}
		case code == 14 && len(value) == 8: // if_tsoffset
			seconds := big.NewInt(int64(order.Uint64(value)))
			i.offset = seconds.Mul(seconds, big.NewInt(1e9))
		}
	})
	if !complete {
		return iface{}, errCut
	}
	return i, nil
}

// eachOption returns false if the last option is truncated.
func eachOption(order binary.ByteOrder, options []byte, do func(code int, value []byte)) bool {
	for len(options) >= 4 {
		code, size := int(order.Uint16(options)), int(order.Uint16(options[2:]))
		options = options[4:]
		if code == 0 {
			break
		}
		if len(options) < size {
			return false
		}
		do(code, options[:size])
		options = options[min(len(options), (size+3)/4*4):]
	}
	return true
}
