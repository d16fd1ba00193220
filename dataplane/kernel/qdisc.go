package kernel

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/queue"
)

// Pacer is what makes packets wait in the kernel.
type Pacer string

const (
	FQ  Pacer = "fq"  // the departure time is in skb->tstamp
	HTB Pacer = "htb" // the class of the queue is in skb->priority
)

// major is that of our root's handle, by which what a killed process left is
// known.
const major = 0x5ade

// tree is what the queues of a policy need at the root of an interface. Packets
// of no queue pass it unshaped. An ID of a class stays what it is, a link or a
// leaf, from one tree to the next.
type tree struct {
	Pacer   Pacer
	Horizon time.Duration // of FQ: no packet leaves later
	// Overhead is what HTB adds to the length of a frame, in bytes. A packet that
	// the device cuts counts it once. Below zero HTB does not see the headers of
	// segments, either; with an MTU it assumes them to be those of TCP.
	Overhead int
	MTU      int // of the device; 0 is not known
	Links    []treeLink
	Leaves   []treeLeaf
}

// treeLink is a class whose rate its leaves share.
type treeLink struct {
	ID     uint16        // below over
	Rate   uint64        // bytes/s
	Credit time.Duration // at the rate, that may be saved or made up for
}

// treeLeaf is a class in which packets wait.
type treeLeaf struct {
	ID       uint16        // below over
	Parent   uint16        // a link, or 0
	Rate     uint64        // bytes/s; 0 in a link is all of it
	Credit   time.Duration // in no link: as that of a link
	Priority uint32        // in a link: 0 is served first, 7 last
	Quantum  uint32        // in a link: bytes of a turn; at least the longest packet's
	Limit    uint32        // bytes that may wait; 0 is no limit
	Fair     *fair         // keeps flows apart; nil is first in, first out
}

// fair is what fq_codel is told: CoDel of each flow, and how many packets wait.
type fair struct {
	CoDel   queue.CoDel
	ECN     bool
	Packets uint32
}

// over is added to the ID of a link, or of a leaf of none, for the class over it.
const over = 1 << 15

// qdiscs is what stood at the root of an interface before a tree, parents
// before children: nothing where it was the kernel's default.
type qdiscs struct{ Before []object }

// errForeign says that the tree is there no more.
var errForeign = errors.New("somebody replaced the root qdisc: detach and attach again")

// plant puts the tree in the place of what is at the root of an interface: of what
// standing returned, which comes back if the tree cannot be made.
func (t *tree) plant(index int, before *qdiscs) error {
	if err := t.root().add(index, unix.NLM_F_REPLACE); err != nil {
		return explain(fmt.Errorf("%s qdisc on interface %d: %w", t.Pacer, index, err))
	}
	if err := t.grow(index); err != nil {
		return errors.Join(err, before.restore(index))
	}
	return nil
}

// grow adds and changes what the tree has. A program that selects leaves of it
// comes after that, and before prune.
func (t *tree) grow(index int) error {
	qdiscs, err := dump(unix.RTM_GETQDISC, index, 0)
	if err != nil {
		return err
	}
	root := rootOf(qdiscs)
	if root == nil || root.Handle != major<<16 {
		return errForeign
	}
	next := t.root()
	if root.Kind != next.Kind {
		err = removeRoot(index)
		if err == nil {
			err = next.add(index, unix.NLM_F_EXCL)
		}
	} else {
		if t.Pacer == HTB {
			next.Options = nil // HTB changes nothing but the size table
		}
		err = next.send(unix.RTM_NEWQDISC, 0, index)
	}
	if err != nil {
		return explain(fmt.Errorf("%s qdisc: %w", t.Pacer, err))
	}
	if t.Pacer == FQ {
		return nil
	}
	for _, class := range t.inner() {
		if err := class.add(index, 0); err != nil {
			return fmt.Errorf("HTB %v: %w", class, err)
		}
	}
	classes, err := dump(unix.RTM_GETTCLASS, index, 0)
	if err != nil {
		return err
	}
	for _, l := range t.Leaves {
		class, qdisc := t.leaf(&l), l.qdisc()
		moves := func(c object) bool { return c.Handle == class.Handle && c.Parent != class.Parent }
		if i := slices.IndexFunc(classes, moves); i >= 0 { // HTB cannot
			err = classes[i].send(unix.RTM_DELTCLASS, 0, index)
		}
		if err == nil {
			err = class.add(index, 0)
		}
		if err == nil {
			err = qdisc.add(index, unix.NLM_F_REPLACE)
		}
		if err != nil {
			return fmt.Errorf("HTB class of queue %d: %w", l.ID, err)
		}
	}
	return nil
}

// prune removes the classes that the tree does not have, and what waits there.
func (t *tree) prune(index int) error {
	keep := map[uint32]bool{}
	for _, class := range t.inner() {
		keep[class.Handle] = true
	}
	for _, l := range t.Leaves {
		keep[classID(l.ID)] = true
	}
	classes, err := dump(unix.RTM_GETTCLASS, index, 0)
	if err != nil {
		return err
	}
	classes = slices.DeleteFunc(classes, func(c object) bool { return c.Handle>>16 != major || c.Kind != string(HTB) || keep[c.Handle] })
	inOrder(classes)
	for _, c := range slices.Backward(classes) {
		if err := c.send(unix.RTM_DELTCLASS, 0, index); err != nil {
			return fmt.Errorf("HTB class %x:%x: %w", c.Handle>>16, c.Handle&0xffff, err)
		}
	}
	return nil
}

// restore puts back what stood there; nil is the kernel's default. Packets that
// wait are lost. It does nothing if the root is not ours any more, unless it is
// what a killed process began to put back.
func (q *qdiscs) restore(index int) error {
	list, err := dump(unix.RTM_GETQDISC, index, 0)
	root := rootOf(list)
	if err != nil || root == nil {
		return err
	}
	if root.Handle != major<<16 && (q == nil || len(q.Before) < 2 || root.Handle != q.Before[0].Handle || root.Kind != q.Before[0].Kind) {
		return nil
	}
	if q == nil || len(q.Before) == 0 {
		return removeRoot(index)
	}
	replace := unix.NLM_F_REPLACE
	if root.Handle != major<<16 {
		if err := removeRoot(index); err != nil {
			return err
		}
	}
	for _, o := range q.Before {
		if err := o.add(index, replace); err != nil {
			err = fmt.Errorf("put %v back on interface %d: %w", &o, index, err)
			if replace != 0 {
				err = errors.Join(err, removeRoot(index))
			}
			return err
		}
		replace = 0
	}
	return nil
}

// oursAtRoot says whether a tree of ours is at the root of an interface.
func oursAtRoot(index int) (bool, error) {
	list, err := dump(unix.RTM_GETQDISC, index, 0)
	if err != nil {
		return false, err
	}
	root := rootOf(list)
	return root != nil && root.Handle == major<<16, nil
}

// removeRoot brings back the kernel's default.
func removeRoot(index int) error {
	root := &object{Parent: netlink.HANDLE_ROOT}
	err := root.send(unix.RTM_DELQDISC, 0, index)
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// haveQdisc says why the kernel lacks fq, htb or fq_codel, or nil. It may load a
// module.
func haveQdisc(kind string) error {
	// An option that each refuses, so that no qdisc is made: fq has fewer buckets,
	// HTB has no such option and misses others, fq_codel needs a flow.
	option := number(nl.TCA_FQ_BUCKETS_LOG, math.MaxUint32)
	if kind == fqCoDel {
		option = number(nl.TCA_FQ_CODEL_FLOWS, 0)
	}
	wrong := &object{Parent: netlink.HANDLE_ROOT, Kind: kind, Options: nest(option)}
	err := wrong.add(loopback, unix.NLM_F_REPLACE|unix.NLM_F_EXCL)
	switch {
	case errors.Is(err, unix.EINVAL):
		return nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("this kernel has no %s qdisc, and no module sch_%[1]s", kind)
	}
	return explain(err)
}

const loopback = 1 // its index in every namespace

// queueStats is what a qdisc or a class counted. A leaf counts what left it.
type queueStats struct {
	Packets, Bytes uint64
	Drops          uint64 // packets that found no room
	Waiting        uint32 // packets
	Backlog        uint32 // bytes
}

// leafStats returns what the classes of a tree counted, by ID; FQ has none.
// Bytes are those of frames, with an overhead below 0. Drops are those of the
// qdiscs in them: a class does not see what fq_codel drops later.
func leafStats(index int) (map[uint16]queueStats, error) {
	classes, err := dump(unix.RTM_GETTCLASS, index, 0)
	if err != nil {
		return nil, err
	}
	out := map[uint16]queueStats{}
	for _, c := range classes {
		if c.Handle>>16 != major || c.Kind != string(HTB) {
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
		if q.Parent>>16 != major {
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

// counted is what a qdisc or a class has counted.
func (o *object) counted() (s queueStats, err error) {
	attrs, err := attributes(o.stats)
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

func classID(id uint16) uint32 { return major<<16 | uint32(id) }

const (
	// late is how much a timer that comes late may make up for. It bounds a
	// burst as well: HTB lets a packet go as soon as it owes nothing.
	late  = 500 * time.Microsecond
	hurry = 8  // part of a rate by which what is below it may be faster
	tick  = 64 // ns, in which HTB counts

	least   = 1       // byte/s: HTB allows no less for a class by itself
	fastest = 1 << 40 // bytes/s, more than any link

	directLen = 1000      // packets of no queue that wait for a slow device, as in pfifo_fast
	fqLimit   = 1 << 20   // packets; the program limits its queues by itself
	fqOrphans = 1<<16 - 1 // so that forwarded flows seldom wait for one another
	fqHorizon = 10 * time.Second
)

func (t *tree) root() *object {
	o := &object{Parent: netlink.HANDLE_ROOT, Handle: major << 16, Kind: string(t.Pacer)}
	if t.Pacer == FQ {
		// Others send departure times too, up to the usual horizon. What is
		// beyond it leaves early: to drop is for the program.
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

// lengths is the table by which the kernel finds what a frame counts, by what
// is left of it after the overhead, n: data[n] for what fits the MTU, and beyond
// that, where n = q*size + r, q*data[size-1] + data[r]. So the last entry, which
// no frame has to itself, is what size bytes of a packet that the device cuts
// become with the headers of their segments: those of TCP over IPv4 with
// timestamps, by far the most of such packets.
func (t *tree) lengths() []byte {
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

// Of a size table: TCA_STAB_BASE is a struct tc_sizespec.
const (
	stabBase     = 1
	stabData     = 2
	stabLen      = 24
	stabOverhead = 4
	stabLayer    = 8
	stabSize     = 20 // of the table, which is not shown
)

// inner are the classes that are no leaves, parents before children.
//
// What a rate has fallen behind by, or has saved, is not sent all at once: the
// class over a link, or over a leaf of none, has the rate, and what is below it
// is a little faster.
func (t *tree) inner() (classes []*object) {
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

func (t *tree) rated(id uint16, rate uint64, credit time.Duration) *object {
	return t.class(id+over, 0, rates{rate, rate, max(credit, late)}, 0, 0)
}

func (t *tree) hurried(id uint16, rate uint64) *object {
	return t.class(id, id+over, rates{least, rate + rate/hurry, late}, 0, 0)
}

// leaf leaves it to the link to share its rate.
func (t *tree) leaf(l *treeLeaf) *object {
	switch {
	case l.Parent == 0:
		return t.hurried(l.ID, l.Rate)
	case l.Rate > 0:
		return t.class(l.ID, l.Parent, rates{least, l.Rate, late}, l.Priority, l.Quantum)
	}
	// Were it not faster than the link, others would be served meanwhile.
	return t.class(l.ID, l.Parent, rates{least, fastest, late}, l.Priority, l.Quantum)
}

// rates are those of a class, in bytes/s, and what it may save of them.
type rates struct {
	rate, ceil uint64
	burst      time.Duration
}

func (t *tree) class(id, parent uint16, r rates, priority, quantum uint32) *object {
	o := &object{Class: true, Parent: netlink.HANDLE_ROOT, Handle: classID(id), Kind: string(HTB)}
	if parent != 0 {
		o.Parent = classID(parent)
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

// qdisc is where the packets of a leaf wait. One of the same kind is changed and
// keeps them, so a fifo is a bfifo in any case.
func (l *treeLeaf) qdisc() *object {
	limit := cmp.Or(l.Limit, math.MaxInt32)
	o := &object{Parent: classID(l.ID), Kind: "bfifo", Options: nl.Uint32Attr(limit)}
	if f := l.Fair; f != nil {
		target, interval := f.CoDel.Target, f.CoDel.Interval
		if target == 0 { // never above it
			target, interval = fqHorizon, fqHorizon
		}
		o.Kind = fqCoDel
		// fq_codel's limit in bytes counts the kernel's own memory for each packet, too.
		o.Options = nest(
			number(nl.TCA_FQ_CODEL_LIMIT, f.Packets), number(nl.TCA_FQ_CODEL_MEMORY_LIMIT, min(limit, math.MaxInt32)*2),
			number(nl.TCA_FQ_CODEL_TARGET, uint32(max(target.Microseconds(), 1))),
			number(nl.TCA_FQ_CODEL_INTERVAL, uint32(max(interval.Microseconds(), 1))),
			number(nl.TCA_FQ_CODEL_ECN, uint32(flag(f.ECN))),
		)
	}
	return o
}

const fqCoDel = "fq_codel"
