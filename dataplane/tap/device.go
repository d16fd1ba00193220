package tap

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Interface is a network interface opened by Open or OpenUplink.
type Interface struct {
	name  string
	ports []port
}

// port is a Port of the kernel.
type port interface {
	Port
	close() error
}

// Name returns the name of the interface.
func (i *Interface) Name() string { return i.name }

// Ports returns the queues of the interface.
func (i *Interface) Ports() []Port {
	ports := make([]Port, len(i.ports))
	for q, p := range i.ports {
		ports[q] = p
	}
	return ports
}

// Close closes all ports. It must not run concurrently with their methods. A
// TAP device is deleted with its last queue, unless it is persistent.
func (i *Interface) Close() error {
	var errs []error
	for _, p := range i.ports {
		errs = append(errs, p.close())
	}
	i.ports = nil
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close %q: %w", i.name, err)
	}
	return nil
}

// Config describes the TAP device to open.
type Config struct {
	Name   string // at most 15 bytes; a %d is replaced by a free number; empty: "tap%d"
	Queues int    // number of queues, at most 256; 0: 1
	MTU    int    // maximum length of a frame without its Ethernet header, bytes; 0: unchanged
}

// maxQueues is MAX_TAP_QUEUES of the kernel.
const maxQueues = 256

// tun is the device file of all TAP devices; see the kernel's
// Documentation/networking/tuntap.rst.
const tun = "/dev/net/tun"

var errInUse = fmt.Errorf("%w: a program holds it: stop that program, or choose another name", unix.EBUSY)

// Open creates a TAP device, or attaches to an existing unused one, in the network namespace of the
// calling thread. It sets the device up. It needs CAP_NET_ADMIN, except for a persistent device
// owned by the user.
func Open(c Config) (*Interface, error) {
	i, err := c.open()
	if err != nil {
		return nil, fmt.Errorf("open tap %q: %w", c.Name, err)
	}
	return i, nil
}

func (c Config) open() (_ *Interface, err error) {
	queues, err := queueCount(c.Queues)
	if err != nil {
		return nil, err
	}
	if len(c.Name) >= unix.IFNAMSIZ {
		return nil, fmt.Errorf("the name has %d bytes: the maximum is %d", len(c.Name), unix.IFNAMSIZ-1)
	}
	multi, err := c.multiQueue(queues)
	if err != nil {
		return nil, err
	}
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if multi {
		flags |= unix.IFF_MULTI_QUEUE
	}
	i := &Interface{name: c.Name}
	defer func() {
		if err != nil {
			_ = i.Close() // only err matters
		}
	}()
	for range queues {
		fd, name, err := attach(i.name, flags)
		if err != nil {
			return nil, err
		}
		p := &tapPort{fd: fd}
		if err := p.open(fd); err != nil {
			unix.Close(fd)
			return nil, err
		}
		i.name, i.ports = name, append(i.ports, p)
	}
	cutsUDP, err := negotiate(i.ports[0].(*tapPort).fd)
	if err != nil {
		return nil, err
	}
	for _, p := range i.ports {
		p.(*tapPort).cutsUDP = cutsUDP
	}
	return i, i.setUp(c.MTU)
}

// multiQueue reports whether to open the device as multi-queue. An existing
// device must be opened as it was created.
func (c Config) multiQueue(queues int) (multi bool, err error) {
	multi = queues > 1
	if c.Name == "" {
		return multi, nil
	}
	link, err := netlink.LinkByName(c.Name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return multi, nil
	}
	if err != nil {
		return false, fmt.Errorf("look it up: %w", err)
	}
	device, ok := link.(*netlink.Tuntap)
	switch {
	case !ok:
		return false, errors.New("a device of this name exists, and is not a TAP device: choose another name")
	case device.Mode == netlink.TUNTAP_MODE_TUN:
		return false, errors.New(
			"a TUN device of this name exists, without Ethernet headers: choose another name")
	case device.Queues > 0:
		return false, errInUse
	case multi && device.Flags&netlink.TUNTAP_MULTI_QUEUE == 0:
		return false,
			fmt.Errorf("it was created with one queue, not %d: create it with ip tuntap add ... multi_queue, or use one queue",
				queues)
	}
	return device.Flags&netlink.TUNTAP_MULTI_QUEUE != 0, nil
}

// attach opens a queue of a device. It creates the device if it does not exist.
func attach(name string, flags uint16) (fd int, actual string, err error) {
	fd, err = unix.Open(tun, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return -1, "", fmt.Errorf("open %s: %w: modprobe tun; a container needs access to the device", tun,
			err)
	case errors.Is(err, unix.EACCES):
		return -1, "", fmt.Errorf("open %s: %w: run as root, or with CAP_NET_ADMIN and access to it", tun,
			err)
	case err != nil:
		return -1, "", fmt.Errorf("open %s: %w", tun, err)
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(flags)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	switch {
	case err == nil:
		return fd, request.Name(), nil
	case errors.Is(err, unix.EPERM):
		err = fmt.Errorf("%w: run as root, or with CAP_NET_ADMIN", err)
	case errors.Is(err, unix.EBUSY):
		err = errInUse
	case errors.Is(err, unix.EINVAL):
		err = fmt.Errorf("%w: invalid interface name", err)
	}
	unix.Close(fd)
	return -1, "", fmt.Errorf("TUNSETIFF: %w", err)
}

// negotiate sets the header length to HeaderLen and lets the kernel pass frames
// with checksum and segmentation offload. It reports whether the kernel splits
// UDP super packets.
func negotiate(fd int) (cutsUDP bool, err error) {
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, HeaderLen); err != nil {
		return false, fmt.Errorf("TUNSETVNETHDRSZ: %w", err)
	}
	const (
		tcp = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_TSO_ECN
		udp = unix.TUN_F_USO4 | unix.TUN_F_USO6
	)
	err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, tcp|udp)
	if err == nil {
		return true, nil
	}
	if errors.Is(err, unix.EINVAL) { // before Linux 6.2
		err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, tcp)
	}
	if err != nil {
		return false, fmt.Errorf("TUNSETOFFLOAD: %w", err)
	}
	return false, nil
}

// setUp sets the MTU and sets the device up.
func (i *Interface) setUp(mtu int) error {
	link, err := netlink.LinkByName(i.name)
	if err != nil {
		return fmt.Errorf("look it up: %w", err)
	}
	if mtu != 0 {
		if err := netlink.LinkSetMTU(link, mtu); err != nil {
			return fmt.Errorf("set the MTU to %d: %w", mtu, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set it up: %w", err)
	}
	return nil
}

func queueCount(n int) (int, error) {
	if n < 0 || n > maxQueues {
		return 0, fmt.Errorf("%d queues: the number must be 1 to %d", n, maxQueues)
	}
	return max(n, 1), nil
}

// tapPort is a queue of a TAP device. Each read or write is one frame.
type tapPort struct {
	waiter
	fd      int
	cutsUDP bool
}

// CutsUDP reports whether UDP super packets may be written.
func (p *tapPort) CutsUDP() bool { return p.cutsUDP }

func (p *tapPort) Read(into [][]byte) (int, error) {
	n := 0
	for n < len(into) {
		b := into[n][:cap(into[n])]
		size, errno := p.call(unix.SYS_READ, b)
		switch {
		case errno == 0 && size < len(b):
			into[n] = b[:size]
			n++
		case errno == 0: // the frame was truncated
		case errno == unix.EAGAIN:
			return n, nil
		case errno == unix.EBADFD:
			return n, ErrGone
		default:
			return n, fmt.Errorf("read: %w", errno)
		}
	}
	return n, nil
}

func (p *tapPort) Write(frames [][]byte) (int, error) {
	sent := 0
	for i, b := range frames {
		switch _, errno := p.call(unix.SYS_WRITE, b); errno {
		case 0:
			sent++
		case unix.EBADFD:
			return sent, ErrGone
		default: // EIO: down; EINVAL: too short, or the virtio header is inconsistent
			frames[i] = b[:0]
		}
	}
	return sent, nil
}

// call reads or writes a frame. It does not block, so it bypasses the Go
// scheduler.
func (p *tapPort) call(trap uintptr, b []byte) (int, unix.Errno) {
	if len(b) == 0 {
		return 0, unix.EINVAL
	}
	n, _, errno := unix.RawSyscall(trap, uintptr(p.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	return int(n), errno
}

func (p *tapPort) Wait(deadline int64) error {
	events, err := p.wait(deadline)
	if events&unix.EPOLLERR != 0 { // its only cause
		return ErrGone
	}
	return err
}

func (p *tapPort) close() error { return errors.Join(unix.Close(p.fd), p.waiter.close()) }
