package qdisc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Saved is the qdiscs and classes at the root of an interface before a tree of ours,
// parents before children. It is empty for the kernel's default.
type Saved struct{ Before []Object }

// Save reads what stands at the root of an interface. It is an error if Restore could
// not put all of that back.
func Save(index int) (*Saved, error) {
	list, err := dump(unix.RTM_GETQDISC, index, 0)
	if err != nil {
		return nil, err
	}
	if root := rootOf(list); root == nil || root.Handle == 0 {
		return &Saved{}, nil
	}
	for _, o := range list {
		if o.Kind != HTB { // the classes of other kinds come with the qdisc
			continue
		}
		// A dump of all classes would end at a netem, which has a class but cannot show it.
		classes, err := dump(unix.RTM_GETTCLASS, index, o.Handle)
		if err != nil {
			return nil, err
		}
		list = append(list, classes...)
	}
	// An object without a handle comes with its parent.
	list = slices.DeleteFunc(list, func(o Object) bool { return o.Handle == 0 || o.Parent == netlink.HANDLE_INGRESS })
	for i := range list {
		o := &list[i]
		why, err := o.lost(index)
		if err != nil {
			return nil, err
		}
		if why != "" {
			name := fmt.Sprint(index)
			if l, err := netlink.LinkByIndex(index); err == nil {
				name = l.Attrs().Name
			}
			return nil, fmt.Errorf("interface %s has %v, and %s could not be put back: remove it first, by tc qdisc del dev %[1]s root", name, o, why)
		}
	}
	inOrder(list)
	return &Saved{list}, nil
}

// faithful are the kinds that show everything needed to make them again. RED and its
// relatives do not show their tables.
var faithful = []string{"bfifo", "cake", "fq", "fq_codel", "htb", "mq", "netem", "noqueue", "pfifo", "pfifo_fast", "pfifo_head_drop", "prio", "sfq", "tbf"}

// lost names the part of a qdisc or class that cannot be read, "" for none. It turns
// the options that HTB shows into those that HTB accepts.
func (o *Object) lost(index int) (string, error) {
	if !slices.Contains(faithful, o.Kind) {
		return "it", nil
	}
	filters, err := dump(unix.RTM_GETTFILTER, index, o.Handle)
	if err != nil {
		return "", err
	}
	if len(filters) > 0 {
		return "its filters", nil
	}
	stab, err := Attributes(o.Stab)
	if err != nil {
		return "", err
	}
	if spec := stab[stabBase]; len(spec) >= stabLen && binary.NativeEndian.Uint32(spec[stabSize:]) != 0 {
		return "its size table", nil
	}
	switch {
	case o.Kind == "netem" && len(o.Options) >= netemLen:
		attrs, err := Attributes(o.Options[netemLen:])
		if err != nil {
			return "", err
		}
		if _, slot := attrs[netemSlot]; slot || binary.NativeEndian.Uint32(o.Options[netemJitter:]) != 0 {
			return "the distribution of its delay", nil
		}
	case o.Kind == HTB && !o.Class:
		// struct tc_htb_glob begins with the version: the kernel shows major and
		// minor number, and accepts the major number alone.
		attrs, err := Attributes(o.Options)
		if err != nil {
			return "", err
		}
		if glob := attrs[nl.TCA_HTB_INIT]; len(glob) >= 4 {
			binary.NativeEndian.PutUint32(glob, binary.NativeEndian.Uint32(glob)>>16)
		}
	}
	return "", nil
}

// Length and offset in struct tc_netem_qopt, and an attribute behind it.
const (
	netemLen    = 24
	netemJitter = 20
	netemSlot   = 12 // TCA_NETEM_SLOT
)

// Restore puts back what was saved; nil is the kernel's default. Queued packets are
// lost. It does nothing if the root qdisc is not ours any more, unless a killed process
// began to put this root back.
func (s *Saved) Restore(index int) error {
	root, err := Root(index)
	if err != nil || root == nil {
		return err
	}
	if !root.Ours() && (s == nil || len(s.Before) < 2 || root.Handle != s.Before[0].Handle || root.Kind != s.Before[0].Kind) {
		return nil
	}
	if s == nil || len(s.Before) == 0 {
		return Remove(index)
	}
	replace := unix.NLM_F_REPLACE
	if !root.Ours() {
		if err := Remove(index); err != nil {
			return err
		}
	}
	for _, o := range s.Before {
		if err := o.add(index, replace); err != nil {
			err = fmt.Errorf("put %v back on interface %d: %w", &o, index, err)
			if replace != 0 {
				err = errors.Join(err, Remove(index))
			}
			return err
		}
		replace = 0
	}
	return nil
}
