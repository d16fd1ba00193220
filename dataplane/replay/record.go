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

// record is one record of a capture. A file header, or a pcapng block without a
// packet, has only raw.
type record struct {
	raw         []byte // valid until the next record
	data        []byte // captured bytes without FCS, a part of raw; nil if not a packet
	offset      int    // of data in raw, bytes
	packet      bool
	newSection  bool // raw starts a new section; queued packets are written first
	time        int64
	wire        int // original length without FCS, bytes
	link        dataplane.LinkType
	fcs         int  // FCS on the wire, bytes
	fcsCaptured int  // captured bytes of the FCS, after data
	fcsCorrect  bool // the FCS was correct, and is corrected after marking
	untimed     bool // the format has no timestamp; time is the earliest possible
	overflow    bool // the fraction is a second or more
	outOfRange  bool // the timestamp is before 1970 or after 2261
	iface       *iface
	kind        uint32 // type of a pcapng block

	// Set for a packet on hold, as in dataplane.Packet.
	network dataplane.Kind
	l3      int
}

// wireLength converts the original length that a capture claims: on a 32-bit machine
// it is at most 2^31-1.
func wireLength(n uint32) int { return int(min(int64(n), math.MaxInt)) }

// withoutFCS removes an FCS of n bytes at the end of the packet from both
// lengths.
func (r *record) withoutFCS(n int) {
	total := max(r.wire, len(r.data))
	r.fcs = min(n, total)
	r.fcsCaptured = max(len(r.data)-(total-r.fcs), 0)
	r.data, r.wire = r.data[:len(r.data)-r.fcsCaptured], max(r.wire-r.fcs, 0)
}

// captured returns the packet's bytes with the captured part of the FCS.
func (r *record) captured() []byte { return r.data[:len(r.data)+r.fcsCaptured] }

// ethernetFCS returns the four bytes of a captured FCS and their correct value
// (IEEE 802.3 §3.2.9), or nil if the frame or its FCS was not captured whole.
func (r *record) ethernetFCS() (fcs []byte, want uint32) {
	if r.link != dataplane.LinkEthernet || r.fcs != 4 || r.fcsCaptured != 4 {
		return nil, 0
	}
	return r.captured()[len(r.data):], crc32.ChecksumIEEE(r.data)
}

// checkFCS notes whether the packet's FCS is correct. It is called before
// marking.
func (r *record) checkFCS() {
	fcs, want := r.ethernetFCS()
	r.fcsCorrect = fcs != nil && binary.LittleEndian.Uint32(fcs) == want
}

// updateFCS corrects the FCS of a marked packet. An FCS that was wrong is kept.
func (r *record) updateFCS() {
	if r.fcsCorrect {
		fcs, want := r.ethernetFCS()
		binary.LittleEndian.PutUint32(fcs, want)
	}
}

// rebase makes raw, a copy of the record's bytes, its bytes.
func (r *record) rebase(raw []byte) {
	r.raw, r.data = raw, raw[r.offset:r.offset+len(r.data)]
}

// format reads one capture format and writes timestamps back into its records.
type format interface {
	// next reads the next record. It returns io.EOF at the end, a *BrokenError,
	// or an error of the source.
	next(r *record) error
	// restamp sets a packet's timestamp to ns, rounded up to the resolution of
	// the format. It may replace r.raw.
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

// openCapture detects the format by its first bytes.
func openCapture(w *window) (format, error) {
	magic, err := w.peek(4)
	if err != nil {
		return nil, w.broken(err, "the file is too short")
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
