package tap

import (
	"errors"
	"time"
)

// HeaderLen is the length in bytes of struct virtio_net_hdr (linux/virtio_net.h), which precedes
// every frame in a buffer. Its fields are in host byte order. It names the checksum for the device
// to fill in, and the segment size of a GSO frame. A forwarded frame keeps its header. The header
// of a frame without offloads is all zero.
const HeaderLen = 10

// MaxFrame is the capacity in bytes of a buffer for the largest frame of a
// port: a virtio header, an Ethernet header with two VLAN tags, and 64 KiB. The
// kernel merges no more unless gso_max_size or gro_max_size was raised.
const MaxFrame = HeaderLen + 14 + 2*4 + 1<<16

// ErrGone is the error for a device which no longer exists.
var ErrGone = errors.New("the device is gone")

// Device sends and receives frames. Each frame begins with an Ethernet header.
type Device interface {
	// Name returns the name of the interface.
	Name() string
	// Ports returns the queues. All frames of a flow arrive at the same queue.
	// On a TAP device, this is the queue to which its reverse direction was
	// last written, if any.
	Ports() []Port
	// Close closes all ports. It must not run concurrently with their methods.
	Close() error
}

// Port is one queue of a device. Read and Wait must be called by one goroutine, and
// Write by one, which may be another. No method allocates memory.
type Port interface {
	// Read reads received frames, without waiting. Each buffer must have a capacity of at least
	// MaxFrame; Read fills it with a header and a frame and sets its length. A longer frame is
	// lost. Read returns the number of buffers filled, also with an error. The error is ErrGone if
	// the device no longer exists.
	Read(into [][]byte) (int, error)
	// Write sends buffers in order, each a header and a frame, and returns the number accepted by
	// the device. It does not wait. A frame refused by the device (queue full, device down, frame
	// too long) is lost, and its buffer is cut to length 0. The error is ErrGone, or another one
	// after which the port cannot be used.
	Write(frames [][]byte) (int, error)
	// Wait returns when frames can be read, when Now reaches deadline
	// (math.MaxInt64: never), or after Wake. It may return early. The error is
	// ErrGone, or another one after which the port cannot be used.
	Wait(deadline int64) error
	// Wake makes a running Wait return, or else the next one. It is safe for
	// concurrent use until Close.
	Wake()
}

var start = time.Now()

// Now returns the time on the clock of all deadlines, in ns: the Unix time at
// the start of the program, plus the monotonic time since then. In a
// testing/synctest bubble it is the bubble's time.
func Now() int64 { return start.UnixNano() + int64(time.Since(start)) }

// Fields of struct virtio_net_hdr.
const (
	headerFlags     = 0
	headerHdrLen    = 2 // length of the headers of each segment
	headerCsumStart = 6

	needsCsum = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
)

// VLAN tags: lengths in bytes.
const (
	macsLen = 12 // offset of the type, or of the outer tag, in a frame
	tagLen  = 4
)

// pushTag inserts a VLAN tag into the frame of a buffer, which must have
// capacity for it.
func pushTag(b []byte, tpid, tci uint16) []byte {
	if len(b) < HeaderLen+macsLen {
		return b
	}
	at := HeaderLen + macsLen
	b = b[:len(b)+tagLen]
	copy(b[at+tagLen:], b[at:])
	setBE16(b[at:], tpid)
	setBE16(b[at+2:], tci)
	if b[headerFlags]&needsCsum != 0 {
		addTagLen(b[headerCsumStart:])
	}
	if host16(b[headerHdrLen:]) != 0 {
		addTagLen(b[headerHdrLen:])
	}
	return b
}

// addTagLen increases an offset by the length of a tag.
func addTagLen(field []byte) { setHost16(field, int(host16(field))+tagLen) }
