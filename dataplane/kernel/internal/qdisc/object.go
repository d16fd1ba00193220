package qdisc

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sort"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Object is a qdisc or a class in netlink's representation.
type Object struct {
	Class   bool   `json:",omitempty"` // a class, otherwise a qdisc
	Parent  uint32 // handle
	Handle  uint32
	Kind    string // such as "htb"
	Options []byte `json:",omitempty"` // TCA_OPTIONS
	Stab    []byte `json:",omitempty"` // TCA_STAB, the size table
	stats   []byte // TCA_STATS2
}

func (o *Object) String() string {
	noun := "the qdisc"
	if o.Class {
		noun = "the class"
	}
	return fmt.Sprintf("%s %s %x:%x", noun, o.Kind, o.Handle>>16, o.Handle&0xffff)
}

// inOrder sorts parents before children.
func inOrder(list []Object) {
	type key struct {
		class  bool
		handle uint32
	}
	byKey := map[key]*Object{}
	for _, o := range slices.Clone(list) {
		byKey[key{o.Class, o.Handle}] = &o
	}
	var depth func(o *Object) int
	depth = func(o *Object) int {
		parent := byKey[key{true, o.Parent}]
		switch {
		case parent != nil:
		case o.Class:
			parent = byKey[key{false, o.Handle &^ 0xffff}]
		default:
			parent = byKey[key{false, o.Parent &^ 0xffff}]
		}
		if parent == nil {
			return 0
		}
		return depth(parent) + 1
	}
	sort.SliceStable(list, func(i, j int) bool { return depth(&list[i]) < depth(&list[j]) })
}

// add makes the object on an interface, or changes the existing one. flags are NLM_F_EXCL or
// NLM_F_REPLACE, or 0.
func (o *Object) add(index, flags int) error {
	r := adding(o, flags)
	return o.send(r.message, r.flags, index)
}

// send sends a netlink request about the object and waits for the result.
func (o *Object) send(message, flags, index int) error {
	_, err := o.request(message, flags, index).Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// request returns a netlink request about the object.
func (o *Object) request(message, flags, index int) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(message, flags|unix.NLM_F_ACK)
	r.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(index), Parent: o.Parent, Handle: o.Handle})
	if o.Kind != "" {
		r.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated(o.Kind)))
	}
	if o.Options != nil {
		r.AddData(nl.NewRtAttr(nl.TCA_OPTIONS, o.Options))
	}
	if o.Stab != nil {
		r.AddData(nl.NewRtAttr(nl.TCA_STAB, o.Stab))
	}
	return r
}

// dump returns the qdiscs, classes or filters of an interface. message is RTM_GETQDISC,
// RTM_GETTCLASS or RTM_GETTFILTER; parent is 0 for all.
func dump(message, index int, parent uint32) ([]Object, error) {
	var list [][]byte
	var err error = netlink.ErrDumpInterrupted
	for errors.Is(err, netlink.ErrDumpInterrupted) { // something changed during the dump
		r := nl.NewNetlinkRequest(message, unix.NLM_F_DUMP)
		r.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(index), Parent: parent})
		list, err = r.Execute(unix.NETLINK_ROUTE, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("list qdiscs: %w", err)
	}
	var out []Object
	for _, b := range list {
		o, at, err := parseObject(b, message == unix.RTM_GETTCLASS)
		if err != nil {
			return nil, err
		}
		if at == index {
			out = append(out, o)
		}
	}
	return out, nil
}

// parseObject returns the object in a message of the kernel, and the index of its interface.
func parseObject(b []byte, class bool) (o Object, index int, err error) {
	m := nl.DeserializeTcMsg(b)
	attrs, err := Attributes(b[nl.SizeofTcMsg:])
	kind, _, _ := bytes.Cut(attrs[nl.TCA_KIND], []byte{0})
	return Object{
		Class: class, Parent: m.Parent, Handle: m.Handle, Kind: string(kind),
		Options: attrs[nl.TCA_OPTIONS], Stab: attrs[nl.TCA_STAB], stats: attrs[nl.TCA_STATS2],
	}, int(m.Ifindex), err
}

// get returns the object of an interface with the handle of o, or the qdisc below its parent; nil if there
// is none.
func (o *Object) get(index int) (*Object, error) {
	message := unix.RTM_GETQDISC
	if o.Class {
		message = unix.RTM_GETTCLASS
	}
	list, err := o.request(message, unix.NLM_F_ECHO, index).Execute(unix.NETLINK_ROUTE, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%v: %w", o, err)
	case len(list) == 0:
		return nil, nil
	}
	there, _, err := parseObject(list[0], o.Class)
	return &there, err
}

// Attributes returns the attributes in a netlink message by type.
func Attributes(b []byte) (map[uint16][]byte, error) {
	list, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	out := map[uint16][]byte{}
	for _, a := range list {
		out[a.Attr.Type&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER)] = a.Value
	}
	return out, nil
}

// number returns an attribute with a 32-bit value.
func number(kind int, v uint32) *nl.RtAttr { return nl.NewRtAttr(kind, nl.Uint32Attr(v)) }

// nest returns the value of an attribute that contains others.
func nest(attrs ...*nl.RtAttr) (out []byte) {
	for _, a := range attrs {
		out = append(out, a.Serialize()...)
	}
	return out
}
