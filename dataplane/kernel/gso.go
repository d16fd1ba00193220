package kernel

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
)

// gso is what the stack may hand to a device at once, in bytes: what it was
// before, and the limits that the shapers of each direction ask for, 0 for none.
type gso struct {
	Max, MaxIPv4 uint32
	Limits       [2]uint32
}

// limit is the smallest that anyone asks for, 0 for none.
func (g *gso) limit() uint32 {
	out := uint32(0)
	for _, l := range g.Limits {
		if l != 0 && (out == 0 || l < out) {
			out = l
		}
	}
	return out
}

// setGSO has a direction ask for a limit, 0 for none any more. The last one puts
// back what was before, unless somebody else has changed it meanwhile.
func (st *site) setGSO(direction Hook, limit uint32) error {
	if limit == 0 && (st.GSO == nil || st.GSO.Limits[direction] == 0) {
		return nil
	}
	if st.gone {
		st.GSO = nil
		return st.save(st.iface)
	}
	l, err := netlink.LinkByIndex(st.Index)
	if err != nil {
		return fmt.Errorf("interface %d: %w", st.Index, err)
	}
	a := l.Attrs()
	next := gso{Max: a.GSOMaxSize, MaxIPv4: a.GSOIPv4MaxSize}
	if st.GSO != nil {
		next = *st.GSO
	}
	ours := func(now, before uint32) bool { return now == before || slices.Contains(next.Limits[:], now) }
	maxIs, ipv4Is := ours(a.GSOMaxSize, next.Max), ours(a.GSOIPv4MaxSize, next.MaxIPv4)
	next.Limits[direction] = limit
	if limit != 0 {
		st.GSO = &next
		if err := st.note(); err != nil { // before the change
			return err
		}
	}
	max, ipv4 := next.limit(), next.limit()
	if max == 0 {
		max, ipv4 = next.Max, next.MaxIPv4
	}
	if limit == 0 && !maxIs {
		max = a.GSOMaxSize
	}
	if limit == 0 && !ipv4Is || next.MaxIPv4 == 0 {
		ipv4 = a.GSOIPv4MaxSize
	}
	if err := writeGSO(l, max, ipv4); err != nil {
		return err
	}
	st.GSO = &next
	if next.limit() == 0 {
		st.removed("%s: GSO limit", a.Name)
		st.GSO = nil
	}
	return st.save(st.iface)
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
