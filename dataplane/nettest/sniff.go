//go:build linux

package nettest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	socketBuffer = 64 << 20  // socket buffer, bytes; the kernel counts its overhead per frame too
	maxFrame     = 256 << 10 // maximum frame length, bytes; the default maximum of all offloads is below
	macsLen      = 12        // length of the addresses before an EtherType or VLAN tag, bytes
)

// Frame is a captured frame.
type Frame struct {
	Time int64  // arrival time, ns since 1970
	Data []byte // bytes from the Ethernet header on, with all VLAN tags
}

// Sniffer captures the frames received by a device. Wait and Stop must be called in the goroutine
// of the test.
type Sniffer struct {
	t       TB
	file    *os.File
	conn    syscall.RawConn
	buf     []byte
	oob     []byte
	done    chan struct{} // closed at the end of the reader
	stopped bool

	mu     sync.Mutex
	frames []Frame
	err    error
}

// Sniff captures all frames received by a device from now on, for any destination, but not the
// frames it sends. It captures after XDP and before tc ingress, with the kernel's timestamps. If
// the sender offloads segmentation or checksums (see Offload), frames are longer than the MTU or
// lack a checksum.
func (n *Namespace) Sniff(dev string) *Sniffer {
	n.t.Helper()
	index := n.Index(dev)
	var fd int
	var err error
	n.Do(func() { fd, err = openSniffer(index) })
	if err != nil {
		n.t.Fatalf("sniff on device %q: %v", dev, err)
	}
	s := &Sniffer{
		t:    n.t,
		file: os.NewFile(uintptr(fd), "packet socket"),
		buf:  make([]byte, maxFrame),
		oob:  make([]byte, 256),
		done: make(chan struct{}),
	}
	n.t.Cleanup(func() { s.file.Close() })
	if s.conn, err = s.file.SyscallConn(); err != nil {
		n.t.Fatalf("sniff on device %q: %v", dev, err)
	}
	go func() {
		defer close(s.done)
		_ = s.conn.Read(func(fd uintptr) bool { return !s.drain(int(fd)) }) // ends on Stop or Close
	}()
	return s
}

// openSniffer opens a packet socket, see packet(7). The caller must be in the namespace.
func openSniffer(index int) (fd int, err error) {
	// With protocol 0 the socket receives nothing until it is bound.
	fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	for _, option := range []struct{ level, name, value int }{
		{unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer},
		{unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1},
		{unix.SOL_PACKET, unix.PACKET_AUXDATA, 1},
		{unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1},
	} {
		if err = unix.SetsockoptInt(fd, option.level, option.name, option.value); err != nil {
			return -1, fmt.Errorf("setsockopt %#x: %w", option.name, err)
		}
	}
	if err = awaitTimestamps(); err != nil {
		return -1, err
	}
	return fd, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL), Ifindex: index})
}

// keepTimestamps makes the kernel timestamp all arrivals until the process ends. The kernel
// starts some time after the first socket requests it, seconds on a busy machine. So this
// is done once, and not for every sniffer.
var keepTimestamps = sync.OnceValue(func() error {
	result := make(chan error)
	go func() { // outside of test namespaces: the socket would keep one alive
		_, err := timestamped()
		result <- err
	}()
	return <-result
})

// timestamped opens a UDP socket whose control messages contain the arrival time of a datagram, if
// timestamped by the kernel.
func timestamped() (fd int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	flags := unix.SOF_TIMESTAMPING_RX_SOFTWARE | unix.SOF_TIMESTAMPING_SOFTWARE
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPING, flags); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// awaitTimestamps sends datagrams to itself until the kernel timestamps arrivals. Earlier,
// SO_TIMESTAMPNS would return the time of reading.
func awaitTimestamps() error {
	if err := keepTimestamps(); err != nil {
		return err
	}
	fd, err := timestamped()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	self, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	oob := make([]byte, 256)
	for deadline := time.Now().Add(waitLimit); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if err := unix.Sendto(fd, []byte{0}, 0, self); err != nil {
			return err
		}
		_, n, _, _, err := unix.Recvmsg(fd, []byte{0}, oob, unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			return err
		}
		if n > 0 {
			return nil
		}
	}
	return fmt.Errorf("the kernel does not timestamp arrivals within %v", waitLimit)
}

// drain reads the received frames. It returns false after an error.
func (s *Sniffer) drain(fd int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.err == nil {
		n, oobn, flags, _, err := unix.Recvmsg(fd, s.buf, s.oob, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return true
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENETDOWN): // the device was set down or deleted
			continue
		case err != nil:
			s.err = fmt.Errorf("receive: %w", err)
		case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
			s.err = fmt.Errorf("a frame is longer than %d bytes", len(s.buf))
		default:
			var f Frame
			if f, s.err = frameOf(s.buf[:n], s.oob[:oobn]); s.err == nil {
				s.frames = append(s.frames, f)
			}
		}
	}
	return false
}

// frameOf returns the frame received by recvmsg. It reads the time from the control messages, and
// inserts the VLAN tag removed by the kernel.
func frameOf(data, oob []byte) (Frame, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return Frame{}, err
	}
	f := Frame{Data: slices.Clone(data)}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS:
			f.Time = (*unix.Timespec)(unsafe.Pointer(&m.Data[0])).Nano()
		case m.Header.Level == unix.SOL_PACKET && m.Header.Type == unix.PACKET_AUXDATA:
			aux := (*unix.TpacketAuxdata)(unsafe.Pointer(&m.Data[0]))
			if aux.Status&unix.TP_STATUS_VLAN_VALID == 0 || len(data) < macsLen {
				continue
			}
			tpid := uint16(unix.ETH_P_8021Q)
			if aux.Status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
				tpid = aux.Vlan_tpid
			}
			tag := binary.BigEndian.AppendUint16(nil, tpid)
			tag = binary.BigEndian.AppendUint16(tag, aux.Vlan_tci)
			f.Data = slices.Insert(f.Data, macsLen, tag...)
		}
	}
	if f.Time == 0 {
		return Frame{}, errors.New("a frame has no timestamp")
	}
	return f, nil
}

// Wait waits until n frames have been captured, but no longer than limit. It reports whether
// there are n frames.
func (s *Sniffer) Wait(n int, limit time.Duration) bool {
	for deadline := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		have := len(s.frames)
		s.mu.Unlock()
		if have >= n || time.Now().After(deadline) {
			return have >= n
		}
	}
}

// Stop ends the capture and returns all frames, in order of arrival. If the kernel dropped frames,
// the test fails. Stop may be called again.
func (s *Sniffer) Stop() []Frame {
	s.t.Helper()
	if s.stopped {
		return s.frames
	}
	s.stopped = true
	if err := s.file.SetReadDeadline(time.Now()); err != nil {
		s.t.Fatalf("stop sniffing: %v", err)
	}
	<-s.done
	err := s.conn.Control(func(fd uintptr) {
		s.drain(int(fd))
		stats, err := unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS)
		switch {
		case err != nil:
			s.err = errors.Join(s.err, err)
		case stats.Drops > 0:
			s.err = errors.Join(s.err,
				fmt.Errorf("the kernel dropped %d of %d frames", stats.Drops, stats.Packets))
		}
	})
	if err := errors.Join(s.err, err, s.file.Close()); err != nil {
		s.t.Fatalf("sniff: %v", err)
	}
	return s.frames
}
