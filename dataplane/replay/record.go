package replay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// BrokenError says where a capture stops making sense. What came before it was
// replayed.
type BrokenError struct {
	Offset int64 // in bytes, of the uncompressed capture
	Reason string
	Unread bool // not even the file's header made sense
}

func (e *BrokenError) Error() string {
	if e.Unread {
		return "not a capture: " + e.Reason
	}
	return fmt.Sprintf("broken at byte %d: %s", e.Offset, e.Reason)
}

// record is one record of a capture as it stands there. A header or a block
// that is no packet has raw alone.
type record struct {
	raw      []byte // valid until the next record
	data     []byte // captured bytes without FCS, within raw; nil where this is no packet
	packet   bool
	begins   bool // raw begins a section of its own: what waits goes before it
	time     int64
	wire     int // bytes, without FCS
	link     dataplane.LinkType
	fcs      int  // bytes of FCS that the wire had
	check    int  // of them captured, behind data
	sound    bool // the FCS is to be right, as it was
	untimed  bool // the format gave no time; time is the earliest it could have
	overflow bool // the fraction was a second or more
	beyond   bool // the stamp is outside of the times that there are
	iface    *iface
	kind     uint32 // of a pcapng block

	// Of a packet that is held, as dataplane.Packet has them.
	network dataplane.Kind
	l3      int
}

// withoutFCS leaves a frame check sequence of n bytes, with which the wire's and the
// captured bytes end, out of both.
func (r *record) withoutFCS(n int) {
	total := max(r.wire, len(r.data))
	r.fcs = min(n, total)
	r.check = max(len(r.data)-(total-r.fcs), 0)
	r.data, r.wire = r.data[:len(r.data)-r.check], max(r.wire-r.fcs, 0)
}

// captured are the packet's bytes with what there is of its FCS.
func (r *record) captured() []byte { return r.data[:len(r.data)+r.check] }

// ethernetFCS returns the four bytes of an FCS that was captured behind a whole
// frame, and what they should be (IEEE 802.3 §3.2.9), or nil.
func (r *record) ethernetFCS() (fcs []byte, want uint32) {
	if r.link != dataplane.LinkEthernet || r.fcs != 4 || r.check != 4 {
		return nil, 0
	}
	return r.captured()[len(r.data):], crc32.ChecksumIEEE(r.data)
}

// look sees whether the packet's FCS is right, before there are marks.
func (r *record) look() {
	fcs, want := r.ethernetFCS()
	r.sound = fcs != nil && binary.LittleEndian.Uint32(fcs) == want
}

// seal writes the FCS that marks have changed. One that was wrong stays as it is.
func (r *record) seal() {
	if r.sound {
		fcs, want := r.ethernetFCS()
		binary.LittleEndian.PutUint32(fcs, want)
	}
}

// move makes raw, a copy of the record's, its bytes.
func (r *record) move(raw []byte) {
	data := cap(r.raw) - cap(r.data) // both end where their array does
	r.raw, r.data = raw, raw[data:data+len(r.data)]
}

// format reads one capture format and writes times back into its records.
type format interface {
	// next fills in the record after the last one. It returns io.EOF at the
	// end, a *BrokenError, or what the source failed with.
	next(r *record) error
	// restamp gives a packet's record the time ns, rounded up to what the
	// format can say. It may replace r.raw.
	restamp(r *record, ns int64) error
}

// order is a byte order. It is a type of its own so that calls are direct.
type order struct{ big bool }

func (o order) u16(b []byte) uint16 {
	if o.big {
		return binary.BigEndian.Uint16(b)
	}
	return binary.LittleEndian.Uint16(b)
}

func (o order) u32(b []byte) uint32 {
	if o.big {
		return binary.BigEndian.Uint32(b)
	}
	return binary.LittleEndian.Uint32(b)
}

func (o order) put32(b []byte, v uint32) {
	if o.big {
		binary.BigEndian.PutUint32(b, v)
		return
	}
	binary.LittleEndian.PutUint32(b, v)
}

// open recognises the format by its first bytes.
func open(w *window) (format, error) {
	magic, err := w.peek(4)
	if err != nil {
		return nil, w.broken(err, "too short for a capture")
	}
	if binary.LittleEndian.Uint32(magic) == blockSection {
		return &pcapng{w: w}, nil
	}
	for _, o := range []order{{false}, {true}} {
		switch o.u32(magic) {
		case magicMicro:
			return &pcap{w: w, order: o, unit: 1000}, nil
		case magicNano:
			return &pcap{w: w, order: o, unit: 1}, nil
		}
	}
	return nil, &BrokenError{Offset: w.off, Reason: fmt.Sprintf("% x is neither pcap nor pcapng", magic)}
}

// broken turns an end of the stream within a record into a BrokenError, and a
// fault of gzip too. Other errors are the source's own.
func (w *window) broken(err error, reason string) error {
	var fault *gzipError
	switch {
	case errors.As(err, &fault):
		return &BrokenError{Offset: w.off, Reason: fault.Error()}
	case errors.Is(err, io.EOF):
		return &BrokenError{Offset: w.off, Reason: reason}
	}
	return err
}

// end is how next returns the end of the stream between two records.
func (w *window) end(err error) error {
	if err == io.EOF {
		return err
	}
	return w.broken(err, "")
}
