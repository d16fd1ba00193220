package watch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// Watcher announces changes of interfaces and of their qdiscs, classes and filters. The
// kernel does not announce changes of TCX programs: poll Problems for those. The methods
// can be called concurrently.
type Watcher struct {
	// C receives a value after one or more changes. The receiver should call Problems.
	C <-chan struct{}

	socket  *os.File
	changed chan struct{}
	mu      sync.Mutex
	indexes map[int32]bool
}

// notifications is the size of the socket's receive buffer, in bytes. It has room for
// some 1,000 messages of 2 to 4 KiB.
const notifications = 4 << 20

// New starts to watch this thread's network namespace. It announces changes only of interfaces
// added by Add. The caller must close the Watcher.
func New() (*Watcher, error) {
	w, err := newWatcher()
	if err == nil {
		go w.run()
	}
	return w, err
}

func newWatcher() (*Watcher, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
		unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	// without CAP_NET_ADMIN the buffer is smaller and overflows sooner
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, notifications)
	groups := uint32(1<<(unix.RTNLGRP_LINK-1) | 1<<(unix.RTNLGRP_TC-1))
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("netlink: %w", err)
	}
	changed := make(chan struct{}, 1) // pending changes are merged: only the state after them matters
	return &Watcher{
		C: changed, socket: os.NewFile(uintptr(fd), "netlink"), changed: changed, indexes: map[int32]bool{},
	}, nil
}

// Close stops the watcher. C then receives no more values, and is not closed.
func (w *Watcher) Close() error { return w.socket.Close() }

// Add makes the watcher announce changes of a shaper's interface and ifb device.
func (w *Watcher) Add(s *kernel.Shaper) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.indexes[int32(s.Index)] = true
	w.indexes[int32(s.Place.Index)] = true
}

func (w *Watcher) announce() {
	select {
	case w.changed <- struct{}{}:
	default: // an announcement is pending
	}
}

// run reads messages until Close.
func (w *Watcher) run() {
	buffer := make([]byte, 1<<16)
	for {
		n, err := w.socket.Read(buffer)
		switch {
		case errors.Is(err, unix.ENOBUFS): // messages were lost
			w.announce()
		case err != nil:
			return
		case n == len(buffer) || w.isWatched(buffer[:n]):
			w.announce()
		}
	}
}

// isWatched reports whether any message concerns a watched device. Both struct ifinfomsg
// and struct tcmsg have the index at this offset.
func (w *Watcher) isWatched(b []byte) bool {
	const at = unix.NLMSG_HDRLEN + 4
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(b) >= at+4 {
		if w.indexes[int32(binary.NativeEndian.Uint32(b[at:]))] {
			return true
		}
		length := (int(binary.NativeEndian.Uint32(b)) + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1)
		if length < unix.NLMSG_HDRLEN || length > len(b) {
			return true // malformed: announce it to be safe
		}
		b = b[length:]
	}
	return false
}
