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
		s.GSO = &GSO{l.Attrs().GSOMaxSize, l.Attrs().GSOIPv4MaxSize}
	}
	return writeGSO(l, GSO{limit, limit})
}

func (s *Shaper) restoreGSO() error {
	if s.GSO == nil {
		return nil
	}
	was := *s.GSO
	s.GSO = nil
	l, err := netlink.LinkByName(s.Interface)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("interface %s: %w", s.Interface, err)
	}
	return writeGSO(l, was)
}

func writeGSO(l netlink.Link, g GSO) error {
	err := netlink.LinkSetGSOMaxSize(l, int(g.Max))
	if err == nil && g.MaxIPv4 != 0 { // kernel 6.3
		err = netlink.LinkSetGSOIPv4MaxSize(l, int(g.MaxIPv4))
	}
	if err != nil {
		return fmt.Errorf("gso_max_size of %s: %w", l.Attrs().Name, err)
	}
	return nil
}
