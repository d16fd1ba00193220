package kernel

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// NoGSOLimit is a Config.GSOLimit that leaves the device's limit unchanged.
const NoGSOLimit = math.MaxUint32

// gso is the journal's record of a device's GSO limits, in bytes.
type gso struct {
	Max, MaxIPv4 uint32    // the device's limits before the first change
	Limits       [2]uint32 // limit that the shaper of each direction needs; 0 for none
}

// smallestLimit returns the smaller of the shapers' limits, or 0 if none needs one.
func (g *gso) smallestLimit() uint32 {
	out := uint32(0)
	for _, l := range g.Limits {
		if l != 0 && (out == 0 || l < out) {
			out = l
		}
	}
	return out
}

// targets returns the values that the device gets: the previous ones, lowered to the
// smallest limit.
func (g *gso) targets() (all, ipv4 uint32) {
	if limit := g.smallestLimit(); limit != 0 {
		return min(g.Max, limit), min(g.MaxIPv4, limit)
	}
	return g.Max, g.MaxIPv4
}

const (
	// gsoMaxTime is the desired transmission time of a GSO packet at the rate of the
	// slowest queue, since other packets are queued behind it. TCP's own pacing has the
	// same aim (sk_pacing_shift).
	gsoMaxTime = time.Millisecond
	// gsoMinInterval is the minimum time between GSO packets of all queues together. It
	// bounds the CPU time that smaller packets cost, and takes precedence over gsoMaxTime.
	gsoMinInterval = 50 * time.Microsecond
	gsoMinSegments = 2 // as tcp_min_tso_segs
	// gsoHeaderBytes is the part of a device's limit that TCP reserves for headers:
	// MAX_TCP_HEADER + 1 of include/net/tcp.h.
	gsoHeaderBytes = 321
)

// gsoLimit returns the GSO limit that the next policy needs, or 0 for none. Unless
// Config.GSOLimit is set, it is the limit that suits the queues, if the device's own
// limit is larger. At ingress there is none: other hosts choose the size of packets.
func (st *site) gsoLimit(next *About, g *image, mtu int) (uint32, error) {
	switch {
	case next.AskedGSO == NoGSOLimit:
		return 0, nil
	case next.AskedGSO != 0:
		return next.AskedGSO, nil
	case g.pacer == "" || next.Direction != Egress || !queuesDefault(g.plan):
		return 0, nil
	}
	limit := uint64(g.gsoSize(mtu)) + gsoHeaderBytes
	before := st.GSO
	if before == nil {
		l, err := netlink.LinkByIndex(st.Index)
		if err != nil {
			return 0, fmt.Errorf("interface %d: %w", st.Index, err)
		}
		before = &gso{Max: l.Attrs().GSOMaxSize, MaxIPv4: l.Attrs().GSOIPv4MaxSize}
	}
	if limit >= uint64(max(before.Max, before.MaxIPv4)) {
		return 0, nil
	}
	return uint32(limit), nil
}

// gsoSize returns the GSO packet size that suits the rates of the queues, in bytes.
func (g *image) gsoSize(mtu int) int64 {
	slowest, sum := int64(math.MaxInt64), int64(0)
	addRate := func(r meter.Rate) {
		bytes := int64(min(bytesPerSecond(r), qdisc.Fastest))
		slowest, sum = min(slowest, bytes), sum+bytes
	}
	for i := range g.plan.Links {
		addRate(g.plan.Links[i].Rate)
	}
	for i := range g.plan.Queues {
		if q := &g.plan.Queues[i]; q.Link < 0 {
			addRate(q.Drain)
		}
	}
	return max(slowest/int64(time.Second/gsoMaxTime), sum/int64(time.Second/gsoMinInterval), int64(gsoMinSegments*mtu))
}

// queuesDefault reports whether the default traffic, which only a class without
// conditions matches, is queued or dropped. If it bypasses the queues, it may be much
// faster than they are, and a limit that suits them would be too small for it.
func queuesDefault(plan *dataplane.Plan) bool {
	for i := range plan.Classes {
		c := &plan.Classes[i]
		if !c.Source.Match.Covers(&dataplane.Match{}) {
			continue
		}
		for color, a := range c.Actions {
			if (meter.Color(color) == meter.Green || c.Stage >= 0) && a.Queue < 0 && !a.Drop {
				return false
			}
		}
		return true
	}
	return plan.DropUnclassified
}

// setGSO sets the limit of one direction's shaper; 0 removes it. When the last limit is
// removed, the device gets its previous values back, except for one that another program
// has changed meanwhile.
func (st *site) setGSO(direction Direction, limit uint32) error {
	if limit == 0 && (st.GSO == nil || st.GSO.Limits[direction] == 0) {
		return nil
	}
	if st.gone {
		st.GSO = nil
		return st.saveJournal(st.iface)
	}
	l, err := netlink.LinkByIndex(st.Index)
	if err != nil {
		return fmt.Errorf("interface %d: %w", st.Index, err)
	}
	now := l.Attrs()
	next := gso{Max: now.GSOMaxSize, MaxIPv4: now.GSOIPv4MaxSize}
	if st.GSO != nil {
		next = *st.GSO
	}
	foreign := func(value, before uint32) bool { return value != before && !slices.Contains(next.Limits[:], value) }
	keepAll := limit == 0 && foreign(now.GSOMaxSize, next.Max)
	keepIPv4 := limit == 0 && foreign(now.GSOIPv4MaxSize, next.MaxIPv4) || next.MaxIPv4 == 0
	next.Limits[direction] = limit
	if limit != 0 {
		st.GSO = &next
		if err := st.saveBeforeChange(); err != nil {
			return err
		}
	}
	all, ipv4 := next.targets()
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
	if next.smallestLimit() == 0 {
		st.addRemoved("%s: GSO limit", now.Name)
		if !keepAll {
			st.addRestored("%s: gso_max_size %d", now.Name, all)
		}
		if !keepIPv4 {
			st.addRestored("%s: gso_ipv4_max_size %d", now.Name, ipv4)
		}
		st.GSO = nil
	}
	return st.saveJournal(st.iface)
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
