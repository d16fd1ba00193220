package kernel

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ifb is a device of our own, through which goes what comes in by an interface:
// there it can wait. Programs of TCX see packets before that, clsact filters of
// others do not see them at all, and none sees them again behind it.
type ifb struct {
	Index  int // of the interface
	Device int // index of the device
}

// ifbName has 15 characters at most, as many as a name may have.
func ifbName(index int) string { return fmt.Sprintf("shaper-%x", index) }

// Our filter stands before all others, and its number among those of u32 tells
// that it is ours, and whether the qdisc is.
const (
	ifbPriority   = 1
	ifbFilter     = 0x5ad
	ifbWithClsact = 0x5ae
)

// addIFB makes the device of an interface. What a killed process left of one is
// removed before.
func addIFB(index int) (i *ifb, err error) {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return nil, fmt.Errorf("interface %d: %w", index, err)
	}
	name := l.Attrs().Name
	i = &ifb{Index: index}
	if err := i.remove(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			i, err = nil, errors.Join(explain(err), i.remove())
		}
	}()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.NumTxQueues, attrs.NumRxQueues = ifbName(index), l.Attrs().MTU, 1, 1
	if err := netlink.LinkAdd(&netlink.Ifb{LinkAttrs: attrs}); err != nil {
		return i, fmt.Errorf("make device %s (module ifb): %w", attrs.Name, err)
	}
	device, err := netlink.LinkByName(attrs.Name)
	if err == nil {
		i.Device = device.Attrs().Index
		err = netlink.LinkSetUp(device)
	}
	if err != nil {
		return i, fmt.Errorf("device %s: %w", attrs.Name, err)
	}
	if first := i.first(); len(first) > 0 {
		return i, fmt.Errorf("interface %s has a %s filter of priority 1 at ingress, where ours has to be: give it a higher one, or remove it, by tc filter del dev %[1]s ingress pref 1", name, first[0].Type())
	}
	number := uint32(ifbFilter)
	switch err := netlink.QdiscAdd(&netlink.GenericQdisc{QdiscAttrs: clsactOf(index), QdiscType: "clsact"}); {
	case err == nil:
		number = ifbWithClsact
	case !errors.Is(err, unix.EEXIST): // an ingress qdisc does as well
		return i, fmt.Errorf("clsact on %s: %w", name, err)
	}
	for _, f := range filters(index, netlink.HANDLE_MIN_EGRESS) {
		if f.Name == filterWithClsact {
			number = ifbWithClsact // who is last removes it
		}
	}
	if err := netlink.FilterAdd(i.filter(number)); err != nil {
		err = fmt.Errorf("tc filter on %s (modules cls_u32, act_mirred): %w", name, err)
		return i, errors.Join(err, i.removeClsact(number))
	}
	return i, nil
}

// filter redirects all: it is one of u32 without a key. bpf_redirect would not
// do, an ifb drops what mirred does not send.
func (i *ifb) filter(number uint32) *netlink.U32 {
	return &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: i.Index, Parent: netlink.HANDLE_MIN_INGRESS,
			Priority: ifbPriority, Handle: number, Protocol: unix.ETH_P_ALL,
		},
		Sel:     &netlink.TcU32Sel{Flags: nl.TC_U32_TERMINAL},
		Actions: []netlink.Action{netlink.NewMirredAction(i.Device)},
	}
}

// first are the filters in the place of ours, which is one of them.
func (i *ifb) first() []netlink.Filter {
	list, err := allFilters(i.Index, netlink.HANDLE_MIN_INGRESS)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(list, func(f netlink.Filter) bool { return f.Attrs().Priority != ifbPriority })
}

// clsact says whether there is one of ours, and the qdisc with it.
func (i *ifb) clsact() bool {
	return slices.ContainsFunc(i.first(), func(f netlink.Filter) bool {
		return f.Type() == "u32" && f.Attrs().Handle&0xfff == ifbWithClsact
	})
}

// remove undoes addIFB, whichever process did it. Packets that wait in the
// device are lost. It does nothing where nothing is there, nor for nil.
func (i *ifb) remove() error {
	if i == nil {
		return nil
	}
	// The filter comes first: without a device it would drop all.
	first := i.first()
	for _, f := range first {
		number := f.Attrs().Handle & 0xfff
		if f.Type() != "u32" || number != ifbFilter && number != ifbWithClsact {
			continue
		}
		if len(first) == 1 {
			f.Attrs().Handle = 0 // all of the priority, or its table would stay
		}
		if err := netlink.FilterDel(f); err != nil && !errors.Is(err, unix.ENODEV) {
			return explain(fmt.Errorf("tc filter: %w", err))
		}
		if err := i.removeClsact(number); err != nil {
			return err
		}
	}
	device, err := netlink.LinkByName(ifbName(i.Index))
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err == nil && device.Type() == "ifb" {
		err = netlink.LinkDel(device)
	}
	if err != nil {
		return explain(fmt.Errorf("device %s: %w", ifbName(i.Index), err))
	}
	return nil
}

// removeClsact removes the qdisc if it is ours and nobody else uses it by now.
func (i *ifb) removeClsact(number uint32) error {
	return (&filterHook{place{Index: i.Index, Clsact: number == ifbWithClsact}}).removeClsact()
}
