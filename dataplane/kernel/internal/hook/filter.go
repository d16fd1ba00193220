package hook

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
)

// filterName is the name of our filters. The name in older versions begins with it.
const filterName = "shaper"

// isOurs reports whether a filter is one of our programs.
func isOurs(f *netlink.BpfFilter) bool {
	return f.Name == filterName || f.Name == "shaper with clsact"
}

// IsOurs reports whether a filter is one of our programs or our redirect to an ifb.
func IsOurs(f netlink.Filter) bool {
	b, ok := f.(*netlink.BpfFilter)
	return ok && isOurs(b) || isRedirect(f)
}

// Parent returns the parent handle of the filters of one direction.
func Parent(ingress bool) uint32 {
	if ingress {
		return netlink.HANDLE_MIN_INGRESS
	}
	return netlink.HANDLE_MIN_EGRESS
}

// AddClsact adds the clsact qdisc, which filters need, if there is none.
func AddClsact(index int) error {
	err := netlink.QdiscAdd(&netlink.GenericQdisc{QdiscAttrs: clsact(index), QdiscType: "clsact"})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return cause.Of(fmt.Errorf("clsact: %w", err))
	}
	return nil
}

// RemoveClsact removes the clsact qdisc with its filters, if there is one.
func RemoveClsact(index int) error {
	err := netlink.QdiscDel(&netlink.GenericQdisc{QdiscAttrs: clsact(index), QdiscType: "clsact"})
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) && !cause.NoDevice(err) {
		return fmt.Errorf("clsact: %w", err)
	}
	return nil
}

func clsact(index int) netlink.QdiscAttrs {
	return netlink.QdiscAttrs{
		LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}
}

// Filters returns the filters of one direction.
func Filters(index int, parent uint32) ([]netlink.Filter, error) {
	device := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index}}
	list, err := netlink.FilterList(device, parent)
	for errors.Is(err, netlink.ErrDumpInterrupted) { // something changed during the dump
		list, err = netlink.FilterList(device, parent)
	}
	if err != nil {
		err = fmt.Errorf("list tc filters: %w", err)
	}
	return list, err
}

// programFilters returns the eBPF filters of one direction, ours and those of others.
func programFilters(index int, parent uint32) ([]*netlink.BpfFilter, error) {
	list, err := Filters(index, parent)
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

// filterHook is a filter of clsact. It outlives its process.
type filterHook struct{ at Place }

// AttachFilter attaches a program as a filter before all other filters of its direction. The
// interface must have a clsact qdisc. AttachFilter calls protect just before, because a
// filter outlives its process.
func AttachFilter(index int, ingress bool, p *ebpf.Program, protect func() error) (Hook, Place, error) {
	info, err := p.Info()
	if err != nil {
		return nil, Place{}, err
	}
	id, _ := info.ID()
	h := &filterHook{Place{Hook: TC, Index: index, Parent: Parent(ingress)}}
	if h.at.Priority, err = firstPriority(index, h.at.Parent); err != nil {
		return nil, Place{}, err
	}
	if err := protect(); err != nil {
		return nil, Place{}, err
	}
	if err := netlink.FilterAdd(h.filter(p)); err != nil {
		return nil, Place{}, cause.Of(err)
	}
	list, err := programFilters(index, h.at.Parent)
	if err != nil {
		return nil, Place{}, err
	}
	for _, f := range list {
		if f.Id == int(id) {
			h.at.Priority, h.at.Handle = f.Priority, f.Handle
			return h, h.at, nil
		}
	}
	return nil, Place{}, errors.New("missing after it was added")
}

// firstPriority returns a priority before those of all filters, or 0 if there are none: then
// the kernel chooses one.
func firstPriority(index int, parent uint32) (uint16, error) {
	list, err := Filters(index, parent)
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
		return 0,
			errors.New("another filter has priority 1, but ours must run first: give the other one a higher number (pref)")
	}
	return first.Priority - 1, nil
}

func (h *filterHook) filter(p *ebpf.Program) *netlink.BpfFilter {
	return &netlink.BpfFilter{FilterAttrs: h.attrs(), Fd: p.FD(), Name: filterName, DirectAction: true}
}

func (h *filterHook) attrs() netlink.FilterAttrs {
	return netlink.FilterAttrs{
		LinkIndex: h.at.Index, Parent: h.at.Parent, Priority: h.at.Priority, Handle: h.at.Handle,
		Protocol: unix.ETH_P_ALL,
	}
}

func (h *filterHook) Program() (ebpf.ProgramID, error) {
	list, err := programFilters(h.at.Index, h.at.Parent)
	if cause.NoDevice(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for _, f := range list {
		if isOurs(f) && f.Priority == h.at.Priority && f.Handle == h.at.Handle {
			return ebpf.ProgramID(f.Id), nil
		}
	}
	return 0, nil
}

func (h *filterHook) Replace(p *ebpf.Program) error {
	return cause.Of(netlink.FilterReplace(h.filter(p)))
}

func (h *filterHook) Remove() error {
	err := netlink.FilterDel(&netlink.BpfFilter{FilterAttrs: h.attrs()})
	if err == nil || errors.Is(err, unix.ENOENT) || cause.NoDevice(err) {
		return nil
	}
	if id, e := h.Program(); e == nil && id == 0 {
		return nil // without clsact the kernel calls the request invalid
	}
	return cause.Of(fmt.Errorf("tc filter: %w", err))
}
