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

// Saved contains the previous qdiscs and classes at the root of an interface, parents before
// children. It is empty for the kernel's default.
type Saved struct{ Before []Object }

// Save reads the qdiscs and classes at the root of an interface. It returns an error if
// Restore could not restore all of them.
func Save(index int) (*Saved, error) {
	list, err := dump(unix.RTM_GETQDISC, index, 0)
	if err != nil {
		return nil, err
	}
	if root := rootOf(list); root == nil || root.Handle == 0 {
		return &Saved{}, nil
	}
	for _, o := range list {
		if o.Kind != HTB { // other kinds make their classes themselves
			continue
		}
		// A dump of all classes would end at a netem: it has a class, but cannot dump it.
		classes, err := dump(unix.RTM_GETTCLASS, index, o.Handle)
		if err != nil {
			return nil, err
		}
		list = append(list, classes...)
	}
	// An object without a handle is made by its parent.
	list = slices.DeleteFunc(list,
		func(o Object) bool { return o.Handle == 0 || o.Parent == netlink.HANDLE_INGRESS })
	for i := range list {
		o := &list[i]
		lost, err := o.lost(index)
		if err != nil {
			return nil, err
		}
		if lost != "" {
			name := fmt.Sprint(index)
			if l, err := netlink.LinkByIndex(index); err == nil {
				name = l.Attrs().Name
			}
			return nil,
				fmt.Errorf("interface %s has %v, but %s could not be restored: remove it first: tc qdisc del dev %[1]s root",
					name, o, lost)
		}
	}
	inOrder(list)
	return &Saved{list}, nil
}

// restorable are the kinds whose dumps suffice to make them again. Dumps of RED and its relatives
// lack their tables.
var restorable = []string{
	"bfifo", "cake", "fq", "fq_codel", "htb", "mq", "netem", "noqueue", "pfifo", "pfifo_fast",
	"pfifo_head_drop", "prio", "sfq", "tbf",
}

// lost returns the name of the part of a qdisc or class missing in a dump, "" for none. It also
// converts HTB's options from the form of dumps to the form of requests.
func (o *Object) lost(index int) (string, error) {
	if !slices.Contains(restorable, o.Kind) {
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
		// struct tc_htb_glob starts with the version: major and minor number in dumps,
		// the major number alone in requests.
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

// Length of and offset in struct tc_netem_qopt, and an attribute after it.
const (
	netemLen    = 24
	netemJitter = 20
	netemSlot   = 12 // TCA_NETEM_SLOT
)

// Restore restores the saved qdiscs and classes; nil stands for the kernel's default. Queued
// packets are dropped. It does nothing if the root qdisc is not ours any more, unless it is the
// saved root, restored incompletely by a killed process.
func (s *Saved) Restore(index int) error {
	root, err := Root(index)
	if err != nil || root == nil {
		return err
	}
	if !root.Ours() && (s == nil || len(s.Before) < 2 || !s.HasRoot(root)) {
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
			err = fmt.Errorf("restore %v on interface %d: %w", &o, index, err)
			if replace != 0 {
				err = errors.Join(err, Remove(index))
			}
			return err
		}
		replace = 0
	}
	return nil
}

// HasRoot reports whether root is the saved root qdisc, by handle and kind. If nothing was
// saved, it reports whether root is the kernel's default. s and root may be nil.
func (s *Saved) HasRoot(root *Object) bool {
	switch {
	case root == nil:
		return false
	case s == nil || len(s.Before) == 0:
		return root.Handle == 0
	}
	return root.Handle == s.Before[0].Handle && root.Kind == s.Before[0].Kind
}
