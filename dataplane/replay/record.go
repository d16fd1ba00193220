package replay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// BrokenError reports the position at which a capture becomes unreadable. All
// packets before it were replayed.
type BrokenError struct {
	Offset int64 // bytes into the uncompressed capture
	Reason string
	Unread bool // the file header is already unreadable
}

func (e *BrokenError) Error() string {
	if e.Unread {
		return "not a capture: " + e.Reason
	}
	return fmt.Sprintf("broken at byte %d: %s", e.Offset, e.Reason)
}

// record is one record of a capture. A file header, or a pcapng block without a packet, consists
// only of raw.
type record struct {
	// Data, a part of raw, WireLen, Time and Link are valid if isPacket; set by the caller of next
	*dataplane.Packet
	raw         []byte // valid until the window's next release
	isPacket    bool
	newSection  bool   // raw starts a new section; queued packets are written first
	fcs         int    // FCS on the wire, bytes
	fcsCaptured int    // captured bytes of the FCS, after Data
	fcsCorrect  bool   // the FCS was correct, and is corrected after marking
	whole       []byte // all captured bytes of a packet without a timestamp
	// neither it nor, after count, an earlier packet carries a timestamp; Time is the earliest possible
	untimed    bool
	overflow   bool // the fraction is a second or more
	outOfRange bool // the timestamp is before 1970 or after 2261
	iface      *iface
	blockType  uint32 // of pcapng
	flags      uint32 // epb_flags of pcapng
}

// wireLength converts an original length as given in a capture: on a 32-bit machine it is at most
// 2^31-1.
func wireLength(n uint32) int { return int(min(int64(n), math.MaxInt)) }

// strip removes a pseudo-header, nil for none, and the FCS, if it is declared or given by Config.FCS, bytes.
func (r *record) strip(p *pseudo, o order, declared, given int) {
	if p != nil {
		r.unwrap(p, o)
	}
	r.withoutFCS(fcsLength(r.Link, declared, given))
}

// withoutFCS removes an FCS of n bytes at the end of the packet from both
// lengths.
func (r *record) withoutFCS(n int) {
	total := max(r.WireLen, len(r.Data))
	r.fcs, r.fcsCorrect = min(n, total), false
	r.fcsCaptured = max(len(r.Data)-(total-r.fcs), 0)
	r.Data, r.WireLen = r.Data[:len(r.Data)-r.fcsCaptured], max(r.WireLen-r.fcs, 0)
}

// captured returns the packet's bytes with the captured part of the FCS.
func (r *record) captured() []byte { return r.Data[:len(r.Data)+r.fcsCaptured] }

// ethernetFCS returns the four bytes of a captured FCS and their correct value
// (IEEE 802.3 §3.2.9), or nil if the frame or its FCS was not captured whole.
func (r *record) ethernetFCS() (fcs []byte, want uint32) {
	if !isFrame(r.Link) || r.fcs != 4 || r.fcsCaptured != 4 {
		return nil, 0
	}
	return r.captured()[len(r.Data):], crc32.ChecksumIEEE(r.Data)
}

// checkFCS notes whether the packet's FCS is correct. It is called before
// marking.
func (r *record) checkFCS() {
	fcs, want := r.ethernetFCS()
	r.fcsCorrect = fcs != nil && binary.LittleEndian.Uint32(fcs) == want
}

// updateFCS corrects the FCS of a marked packet. A wrong FCS is kept.
func (r *record) updateFCS() {
	if r.fcsCorrect {
		fcs, want := r.ethernetFCS()
		binary.LittleEndian.PutUint32(fcs, want)
	}
}

// format reads one capture format and writes timestamps back into its records.
type format interface {
	// next reads the next record. It returns io.EOF at the end, a *BrokenError,
	// or an error of the source.
	next(r *record) error
	// parse parses a packet's bytes, returned by next, again. Meanwhile next must not have returned
	// a packet of a new section.
	parse(r *record, raw []byte)
	// restamp sets a packet's timestamp to ns, rounded up to the resolution of the format. It may
	// replace r.raw, by memory valid until the next call.
	restamp(r *record, ns int64) error
}

// order is a byte order. A type of its own avoids calls through an interface.
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

// openCapture detects the format by its first bytes. fcs is Config.FCS.
func openCapture(w *window, fcs int) (format, error) {
	if err := w.need(4); err != nil {
		return nil, w.broken(err, "the file is too short")
	}
	magic := w.data[:4]
	if binary.LittleEndian.Uint32(magic) == blockSection {
		return &pcapng{w: w, givenFCS: fcs}, nil
	}
	for _, o := range []order{{false}, {true}} {
		switch o.u32(magic) {
		case magicMicro:
			return &pcap{w: w, order: o, unit: 1000, givenFCS: fcs}, nil
		case magicNano:
			return &pcap{w: w, order: o, unit: 1, givenFCS: fcs}, nil
		}
	}
	_ = w.need(longestMagic) // a short file is of none of these formats
	if name, remedy := foreignFormat(w.data); name != "" {
		return nil, &BrokenError{
			Offset: w.off, Reason: fmt.Sprintf("this is %s: convert it first: %s", name, remedy),
		}
	}
	return nil, &BrokenError{
		Offset: w.off,
		Reason: fmt.Sprintf("% x is neither pcap nor pcapng; other formats: %s", magic, byEditcap),
	}
}

// broken turns an unexpected end of the stream, or a gzip error, into a
// BrokenError. It returns other errors, those of the source, unchanged.
func (w *window) broken(err error, reason string) error {
	var corrupt *gzipError
	switch {
	case errors.As(err, &corrupt):
		return &BrokenError{Offset: w.off, Reason: corrupt.Error()}
	case errors.Is(err, io.EOF):
		return &BrokenError{Offset: w.off, Reason: reason}
	}
	return err
}

// end returns the error for an end of the stream between two records.
func (w *window) end(err error) error {
	if err == io.EOF {
		return err
	}
	return w.broken(err, "")
}
