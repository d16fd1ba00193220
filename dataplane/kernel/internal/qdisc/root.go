// Package qdisc builds the qdisc trees for pacing packets, fq or HTB with leaves, at the root of an
// interface. It saves the previous qdiscs and restores them. Indexes of interfaces refer to the
// network namespace of the calling thread.
package qdisc

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
)

// Kinds of qdiscs, as tc names them.
const (
	FQ      = "fq"       // sends a packet at the time in skb->tstamp
	HTB     = "htb"      // queues a packet in the class in skb->priority
	FQCoDel = "fq_codel" // the qdisc of a fair leaf of HTB
	Cake    = "cake"     // the same, if hosts get the same
	MQ      = "mq"       // has a qdisc for each hardware queue of a device
)

// Major is the major number of our root's handle. It marks a tree as ours, even if its process was
// killed.
const Major = 0x5ade

// Root returns the root qdisc of an interface, or nil if there is none. The kernel's default
// has handle 0.
func Root(index int) (*Object, error) {
	list, err := dump(unix.RTM_GETQDISC, index, 0)
	if err != nil {
		return nil, err
	}
	return rootOf(list), nil
}

func rootOf(list []Object) *Object {
	i := slices.IndexFunc(list, func(o Object) bool { return o.Parent == netlink.HANDLE_ROOT && !o.Class })
	if i < 0 {
		return nil
	}
	return &list[i]
}

// Ours reports whether a root qdisc is the root of one of our trees. o may be nil.
func (o *Object) Ours() bool { return o != nil && o.Handle == Major<<16 }

// skipStats is RTEXT_FILTER_SKIP_STATS of linux/rtnetlink.h: the answer has no counters.
const skipStats = 1 << 3

// HasTree reports whether the root qdisc of an interface is the root of one of our trees. The kernel lists
// qdiscs of all interfaces at once; HasTree needs that list only if the kind of the root is one of ours.
func HasTree(index int) (bool, error) {
	r := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	about := nl.NewIfInfomsg(unix.AF_UNSPEC)
	about.Index = int32(index)
	r.AddData(about)
	r.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStats)))
	list, err := r.Execute(unix.NETLINK_ROUTE, 0)
	switch {
	case errors.Is(err, unix.ENODEV):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("root qdisc of interface %d: %w", index, err)
	case len(list) == 0 || len(list[0]) < unix.SizeofIfInfomsg:
		return false, fmt.Errorf("root qdisc of interface %d: no answer of the kernel", index)
	}
	attrs, err := Attributes(list[0][unix.SizeofIfInfomsg:])
	if err != nil {
		return false, err
	}
	kind, _, _ := bytes.Cut(attrs[unix.IFLA_QDISC], []byte{0})
	if !slices.Contains([]string{FQ, HTB, MQ}, string(kind)) {
		return false, nil
	}
	root, err := Root(index)
	return root.Ours(), err
}

// Remove removes the root qdisc, if there is one. The kernel replaces it by its default.
func Remove(index int) error {
	root := &Object{Parent: netlink.HANDLE_ROOT}
	err := root.send(unix.RTM_DELQDISC, 0, index)
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// HasClsact reports whether there is a clsact qdisc at an interface, or an ingress qdisc, the older
// form with filters for ingress only.
func HasClsact(index int) (bool, error) {
	list, err := dump(unix.RTM_GETQDISC, index, 0)
	return slices.ContainsFunc(list, func(o Object) bool { return o.Parent == netlink.HANDLE_INGRESS }), err
}

// Have returns nil if the kernel supports a kind of qdisc, otherwise an error with the
// reason. The kernel may load a module.
func Have(kind string) error {
	// Each kind rejects this option, so no qdisc is made: fq allows fewer buckets, HTB
	// requires options of its own, fq_codel requires at least one flow, a number of cake has four bytes.
	option := number(nl.TCA_FQ_BUCKETS_LOG, math.MaxUint32)
	switch kind {
	case FQCoDel:
		option = number(nl.TCA_FQ_CODEL_FLOWS, 0)
	case Cake:
		option = nl.NewRtAttr(cakeTarget, []byte{0})
	}
	wrong := &Object{Parent: netlink.HANDLE_ROOT, Kind: kind, Options: nest(option)}
	err := wrong.add(loopback, unix.NLM_F_REPLACE|unix.NLM_F_EXCL)
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE):
		return nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP):
		return &MissingError{kind}
	}
	return cause.Of(err)
}

// MissingError reports a kind of qdisc unsupported by the kernel.
type MissingError struct{ Kind string }

func (e *MissingError) Error() string {
	return fmt.Sprintf("this kernel has no %s qdisc, and no module sch_%[1]s", e.Kind)
}

const loopback = 1 // its index in every namespace
