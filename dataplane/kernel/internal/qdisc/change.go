package qdisc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Change gives our tree on an interface the rates, limits and times of t, which has the same kind,
// links and leaves, and sends only differences. Queued packets stay, but fq_codel drops those above
// a smaller limit.
func (t *Tree) Change(index int) error {
	list, err := t.differences(index)
	if err != nil {
		return err
	}
	requests := make([]request, len(list))
	for i, o := range list {
		requests[i] = adding(o, 0)
		requests[i].flags = 0
	}
	return sendAll(index, requests)
}

// differences returns the qdiscs and classes of t whose rates, limits or times differ from those on the
// interface, in the order in which Change sends them: links before queues.
func (t *Tree) differences(index int) (list []*Object, err error) {
	qdiscs, err := dump(unix.RTM_GETQDISC, index, 0)
	if err != nil {
		return nil, err
	}
	root, inLeaf := rootOf(qdiscs), map[uint32]*Object{}
	for i := range qdiscs {
		inLeaf[qdiscs[i].Parent] = &qdiscs[i]
	}
	below := *t
	below.MQ = t.Kind == FQ && root != nil && root.Kind == MQ
	next := below.root()
	if !root.Ours() || root.Kind != next.Kind {
		return nil, errForeign
	}
	addQdisc := func(there, next *Object, kinds ...uint16) error {
		if there == nil || there.Kind != next.Kind {
			return fmt.Errorf("another program removed or replaced %v: reload the policy", next)
		}
		same, err := sameOptions(there, next, kinds)
		if !same {
			next.Handle = there.Handle
			list = append(list, next)
		}
		return err
	}
	switch {
	case below.MQ:
		all, err := below.belowMQ(index)
		for _, o := range all {
			err = errors.Join(err, addQdisc(inLeaf[o.Parent], o, nl.TCA_FQ_HORIZON))
		}
		return list, err
	case t.Kind == FQ:
		err := addQdisc(root, next, nl.TCA_FQ_HORIZON)
		return list, err
	}
	there, err := dump(unix.RTM_GETTCLASS, index, root.Handle) // without the flows of fq_codel
	if err != nil {
		return nil, err
	}
	rates := map[uint32]classRates{}
	for i := range there {
		if rates[there[i].Handle], err = ratesOf(&there[i]); err != nil {
			return nil, err
		}
	}
	addClass := func(class *Object) error {
		want, err := ratesOf(class)
		if err == nil && rates[class.Handle] != want {
			list = append(list, class)
		}
		return err
	}
	for _, class := range t.inner() {
		if err := addClass(class); err != nil {
			return nil, err
		}
	}
	for i := range t.Leaves {
		l := &t.Leaves[i]
		var kinds []uint16
		switch {
		case l.Fair == nil:
		case l.Fair.Hosts != NoHosts:
			kinds = []uint16{cakeRTT, cakeTarget, cakeMemory}
		default:
			kinds = []uint16{
				nl.TCA_FQ_CODEL_LIMIT, nl.TCA_FQ_CODEL_MEMORY_LIMIT, nl.TCA_FQ_CODEL_QUANTUM,
				nl.TCA_FQ_CODEL_TARGET, nl.TCA_FQ_CODEL_INTERVAL,
			}
		}
		if err := errors.Join(addClass(t.leaf(l)),
			addQdisc(inLeaf[Handle(l.ID)], l.qdisc(false), kinds...)); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// classRates are the rates of a class, bytes/s, and their credits, in HTB's ticks.
type classRates struct {
	rate, ceil         uint64
	buffer, ceilBuffer uint32
}

func ratesOf(class *Object) (r classRates, err error) {
	attrs, err := Attributes(class.Options)
	if err != nil {
		return r, err
	}
	params := attrs[nl.TCA_HTB_PARMS]
	if len(params) < nl.SizeofTcHtbCopt {
		return r, fmt.Errorf("%v has no rates", class)
	}
	o := nl.DeserializeTcHtbCopt(params)
	large := func(kind uint16, small uint32) uint64 {
		if b := attrs[kind]; len(b) == 8 {
			return binary.NativeEndian.Uint64(b)
		}
		return uint64(small)
	}
	return classRates{
		large(nl.TCA_HTB_RATE64, o.Rate.Rate), large(nl.TCA_HTB_CEIL64, o.Ceil.Rate), o.Buffer, o.Cbuffer,
	}, nil
}

// sameOptions reports whether a qdisc of the kernel has the same attributes of these kinds as another
// one; without kinds, whether all options are the same.
func sameOptions(there, next *Object, kinds []uint16) (same bool, err error) {
	if kinds == nil {
		return bytes.Equal(there.Options, next.Options), nil
	}
	has, err := Attributes(there.Options)
	if err != nil {
		return false, err
	}
	want, err := Attributes(next.Options)
	for _, k := range kinds {
		value := want[k]
		if next.Kind == FQCoDel && (k == nl.TCA_FQ_CODEL_TARGET || k == nl.TCA_FQ_CODEL_INTERVAL) {
			value = shownTime(value)
		}
		if !bytes.Equal(has[k], value) {
			return false, err
		}
	}
	return true, err
}

// shownTime returns a time of fq_codel, in µs, as the kernel shows it: it keeps units of 1024 ns.
func shownTime(us []byte) []byte {
	ns := uint64(binary.NativeEndian.Uint32(us)) * 1000
	return binary.NativeEndian.AppendUint32(nil, uint32(ns/1024*1024/1000))
}

// ChangeFrom gives our tree on an interface the rates, limits and places of t. It is before with other
// rates, and with other leaves: they are made, and those missing in t stay, with their packets; see
// RemoveEmpty. It asks the kernel nothing, so it takes time for the differences only.
func (t *Tree) ChangeFrom(before *Tree, index int) error {
	var list []request
	changed := func(o *Object, isNew bool, flags int) {
		r := adding(o, flags)
		if !isNew {
			r.flags = 0
		}
		list = append(list, r)
	}
	if t.Kind != HTB || before.Kind != HTB || len(t.Links) != len(before.Links) {
		return t.Change(index)
	}
	for i := range t.Links {
		l := &t.Links[i]
		switch was := &before.Links[i]; {
		case l.ID != was.ID || l.Parent != was.Parent:
			return t.Change(index)
		case *l == *was:
		case l.Parent != 0:
			changed(t.link(l), false, 0)
		default:
			changed(t.rated(l.ID, l.Rate, l.Credit), false, 0)
			changed(t.hurried(l.ID, l.Rate), false, 0)
		}
	}
	there := before.byID()
	for i := range t.Leaves {
		l := &t.Leaves[i]
		was, isNew := there[l.ID], there[l.ID] == nil
		switch {
		case !isNew && l.same(was):
			continue
		case !isNew && (l.Parent != was.Parent || l.paired() != was.paired()):
			return fmt.Errorf("HTB class %x cannot move", l.ID)
		case l.paired():
			changed(t.rated(l.ID, l.Rate, l.Credit), isNew, 0)
		}
		changed(t.leaf(l), isNew, 0)
		if isNew || l.Limit != was.Limit || !l.Fair.same(was.Fair) {
			changed(l.qdisc(isNew), isNew, unix.NLM_F_REPLACE)
		}
	}
	return sendAll(index, list)
}

// byID returns the leaves by the IDs of their classes.
func (t *Tree) byID() map[uint16]*Leaf {
	out := make(map[uint16]*Leaf, len(t.Leaves))
	for i := range t.Leaves {
		out[t.Leaves[i].ID] = &t.Leaves[i]
	}
	return out
}

func (l *Leaf) same(other *Leaf) bool {
	a, b := *l, *other
	a.Fair, b.Fair = nil, nil
	return a == b && l.Fair.same(other.Fair)
}

func (f *Fair) same(other *Fair) bool {
	return f == other || f != nil && other != nil && *f == *other
}

// DropsOf returns the packets dropped by the qdisc in a leaf; 0 without it.
func DropsOf(index int, id uint16) (uint64, error) {
	leaf, err := (&Object{Parent: Handle(id)}).get(index)
	if leaf == nil || err != nil {
		return 0, err
	}
	s, err := leaf.counted()
	return s.Drops, err
}

// RemoveEmpty removes a leaf if it has no packets. It returns the packets that its queue dropped, if it
// removed it.
func RemoveEmpty(index int, id uint16) (drops uint64, removed bool, err error) {
	class := &Object{Class: true, Handle: Handle(id)}
	there, err := class.get(index)
	if err != nil || there == nil {
		return 0, err == nil, err
	}
	s, err := there.counted()
	if err != nil || s.Queued > 0 {
		return 0, false, err
	}
	leaf, err := (&Object{Parent: Handle(id)}).get(index)
	if err != nil {
		return 0, false, err
	}
	if leaf != nil {
		if s, err = leaf.counted(); err != nil || s.Queued > 0 {
			return 0, false, err
		}
		drops = s.Drops
	}
	return drops, true, there.send(unix.RTM_DELTCLASS, 0, index)
}
