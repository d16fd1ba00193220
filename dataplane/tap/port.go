package tap

import (
	"encoding/binary"
	"errors"
	"time"
)

// HeaderLen is the length in bytes of struct virtio_net_hdr (linux/virtio_net.h),
// which stands before every frame in a buffer. Its fields are in the host's byte
// order. It says where a checksum is still to be filled in and by what size a
// frame is still to be cut; a frame that goes out as it came in keeps it, and
// one that needs neither has zeros.
const HeaderLen = 10

// MaxFrame is the capacity in bytes of a buffer that holds whatever a port may
// read: a header, an Ethernet header with two VLAN tags, and 64 KiB, which is as
// much as the kernel merges unless gso_max_size or gro_max_size was raised.
const MaxFrame = HeaderLen + 14 + 2*4 + 1<<16

// ErrGone says that a device is there no more.
var ErrGone = errors.New("the device is gone")

// Device is where frames come from and go to. Each has an Ethernet header.
type Device interface {
	// Name is the name of the interface.
	Name() string
	// Ports are its queues. A flow keeps to one of them: of a TAP device, that to
	// which its other direction was written last, if any was.
	Ports() []Port
	// Close ends all ports. No goroutine may be inside of one.
	Close() error
}

// Port is one queue of a device. Read and Wait are for one goroutine and Write
// for one, which may be another. Neither of them allocates memory.
type Port interface {
	// Read reads frames that have come, and does not wait for more. Each buffer
	// is used to its capacity, of MaxFrame or more, and cut to what it holds: a
	// header and a frame. A frame that does not fit is lost. Read returns how
	// many buffers it filled, also with an error, which is ErrGone where nothing
	// will come any more.
	Read(into [][]byte) (int, error)
	// Write sends buffers in order, each a header and a frame, and returns how
	// many the device took. It does not wait: what the device refuses, because
	// it is full or down or the frame is too long for it, is lost and cut to
	// length 0. The error is ErrGone, or another that the port cannot outlive.
	Write(frames [][]byte) (int, error)
	// Wait returns when there is something to read, when Now reaches the
	// deadline (math.MaxInt64 for never), when Wake was called, or for no reason.
	// It is as exact as its thread, see LockThread. The error is ErrGone or
	// another that the port cannot outlive.
	Wait(deadline int64) error
	// Wake makes the Wait that runs return, or else the next. Any goroutine may
	// call it at any time before Close.
	Wake()
}

var start = time.Now()

// Now is the time of all deadlines: ns since the Unix epoch if nobody had set
// the clock since the program began, and so monotonic. In a bubble of
// testing/synctest it is the bubble's time.
func Now() int64 { return start.UnixNano() + int64(time.Since(start)) }

// Fields of struct virtio_net_hdr.
const (
	headerFlags     = 0
	headerHdrLen    = 2 // of the headers in front of each segment
	headerCsumStart = 6

	needsCsum = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
)

// VLAN tags.
const (
	macsLen = 12 // bytes of a frame before its type, or its outer tag
	tagLen  = 4
)

// pushTag puts a VLAN tag into the frame of a buffer that has capacity for it.
func pushTag(b []byte, tpid, tci uint16) []byte {
	if len(b) < HeaderLen+macsLen {
		return b
	}
	at := HeaderLen + macsLen
	b = b[:len(b)+tagLen]
	copy(b[at+tagLen:], b[at:])
	binary.BigEndian.PutUint16(b[at:], tpid)
	binary.BigEndian.PutUint16(b[at+2:], tci)
	if b[headerFlags]&needsCsum != 0 {
		advance(b[headerCsumStart:])
	}
	if binary.NativeEndian.Uint16(b[headerHdrLen:]) != 0 {
		advance(b[headerHdrLen:])
	}
	return b
}

// advance moves an offset behind a tag.
func advance(field []byte) {
	binary.NativeEndian.PutUint16(field, binary.NativeEndian.Uint16(field)+tagLen)
}
