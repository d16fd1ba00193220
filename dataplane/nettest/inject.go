//go:build linux

package nettest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Inject sends Ethernet frames from a device, in order. Each frame starts with the destination
// address. The frames pass tc egress and the qdisc; a frame dropped there is not an error. The
// maximum length is the MTU plus an Ethernet header and one VLAN tag, so a frame with two tags
// carries up to 4 bytes less payload.
func (n *Namespace) Inject(dev string, frames ...[]byte) {
	n.t.Helper()
	index := n.Index(dev)
	var err error
	n.Do(func() { err = inject(index, frames) })
	if err != nil {
		n.t.Fatalf("inject into device %q: %v", dev, err)
	}
}

// inject sends frames. The caller must be in the namespace.
func inject(index int, frames [][]byte) error {
	// A veth pair uses a queue for each CPU, so only frames sent on one CPU keep their order.
	unpin, err := pinThread()
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

// Injector returns a function that sends frames like Inject, but with one socket for all
// calls. The order of frames is undefined if the calls run on several CPUs. The function is
// for one goroutine at a time.
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

// openInjector opens a socket to send frames.
func openInjector() (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	// Frames in a qdisc count against the send buffer. If it were full, later frames
	// would not be sent.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketBuffer); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// sendAll sends frames from the device with an index.
func sendAll(fd, index int, frames [][]byte) error {
	for i, frame := range frames {
		if len(frame) < macsLen+2 {
			return fmt.Errorf("frame %d has %d bytes, fewer than an Ethernet header", i, len(frame))
		}
		to := unix.SockaddrLinklayer{
			Protocol: networkOrder(binary.BigEndian.Uint16(frame[macsLen:])), Ifindex: index,
		}
		err := unix.Sendto(fd, frame, 0, &to)
		for errors.Is(err, unix.EINTR) {
			err = unix.Sendto(fd, frame, 0, &to)
		}
		if err != nil && !errors.Is(err, unix.ENOBUFS) { // ENOBUFS: dropped by the qdisc
			return fmt.Errorf("frame %d of %d bytes: %w", i, len(frame), err)
		}
	}
	return nil
}

// pinThread binds the thread to its current CPU.
func pinThread() (unpin func(), err error) {
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
	return func() { _ = unix.SchedSetaffinity(0, &before) }, nil // cannot fail: the thread ran there before
}

// networkOrder is htons(3).
func networkOrder(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}
