package iface

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
)

// ID identifies an interface independently of its name, which can change and be
// reused.
type ID struct {
	Namespace uint64 // cookie of the network namespace
	Index     int
}

// FileName returns the name of a file of the interface in StateDir.
func (at ID) FileName(suffix string) string {
	return fmt.Sprintf("%d-%d-%s", at.Namespace, at.Index, suffix)
}

// CurrentNamespace returns the cookie of this thread's network namespace. Unlike an
// inode number, a cookie is not reused until the machine restarts.
func CurrentNamespace() (uint64, error) {
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

// Device holds the properties of a network device on which a program depends.
type Device struct {
	ID
	Name     string
	MTU      int // bytes
	LinkType dataplane.LinkType
}

// ByName returns the device of a name. The error is a *NoInterfaceError if there
// is none.
func ByName(name string) (*Device, error) {
	l, err := netlink.LinkByName(name)
	if cause.NoDevice(err) {
		return nil, &NoInterfaceError{name}
	}
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", name, err)
	}
	namespace, err := CurrentNamespace()
	if err != nil {
		return nil, err
	}
	return newDevice(namespace, l)
}

// ByIndex is like ByName.
func ByIndex(at ID) (*Device, error) {
	l, err := netlink.LinkByIndex(at.Index)
	if cause.NoDevice(err) {
		return nil, &NoInterfaceError{fmt.Sprint(at.Index)}
	}
	if err != nil {
		return nil, fmt.Errorf("interface %d: %w", at.Index, err)
	}
	return newDevice(at.Namespace, l)
}

// NameOf returns the name of the interface with an index. The error is a *NoInterfaceError if there is
// none. Unlike a netlink request, it does not wait for changes of other interfaces.
func NameOf(index int) (string, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("interface %d: %w", index, err)
	}
	defer unix.Close(fd)
	request, _ := unix.NewIfreq("") // fails only for long names
	request.SetUint32(uint32(index))
	switch err := unix.IoctlIfreq(fd, unix.SIOCGIFNAME, request); {
	case errors.Is(err, unix.ENODEV):
		return "", &NoInterfaceError{fmt.Sprint(index)}
	case err != nil:
		return "", fmt.Errorf("interface %d: %w", index, err)
	}
	return request.Name(), nil
}

func newDevice(namespace uint64, l netlink.Link) (*Device, error) {
	a := l.Attrs()
	d := &Device{ID{namespace, a.Index}, a.Name, a.MTU, dataplane.LinkEthernet}
	switch a.EncapType {
	case "ether", "loopback":
	case "none", "ppp", "sit", "ipip", "tunnel6", "gre", "gre6": // bare IP packets
		d.LinkType = dataplane.LinkRaw
	default:
		return nil, fmt.Errorf("interface %s: its link layer, %s, is neither Ethernet nor IP", a.Name,
			a.EncapType)
	}
	return d, nil
}

// ListLinks returns all interfaces of this network namespace.
func ListLinks() ([]netlink.Link, error) {
	list, err := netlink.LinkList()
	for errors.Is(err, netlink.ErrDumpInterrupted) { // an interface was added or deleted meanwhile
		list, err = netlink.LinkList()
	}
	if err != nil {
		err = fmt.Errorf("list interfaces: %w", err)
	}
	return list, err
}

// Indexes returns the indexes of interfaces.
func Indexes(links []netlink.Link) map[int]bool {
	out := map[int]bool{}
	for _, l := range links {
		out[l.Attrs().Index] = true
	}
	return out
}

// NoInterfaceError reports a missing interface of this name.
type NoInterfaceError struct{ Name string }

func (e *NoInterfaceError) Error() string { return fmt.Sprintf("there is no interface %s", e.Name) }

// Identify returns the identity of the named interface. The error is a
// *NoInterfaceError if there is none.
func Identify(name string) (ID, error) {
	d, err := ByName(name)
	if err != nil {
		return ID{}, err
	}
	return d.ID, nil
}
