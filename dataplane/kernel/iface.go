package kernel

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
)

// iface is an interface, as the kernel knows it: a name may change, and name
// another one later.
type iface struct {
	Namespace uint64 // cookie of the network namespace, never used again
	Index     int
}

// file is the name of a file of the interface.
func (at iface) file(what string) string {
	return fmt.Sprintf("%d-%d-%s", at.Namespace, at.Index, what)
}

// namespace is the cookie of this thread's network namespace. An inode's number
// is used again as soon as a namespace is gone; a cookie is not, until the
// machine restarts.
func namespace() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("network namespace: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("network namespace: %w", err)
	}
	return cookie, nil
}

// device is what a program needs to know of an interface.
type device struct {
	iface
	name string
	mtu  int
	link dataplane.LinkType
}

func findDevice(name string) (*device, error) {
	l, err := netlink.LinkByName(name)
	if cause.NoDevice(err) {
		return nil, &NoInterfaceError{name}
	}
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", name, err)
	}
	here, err := namespace()
	if err != nil {
		return nil, err
	}
	return deviceOf(here, l)
}

// deviceAt is findDevice for an interface that is known.
func deviceAt(at iface) (*device, error) {
	l, err := netlink.LinkByIndex(at.Index)
	if cause.NoDevice(err) {
		return nil, &NoInterfaceError{fmt.Sprint(at.Index)}
	}
	if err != nil {
		return nil, fmt.Errorf("interface %d: %w", at.Index, err)
	}
	return deviceOf(at.Namespace, l)
}

func deviceOf(namespace uint64, l netlink.Link) (*device, error) {
	a := l.Attrs()
	d := &device{iface{namespace, a.Index}, a.Name, a.MTU, dataplane.LinkEthernet}
	switch a.EncapType {
	case "ether", "loopback":
	case "none", "ppp", "sit", "ipip", "tunnel6", "gre", "gre6": // they hand over bare IP packets
		d.link = dataplane.LinkRaw
	default:
		return nil, fmt.Errorf("interface %s: its link layer, %s, is neither Ethernet nor IP", a.Name, a.EncapType)
	}
	return d, nil
}

// linkList are all interfaces of this network namespace.
func linkList() ([]netlink.Link, error) {
	list, err := netlink.LinkList()
	for errors.Is(err, netlink.ErrDumpInterrupted) { // one came or went
		list, err = netlink.LinkList()
	}
	if err != nil {
		err = fmt.Errorf("list interfaces: %w", err)
	}
	return list, err
}

// NoInterfaceError says that there is no interface of that name.
type NoInterfaceError struct{ Name string }

func (e *NoInterfaceError) Error() string { return fmt.Sprintf("there is no interface %s", e.Name) }

// Identity is an interface, whatever it is called.
type Identity iface

// Identity is the interface of a shaper.
func (a *About) Identity() Identity { return Identity(a.iface()) }

// Identify finds an interface by its name.
func Identify(name string) (Identity, error) {
	d, err := findDevice(name)
	if err != nil {
		return Identity{}, err
	}
	return Identity(d.iface), nil
}
