package qdisc

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Counts are the counters of a qdisc or a class.
type Counts struct {
	Packets, Bytes uint64 // sent
	Drops          uint64 // packets dropped
	Queued         uint32 // packets queued now
	Backlog        uint32 // bytes queued now
}

// Add adds the counters of another class.
func (c *Counts) Add(o Counts) {
	c.Packets, c.Bytes, c.Drops = c.Packets+o.Packets, c.Bytes+o.Bytes, c.Drops+o.Drops
	c.Queued, c.Backlog = c.Queued+o.Queued, c.Backlog+o.Backlog
}

// LeafCounts returns the counters of our HTB classes by ID. Bytes are lengths of frames, plus the
// tree's overhead if it is negative. Drops are from the qdisc in each leaf, because a class does
// not count packets dropped by fq_codel after queueing.
func LeafCounts(index int) (map[uint16]Counts, error) {
	classes, err := dump(unix.RTM_GETTCLASS, index, Major<<16)
	if err != nil {
		return nil, err
	}
	out := map[uint16]Counts{}
	for _, c := range classes {
		if c.Kind != HTB {
			continue
		}
		if out[uint16(c.Handle)], err = c.counted(); err != nil {
			return nil, err
		}
	}
	drops, err := LeafDrops(index)
	for id, n := range drops {
		leaf := out[id]
		leaf.Drops = n
		out[id] = leaf
	}
	return out, err
}

// LeafDrops returns the packets dropped by the qdiscs in our HTB classes, by class ID.
func LeafDrops(index int) (map[uint16]uint64, error) {
	qdiscs, err := dump(unix.RTM_GETQDISC, index, 0)
	if err != nil {
		return nil, err
	}
	out := map[uint16]uint64{}
	for i := range qdiscs {
		q := &qdiscs[i]
		if q.Parent>>16 != Major {
			continue
		}
		in, err := q.counted()
		if err != nil {
			return nil, err
		}
		out[uint16(q.Parent)] = in.Drops
	}
	return out, nil
}

// Classes returns the handles of the HTB classes of an interface, with those of their parents.
func Classes(index int) (map[uint32]uint32, error) {
	classes, err := dump(unix.RTM_GETTCLASS, index, Major<<16)
	out := map[uint32]uint32{}
	for _, c := range classes {
		if c.Kind == HTB {
			out[c.Handle] = c.Parent
		}
	}
	return out, err
}

// MissingBelowMQ returns the number of hardware queues below our MQ, and of those without FQ.
func MissingBelowMQ(index int) (all, missing int, err error) {
	queues, err := (&Tree{Kind: FQ, MQ: true}).belowMQ(index)
	if err != nil {
		return 0, 0, err
	}
	list, err := dump(unix.RTM_GETQDISC, index, 0)
	for _, q := range queues {
		isThere := func(o Object) bool { return o.Parent == q.Parent && o.Kind == FQ }
		if !slices.ContainsFunc(list, isThere) {
			missing++
		}
	}
	return len(queues), missing, err
}

// Queued returns the number of packets queued in our tree; 0 if the root qdisc is not ours.
func Queued(index int) (uint32, error) {
	root, err := Root(index)
	if err != nil || !root.Ours() {
		return 0, err
	}
	s, err := root.counted()
	return s.Queued, err
}

// Discard drops the queued packets of our tree and returns their number. For HTB the number
// is exact, because the kernel adds the backlog of a removed leaf to the root's drops in one
// step. FQ has no leaves. Its backlog remains until FQ is removed, and FQ may send packets
// until then; exact is false.
func Discard(index int) (packets uint32, exact bool, err error) {
	qdiscs, err := dump(unix.RTM_GETQDISC, index, 0)
	root := rootOf(qdiscs)
	if err != nil || !root.Ours() {
		return 0, true, err
	}
	before, err := root.counted()
	if err != nil {
		return 0, true, err
	}
	if root.Kind != HTB {
		return before.Queued, before.Queued == 0, nil
	}
	queued := uint32(0) // an upper bound: no program adds packets to leaves any more
	var errs []error
	for _, q := range qdiscs {
		if q.Parent>>16 != Major {
			continue
		}
		in, err := q.counted()
		queued += in.Queued
		leaf := Object{Parent: q.Parent, Handle: q.Handle}
		errs = append(errs, err, leaf.send(unix.RTM_DELQDISC, 0, index))
	}
	root, err = Root(index)
	if err == nil && root.Ours() {
		var after Counts
		after, err = root.counted()
		// the root may also have dropped packets of no queue
		packets = min(uint32(after.Drops-before.Drops), queued)
	}
	return packets, true, errors.Join(append(errs, err)...)
}

// counted returns the counters of a qdisc or a class.
func (o *Object) counted() (s Counts, err error) {
	attrs, err := Attributes(o.stats)
	if b := attrs[nl.TCA_STATS_BASIC]; len(b) >= 12 {
		s.Bytes, s.Packets = binary.NativeEndian.Uint64(b), uint64(binary.NativeEndian.Uint32(b[8:]))
	}
	if b := attrs[nl.TCA_STATS_PKT64]; len(b) >= 8 { // present if the number exceeds 32 bits
		s.Packets = binary.NativeEndian.Uint64(b)
	}
	if b := attrs[nl.TCA_STATS_QUEUE]; len(b) >= 12 {
		s.Queued, s.Backlog, s.Drops = binary.NativeEndian.Uint32(b), binary.NativeEndian.Uint32(b[4:]),
			uint64(binary.NativeEndian.Uint32(b[8:]))
	}
	return s, err
}
