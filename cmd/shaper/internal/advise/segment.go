package advise

import (
	"encoding/binary"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

const (
	tcp     = 6
	finFlag = 0x01
	synFlag = 0x02
	rstFlag = 0x04
	ackFlag = 0x10
)

// segment holds the fields read from a TCP header (RFC 9293 §3.1).
type segment struct {
	seq, ack    uint32
	payload     uint32 // bytes of data on the wire
	flags       byte
	mss         int64
	tsVal, tsEc uint32
	stamped     bool
	selective   bool
}

// readSegment reads the TCP header of a packet, or returns false if there is none, or only a part.
func readSegment(p *dataplane.Packet) (s segment, ok bool) {
	if p.Proto != tcp || !p.HasPorts || p.Fragmented {
		return s, false
	}
	at := p.L4
	if len(p.Data) < at+20 {
		return s, false
	}
	h := p.Data[at:]
	size := int(h[12]>>4) * 4
	if size < 20 {
		return s, false
	}
	s.seq, s.ack, s.flags = binary.BigEndian.Uint32(h[4:]), binary.BigEndian.Uint32(h[8:]), h[13]
	s.payload = uint32(max(p.L3Len-(at-p.L3)-size, 0))
	s.options(h[20:min(size, len(h))])
	return s, true
}

// options reads MSS (RFC 9293 §3.2), SACK (RFC 2018 §3) and timestamps (RFC 7323 §3.2).
func (s *segment) options(o []byte) {
	for len(o) > 0 && o[0] != 0 {
		if o[0] == 1 {
			o = o[1:]
			continue
		}
		if len(o) < 2 || o[1] < 2 || int(o[1]) > len(o) {
			return
		}
		switch body := o[2:o[1]]; {
		case o[0] == 2 && len(body) == 2:
			s.mss = int64(binary.BigEndian.Uint16(body))
		case o[0] == 5 && len(body) >= 8:
			s.selective = true
		case o[0] == 8 && len(body) == 8:
			s.stamped, s.tsVal, s.tsEc = true, binary.BigEndian.Uint32(body),
				binary.BigEndian.Uint32(body[4:])
		}
		o = o[o[1]:]
	}
}

// after reports whether sequence number a is after b (RFC 9293 §3.4).
func after(a, b uint32) bool { return int32(a-b) > 0 }
