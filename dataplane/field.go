package dataplane

import (
	"fmt"
	"math"

	"github.com/a-seed-32e5a53f/shaper/marker"
)

// Field is a part of a packet that input colors are read from and marks are written to.
type Field uint8

const (
	DSCP    Field = iota // of the outer IP header
	PCP                  // of the outer VLAN tag
	DEI                  // of the outer VLAN tag
	MPLSTC               // traffic class of the top MPLS label
	SKBMark              // Packet.Mark
)

var (
	fieldNames = [...]string{"dscp", "pcp", "dei", "mpls", "mark"}
	fieldMax   = [...]uint32{63, 7, 1, 7, math.MaxUint32}
)

// String returns the name as spelled in policy files.
func (f Field) String() string {
	if int(f) < len(fieldNames) {
		return fieldNames[f]
	}
	return fmt.Sprintf("Field(%d)", uint8(f))
}

// Max returns the largest value of the field, or false if the field is unknown.
func (f Field) Max() (value uint32, known bool) {
	if int(f) >= len(fieldMax) {
		return 0, false
	}
	return fieldMax[f], true
}

// Mark writes Value to a field of packets with this field. Other packets stay as they are.
type Mark struct {
	Field Field
	Value uint32
}

// Field returns the value of a field, or false if the packet does not have it. The
// packet must have been parsed.
func (p *Packet) Field(f Field) (value uint32, ok bool) {
	switch {
	case f == SKBMark:
		return p.Mark, true
	case f == DSCP:
		dscp, ok := p.DSCP()
		return uint32(dscp), ok
	case f == PCP && p.Tags > 0:
		return uint32(marker.PCP(p.Data[p.Tag:])), true
	case f == DEI && p.Tags > 0:
		return uint32(marker.DEI(p.Data[p.Tag:])), true
	case f == MPLSTC && p.MPLS > 0:
		return uint32(marker.TC(p.Data[p.MPLS:])), true
	}
	return 0, false
}

// Write writes a mark, and reports whether the packet contains the field. The packet must have been
// parsed.
func (p *Packet) Write(m Mark) bool {
	switch m.Field {
	case DSCP:
		switch p.Kind {
		case IPv4:
			marker.SetDSCPv4(p.Data[p.L3:], uint8(m.Value))
		case IPv6:
			marker.SetDSCPv6(p.Data[p.L3:], uint8(m.Value))
		default:
			return false
		}
	case PCP, DEI:
		if p.Tags == 0 {
			return false
		}
		if m.Field == PCP {
			marker.SetPCP(p.Data[p.Tag:], uint8(m.Value))
		} else {
			marker.SetDEI(p.Data[p.Tag:], uint8(m.Value))
		}
	case MPLSTC:
		if p.MPLS == 0 {
			return false
		}
		marker.SetTC(p.Data[p.MPLS:], uint8(m.Value))
	case SKBMark:
		p.Mark = m.Value
	}
	return true
}
