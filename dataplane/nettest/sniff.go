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
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	socketBuffer = 64 << 20  // bytes, as the kernel accounts frames
	maxFrame     = 256 << 10 // bytes, above what any offload makes by default
	macsLen      = 12        // bytes before an Ethernet type or VLAN tag
)

// Frame is a captured frame.
type Frame struct {
	Time int64  // ns since the epoch, of arrival
	Data []byte // from the Ethernet header on, VLAN tags included
}

// Sniffer captures the frames that arrive on a device. Wait and Stop are for the
// test's goroutine.
type Sniffer struct {
	t       testing.TB
	file    *os.File
	conn    syscall.RawConn
	buf     []byte
	oob     []byte
	done    chan struct{} // closed when nothing reads anymore
	stopped bool

	mu     sync.Mutex
	frames []Frame
	err    error
}

// Sniff captures what arrives on a device from now on, whoever it is for, and
// not what the device sends. It sees a frame after XDP and before tc ingress.
// The kernel gives the times. A frame is as the device received it: longer than
// the MTU, without checksum, where the sender offloads (see Offload).
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
		_ = s.conn.Read(func(fd uintptr) bool { return !s.drain(int(fd)) }) // ends by Stop or Close
	}()
	return s
}

// openSniffer opens a packet socket, see packet(7). It runs in the namespace.
func openSniffer(index int) (fd int, err error) {
	// With protocol 0 the socket hears nothing until it is bound.
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

// keepTimestamps makes the kernel stamp what arrives for as long as the process
// runs. It begins a moment after the first socket asks, which on a busy machine
// is seconds: better once than with every sniffer.
var keepTimestamps = sync.OnceValue(func() error {
	result := make(chan error)
	go func() { // outside of all namespaces: the socket would hold one
		_, err := timestamped()
		result <- err
	}()
	return <-result
})

// timestamped opens a UDP socket whose control messages say when a datagram
// arrived, and nothing where the kernel did not stamp it.
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

// awaitTimestamps returns once the kernel stamps what arrives: until then
// SO_TIMESTAMPNS gives the time of reading. A datagram to oneself shows it.
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
	return errors.New("the kernel stamps no arrivals")
}

// drain reads what has arrived, and says whether more may come.
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
			s.err = fmt.Errorf("a frame is larger than %d bytes", len(s.buf))
		default:
			var f Frame
			if f, s.err = frame(s.buf[:n], s.oob[:oobn]); s.err == nil {
				s.frames = append(s.frames, f)
			}
		}
	}
	return false
}

// frame makes a frame of what recvmsg returned: it takes the time from the
// control messages, and puts the VLAN tag that the kernel took out back in.
func frame(data, oob []byte) (Frame, error) {
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

// Wait returns once n frames have been captured, or limit has passed, and says
// whether there are n.
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

// Stop ends the capture and returns all of it, in order of arrival. The test
// fails where the kernel had to drop frames. Stop may be called again.
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
			s.err = errors.Join(s.err, fmt.Errorf("the kernel dropped %d of %d frames", stats.Drops, stats.Packets))
		}
	})
	if err := errors.Join(s.err, err, s.file.Close()); err != nil {
		s.t.Fatalf("sniff: %v", err)
	}
	return s.frames
}
