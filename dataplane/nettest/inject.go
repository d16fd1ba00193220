//go:build linux

package nettest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Inject sends Ethernet frames out of a device, in order, from the destination
// address on. They pass tc egress and the queueing discipline, which may drop
// them: that is no failure. A frame may be as long as the MTU with an Ethernet
// header and one VLAN tag, so QinQ has 4 bytes less for its payload.
func (n *Namespace) Inject(dev string, frames ...[]byte) {
	n.t.Helper()
	index := n.Index(dev)
	var err error
	n.Do(func() { err = inject(index, frames) })
	if err != nil {
		n.t.Fatalf("inject into device %q: %v", dev, err)
	}
}

// inject runs in the namespace.
func inject(index int, frames [][]byte) error {
	// A veth pair hands frames over by a queue for each CPU, and so keeps the
	// order only of what one CPU sends.
	unpin, err := pin()
	if err != nil {
		return err
	}
	defer unpin()
	fd, err := openInjector()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return sendAll(fd, index, frames)
}

// Injector returns what sends frames out of a device as Inject does, without making a
// socket each time. Frames that are sent on several CPUs have no order. One goroutine
// at a time calls it.
func (n *Namespace) Injector(dev string) (send func(frames ...[]byte) error) {
	n.t.Helper()
	index, fd := n.Index(dev), -1
	var err error
	n.Do(func() { fd, err = openInjector() })
	if err != nil {
		n.t.Fatalf("inject into device %q: %v", dev, err)
	}
	n.t.Cleanup(func() { unix.Close(fd) })
	return func(frames ...[]byte) error { return sendAll(fd, index, frames) }
}

// openInjector opens a socket that sends frames.
func openInjector() (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	// Frames that wait in a queueing discipline fill the buffer, and a full one
	// would hold back the rest.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketBuffer); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func sendAll(fd, index int, frames [][]byte) error {
	for i, frame := range frames {
		if len(frame) < macsLen+2 {
			return fmt.Errorf("frame %d has %d bytes, fewer than an Ethernet header", i, len(frame))
		}
		to := unix.SockaddrLinklayer{Protocol: networkOrder(binary.BigEndian.Uint16(frame[macsLen:])), Ifindex: index}
		err := unix.Sendto(fd, frame, 0, &to)
		for errors.Is(err, unix.EINTR) {
			err = unix.Sendto(fd, frame, 0, &to)
		}
		if err != nil && !errors.Is(err, unix.ENOBUFS) { // ENOBUFS: dropped on its way out
			return fmt.Errorf("frame %d of %d bytes: %w", i, len(frame), err)
		}
	}
	return nil
}

// pin keeps the thread on the CPU that it is on.
func pin() (unpin func(), err error) {
	var cpu uint32
	if _, _, errno := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0); errno != 0 {
		return nil, fmt.Errorf("getcpu: %w", errno)
	}
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return nil, fmt.Errorf("sched_getaffinity: %w", err)
	}
	one.Set(int(cpu))
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return nil, fmt.Errorf("sched_setaffinity: %w", err)
	}
	return func() { _ = unix.SchedSetaffinity(0, &before) }, nil // the thread just ran there
}

// networkOrder is htons.
func networkOrder(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}
