package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Watcher announces changes of interfaces, and of qdiscs, classes and filters on
// them. The order of TCX programs is not announced: for that, look once a second.
type Watcher struct {
	// C receives one value after one or more changes: look again.
	C <-chan struct{}

	socket  *os.File
	changed chan struct{}
	mu      sync.Mutex
	indexes map[int32]bool
}

// notifications is how much the socket holds, in bytes: some 1,000 of them, which
// take 2 to 4 KiB each.
const notifications = 4 << 20

// Watch begins to watch this thread's network namespace. It announces nothing
// before Add.
func Watch() (*Watcher, error) {
	w, err := newWatcher()
	if err == nil {
		go w.read()
	}
	return w, err
}

func newWatcher() (*Watcher, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, notifications) // or lose some sooner
	groups := uint32(1<<(unix.RTNLGRP_LINK-1) | 1<<(unix.RTNLGRP_TC-1))
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("netlink: %w", err)
	}
	changed := make(chan struct{}, 1) // many changes are one: all that matters is the state after them
	return &Watcher{C: changed, socket: os.NewFile(uintptr(fd), "netlink"), changed: changed, indexes: map[int32]bool{}}, nil
}

// Close ends it. C receives nothing more.
func (w *Watcher) Close() error { return w.socket.Close() }

// Add watches the devices of a shaper, too.
func (w *Watcher) Add(s *Shaper) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.indexes[int32(s.Index)] = true
	w.indexes[int32(s.Place.Index)] = true
}

func (w *Watcher) announce() {
	select {
	case w.changed <- struct{}{}:
	default: // it is announced already
	}
}

func (w *Watcher) read() {
	buffer := make([]byte, 1<<16)
	for {
		n, err := w.socket.Read(buffer)
		switch {
		case errors.Is(err, unix.ENOBUFS): // more came than the socket holds
			w.announce()
		case err != nil:
			return
		case n == len(buffer) || w.concerns(buffer[:n]):
			w.announce()
		}
	}
}

// concerns says whether any message is about a device that is watched. A struct
// ifinfomsg and a struct tcmsg have its index at the same place.
func (w *Watcher) concerns(b []byte) bool {
	const at = unix.NLMSG_HDRLEN + 4
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(b) >= at+4 {
		if w.indexes[int32(binary.NativeEndian.Uint32(b[at:]))] {
			return true
		}
		length := (int(binary.NativeEndian.Uint32(b)) + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1)
		if length < unix.NLMSG_HDRLEN || length > len(b) {
			return true // not understood: look
		}
		b = b[length:]
	}
	return false
}
