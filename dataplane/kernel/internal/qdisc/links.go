package qdisc

import (
	"encoding/binary"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// LinkCounts is the state of a link's class. Packets and bytes are counted as in LeafCounts; those queued
// are in all leaves below. Drops are not counted.
type LinkCounts struct {
	Counts
	Rate   uint64 // bytes/s that it can count on
	Ceil   uint64 // maximum, bytes/s; at least Fastest: that of the link above
	Demand uint64 // bytes/s that it uses at most: its maximum, or the sum of those below it
}

// AllLinkCounts returns the states of our inner HTB classes, by ID. Of the two classes of a link without a
// link above, the counters are those of the lower one and the rates those of the upper one.
func AllLinkCounts(index int) (map[uint16]LinkCounts, error) {
	classes, err := dump(unix.RTM_GETTCLASS, index, 0)
	if err != nil {
		return nil, err
	}
	inOrder(classes)
	out, ofChildren := map[uint16]LinkCounts{}, map[uint16]uint64{}
	for i := len(classes) - 1; i >= 0; i-- {
		c := &classes[i]
		if c.Handle>>16 != Major || c.Kind != HTB {
			continue
		}
		id, parent := uint16(c.Handle), uint16(c.Parent)
		s := out[id]
		queued := s.Counts
		if s.Counts, err = c.counted(); err != nil {
			return nil, err
		}
		s.Queued, s.Backlog = s.Queued+queued.Queued, s.Backlog+queued.Backlog
		if s.Rate, s.Ceil, err = c.rates(); err != nil {
			return nil, err
		}
		s.Demand = s.Ceil
		if sum, inner := ofChildren[id]; inner {
			s.Demand = min(s.Demand, sum)
		}
		out[id] = s
		if c.Parent>>16 != Major {
			continue
		}
		ofChildren[parent] += s.Demand
		above := out[parent]
		above.Queued, above.Backlog = above.Queued+s.Queued, above.Backlog+s.Backlog
		out[parent] = above
	}
	for id, upper := range out {
		if lower, there := out[id-Over]; id > Over && there {
			lower.Rate, lower.Ceil, lower.Demand = upper.Demand, upper.Ceil, upper.Demand
			out[id-Over] = lower
		}
	}
	return out, nil
}

// rates returns the guaranteed rate and the maximum of a class, bytes/s.
func (o *Object) rates() (rate, ceil uint64, err error) {
	attrs, err := Attributes(o.Options)
	const atRate, atCeil = 8, 20 // in struct tc_htb_opt
	if b := attrs[nl.TCA_HTB_PARMS]; len(b) >= atCeil+4 {
		rate = uint64(binary.NativeEndian.Uint32(b[atRate:]))
		ceil = uint64(binary.NativeEndian.Uint32(b[atCeil:]))
	}
	if b := attrs[nl.TCA_HTB_RATE64]; len(b) >= 8 {
		rate = binary.NativeEndian.Uint64(b)
	}
	if b := attrs[nl.TCA_HTB_CEIL64]; len(b) >= 8 {
		ceil = binary.NativeEndian.Uint64(b)
	}
	return rate, ceil, err
}
