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

// NoGSOLimit is a Config.GSOLimit that leaves the device as it is.
const NoGSOLimit = math.MaxUint32

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

const (
	// gsoTime is how long a super-packet may take at the rate of a queue: others
	// wait for it. TCP's own pacing aims at the same (sk_pacing_shift).
	gsoTime = time.Millisecond
	// gsoEach bounds the CPU that the stack spends on more of them: at all rates
	// together one takes that long.
	gsoEach  = 50 * time.Microsecond
	gsoLeast = 2 // segments, as tcp_min_tso_segs
	// gsoHeaders is what the kernel takes off the limit of a device for the
	// headers of TCP: MAX_TCP_HEADER + 1 of include/net/tcp.h.
	gsoHeaders = 321
)

// gsoLimit is the limit that a shaper asks for, 0 for none: what it was told, or
// what suits its queues, where that is less than what the device has. What comes in
// is made by other devices.
func (st *site) gsoLimit(next *About, g *image, mtu int) (uint32, error) {
	switch {
	case next.AskedGSO == NoGSOLimit:
		return 0, nil
	case next.AskedGSO != 0:
		return next.AskedGSO, nil
	case g.pacer == "" || next.Direction != Egress || !queuesDefault(g.plan):
		return 0, nil
	}
	limit := uint64(g.gsoSize(mtu)) + gsoHeaders
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

// gsoSize is what suits the rates of the queues, in bytes.
func (g *image) gsoSize(mtu int) int64 {
	slowest, sum := int64(math.MaxInt64), int64(0)
	rate := func(r meter.Rate) {
		bytes := int64(min(bytesPerSecond(r), qdisc.Fastest))
		slowest, sum = min(slowest, bytes), sum+bytes
	}
	for i := range g.plan.Links {
		rate(g.plan.Links[i].Rate)
	}
	for i := range g.plan.Queues {
		if q := &g.plan.Queues[i]; q.Link < 0 {
			rate(q.Drain)
		}
	}
	return max(slowest/int64(time.Second/gsoTime), sum/int64(time.Second/gsoEach), int64(gsoLeast*mtu))
}

// queuesRest says whether what no class asks for in particular waits, or is
// dropped. Where it passes beside the queues it may be far faster than they are.
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

// setGSO has a direction ask for a limit, 0 for none any more. The last one puts
// back what was before, unless somebody else has changed it meanwhile.
func (st *site) setGSO(direction Direction, limit uint32) error {
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
	max, ipv4 := next.Max, next.MaxIPv4
	if least := next.limit(); least != 0 { // it does not raise what was there
		max, ipv4 = min(max, least), min(ipv4, least)
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
