package qdisc

import (
	"encoding/binary"
	"errors"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Counts are the counters of a qdisc or a class. A leaf counts the packets that left it.
type Counts struct {
	Packets, Bytes uint64
	Drops          uint64 // packets that found no room
	Waiting        uint32 // packets queued now
	Backlog        uint32 // bytes queued now
}

// LeafCounts returns the counters of our HTB classes by ID. Bytes are those of frames,
// shortened by an overhead below 0. Drops are those of the qdisc in each leaf: a class
// does not see what fq_codel drops later.
func LeafCounts(index int) (map[uint16]Counts, error) {
	classes, err := dump(unix.RTM_GETTCLASS, index, 0)
	if err != nil {
		return nil, err
	}
	out := map[uint16]Counts{}
	for _, c := range classes {
		if c.Handle>>16 != Major || c.Kind != HTB {
			continue
		}
		if out[uint16(c.Handle)], err = c.counted(); err != nil {
			return nil, err
		}
	}
	qdiscs, err := dump(unix.RTM_GETQDISC, index, 0)
	if err != nil {
		return nil, err
	}
	for _, q := range qdiscs {
		if q.Parent>>16 != Major {
			continue
		}
		in, err := q.counted()
		if err != nil {
			return nil, err
		}
		leaf := out[uint16(q.Parent)]
		leaf.Drops = in.Drops
		out[uint16(q.Parent)] = leaf
	}
	return out, nil
}

// Classes returns the handles of the HTB classes of an interface.
func Classes(index int) (map[uint32]bool, error) {
	classes, err := dump(unix.RTM_GETTCLASS, index, 0)
	out := map[uint32]bool{}
	for _, c := range classes {
		out[c.Handle] = c.Kind == HTB
	}
	return out, err
}

// Queued returns how many packets a tree of ours holds.
func Queued(index int) (uint32, error) {
	root, err := Root(index)
	if err != nil || !root.Ours() {
		return 0, err
	}
	s, err := root.counted()
	return s.Waiting, err
}

// Discard removes the queued packets of our tree and returns their number. For HTB it
// is exact: when the kernel removes a leaf, it adds the leaf's backlog to the root's
// drops in one step. FQ has no leaves. Its backlog stays until FQ itself is removed, and
// meanwhile it may send some: exact is false.
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
	if root.Kind == FQ {
		return before.Waiting, before.Waiting == 0, nil
	}
	queued := uint32(0) // no packets are added to leaves any more
	var errs []error
	for _, q := range qdiscs {
		if q.Parent>>16 != Major {
			continue
		}
		in, err := q.counted()
		queued += in.Waiting
		leaf := Object{Parent: q.Parent, Handle: q.Handle}
		errs = append(errs, err, leaf.send(unix.RTM_DELQDISC, 0, index))
	}
	root, err = Root(index)
	if err == nil && root.Ours() {
		var after Counts
		after, err = root.counted()
		packets = min(uint32(after.Drops-before.Drops), queued) // unqueued packets may have found no room meanwhile
	}
	return packets, true, errors.Join(append(errs, err)...)
}

// counted returns the counters of a qdisc or a class.
func (o *Object) counted() (s Counts, err error) {
	attrs, err := Attributes(o.stats)
	if b := attrs[nl.TCA_STATS_BASIC]; len(b) >= 12 {
		s.Bytes, s.Packets = binary.NativeEndian.Uint64(b), uint64(binary.NativeEndian.Uint32(b[8:]))
	}
	if b := attrs[nl.TCA_STATS_PKT64]; len(b) >= 8 { // where 32 bits do not hold them
		s.Packets = binary.NativeEndian.Uint64(b)
	}
	if b := attrs[nl.TCA_STATS_QUEUE]; len(b) >= 12 {
		s.Waiting, s.Backlog, s.Drops = binary.NativeEndian.Uint32(b), binary.NativeEndian.Uint32(b[4:]), uint64(binary.NativeEndian.Uint32(b[8:]))
	}
	return s, err
}
