//go:build linux && amd64

package chaos

import (
	"net"

	"github.com/vishvananda/netlink"
)

// tapDevice is the device of scenarios with shaper tap.
const tapDevice = "t0"

// useTap sends the probes of egress through the TAP device. They leave by v0 again once it is gone.
func (w *world) useTap() error {
	mac, err := net.ParseMAC(farMAC)
	if err != nil {
		return err
	}
	w.inside(func() {
		var l netlink.Link
		if l, err = netlink.LinkByName(tapDevice); err != nil {
			return
		}
		if err = netlink.LinkSetUp(l); err != nil {
			return
		}
		far := append([]net.IP{w.prober.side[1].address}, addresses()...)
		for _, ip := range far {
			index := l.Attrs().Index
			err = netlink.NeighSet(
				&netlink.Neigh{LinkIndex: index, State: netlink.NUD_PERMANENT, IP: ip, HardwareAddr: mac})
			if err == nil {
				err = netlink.RouteReplace(&netlink.Route{
					LinkIndex: index, Dst: &net.IPNet{IP: ip, Mask: net.CIDRMask(32, 32)},
					Src: w.prober.side[0].address, Scope: netlink.SCOPE_LINK,
				})
			}
			if err != nil {
				return
			}
		}
	})
	return err
}

// addresses are those of the customers.
func addresses() (out []net.IP) {
	for _, ip := range customers {
		out = append(out, ip)
	}
	return out
}
