package kernel

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Method is how a program is attached to an interface.
type Method string

// Methods, as people spell them. Auto is TCX, or TC where the kernel does not
// have it.
const (
	Auto  Method = "auto"
	TCX   Method = "tcx" // a link; kernel 6.6
	TC    Method = "tc"  // a filter of the clsact qdisc
	ByXDP Method = "xdp" // a link; ingress only
)

// Where an XDP program runs.
const (
	Driver  = "driver"
	Generic = "generic" // in the kernel, for drivers that have no XDP
)

// place is where a program was attached: all that it takes to find it again.
type place struct {
	Method   Method
	Mode     string  `json:",omitempty"` // of XDP: Driver or Generic
	Index    int     // of the interface
	Link     link.ID `json:",omitempty"`
	Parent   uint32  `json:",omitempty"` // of a filter
	Priority uint16  `json:",omitempty"`
	Handle   uint32  `json:",omitempty"`
	Clsact   bool    `json:",omitempty"` // the qdisc is ours
}

// hook is a program in its place.
type hook interface {
	replace(*ebpf.Program) error // at once
	remove() error
	program() ebpf.ProgramID // 0 where none is attached any more
}

// device is what a program needs to know of an interface.
type device struct {
	name  string
	index int
	mtu   int
	link  dataplane.LinkType
}

func findDevice(name string) (*device, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			return nil, &NoInterfaceError{name}
		}
		return nil, fmt.Errorf("interface %s: %w", name, err)
	}
	d := &device{name: name, index: l.Attrs().Index, mtu: l.Attrs().MTU}
	switch encap := l.Attrs().EncapType; encap {
	case "ether", "loopback":
		d.link = dataplane.LinkEthernet
	case "none", "ppp", "sit", "ipip", "tunnel6", "gre", "gre6": // they hand over bare IP packets
		d.link = dataplane.LinkRaw
	default:
		return nil, fmt.Errorf("interface %s: its link layer, %s, is neither Ethernet nor IP", name, encap)
	}
	return d, nil
}

// NoInterfaceError says that there is no interface of that name.
type NoInterfaceError struct{ Name string }

func (e *NoInterfaceError) Error() string { return fmt.Sprintf("there is no interface %s", e.Name) }

// attach attaches a program by a method, the first in line of its kind: one
// that lets packets pass hands them on to those behind it.
func attach(d *device, p *ebpf.Program, direction Hook, method Method) (hook, place, error) {
	switch method {
	case ByXDP:
		return attachXDP(d, p)
	case TC:
		return attachFilter(d, p, direction)
	}
	h, at, err := attachTCX(d, p, direction)
	if errors.Is(err, errNoTCX) && method == Auto {
		return attachFilter(d, p, direction)
	}
	return h, at, err
}

var errNoTCX = errors.New("this kernel has no TCX, which begins with 6.6: use --hook tc")

func attachTCX(d *device, p *ebpf.Program, direction Hook) (hook, place, error) {
	to := ebpf.AttachTCXEgress
	if direction == Ingress {
		to = ebpf.AttachTCXIngress
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: d.index, Program: p, Attach: to, Anchor: link.Head()})
	if err != nil {
		if version, e := features.LinuxVersionCode(); errors.Is(err, ebpf.ErrNotSupported) || e == nil && version < 6<<16|6<<8 {
			return nil, place{}, errNoTCX
		}
		return nil, place{}, explain(err)
	}
	return linked(l, place{Method: TCX, Index: d.index})
}

func attachXDP(d *device, p *ebpf.Program) (hook, place, error) {
	if d.link != dataplane.LinkEthernet {
		return nil, place{}, fmt.Errorf("interface %s has no Ethernet header, which XDP needs: use --hook tc", d.name)
	}
	at := place{Method: ByXDP, Mode: Driver, Index: d.index}
	l, err := link.AttachXDP(link.XDPOptions{Program: p, Interface: d.index, Flags: link.XDPDriverMode})
	if err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EPERM) {
		at.Mode = Generic
		l, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: d.index, Flags: link.XDPGenericMode})
	}
	switch {
	case errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST):
		return nil, place{}, fmt.Errorf("interface %s has an XDP program already, and takes one: use --hook tc, or detach it", d.name)
	case err != nil:
		return nil, place{}, explain(err)
	}
	return linked(l, at)
}

// linked is a link as a hook.
func linked(l link.Link, at place) (hook, place, error) {
	info, err := l.Info()
	if err != nil {
		l.Close()
		return nil, place{}, err
	}
	at.Link = info.ID
	return &linkHook{l}, at, nil
}

type linkHook struct{ link.Link }

func (h *linkHook) replace(p *ebpf.Program) error { return explain(h.Update(p)) }

func (h *linkHook) remove() error {
	err := h.Detach()
	if errors.Is(err, unix.ENOLINK) || errors.Is(err, unix.ENODEV) {
		err = nil // the interface went away, and took it along
	}
	return errors.Join(err, h.Close())
}

func (h *linkHook) program() ebpf.ProgramID {
	info, err := h.Info()
	if err != nil {
		return 0
	}
	tcx, xdp := info.TCX(), info.XDP()
	if tcx != nil && tcx.Ifindex != 0 || xdp != nil && xdp.Ifindex != 0 {
		return info.Program
	}
	return 0
}

// Names of our filters; the second one tells the filter of the other direction
// that the qdisc is ours.
const (
	filterName       = "shaper"
	filterWithClsact = "shaper with clsact"
)

func ours(f *netlink.BpfFilter) bool { return f.Name == filterName || f.Name == filterWithClsact }

// filterHook is a filter of clsact. It stays when its process ends.
type filterHook struct{ at place }

func attachFilter(d *device, p *ebpf.Program, direction Hook) (hook, place, error) {
	at := place{Method: TC, Index: d.index, Parent: netlink.HANDLE_MIN_EGRESS}
	other := uint32(netlink.HANDLE_MIN_INGRESS)
	if direction == Ingress {
		at.Parent, other = other, at.Parent
	}
	clsact := &netlink.GenericQdisc{QdiscAttrs: clsactOf(d.index), QdiscType: "clsact"}
	switch err := netlink.QdiscAdd(clsact); {
	case err == nil:
		at.Clsact = true
	case !errors.Is(err, unix.EEXIST):
		return nil, place{}, explain(fmt.Errorf("clsact on %s: %w", d.name, err))
	}
	h := &filterHook{at}
	for _, f := range filters(d.index, other) {
		h.at.Clsact = h.at.Clsact || f.Name == filterWithClsact
	}
	h.at.Clsact = h.at.Clsact || (&ifb{Index: d.index}).clsact()
	for _, f := range filters(d.index, at.Parent) {
		if ours(f) { // of a process that died before it could say so
			if err := netlink.FilterDel(f); err != nil {
				return nil, place{}, explain(fmt.Errorf("tc filter on %s: %w", d.name, err))
			}
		}
	}
	priority, err := before(d, at.Parent)
	if err != nil {
		return nil, place{}, errors.Join(err, h.removeClsact())
	}
	h.at.Priority = priority
	if err := netlink.FilterAdd(h.filter(p)); err != nil {
		err = explain(fmt.Errorf("tc filter on %s: %w", d.name, err))
		return nil, place{}, errors.Join(err, h.removeClsact())
	}
	info, err := p.Info()
	if err != nil {
		return nil, place{}, err
	}
	id, _ := info.ID()
	for _, f := range filters(d.index, at.Parent) {
		if f.Id == int(id) {
			h.at.Priority, h.at.Handle = f.Priority, f.Handle
			return h, h.at, nil
		}
	}
	return nil, place{}, fmt.Errorf("tc filter on %s: it is not there after it was added", d.name)
}

// before is a priority before those of all filters that are there; 0, which has
// the kernel choose one, where none is.
func before(d *device, parent uint32) (uint16, error) {
	list, err := allFilters(d.index, parent)
	if err != nil || len(list) == 0 {
		return 0, err
	}
	first := list[0].Attrs()
	for _, f := range list {
		if f.Attrs().Priority < first.Priority {
			first = f.Attrs()
		}
	}
	if first.Priority == 1 {
		return 0, fmt.Errorf("tc filter on %s: there is one of priority 1, and ours has to come before it: give it a higher one (pref)", d.name)
	}
	return first.Priority - 1, nil
}

func clsactOf(index int) netlink.QdiscAttrs {
	return netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}
}

func (h *filterHook) filter(p *ebpf.Program) *netlink.BpfFilter {
	name := filterName
	if h.at.Clsact {
		name = filterWithClsact
	}
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: h.at.Index, Parent: h.at.Parent, Priority: h.at.Priority, Handle: h.at.Handle, Protocol: unix.ETH_P_ALL,
		},
		Fd: p.FD(), Name: name, DirectAction: true,
	}
}

// allFilters are those of one direction.
func allFilters(index int, parent uint32) ([]netlink.Filter, error) {
	device := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index}}
	list, err := netlink.FilterList(device, parent)
	for errors.Is(err, netlink.ErrDumpInterrupted) { // something else was changed
		list, err = netlink.FilterList(device, parent)
	}
	return list, err
}

// filters are the eBPF filters of one direction, ours and foreign ones.
func filters(index int, parent uint32) []*netlink.BpfFilter {
	list, err := allFilters(index, parent)
	if err != nil {
		return nil
	}
	var out []*netlink.BpfFilter
	for _, f := range list {
		if f, ok := f.(*netlink.BpfFilter); ok {
			out = append(out, f)
		}
	}
	return out
}

func (h *filterHook) program() ebpf.ProgramID {
	for _, f := range filters(h.at.Index, h.at.Parent) {
		if ours(f) && f.Priority == h.at.Priority && f.Handle == h.at.Handle {
			return ebpf.ProgramID(f.Id)
		}
	}
	return 0
}

func (h *filterHook) replace(p *ebpf.Program) error {
	return explain(netlink.FilterReplace(h.filter(p)))
}

func (h *filterHook) remove() error {
	if h.program() != 0 {
		if err := netlink.FilterDel(&netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{
			LinkIndex: h.at.Index, Parent: h.at.Parent, Priority: h.at.Priority, Handle: h.at.Handle, Protocol: unix.ETH_P_ALL,
		}}); err != nil {
			return explain(fmt.Errorf("tc filter: %w", err))
		}
	}
	return h.removeClsact()
}

// removeClsact removes the qdisc if it is ours and nobody else uses it by now.
func (h *filterHook) removeClsact() error {
	if !h.at.Clsact {
		return nil
	}
	device := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: h.at.Index}}
	for _, parent := range []uint32{netlink.HANDLE_MIN_EGRESS, netlink.HANDLE_MIN_INGRESS} {
		if list, err := netlink.FilterList(device, parent); err != nil || len(list) > 0 {
			return nil
		}
	}
	err := netlink.QdiscDel(&netlink.GenericQdisc{QdiscAttrs: clsactOf(h.at.Index), QdiscType: "clsact"})
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return nil // it is gone with the interface
	}
	return err
}

// reopen finds a program again.
func (at place) reopen() (hook, error) {
	if at.Method == TC {
		return &filterHook{at}, nil
	}
	l, err := link.NewFromID(at.Link)
	if err != nil {
		return nil, err
	}
	return &linkHook{l}, nil
}
