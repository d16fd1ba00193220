package kernel

import (
	"fmt"
	"math"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/rundir"
)

// NoGSOLimit is a Config.GSOLimit that leaves the device's limit unchanged.
const NoGSOLimit = math.MaxUint32

// gsoHeaderBytes is the part of a device's limit reserved by TCP for headers: MAX_TCP_HEADER + 1 of
// include/net/tcp.h.
const gsoHeaderBytes = 321

// gsoLimit returns the GSO limit that the next policy needs, or 0 for none. Unless Config.GSOLimit
// is set, it is the limit for the queues, if the device's own limit is larger. At ingress there is
// none: other hosts choose the size of packets.
func (st *site) gsoLimit(next *About, g *image.Image, mtu int) (uint32, error) {
	switch {
	case next.AskedGSO == NoGSOLimit:
		return 0, nil
	case next.AskedGSO != 0:
		return next.AskedGSO, nil
	case g.Pacer == "" || next.Direction != Egress:
		return 0, nil
	}
	size := g.GsoSize(mtu)
	if size == 0 {
		return 0, nil
	}
	limit := uint64(size) + gsoHeaderBytes
	before := st.GSO
	if before == nil {
		l, err := netlink.LinkByIndex(st.Index)
		if err != nil {
			return 0, fmt.Errorf("interface %d: %w", st.Index, err)
		}
		before = &rundir.GSOLimits{Max: l.Attrs().GSOMaxSize, MaxIPv4: l.Attrs().GSOIPv4MaxSize}
	}
	if limit >= uint64(max(before.Max, before.MaxIPv4)) {
		return 0, nil
	}
	return uint32(limit), nil
}

// setGSO sets the limit of one direction's shaper; 0 removes it. When the last limit is removed,
// the device gets its previous values back, except for one that another program changed meanwhile.
func (st *site) setGSO(direction dataplane.Direction, limit uint32) error {
	if limit == 0 && (st.GSO == nil || st.GSO.Limits[direction] == 0) {
		return nil
	}
	if st.gone {
		st.GSO = nil
		return st.SaveJournal(st.ID)
	}
	l, err := netlink.LinkByIndex(st.Index)
	if err != nil {
		return fmt.Errorf("interface %d: %w", st.Index, err)
	}
	now := l.Attrs()
	next := rundir.GSOLimits{Max: now.GSOMaxSize, MaxIPv4: now.GSOIPv4MaxSize}
	if st.GSO != nil {
		next = *st.GSO
	}
	foreign := func(value, before uint32) bool {
		return value != before && !slices.Contains(next.Limits[:], value)
	}
	keepAll := limit == 0 && foreign(now.GSOMaxSize, next.Max)
	keepIPv4 := limit == 0 && foreign(now.GSOIPv4MaxSize, next.MaxIPv4) || next.MaxIPv4 == 0
	next.Limits[direction] = limit
	if limit != 0 {
		st.GSO = &next
		if err := st.saveBeforeChange(); err != nil {
			return err
		}
	}
	all, ipv4 := next.Targets()
	if keepAll {
		all = now.GSOMaxSize
	}
	if keepIPv4 {
		ipv4 = now.GSOIPv4MaxSize
	}
	if err := writeGSO(l, all, ipv4); err != nil {
		return err
	}
	st.GSO = &next
	if next.SmallestLimit() == 0 {
		st.addRemoved("%s: GSO limit", now.Name)
		if !keepAll {
			st.addRestored("%s: gso_max_size %d", now.Name, all)
		}
		if !keepIPv4 {
			st.addRestored("%s: gso_ipv4_max_size %d", now.Name, ipv4)
		}
		st.GSO = nil
	}
	return st.SaveJournal(st.ID)
}

// writeGSO sets both limits of a device. The one for IPv4 exists since kernel 6.3; 0
// leaves it unchanged.
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
