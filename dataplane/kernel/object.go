package kernel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// object is a qdisc or a class, as netlink has it.
type object struct {
	Class   bool `json:",omitempty"`
	Parent  uint32
	Handle  uint32
	Kind    string
	Options []byte `json:",omitempty"`
	Stab    []byte `json:",omitempty"` // the size table
	stats   []byte
}

// standing returns what somebody set at the root of an interface, parents before
// children.
func standing(index int) ([]object, error) {
	list, err := dump(unix.RTM_GETQDISC, index, 0)
	if err != nil {
		return nil, err
	}
	if root := rootOf(list); root == nil || root.Handle == 0 {
		return nil, nil
	}
	for _, o := range list {
		if o.Kind != string(HTB) { // classes of others come with their qdisc
			continue
		}
		// Those of all at once would end at a netem, which has a class and none to show.
		classes, err := dump(unix.RTM_GETTCLASS, index, o.Handle)
		if err != nil {
			return nil, err
		}
		list = append(list, classes...)
	}
	// What has no handle comes with its parent.
	list = slices.DeleteFunc(list, func(o object) bool { return o.Handle == 0 || o.Parent == netlink.HANDLE_INGRESS })
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
	return list, nil
}

// faithful are the kinds that show all that it takes to make them again. RED
// and its like keep their tables to themselves.
var faithful = []string{"bfifo", "cake", "fq", "fq_codel", "htb", "mq", "netem", "noqueue", "pfifo", "pfifo_fast", "pfifo_head_drop", "prio", "sfq", "tbf"}

// lost names what of a qdisc or class cannot be read, "" for nothing. Of HTB it
// makes what is shown what is taken.
func (o *object) lost(index int) (string, error) {
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
	stab, err := attributes(o.Stab)
	if err != nil {
		return "", err
	}
	if spec := stab[stabBase]; len(spec) >= stabLen && binary.NativeEndian.Uint32(spec[stabSize:]) != 0 {
		return "its size table", nil
	}
	switch {
	case o.Kind == "netem" && len(o.Options) >= netemLen:
		attrs, err := attributes(o.Options[netemLen:])
		if err != nil {
			return "", err
		}
		if _, slot := attrs[netemSlot]; slot || binary.NativeEndian.Uint32(o.Options[netemJitter:]) != 0 {
			return "the distribution of its delay", nil
		}
	case o.Kind == string(HTB) && !o.Class:
		// struct tc_htb_glob begins with the version, which is read as major
		// and minor one, and written as the major one.
		attrs, err := attributes(o.Options)
		if err != nil {
			return "", err
		}
		if glob := attrs[nl.TCA_HTB_INIT]; len(glob) >= 4 {
			binary.NativeEndian.PutUint32(glob, binary.NativeEndian.Uint32(glob)>>16)
		}
	}
	return "", nil
}

// Of struct tc_netem_qopt, and of what comes behind it.
const (
	netemLen    = 24
	netemJitter = 20
	netemSlot   = 12 // TCA_NETEM_SLOT
)

func (o *object) String() string {
	what := "the qdisc"
	if o.Class {
		what = "the class"
	}
	return fmt.Sprintf("%s %s %x:%x", what, o.Kind, o.Handle>>16, o.Handle&0xffff)
}

// inOrder puts parents before children.
func inOrder(list []object) {
	type key struct {
		class  bool
		handle uint32
	}
	byKey := map[key]*object{}
	for _, o := range slices.Clone(list) {
		byKey[key{o.Class, o.Handle}] = &o
	}
	var depth func(o *object) int
	depth = func(o *object) int {
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
	slices.SortStableFunc(list, func(a, b object) int { return depth(&a) - depth(&b) })
}

func rootOf(list []object) *object {
	i := slices.IndexFunc(list, func(o object) bool { return o.Parent == netlink.HANDLE_ROOT && !o.Class })
	if i < 0 {
		return nil
	}
	return &list[i]
}

// add makes it, or changes what is there.
func (o *object) add(index, flags int) error {
	message := unix.RTM_NEWQDISC
	if o.Class {
		message = unix.RTM_NEWTCLASS
	}
	return o.send(message, unix.NLM_F_CREATE|flags, index)
}

func (o *object) send(message, flags, index int) error {
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
	_, err := r.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// dump returns the qdiscs, the classes or the filters of an interface.
func dump(message, index int, parent uint32) ([]object, error) {
	var list [][]byte
	var err error = netlink.ErrDumpInterrupted
	for errors.Is(err, netlink.ErrDumpInterrupted) { // something else was changed
		r := nl.NewNetlinkRequest(message, unix.NLM_F_DUMP)
		r.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(index), Parent: parent})
		list, err = r.Execute(unix.NETLINK_ROUTE, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("list qdiscs: %w", err)
	}
	var out []object
	for _, b := range list {
		m := nl.DeserializeTcMsg(b)
		if int(m.Ifindex) != index {
			continue
		}
		attrs, err := attributes(b[nl.SizeofTcMsg:])
		if err != nil {
			return nil, err
		}
		kind, _, _ := bytes.Cut(attrs[nl.TCA_KIND], []byte{0})
		out = append(out, object{
			Class: message == unix.RTM_GETTCLASS, Parent: m.Parent, Handle: m.Handle, Kind: string(kind),
			Options: attrs[nl.TCA_OPTIONS], Stab: attrs[nl.TCA_STAB], stats: attrs[nl.TCA_STATS2],
		})
	}
	return out, nil
}

// attributes are those of a message, by type.
func attributes(b []byte) (map[uint16][]byte, error) {
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

func number(kind int, v uint32) *nl.RtAttr { return nl.NewRtAttr(kind, nl.Uint32Attr(v)) }

// nest is what an attribute holds that holds others.
func nest(attrs ...*nl.RtAttr) (out []byte) {
	for _, a := range attrs {
		out = append(out, a.Serialize()...)
	}
	return out
}
