package watch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// Watcher announces changes of interfaces and of their qdiscs, classes and filters. The
// kernel does not announce changes of TCX programs: poll Problems for those. The methods
// can be called concurrently.
type Watcher struct {
	socket *os.File

	mu      sync.Mutex
	to      map[int32][]chan<- struct{} // by index of the device
	links   func(Link)                  // nil: nobody asked
	unknown func()
}

// Link is an interface that was added, changed or removed.
type Link struct {
	Index    int
	Name     string
	Loopback bool
	Gone     bool
}

// notifications is the size of the socket's receive buffer, in bytes. It has room for
// some 1,000 messages of 2 to 4 KiB.
const notifications = 4 << 20

// New starts to watch this thread's network namespace. The caller must close the Watcher.
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
	return &Watcher{socket: os.NewFile(uintptr(fd), "netlink"), to: map[int32][]chan<- struct{}{}}, nil
}

// Close stops the watcher.
func (w *Watcher) Close() error { return w.socket.Close() }

// Add announces changes of a shaper's interface and ifb device by a value sent to a channel. The channel
// needs a buffer: while it is full, more changes are announced by the values in it.
func (w *Watcher) Add(s *kernel.Shaper, to chan<- struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, index := range []int32{int32(s.Index), int32(s.Place.Index)} {
		if !slices.Contains(w.to[index], to) {
			w.to[index] = append(w.to[index], to)
		}
	}
}

// Remove ends the announcements to a channel.
func (w *Watcher) Remove(to chan<- struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for index, list := range w.to {
		list = slices.DeleteFunc(list, func(c chan<- struct{}) bool { return c == to })
		if w.to[index] = list; len(list) == 0 {
			delete(w.to, index)
		}
	}
}

// Links calls a function for each interface of the namespace that is added, changed or removed from now
// on, in order, and unknown after notifications were lost. The functions must not call the Watcher.
func (w *Watcher) Links(each func(Link), unknown func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.links, w.unknown = each, unknown
}

// run reads messages until Close.
func (w *Watcher) run() {
	buffer := make([]byte, 1<<16)
	for {
		n, err := w.socket.Read(buffer)
		switch {
		case errors.Is(err, unix.ENOBUFS): // messages were lost
			w.announceAll()
		case err != nil:
			return
		case n == len(buffer) || !w.announce(buffer[:n]):
			w.announceAll()
		}
	}
}

// announceAll announces a possible change of everything.
func (w *Watcher) announceAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, list := range w.to {
		send(list)
	}
	if w.unknown != nil {
		w.unknown()
	}
}

func send(list []chan<- struct{}) {
	for _, c := range list {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// announce announces the changes in messages. It reports false if they are malformed. Both struct
// ifinfomsg and struct tcmsg have the index at this offset.
func (w *Watcher) announce(b []byte) bool {
	const at = unix.NLMSG_HDRLEN + 4
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(b) >= at+4 {
		length := int(binary.NativeEndian.Uint32(b))
		if length < at+4 || length > len(b) {
			return false
		}
		send(w.to[int32(binary.NativeEndian.Uint32(b[at:]))])
		if w.links != nil {
			if l, ok := parseLink(b[:length]); ok {
				w.links(l)
			}
		}
		b = b[min(align(length), len(b)):]
	}
	return true
}

func align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

// parseLink reads a message about an interface. ok is false for other messages, such as those about a
// port that leaves its bridge, which have the family of bridges.
func parseLink(b []byte) (l Link, ok bool) {
	const body = unix.NLMSG_HDRLEN
	kind := binary.NativeEndian.Uint16(b[4:])
	if kind != unix.RTM_NEWLINK && kind != unix.RTM_DELLINK || len(b) < body+unix.SizeofIfInfomsg ||
		b[body] != unix.AF_UNSPEC {
		return l, false
	}
	l.Index, l.Gone = int(int32(binary.NativeEndian.Uint32(b[body+4:]))), kind == unix.RTM_DELLINK
	l.Loopback = binary.NativeEndian.Uint32(b[body+8:])&unix.IFF_LOOPBACK != 0
	for b = b[body+unix.SizeofIfInfomsg:]; len(b) >= unix.SizeofRtAttr; {
		length := int(binary.NativeEndian.Uint16(b))
		if length < unix.SizeofRtAttr || length > len(b) {
			return l, false
		}
		if binary.NativeEndian.Uint16(b[2:]) == unix.IFLA_IFNAME {
			name, _, _ := bytes.Cut(b[unix.SizeofRtAttr:length], []byte{0})
			l.Name = string(name)
			return l, true
		}
		b = b[min(align(length), len(b)):]
	}
	return l, false
}
