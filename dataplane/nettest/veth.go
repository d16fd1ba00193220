//go:build linux

package nettest

import (
	"errors"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// end contains the addresses of one end of a veth pair.
type end struct {
	mac   net.HardwareAddr
	addrs []string
}

var ends = [2]end{
	{mac: net.HardwareAddr{2, 0, 0, 0, 0, 1}, addrs: []string{"10.0.0.1/24", "fd00::1/64"}},
	{mac: net.HardwareAddr{2, 0, 0, 0, 0, 2}, addrs: []string{"10.0.0.2/24", "fd00::2/64"}},
}

// Veth connects two namespaces by VethNamed, with the name v0 for both ends.
func (n *Namespace) Veth(other *Namespace) {
	n.t.Helper()
	n.VethNamed("v0", other, "v0")
}

// VethNamed connects two namespaces by a veth pair. Both ends are up, with an MTU of 1500 bytes.
// Every pair uses the same addresses:
//
//	n      02:00:00:00:00:01  10.0.0.1/24  fd00::1/64
//	other  02:00:00:00:00:02  10.0.0.2/24  fd00::2/64
//
// The pair carries only the packets of the test. Each end knows the other as a permanent neighbour,
// and sends no ARP and no neighbour discovery (IFF_NOARP). With this flag the devices also join no
// multicast groups, and so send no reports. Setting a device down removes its neighbours and its
// fd00:: address.
func (n *Namespace) VethNamed(name string, other *Namespace, otherName string) {
	n.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = name, 1500, ends[0].mac
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerHardwareAddr, veth.PeerNamespace = otherName, ends[1].mac, netlink.NsFd(other.fd)
	if err := n.handle.LinkAdd(veth); err != nil {
		n.t.Fatalf("create veth pair %q, %q: %v: is the veth module loaded?", name, otherName, err)
	}
	n.setUp(name)
	other.setUp(otherName)
	n.addAddresses(name, ends[0], ends[1])
	other.addAddresses(otherName, ends[1], ends[0])
}

// Index returns the interface index of a device.
func (n *Namespace) Index(name string) int {
	n.t.Helper()
	return n.link(name).Attrs().Index
}

// Delete deletes a device. The other end of a veth pair is deleted with it.
func (n *Namespace) Delete(name string) {
	n.t.Helper()
	if err := n.handle.LinkDel(n.link(name)); err != nil {
		n.t.Fatalf("delete device %q: %v", name, err)
	}
}

// Move moves a device to another namespace. The device is down there, without addresses.
func (n *Namespace) Move(name string, other *Namespace) {
	n.t.Helper()
	if err := n.handle.LinkSetNsFd(n.link(name), other.fd); err != nil {
		n.t.Fatalf("move device %q to another network namespace: %v", name, err)
	}
}

func (n *Namespace) link(name string) netlink.Link {
	n.t.Helper()
	link, err := n.handle.LinkByName(name)
	if err != nil {
		n.t.Fatalf("find device %q: %v", name, err)
	}
	return link
}

// setUp sets a device up. It turns ARP off first, so the device never joins a solicited-node
// multicast group.
func (n *Namespace) setUp(name string) {
	n.t.Helper()
	link := n.link(name)
	if err := n.handle.LinkSetARPOff(link); err != nil {
		n.t.Fatalf("turn ARP off on device %q: %v", name, err)
	}
	if err := n.handle.LinkSetUp(link); err != nil {
		n.t.Fatalf("set device %q up: %v", name, err)
	}
}

// AwaitCarrier waits until a device that is up has a carrier. The kernel detects it with a delay. Until then
// the device drops all packets.
func (n *Namespace) AwaitCarrier(name string) {
	n.t.Helper()
	n.await("carrier on "+name, func() bool { return n.link(name).Attrs().OperState == netlink.OperUp })
}

// addAddresses adds a device's own addresses, and those of its peer as neighbours.
func (n *Namespace) addAddresses(name string, own, peer end) {
	n.t.Helper()
	n.AwaitCarrier(name)
	link := n.link(name)
	for _, s := range own.addrs {
		addr, err := netlink.ParseAddr(s)
		if err != nil {
			n.t.Fatal(err)
		}
		if err := n.handle.AddrAdd(link, addr); err != nil {
			n.t.Fatalf("add %s to device %q: %v", s, name, err)
		}
	}
	n.await("addresses of "+name, func() bool { return n.addressesReady(link) })
	for _, s := range peer.addrs {
		addr, err := netlink.ParseAddr(s)
		if err != nil {
			n.t.Fatal(err)
		}
		err = n.handle.NeighSet(&netlink.Neigh{
			LinkIndex:    link.Attrs().Index,
			State:        netlink.NUD_PERMANENT,
			IP:           addr.IP,
			HardwareAddr: peer.mac,
		})
		if err != nil {
			n.t.Fatalf("add neighbour %v to device %q: %v", addr.IP, name, err)
		}
	}
}

// addressesReady reports whether no address of a device is tentative: sockets can bind to all
// of them.
func (n *Namespace) addressesReady(link netlink.Link) bool {
	n.t.Helper()
	addrs, err := n.handle.AddrList(link, netlink.FAMILY_V6)
	if errors.Is(err, netlink.ErrDumpInterrupted) { // the addresses changed during the dump
		return false
	}
	if err != nil {
		n.t.Fatalf("list the addresses of device %q: %v", link.Attrs().Name, err)
	}
	for _, addr := range addrs {
		if addr.Flags&unix.IFA_F_TENTATIVE != 0 {
			return false
		}
	}
	return true
}
