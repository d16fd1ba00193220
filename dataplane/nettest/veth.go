//go:build linux

package nettest

import (
	"errors"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// end is what is fixed about one end of a veth pair.
type end struct {
	mac   net.HardwareAddr
	addrs []string
}

var ends = [2]end{
	{mac: net.HardwareAddr{2, 0, 0, 0, 0, 1}, addrs: []string{"10.0.0.1/24", "fd00::1/64"}},
	{mac: net.HardwareAddr{2, 0, 0, 0, 0, 2}, addrs: []string{"10.0.0.2/24", "fd00::2/64"}},
}

// Veth is VethNamed with v0 for both names.
func (n *Namespace) Veth(other *Namespace) {
	n.t.Helper()
	n.VethNamed("v0", other, "v0")
}

// VethNamed joins two namespaces by a veth pair. Both ends are up, have an MTU
// of 1500 bytes, and, in every pair,
//
//	n      02:00:00:00:00:01  10.0.0.1/24  fd00::1/64
//	other  02:00:00:00:00:02  10.0.0.2/24  fd00::2/64
//
// Only what the test sends crosses the pair: each end knows the other as a
// permanent neighbour and neither asks nor answers, by ARP or by neighbour
// discovery (IFF_NOARP). That flag is also why fd00:: joins no multicast group,
// and so reports none. A device set down loses its neighbours and fd00::.
func (n *Namespace) VethNamed(name string, other *Namespace, otherName string) {
	n.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = name, 1500, ends[0].mac
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerHardwareAddr, veth.PeerNamespace = otherName, ends[1].mac, netlink.NsFd(other.fd)
	if err := n.handle.LinkAdd(veth); err != nil {
		n.t.Fatalf("make veth pair %q, %q: %v: is the veth module loaded?", name, otherName, err)
	}
	n.up(name)
	other.up(otherName)
	n.address(name, ends[0], ends[1])
	other.address(otherName, ends[1], ends[0])
}

// Index returns a device's interface index.
func (n *Namespace) Index(name string) int {
	n.t.Helper()
	return n.link(name).Attrs().Index
}

// Delete removes a device, and the other end of a veth pair with it.
func (n *Namespace) Delete(name string) {
	n.t.Helper()
	if err := n.handle.LinkDel(n.link(name)); err != nil {
		n.t.Fatalf("delete device %q: %v", name, err)
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

// up sets a device up that must never join a solicited-node group.
func (n *Namespace) up(name string) {
	n.t.Helper()
	link := n.link(name)
	if err := n.handle.LinkSetARPOff(link); err != nil {
		n.t.Fatalf("turn ARP off on device %q: %v", name, err)
	}
	if err := n.handle.LinkSetUp(link); err != nil {
		n.t.Fatalf("set device %q up: %v", name, err)
	}
}

// address gives a device its own addresses and the peer's as neighbours.
func (n *Namespace) address(name string, own, peer end) {
	n.t.Helper()
	// The kernel notices the carrier in its own time. Until then the device
	// drops what it should send.
	n.await("carrier on "+name, func() bool { return n.link(name).Attrs().OperState == netlink.OperUp })
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
	n.await("addresses of "+name, func() bool { return n.settled(link) })
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

// settled says that no address of a device is tentative: a socket can bind each.
func (n *Namespace) settled(link netlink.Link) bool {
	n.t.Helper()
	addrs, err := n.handle.AddrList(link, netlink.FAMILY_V6)
	if errors.Is(err, netlink.ErrDumpInterrupted) { // they changed meanwhile
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
