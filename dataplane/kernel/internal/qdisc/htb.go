package qdisc

import (
	"cmp"
	"encoding/binary"
	"math"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Handle returns the handle of our class with this ID.
func Handle(id uint16) uint32 { return Major<<16 | uint32(id) }

const (
	// Fastest is a rate above any link's, in bytes/s.
	Fastest = 1 << 40

	// timerDelay is the delay of a timer for which HTB catches up at once. HTB sends a packet as
	// soon as its class is free of debt, so this also bounds bursts.
	timerDelay = 500 * time.Microsecond

	// childDelay is timerDelay for the children of links. Their bursts are within the rate of the link
	// unless all of them send their guarantees, so it may be longer: beside a load of 10 on 2 CPUs, a
	// link with one queue then gets 0.495 instead of 0.482 of a fair half beside one with 20.
	childDelay = 2 * time.Millisecond

	// catchUp sets the rate of a class below another one to rate + rate/catchUp, so a
	// class that fell behind catches up gradually.
	catchUp = 8

	htbTick = 64 // ns, the unit of times in HTB's options
	minRate = 1  // bytes/s, the lowest rate that HTB accepts

	directLen = 1000      // limit of packets outside all queues, as in pfifo_fast
	fqLimit   = 1 << 20   // packets; the program limits its queues itself
	fqOrphans = 1<<16 - 1 // buckets of forwarded flows: many, so few flows share one
	fqHorizon = 10 * time.Second
)

// root returns the root qdisc.
func (t *Tree) root() *Object {
	o := &Object{Parent: netlink.HANDLE_ROOT, Handle: Major << 16, Kind: t.Kind}
	switch {
	case t.Kind == FQ && t.MQ:
		o.Kind = MQ
		return o
	case t.Kind == FQ:
		o.Options = t.fqOptions()
		return o
	}
	o.Options = nest(
		nl.NewRtAttr(nl.TCA_HTB_INIT, (&nl.TcHtbGlob{Version: 3, Rate2Quantum: 10}).Serialize()),
		number(nl.TCA_HTB_DIRECT_QLEN, directLen),
	)
	if t.Overhead < 0 { // options of a class accept no negative overhead
		table := t.lengths()
		spec := make([]byte, stabLen) // without a table, the kernel only adds the overhead
		binary.NativeEndian.PutUint32(spec[stabOverhead:], uint32(int32(t.Overhead)))
		binary.NativeEndian.PutUint32(spec[stabLayer:], nl.LINKLAYER_ETHERNET)
		binary.NativeEndian.PutUint32(spec[stabSize:], uint32(len(table)/2))
		attrs := []*nl.RtAttr{nl.NewRtAttr(stabBase, spec)}
		if table != nil {
			attrs = append(attrs, nl.NewRtAttr(stabData, table))
		}
		o.Stab = nest(attrs...)
	}
	return o
}

// fqOptions returns the options of FQ.
func (t *Tree) fqOptions() []byte {
	// Other programs may set departure times up to fq's default horizon. fq sends
	// packets with later times at the horizon; it does not drop them.
	horizon := min(max(t.Horizon+t.Horizon/8, fqHorizon).Microseconds(), math.MaxUint32)
	return nest(
		number(nl.TCA_FQ_PLIMIT, fqLimit), number(nl.TCA_FQ_FLOW_PLIMIT, fqLimit),
		number(nl.TCA_FQ_ORPHAN_MASK, fqOrphans),
		number(nl.TCA_FQ_HORIZON, uint32(horizon)), nl.NewRtAttr(nl.TCA_FQ_HORIZON_DROP, []byte{0}),
	)
}

// belowMQ returns the FQ of each hardware queue; none without MQ.
func (t *Tree) belowMQ(index int) (list []*Object, err error) {
	if !t.MQ {
		return nil, nil
	}
	classes, err := dump(unix.RTM_GETTCLASS, index, Major<<16)
	for _, c := range classes {
		list = append(list, &Object{Parent: c.Handle, Kind: FQ, Options: t.fqOptions()})
	}
	return list, err
}

// lengths returns the kernel's size table: the metered lengths of frames. For a frame of n
// bytes, overhead included, the kernel uses data[n] if n < size, otherwise q*data[size-1] +
// data[r] with n = q*size + r. Frames that fit the MTU have n < size-1. The last entry is
// the length of size bytes of a longer packet after segmentation, with the headers of all
// segments. It assumes TCP over IPv4 with timestamps, by far the most frequent.
//
// lengths returns nil if the MTU is unknown or too large for a table.
func (t *Tree) lengths() []byte {
	const (
		ethernet = 14
		headers  = 20 + 20 + 12
		maxSize  = 1 << 14 // entries: the limit of 64 KiB of attributes
	)
	whole := t.MTU + ethernet + t.Overhead // length of a full segment
	payload := t.MTU - headers
	size := whole + 2
	if payload <= 0 || size > maxSize {
		return nil
	}
	var table []byte
	for n := range size - 1 {
		table = binary.NativeEndian.AppendUint16(table, uint16(n))
	}
	segmented := (size*whole + payload - 1) / payload
	return binary.NativeEndian.AppendUint16(table, uint16(segmented))
}

// Attributes of a size table, and offsets in TCA_STAB_BASE, a struct tc_sizespec.
const (
	stabBase     = 1
	stabData     = 2
	stabLen      = 24
	stabOverhead = 4
	stabLayer    = 8
	stabSize     = 20 // length of the table; the kernel does not return the table itself
)

// inner returns the inner classes, parents before children.
//
// Two classes enforce each rate, so credit and arrears are not sent in one burst. The upper class,
// above a link or above a leaf outside links, has the rate. The class below it is slightly faster.
//
// A link with a parent is one class. HTB knows neither weights nor priorities of inner classes, and
// divides what they borrow by leaf. So the class has the rate that the link can count on.
func (t *Tree) inner() (classes []*Object) {
	for _, l := range t.Links {
		if l.Parent != 0 {
			classes = append(classes, t.link(&l))
			continue
		}
		classes = append(classes, t.rated(l.ID, l.Rate, l.Credit), t.hurried(l.ID, l.Rate))
	}
	for i := range t.Leaves {
		if l := &t.Leaves[i]; l.paired() {
			classes = append(classes, t.rated(l.ID, l.Rate, l.Credit))
		}
	}
	return classes
}

// link returns the class of a link below another one.
func (t *Tree) link(l *Link) *Object { return t.child(l.ID, l.Parent, l.Guarantee, l.Rate, 0, 0) }

// rated returns the upper class of a rate.
func (t *Tree) rated(id uint16, rate uint64, credit time.Duration) *Object {
	return t.class(id+Over, 0, rates{rate, rate, max(credit, timerDelay)}, 0, 0)
}

// hurried returns the lower class of a rate.
func (t *Tree) hurried(id uint16, rate uint64) *Object {
	return t.class(id, id+Over, rates{minRate, rate + rate/catchUp, timerDelay}, 0, 0)
}

// paired reports whether a leaf has a class above it that enforces its rate. The program admits no more
// than that rate, so the leaf below can be a little faster. A fair leaf outside links has one class.
func (l *Leaf) paired() bool { return l.Parent == 0 && l.Fair == nil }

// leaf returns the class of a leaf. A leaf of a link is limited by the link's classes.
func (t *Tree) leaf(l *Leaf) *Object {
	switch {
	case l.paired():
		return t.hurried(l.ID, l.Rate)
	case l.Parent == 0:
		return t.class(l.ID, 0, rates{l.Rate, l.Rate, max(l.Credit, timerDelay)}, 0, l.Quantum)
	}
	return t.child(l.ID, l.Parent, l.Guarantee, l.Rate, l.Priority, l.Quantum)
}

// child returns the class of a link or leaf below a link. It sends its guarantee before it borrows.
func (t *Tree) child(id, parent uint16, guarantee, rate uint64, priority, quantum uint32) *Object {
	// With a leaf no faster than the link, HTB would send packets of lower priorities
	// between those of the leaf.
	r := rates{max(guarantee, minRate), cmp.Or(rate, Fastest), childDelay}
	return t.class(id, parent, r, priority, quantum)
}

// rates are the rates of a class.
type rates struct {
	rate, ceil uint64        // bytes/s
	burst      time.Duration // credit saved up by each rate
}

// class returns a class with an ID below a parent, 0 for the root.
func (t *Tree) class(id, parent uint16, r rates, priority, quantum uint32) *Object {
	o := &Object{Class: true, Parent: netlink.HANDLE_ROOT, Handle: Handle(id), Kind: HTB}
	if parent != 0 {
		o.Parent = Handle(parent)
	}
	spec := func(rate uint64) nl.TcRateSpec {
		return nl.TcRateSpec{
			Linklayer: nl.LINKLAYER_ETHERNET, Overhead: uint16(max(t.Overhead, 0)),
			Rate: uint32(min(rate, math.MaxUint32)),
		}
	}
	options := []*nl.RtAttr{nl.NewRtAttr(nl.TCA_HTB_PARMS, (&nl.TcHtbCopt{
		Rate: spec(r.rate), Ceil: spec(r.ceil),
		Buffer: uint32(r.burst / htbTick), Cbuffer: uint32(r.burst / htbTick),
		Quantum: cmp.Or(quantum, 1514), Prio: priority,
	}).Serialize())}
	if r.rate > math.MaxUint32 {
		options = append(options, nl.NewRtAttr(nl.TCA_HTB_RATE64, nl.Uint64Attr(r.rate)))
	}
	if r.ceil > math.MaxUint32 {
		options = append(options, nl.NewRtAttr(nl.TCA_HTB_CEIL64, nl.Uint64Attr(r.ceil)))
	}
	o.Options = nest(options...)
	return o
}

// qdisc returns the qdisc of a leaf, which is new or not. A qdisc replacing one of the same kind keeps its
// packets, so all fifos are bfifos.
func (l *Leaf) qdisc(isNew bool) *Object {
	limit := cmp.Or(l.Limit, math.MaxInt32)
	o := &Object{Parent: Handle(l.ID), Kind: "bfifo", Options: nl.Uint32Attr(limit)}
	switch f := l.Fair; {
	case f == nil:
	case f.Hosts != NoHosts:
		o.Kind, o.Options = Cake, f.cake(limit)
	default:
		o.Kind, o.Options = FQCoDel, f.fqCoDel(limit)
		if isNew && f.Flows != 0 { // fq_codel cannot change it
			o.Options = append(o.Options, nest(number(nl.TCA_FQ_CODEL_FLOWS, f.Flows))...)
		}
	}
	return o
}

// fqCoDel returns the options of fq_codel with a limit in bytes. Its own limit includes the kernel's
// memory for each packet.
func (f *Fair) fqCoDel(limit uint32) []byte {
	target, interval := f.CoDel.Target, f.CoDel.Interval
	if target == 0 { // no CoDel: a target never exceeded
		target, interval = fqHorizon, fqHorizon
	}
	return nest(
		number(nl.TCA_FQ_CODEL_LIMIT, f.Packets),
		number(nl.TCA_FQ_CODEL_MEMORY_LIMIT, min(limit, math.MaxInt32)*2),
		number(nl.TCA_FQ_CODEL_TARGET, uint32(max(target.Microseconds(), 1))),
		number(nl.TCA_FQ_CODEL_INTERVAL, uint32(max(interval.Microseconds(), 1))),
		number(nl.TCA_FQ_CODEL_ECN, flag(f.ECN)), number(nl.TCA_FQ_CODEL_QUANTUM, f.Quantum),
	)
}

// Attributes and values of cake, of linux/pkt_sched.h.
const (
	cakeDiffserv   = 3
	cakeBestEffort = 3
	cakeFlowMode   = 5
	cakeRTT        = 7
	cakeTarget     = 8
	cakeMemory     = 10
	cakeNAT        = 11
	cakeSplitGSO   = 17
)

// cake returns the options of cake with a limit in bytes. It has no rate: the class has one. Its limit
// includes the kernel's memory for each packet. It finds the hosts behind NAT.
func (f *Fair) cake(limit uint32) []byte {
	return nest(
		number(cakeDiffserv, cakeBestEffort), number(cakeFlowMode, uint32(f.Hosts)),
		number(cakeRTT, uint32(max(f.CoDel.Interval.Microseconds(), 1))),
		number(cakeTarget, uint32(max(f.CoDel.Target.Microseconds(), 1))),
		number(cakeMemory, min(limit, math.MaxInt32)*2), number(cakeNAT, 1), number(cakeSplitGSO, 1),
	)
}

// flag returns 1 for true.
func flag(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}
