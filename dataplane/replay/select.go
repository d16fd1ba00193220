package replay

import (
	"fmt"
	"net/netip"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Way is the direction of a packet at the interface where it was captured.
type Way uint8

const (
	AnyWay Way = iota // in a Selection: both directions; of a packet: unknown
	In                // received
	Out               // sent
)

// String returns any, in or out.
func (w Way) String() string {
	if names := [...]string{"any", "in", "out"}; int(w) < len(names) {
		return names[w]
	}
	return fmt.Sprintf("Way(%d)", uint8(w))
}

// Selection chooses the packets of the replay. All others are treated as absent from the capture,
// except that packets keep their numbers. The zero Selection chooses all.
type Selection struct {
	Filter func(p *dataplane.Packet) bool // reports whether a packet is chosen; nil: every packet is
	Way    Way                            // choose packets of this direction
	// Inside lists the networks behind the interface. A packet from there to another network was
	// sent, and one from another network to there was received. For other packets, and without
	// networks, the capture tells the direction.
	Inside []netip.Prefix
}

func (s *Selection) active() bool { return s.Filter != nil || s.Way != AnyWay }

// selects reports whether a packet is replayed.
func (r *run) selects(rec *record) bool {
	s := &r.cfg.Select
	if s.Filter != nil {
		stamp := rec.Time
		rec.Time = r.timeline.known[0].at(stamp) // only a replayed packet proves a step of the clock
		chosen := s.Filter(rec.Packet)
		rec.Time = stamp
		if !chosen {
			return false
		}
	}
	if s.Way == AnyWay {
		return true
	}
	way := rec.way(s.Inside)
	if way == AnyWay {
		r.summary.Undirected++
		return false
	}
	r.summary.Directed = true
	return way == s.Way
}

// Bits of epb_flags (draft-ietf-opsawg-pcapng §4.3.1) and packet types of Linux cooked
// captures (LINKTYPE_LINUX_SLL).
const (
	flagsDirection = 3
	flagsInbound   = 1
	flagsOutbound  = 2

	sllOutgoing = 4
)

// way returns the direction of a packet, or AnyWay if it is unknown. inside is as in
// Selection.
func (r *record) way(inside []netip.Prefix) Way {
	if len(inside) > 0 {
		if way := wayOf(r.Packet, inside); way != AnyWay {
			return way
		}
	}
	switch r.flags & flagsDirection {
	case flagsInbound:
		return In
	case flagsOutbound:
		return Out
	}
	switch d := r.Data; {
	case r.Link == dataplane.LinkSLL && len(d) >= 2:
		return wayOfType(d[1], d[0] == 0)
	case r.Link == dataplane.LinkSLL2 && len(d) >= 11:
		return wayOfType(d[10], true)
	}
	return AnyWay
}

// wayOfType returns the direction for the packet type in a cooked header.
func wayOfType(kind byte, valid bool) Way {
	switch {
	case !valid || kind > sllOutgoing:
		return AnyWay
	case kind == sllOutgoing:
		return Out
	}
	return In // to this host, broadcast, multicast, or to another host
}

// wayOf returns the direction of a packet by its addresses.
func wayOf(p *dataplane.Packet, inside []netip.Prefix) Way {
	dataplane.ParseOnce(p)
	if !p.IsIP() {
		return AnyWay
	}
	var from, to bool
	src, dst := p.Addresses()
	for _, n := range inside {
		from, to = from || n.Contains(src), to || n.Contains(dst)
	}
	switch {
	case from && !to:
		return Out
	case to && !from:
		return In
	}
	return AnyWay
}
