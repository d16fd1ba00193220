package qdisc

import (
	"cmp"
	"encoding/binary"
	"math"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
)

// Handle returns the handle of our class with an ID.
func Handle(id uint16) uint32 { return Major<<16 | uint32(id) }

const (
	// Fastest is more than the rate of any link, in bytes/s.
	Fastest = 1 << 40

	// late is how much delay of a timer HTB may make up for. It bounds a burst as
	// well: HTB lets a packet go as soon as it owes nothing.
	late  = 500 * time.Microsecond
	hurry = 8  // a class below another may be faster by this part of its rate
	tick  = 64 // ns, the unit of HTB's times
	least = 1  // byte/s, the lowest rate that HTB allows a class

	directLen = 1000      // packets of no queue that wait for a slow device, as in pfifo_fast
	fqLimit   = 1 << 20   // packets; the program itself limits its queues
	fqOrphans = 1<<16 - 1 // many, so that forwarded flows seldom wait for one another
	fqHorizon = 10 * time.Second
)

func (t *Tree) root() *Object {
	o := &Object{Parent: netlink.HANDLE_ROOT, Handle: Major << 16, Kind: t.Kind}
	if t.Kind == FQ {
		// Other programs set departure times too, up to the usual horizon. A packet
		// with a later time leaves early and is not dropped: our program drops.
		horizon := min(max(t.Horizon+t.Horizon/8, fqHorizon).Microseconds(), math.MaxUint32)
		o.Options = nest(
			number(nl.TCA_FQ_PLIMIT, fqLimit), number(nl.TCA_FQ_FLOW_PLIMIT, fqLimit),
			number(nl.TCA_FQ_ORPHAN_MASK, fqOrphans),
			number(nl.TCA_FQ_HORIZON, uint32(horizon)), nl.NewRtAttr(nl.TCA_FQ_HORIZON_DROP, []byte{0}),
		)
		return o
	}
	o.Options = nest(
		nl.NewRtAttr(nl.TCA_HTB_INIT, (&nl.TcHtbGlob{Version: 3, Rate2Quantum: 10}).Serialize()),
		number(nl.TCA_HTB_DIRECT_QLEN, directLen),
	)
	if t.Overhead < 0 { // a class can only add
		table := t.lengths()
		spec := make([]byte, stabLen) // without a table the length is just shifted
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

// lengths returns the table in which the kernel looks up the length that a frame counts
// with. It uses n, the frame's length plus the overhead: data[n] if that fits the MTU,
// otherwise q*data[size-1] + data[r], where n = q*size + r. No frame uses the last entry
// alone. It is the length of size bytes of a packet after the device has cut it into
// segments, with the headers of these: TCP over IPv4 with timestamps, by far the most
// frequent.
func (t *Tree) lengths() []byte {
	const (
		ethernet = 14
		headers  = 20 + 20 + 12
		most     = 1 << 14 // entries: 64 KiB of attributes hold no more
	)
	whole := t.MTU + ethernet + t.Overhead // of a full segment
	payload := t.MTU - headers
	size := whole + 2
	if payload <= 0 || size > most {
		return nil
	}
	var table []byte
	for n := range size - 1 {
		table = binary.NativeEndian.AppendUint16(table, uint16(n))
	}
	cut := (size*whole + payload - 1) / payload
	return binary.NativeEndian.AppendUint16(table, uint16(cut))
}

// Attributes of a size table, and offsets in TCA_STAB_BASE, a struct tc_sizespec.
const (
	stabBase     = 1
	stabData     = 2
	stabLen      = 24
	stabOverhead = 4
	stabLayer    = 8
	stabSize     = 20 // length of the table, which the kernel does not show
)

// inner returns the classes that are no leaves, parents before children.
//
// Two classes enforce each rate, so that what it saved or fell behind by does not leave
// all at once: the upper class, over a link or over a leaf outside links, has the rate,
// and the class below it a slightly higher one.
func (t *Tree) inner() (classes []*Object) {
	for _, l := range t.Links {
		classes = append(classes, t.rated(l.ID, l.Rate, l.Credit), t.hurried(l.ID, l.Rate))
	}
	for _, l := range t.Leaves {
		if l.Parent == 0 {
			classes = append(classes, t.rated(l.ID, l.Rate, l.Credit))
		}
	}
	return classes
}

func (t *Tree) rated(id uint16, rate uint64, credit time.Duration) *Object {
	return t.class(id+Over, 0, rates{rate, rate, max(credit, late)}, 0, 0)
}

func (t *Tree) hurried(id uint16, rate uint64) *Object {
	return t.class(id, id+Over, rates{least, rate + rate/hurry, late}, 0, 0)
}

// leaf returns the class of a leaf. The link of the leaf shares its rate.
func (t *Tree) leaf(l *Leaf) *Object {
	switch {
	case l.Parent == 0:
		return t.hurried(l.ID, l.Rate)
	case l.Rate > 0:
		return t.class(l.ID, l.Parent, rates{least, l.Rate, late}, l.Priority, l.Quantum)
	}
	// A leaf no faster than the link would let lower priorities go between its packets.
	return t.class(l.ID, l.Parent, rates{least, Fastest, late}, l.Priority, l.Quantum)
}

// rates are the rates of a class, in bytes/s, and how much of them it may save.
type rates struct {
	rate, ceil uint64
	burst      time.Duration
}

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
		Buffer: uint32(r.burst / tick), Cbuffer: uint32(r.burst / tick),
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

// qdisc returns the qdisc that holds the packets of a leaf. One that replaces another of
// its kind keeps the packets, so each fifo is a bfifo.
func (l *Leaf) qdisc() *Object {
	limit := cmp.Or(l.Limit, math.MaxInt32)
	o := &Object{Parent: Handle(l.ID), Kind: "bfifo", Options: nl.Uint32Attr(limit)}
	if f := l.Fair; f != nil {
		target, interval := f.CoDel.Target, f.CoDel.Interval
		ecn := uint32(0)
		if f.ECN {
			ecn = 1
		}
		if target == 0 { // no CoDel: a target that no packet exceeds
			target, interval = fqHorizon, fqHorizon
		}
		o.Kind = FQCoDel
		// fq_codel's limit in bytes includes the kernel's own memory for each packet.
		o.Options = nest(
			number(nl.TCA_FQ_CODEL_LIMIT, f.Packets), number(nl.TCA_FQ_CODEL_MEMORY_LIMIT, min(limit, math.MaxInt32)*2),
			number(nl.TCA_FQ_CODEL_TARGET, uint32(max(target.Microseconds(), 1))),
			number(nl.TCA_FQ_CODEL_INTERVAL, uint32(max(interval.Microseconds(), 1))),
			number(nl.TCA_FQ_CODEL_ECN, ecn),
		)
	}
	return o
}
