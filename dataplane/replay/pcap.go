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

	pcapHeader  = 24 // bytes of the file header
	pcapRecord  = 16 // bytes before a packet
	pcapVersion = 2  // major; the minor one changed nothing for readers

	// What the link type's word of the file header says beside it.
	fcsKnown = 1 << 26
	fcsShift = 28 // of the length of the FCS in units of 2 bytes
)

// pcap is the classic format (draft-ietf-opsawg-pcap): a file header, then
// packets, each behind seconds, fraction, captured and original length.
type pcap struct {
	w     *window
	order order
	unit  int64 // ns in a unit of the fraction
	link  dataplane.LinkType
	fcs   int // bytes of FCS at the end of each packet
	began bool
}

func (f *pcap) next(r *record) error {
	if !f.began {
		return f.header(r)
	}
	h, err := f.w.peek(pcapRecord)
	if err != nil {
		if len(h) == 0 {
			return f.w.end(err)
		}
		return f.w.broken(err, fmt.Sprintf("the last packet's header has %d of %d bytes", len(h), pcapRecord))
	}
	captured := int(f.order.u32(h[8:]))
	if captured > maxRecord-pcapRecord {
		return &BrokenError{Offset: f.w.off, Reason: fmt.Sprintf("a packet claims %d captured bytes", captured)}
	}
	raw, err := f.w.peek(pcapRecord + captured)
	if err != nil {
		return f.w.broken(err, fmt.Sprintf("the last packet has %d of %d captured bytes", len(raw)-pcapRecord, captured))
	}
	f.w.take(len(raw))
	fraction := int64(f.order.u32(raw[4:])) * f.unit
	r.raw, r.data, r.packet, r.link = raw, raw[pcapRecord:], true, f.link
	r.time = int64(f.order.u32(raw))*1e9 + fraction
	r.overflow = fraction >= 1e9
	r.wire = int(f.order.u32(raw[12:]))
	r.withoutFCS(f.fcs)
	return nil
}

func (f *pcap) header(r *record) error {
	raw, err := f.w.peek(pcapHeader)
	if err != nil {
		return f.w.broken(err, fmt.Sprintf("the file header has %d of %d bytes", len(raw), pcapHeader))
	}
	if major := f.order.u16(raw[4:]); major != pcapVersion {
		return &BrokenError{Offset: f.w.off, Reason: fmt.Sprintf("pcap version %d is not %d", major, pcapVersion)}
	}
	f.began = true
	link := f.order.u32(raw[20:])
	f.link = dataplane.LinkType(link)
	if link&fcsKnown != 0 {
		f.fcs = 2 * int(link>>fcsShift)
	}
	f.w.take(len(raw))
	*r = record{raw: raw}
	return nil
}

var errStamp = errors.New("its departure is outside of what the capture format can say")

func (f *pcap) restamp(r *record, ns int64) error {
	units := (ns + f.unit - 1) / f.unit
	perSecond := int64(1e9) / f.unit
	seconds := units / perSecond
	if ns < 0 || seconds > math.MaxUint32 {
		return errStamp
	}
	f.order.put32(r.raw, uint32(seconds))
	f.order.put32(r.raw[4:], uint32(units%perSecond))
	return nil
}
