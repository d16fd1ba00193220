package kernel

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// setGSO caps what the stack hands to the device at once, in bytes, and notes
// what the device had. 0 goes back to that.
func (s *Shaper) setGSO(limit uint32) error {
	if limit == 0 {
		return s.restoreGSO()
	}
	l, err := netlink.LinkByName(s.Interface)
	if err != nil {
		return fmt.Errorf("interface %s: %w", s.Interface, err)
	}
	if s.GSO == nil {
		s.GSO = &GSO{Max: l.Attrs().GSOMaxSize, MaxIPv4: l.Attrs().GSOIPv4MaxSize}
	}
	s.GSO.Limit = limit
	ipv4 := uint32(0)
	if s.GSO.MaxIPv4 != 0 {
		ipv4 = limit
	}
	return writeGSO(l, limit, ipv4)
}

func (s *Shaper) restoreGSO() error {
	was := s.GSO
	s.GSO = nil
	return was.restore(s.Interface)
}

// restore gives a device the limits back that it had.
func (g *GSO) restore(name string) error {
	if g == nil {
		return nil
	}
	l, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("interface %s: %w", name, err)
	}
	return writeGSO(l, g.Max, g.MaxIPv4)
}

// writeGSO sets both limits; the one for IPv4 begins with kernel 6.3.
func writeGSO(l netlink.Link, limit, ipv4 uint32) error {
	err := netlink.LinkSetGSOMaxSize(l, int(limit))
	if err == nil && ipv4 != 0 {
		err = netlink.LinkSetGSOIPv4MaxSize(l, int(ipv4))
	}
	if err != nil {
		return fmt.Errorf("gso_max_size of %s: %w", l.Attrs().Name, err)
	}
	return nil
}
