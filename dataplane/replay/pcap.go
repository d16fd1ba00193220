package replay

import (
	"errors"
	"fmt"
	"math"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

const (
	magicMicro = 0xa1b2c3d4
	magicNano  = 0xa1b23c4d

	pcapHeader  = 24 // file header, bytes
	pcapRecord  = 16 // packet header, bytes
	pcapVersion = 2  // major; minor versions do not affect readers

	// Bits of the link type word in the file header.
	fcsKnown = 1 << 26
	fcsShift = 28 // length of the FCS in units of 2 bytes
)

// pcap is the classic format (draft-ietf-opsawg-pcap): a file header, then
// packets. Each packet follows its seconds, fraction, captured length and
// original length.
type pcap struct {
	w        *window
	order    order
	unit     int64 // ns per unit of the fraction
	link     dataplane.LinkType
	fcs      int // declared FCS at the end of each packet, bytes
	givenFCS int // Config.FCS
	pseudo   *pseudo
	started  bool
}

func (f *pcap) next(r *record) error {
	if !f.started {
		return f.header(r)
	}
	if err := f.w.need(pcapRecord); err != nil {
		if len(f.w.data) == 0 {
			return f.w.end(err)
		}
		return f.w.broken(err,
			fmt.Sprintf("the last packet's header has %d of %d bytes", len(f.w.data), pcapRecord))
	}
	claimed := f.order.u32(f.w.data[8:])
	if claimed > maxRecord-pcapRecord {
		return &BrokenError{
			Offset: f.w.off, Reason: fmt.Sprintf("a packet claims %d captured bytes", claimed),
		}
	}
	captured := int(claimed)
	if err := f.w.need(pcapRecord + captured); err != nil {
		return f.w.broken(err,
			fmt.Sprintf("the last packet has %d of %d captured bytes", len(f.w.data)-pcapRecord, captured))
	}
	f.parse(r, f.w.take(pcapRecord+captured))
	return nil
}

func (f *pcap) parse(r *record, raw []byte) {
	fraction := int64(f.order.u32(raw[4:])) * f.unit
	r.raw, r.isPacket, r.overflow = raw, true, fraction >= 1e9
	r.Data, r.Link = raw[pcapRecord:len(raw):len(raw)], f.link
	r.Time = int64(f.order.u32(raw))*1e9 + fraction
	r.WireLen = wireLength(f.order.u32(raw[12:]))
	if f.pseudo != nil || f.fcs != 0 || f.givenFCS != 0 {
		r.flags = 0
		r.strip(f.pseudo, f.order, f.fcs, f.givenFCS)
	}
}

func (f *pcap) header(r *record) error {
	if err := f.w.need(pcapHeader); err != nil {
		return f.w.broken(err, fmt.Sprintf("the file header has %d of %d bytes", len(f.w.data), pcapHeader))
	}
	if major := f.order.u16(f.w.data[4:]); major != pcapVersion {
		return &BrokenError{
			Offset: f.w.off, Reason: fmt.Sprintf("pcap version %d is not %d", major, pcapVersion),
		}
	}
	f.started = true
	link := f.order.u32(f.w.data[20:])
	f.link = dataplane.LinkType(link)
	if f.pseudo = pseudos[f.link]; f.pseudo != nil {
		f.fcs = f.pseudo.fcs
	}
	if link&fcsKnown != 0 {
		f.fcs = 2 * int(link>>fcsShift)
	}
	*r = record{Packet: r.Packet, raw: f.w.take(pcapHeader)}
	return nil
}

var errTimestamp = errors.New("its departure time is out of range for the capture format")

func (f *pcap) restamp(r *record, ns int64) error {
	units := (ns + f.unit - 1) / f.unit
	perSecond := int64(1e9) / f.unit
	seconds := units / perSecond
	if ns < 0 || seconds > math.MaxUint32 {
		return errTimestamp
	}
	f.order.put32(r.raw, uint32(seconds))
	f.order.put32(r.raw[4:], uint32(units%perSecond))
	return nil
}
