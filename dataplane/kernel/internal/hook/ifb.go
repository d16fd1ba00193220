package hook

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

// Packets cannot be queued at ingress. So packets that arrive are redirected to an ifb, a
// device that we create, and queued there. TCX programs see them before that; clsact
// filters of others at ingress do not see them at all.

const ifbPrefix = "shaper-"

// IFBName returns the name of an interface's ifb. It has at most 15 characters, the
// longest that the kernel allows.
func IFBName(index int) string { return fmt.Sprintf("%s%x", ifbPrefix, index) }

// InterfaceOf returns the index of the interface that an ifb belongs to, 0 if a device is
// not one of our ifbs.
func InterfaceOf(l netlink.Link) int {
	hex, ok := strings.CutPrefix(l.Attrs().Name, ifbPrefix)
	index, err := strconv.ParseInt(hex, 16, 32)
	if !ok || err != nil || l.Type() != "ifb" {
		return 0
	}
	return int(index)
}

// MakeIFB makes the ifb of an interface and sets it up. It uses the one that is there.
func MakeIFB(index, mtu int) (device int, err error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.NumTxQueues, attrs.NumRxQueues = IFBName(index), mtu, 1, 1
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
	return made.Attrs().Index, nil
}

// Our redirect runs before all other filters. Its u32 filter number marks it as ours.
const (
	redirectPriority = 1
	redirectNumber   = 0x5ad
)

// Redirect redirects the packets that arrive at an interface, which has clsact, to a
// device.
func Redirect(index, device int) error {
	ours, _, err := redirectsAndOthers(index)
	if err != nil {
		return err
	}
	if redirectsTo(ours, device) {
		return nil
	}
	if err := RemoveRedirects(index); err != nil {
		return err
	}
	// A u32 filter without a key takes all packets. bpf_redirect cannot replace it: an
	// ifb drops packets that do not come from mirred.
	err = netlink.FilterAdd(&netlink.U32{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS,
			Priority: redirectPriority, Handle: redirectNumber, Protocol: unix.ETH_P_ALL,
		},
		Sel:     &netlink.TcU32Sel{Flags: nl.TC_U32_TERMINAL},
		Actions: []netlink.Action{netlink.NewMirredAction(device)},
	})
	if err != nil {
		return fmt.Errorf("tc filter (modules cls_u32, act_mirred): %w", err)
	}
	return nil
}

// CanRedirect returns an error if another filter has the priority of our redirect. name is
// that of the interface.
func CanRedirect(index int, name string) error {
	_, others, err := redirectsAndOthers(index)
	if err == nil && len(others) > 0 {
		err = fmt.Errorf("interface %s has a %s filter of priority 1 at ingress, which ours needs: give it a higher one, or remove it, by tc filter del dev %[1]s ingress pref 1", name, others[0].Type())
	}
	return err
}

// HasRedirect says whether an interface has a redirect of ours.
func HasRedirect(index int) (bool, error) {
	ours, _, err := redirectsAndOthers(index)
	return len(ours) > 0, err
}

// redirectsAndOthers returns our redirects, and the other filters of the same priority.
func redirectsAndOthers(index int) (ours, others []netlink.Filter, err error) {
	list, err := Filters(index, netlink.HANDLE_MIN_INGRESS)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range list {
		switch {
		case isRedirect(f):
			ours = append(ours, f)
		case f.Attrs().Priority == redirectPriority:
			others = append(others, f)
		}
	}
	return ours, others, nil
}

func isRedirect(f netlink.Filter) bool {
	return Filter{f.Type(), f.Attrs().Priority, f.Attrs().Handle}.Redirects()
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

// RemoveRedirects removes our redirects.
func RemoveRedirects(index int) error {
	ours, others, err := redirectsAndOthers(index)
	if err != nil {
		return err
	}
	for _, f := range ours {
		if len(ours)+len(others) == 1 {
			f.Attrs().Handle = 0 // all of the priority, so that its table is removed, too
		}
		if err := netlink.FilterDel(f); err != nil && !errors.Is(err, unix.ENOENT) && !cause.NoDevice(err) {
			return cause.Of(fmt.Errorf("tc filter: %w", err))
		}
	}
	return nil
}
