package kernel

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
)

// At ingress nothing can wait. So packets that come in are redirected through an
// ifb, a device that we create, and wait there. Programs of TCX see them before
// that; clsact filters of others at ingress do not see them at all.

const ifbPrefix = "shaper-"

// ifbName is the name of an interface's ifb. It has at most 15 characters, as many
// as a name may have.
func ifbName(index int) string { return fmt.Sprintf("%s%x", ifbPrefix, index) }

// ifbOf is the index of the interface whose ifb it is, 0 for none of ours.
func ifbOf(l netlink.Link) int {
	hex, ok := strings.CutPrefix(l.Attrs().Name, ifbPrefix)
	index, err := strconv.ParseInt(hex, 16, 32)
	if !ok || err != nil || l.Type() != "ifb" {
		return 0
	}
	return int(index)
}

// Our filter stands before all others, and its number among those of u32 tells
// that it is ours.
const (
	ifbPriority = 1
	ifbFilter   = 0x5ad
)

// addIFB makes the device of an interface and has all that comes in redirected to
// it. One that is there already is taken as it is.
func (st *site) addIFB() (device int, err error) {
	l, err := netlink.LinkByIndex(st.Index)
	if err != nil {
		return 0, fmt.Errorf("interface %d: %w", st.Index, err)
	}
	name := l.Attrs().Name
	_, err = netlink.LinkByName(ifbName(st.Index))
	if err != nil && !absent(err) {
		return 0, fmt.Errorf("device %s: %w", ifbName(st.Index), err)
	}
	fresh := err != nil
	defer func() {
		if err != nil && fresh {
			err = errors.Join(cause.Of(err), st.removeIFB())
		}
	}()
	ours, others, err := redirectsAndOthers(st.Index)
	if err != nil {
		return 0, err
	}
	if len(others) > 0 {
		return 0, fmt.Errorf("interface %s has a %s filter of priority 1 at ingress, where ours has to be: give it a higher one, or remove it, by tc filter del dev %[1]s ingress pref 1", name, others[0].Type())
	}
	if err := st.note(); err != nil { // the guard, before the first change
		return 0, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.NumTxQueues, attrs.NumRxQueues = ifbName(st.Index), l.Attrs().MTU, 1, 1
	if err := netlink.LinkAdd(&netlink.Ifb{LinkAttrs: attrs}); err != nil && !errors.Is(err, unix.EEXIST) {
		return 0, fmt.Errorf("make device %s (module ifb): %w", attrs.Name, err)
	}
	made, err := netlink.LinkByName(attrs.Name)
	if err == nil && made.Type() != "ifb" {
		err = errors.New("it is in the way, and not ours: rename it")
	}
	if err == nil {
		err = netlink.LinkSetUp(made)
	}
	if err != nil {
		return 0, fmt.Errorf("device %s: %w", attrs.Name, err)
	}
	device = made.Attrs().Index
	if err := st.addClsact(); err != nil {
		return 0, err
	}
	if len(ours) > 0 && redirectsTo(ours, device) {
		return device, nil
	}
	if err := st.removeRedirect(); err != nil {
		return 0, err
	}
	if err := netlink.FilterAdd(redirect(st.Index, device)); err != nil {
		return 0, fmt.Errorf("tc filter on %s (modules cls_u32, act_mirred): %w", name, err)
	}
	return device, nil
}

// redirect is the filter: one of u32 without a key takes all. bpf_redirect would
// not do, an ifb drops what mirred does not send.
func redirect(index, device int) *netlink.U32 {
	return &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS,
			Priority: ifbPriority, Handle: ifbFilter, Protocol: unix.ETH_P_ALL,
		},
		Sel:     &netlink.TcU32Sel{Flags: nl.TC_U32_TERMINAL},
		Actions: []netlink.Action{netlink.NewMirredAction(device)},
	}
}

// redirectsAndOthers are the filters in the place of ours, and which of them are.
func redirectsAndOthers(index int) (ours, others []netlink.Filter, err error) {
	list, err := allFilters(index, netlink.HANDLE_MIN_INGRESS)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range list {
		switch {
		case isRedirect(f):
			ours = append(ours, f)
		case f.Attrs().Priority == ifbPriority:
			others = append(others, f)
		}
	}
	return ours, others, nil
}

// isRedirect says whether a filter is ours.
func isRedirect(f netlink.Filter) bool {
	return classifier{f.Type(), f.Attrs().Priority, f.Attrs().Handle}.redirects()
}

// redirects are the filters of ours.
func redirects(index int) ([]netlink.Filter, error) {
	ours, _, err := redirectsAndOthers(index)
	return ours, err
}

func redirectsTo(list []netlink.Filter, device int) bool {
	return slices.ContainsFunc(list, func(f netlink.Filter) bool {
		u, ok := f.(*netlink.U32)
		return ok && slices.ContainsFunc(u.Actions, func(a netlink.Action) bool {
			m, ok := a.(*netlink.MirredAction)
			return ok && m.Ifindex == device
		})
	})
}

// removeRedirect removes our filters.
func (st *site) removeRedirect() error {
	ours, others, err := redirectsAndOthers(st.Index)
	if err != nil {
		return err
	}
	for _, f := range ours {
		if len(ours)+len(others) == 1 {
			f.Attrs().Handle = 0 // all of the priority, or its table would stay
		}
		if err := netlink.FilterDel(f); err != nil && !errors.Is(err, unix.ENOENT) && !absent(err) {
			return cause.Of(fmt.Errorf("tc filter: %w", err))
		}
	}
	return nil
}

// removeIFB undoes addIFB, whichever process did it. Packets that are queued in the
// device then are lost. It does nothing if nothing is there.
func (st *site) removeIFB() error {
	if !st.gone { // the filter comes first: without a device it would drop all
		if err := st.removeRedirect(); err != nil {
			return err
		}
	}
	device, err := netlink.LinkByName(ifbName(st.Index))
	if absent(err) {
		return st.removeClsact()
	}
	if err != nil {
		return fmt.Errorf("device %s: %w", ifbName(st.Index), err)
	}
	if device.Type() != "ifb" {
		return nil
	}
	st.drain(device.Attrs().Index)
	if err := netlink.LinkDel(device); err != nil && !absent(err) {
		return cause.Of(fmt.Errorf("device %s: %w", ifbName(st.Index), err))
	}
	st.removed("%s ingress: device %s", st.name(), ifbName(st.Index))
	return st.removeClsact()
}
