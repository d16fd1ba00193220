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
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
)

// Hook is how a program is attached to an interface.
type Hook string

// Hooks, as people spell them. Auto is TCX, or TC if the kernel does not have TCX.
const (
	Auto Hook = "auto"
	TCX  Hook = "tcx" // a link; kernel 6.6
	TC   Hook = "tc"  // a filter of the clsact qdisc
	XDP  Hook = "xdp" // a link; ingress only
)

// Where an XDP program runs.
const (
	Driver  = "driver"
	Generic = "generic" // in the kernel, for drivers that have no XDP
)

// place is where a program is attached.
type place struct {
	Hook     Hook
	Mode     string  // of XDP: Driver or Generic
	Index    int     // of the device: the interface, or its ifb
	Link     link.ID `json:"-"`
	Parent   uint32  `json:"-"` // of a filter
	Priority uint16  `json:"-"`
	Handle   uint32  `json:"-"`
}

// hook is a program in its place.
type hook interface {
	replace(*ebpf.Program) error // at once
	remove() error
	program() (ebpf.ProgramID, error) // 0 if none is attached any more
}

// attach attaches a program to a hook, in front of all others there: if it lets a packet
// pass, those see it next.
func (st *site) attach(d *device, p *ebpf.Program, direction Direction, to Hook) (hook, place, error) {
	switch to {
	case XDP:
		return attachXDP(d, p)
	case TC:
		return st.attachFilter(d, p, direction)
	}
	h, at, err := attachTCX(d, p, direction)
	if errors.Is(err, errNoTCX) && to == Auto {
		return st.attachFilter(d, p, direction)
	}
	return h, at, err
}

var errNoTCX = UseTC.errorf("this kernel has no TCX, which begins with 6.6")

func attachTCX(d *device, p *ebpf.Program, direction Direction) (hook, place, error) {
	to := ebpf.AttachTCXEgress
	if direction == Ingress {
		to = ebpf.AttachTCXIngress
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: d.Index, Program: p, Attach: to, Anchor: link.Head()})
	if err != nil {
		if version, e := features.LinuxVersionCode(); errors.Is(err, ebpf.ErrNotSupported) || e == nil && version < 6<<16|6<<8 {
			return nil, place{}, errNoTCX
		}
		return nil, place{}, cause.Of(err)
	}
	return linked(l, place{Hook: TCX, Index: d.Index})
}

func attachXDP(d *device, p *ebpf.Program) (hook, place, error) {
	if d.link != dataplane.LinkEthernet {
		return nil, place{}, UseTC.errorf("interface %s has no Ethernet header, which XDP needs", d.name)
	}
	at := place{Hook: XDP, Mode: Driver, Index: d.Index}
	l, err := link.AttachXDP(link.XDPOptions{Program: p, Interface: d.Index, Flags: link.XDPDriverMode})
	if err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EPERM) {
		at.Mode = Generic
		l, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: d.Index, Flags: link.XDPGenericMode})
	}
	switch {
	case errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST):
		return nil, place{}, UseTC.errorf("interface %s has an XDP program already, and takes one", d.name)
	case err != nil:
		return nil, place{}, cause.Of(err)
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

func (h *linkHook) replace(p *ebpf.Program) error { return cause.Of(h.Update(p)) }

func (h *linkHook) remove() error {
	err := h.Detach()
	if errors.Is(err, unix.ENOLINK) || errors.Is(err, unix.ENODEV) {
		err = nil // the interface went away, and took it along
	}
	return errors.Join(err, h.Close())
}

func (h *linkHook) program() (ebpf.ProgramID, error) {
	info, err := h.Info()
	if err != nil {
		return 0, fmt.Errorf("look at the link: %w", err)
	}
	tcx, xdp := info.TCX(), info.XDP()
	if tcx != nil && tcx.Ifindex != 0 || xdp != nil && xdp.Ifindex != 0 {
		return info.Program, nil
	}
	return 0, nil
}

// filterName is the name of our filters. Those of older versions begin with it.
const filterName = "shaper"

func ours(f *netlink.BpfFilter) bool { return f.Name == filterName || f.Name == "shaper with clsact" }

// isOurFilter says whether it is a program's, or the redirect to an ifb.
func isOurFilter(f netlink.Filter) bool {
	b, ok := f.(*netlink.BpfFilter)
	return ok && ours(b) || isRedirect(f)
}

// filterHook is a filter of clsact. It stays when its process ends.
type filterHook struct{ at place }

func (st *site) attachFilter(d *device, p *ebpf.Program, direction Direction) (hook, place, error) {
	info, err := p.Info()
	if err != nil {
		return nil, place{}, err
	}
	id, _ := info.ID()
	h := &filterHook{place{Hook: TC, Index: d.Index, Parent: filterParent(direction)}}
	if d.Index == st.Index {
		if err := st.addClsact(); err != nil {
			return nil, place{}, err
		}
	} else if err := netlink.QdiscAdd(&netlink.GenericQdisc{QdiscAttrs: clsactOf(d.Index), QdiscType: "clsact"}); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, place{}, cause.Of(fmt.Errorf("clsact on %s: %w", d.name, err)) // of an ifb, which goes with it
	}
	if h.at.Priority, err = before(d, h.at.Parent); err != nil {
		return nil, place{}, err
	}
	if err := st.protect(); err != nil { // a filter outlives the process
		return nil, place{}, err
	}
	if err := netlink.FilterAdd(h.filter(p)); err != nil {
		return nil, place{}, cause.Of(fmt.Errorf("tc filter on %s: %w", d.name, err))
	}
	list, err := filters(d.Index, h.at.Parent)
	if err != nil {
		return nil, place{}, fmt.Errorf("tc filter on %s: %w", d.name, err)
	}
	for _, f := range list {
		if f.Id == int(id) {
			h.at.Priority, h.at.Handle = f.Priority, f.Handle
			return h, h.at, nil
		}
	}
	return nil, place{}, fmt.Errorf("tc filter on %s: it is not there after it was added", d.name)
}

func filterParent(direction Direction) uint32 {
	if direction == Ingress {
		return netlink.HANDLE_MIN_INGRESS
	}
	return netlink.HANDLE_MIN_EGRESS
}

// before is a priority before those of all filters that are there; 0, which has
// the kernel choose one, where none is.
func before(d *device, parent uint32) (uint16, error) {
	list, err := allFilters(d.Index, parent)
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

func (h *filterHook) filter(p *ebpf.Program) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: h.at.Index, Parent: h.at.Parent, Priority: h.at.Priority, Handle: h.at.Handle, Protocol: unix.ETH_P_ALL,
		},
		Fd: p.FD(), Name: filterName, DirectAction: true,
	}
}

// allFilters are those of one direction.
func allFilters(index int, parent uint32) ([]netlink.Filter, error) {
	device := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index}}
	list, err := netlink.FilterList(device, parent)
	for errors.Is(err, netlink.ErrDumpInterrupted) { // something else was changed
		list, err = netlink.FilterList(device, parent)
	}
	if err != nil {
		err = fmt.Errorf("list tc filters: %w", err)
	}
	return list, err
}

func clsactOf(index int) netlink.QdiscAttrs {
	return netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}
}

// filters are the eBPF filters of one direction, ours and foreign ones.
func filters(index int, parent uint32) ([]*netlink.BpfFilter, error) {
	list, err := allFilters(index, parent)
	if err != nil {
		return nil, err
	}
	var out []*netlink.BpfFilter
	for _, f := range list {
		if f, ok := f.(*netlink.BpfFilter); ok {
			out = append(out, f)
		}
	}
	return out, nil
}

func (h *filterHook) program() (ebpf.ProgramID, error) {
	list, err := filters(h.at.Index, h.at.Parent)
	if absent(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for _, f := range list {
		if ours(f) && f.Priority == h.at.Priority && f.Handle == h.at.Handle {
			return ebpf.ProgramID(f.Id), nil
		}
	}
	return 0, nil
}

func (h *filterHook) replace(p *ebpf.Program) error {
	return cause.Of(netlink.FilterReplace(h.filter(p)))
}

func (h *filterHook) remove() error {
	err := netlink.FilterDel(&netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{
		LinkIndex: h.at.Index, Parent: h.at.Parent, Priority: h.at.Priority, Handle: h.at.Handle, Protocol: unix.ETH_P_ALL,
	}})
	if err == nil || errors.Is(err, unix.ENOENT) || absent(err) {
		return nil
	}
	if id, e := h.program(); e == nil && id == 0 {
		return nil // clsact is gone, which the kernel calls invalid
	}
	return cause.Of(fmt.Errorf("tc filter: %w", err))
}

// reopen finds a program again.
func (at place) reopen() (hook, error) {
	if at.Hook == TC {
		return &filterHook{at}, nil
	}
	l, err := link.NewFromID(at.Link)
	if err != nil {
		return nil, err
	}
	return &linkHook{l}, nil
}
