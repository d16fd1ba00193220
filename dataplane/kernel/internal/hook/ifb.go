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

// Packets cannot be queued at ingress. So arriving packets are redirected to an ifb, a device
// that we create, and queued there. TCX programs of others see packets before the redirect.
// Other clsact filters at ingress never see them.

const ifbPrefix = "shaper-"

// IFBName returns the name of an interface's ifb. It is at most 15 characters long, the kernel's
// limit.
func IFBName(index int) string { return fmt.Sprintf("%s%x", ifbPrefix, index) }

// InterfaceOf returns the index of the interface to which an ifb belongs, or 0 if a device
// is not one of our ifbs.
func InterfaceOf(l netlink.Link) int {
	hex, ok := strings.CutPrefix(l.Attrs().Name, ifbPrefix)
	index, err := strconv.ParseInt(hex, 16, 32)
	if !ok || err != nil || l.Type() != "ifb" {
		return 0
	}
	return int(index)
}

// MakeIFB makes the ifb of an interface, if it does not exist, and sets it up. It returns
// the index of the ifb.
func MakeIFB(index, mtu int) (device int, err error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.NumTxQueues, attrs.NumRxQueues = IFBName(index), mtu, 1, 1
	if err := netlink.LinkAdd(&netlink.Ifb{LinkAttrs: attrs}); err != nil && !errors.Is(err, unix.EEXIST) {
		return 0, fmt.Errorf("make device %s (module ifb): %w", attrs.Name, err)
	}
	made, err := netlink.LinkByName(attrs.Name)
	if err == nil && made.Type() != "ifb" {
		err = errors.New("exists, but is not an ifb: rename it")
	}
	if err == nil {
		err = netlink.LinkSetUp(made)
	}
	if err != nil {
		return 0, fmt.Errorf("device %s: %w", attrs.Name, err)
	}
	return made.Attrs().Index, nil
}

// Our redirect runs before all other filters. The number of its u32 filter marks it as ours.
const (
	redirectPriority = 1
	redirectNumber   = 0x5ad
)

// Redirect redirects arriving packets of an interface to a device. The interface must have a
// clsact qdisc.
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
	// A u32 filter without a key matches all packets. A program with bpf_redirect cannot be used:
	// an ifb drops packets unless mirred redirected them.
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

// CanRedirect returns an error if another filter uses the priority of our redirect. name is the
// interface's name.
func CanRedirect(index int, name string) error {
	_, others, err := redirectsAndOthers(index)
	if err == nil && len(others) > 0 {
		err = fmt.Errorf("interface %s has a %s filter with priority 1 at ingress, but our redirect needs that priority: give the other filter a higher number, or remove it: tc filter del dev %[1]s ingress pref 1",
			name, others[0].Type())
	}
	return err
}

// HasRedirect reports whether an interface has a redirect of ours.
func HasRedirect(index int) (bool, error) {
	ours, _, err := redirectsAndOthers(index)
	return len(ours) > 0, err
}

// redirectsAndOthers returns our redirects and the other filters of the same priority, at
// ingress.
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

// RemoveRedirects removes our redirects, if there are any.
func RemoveRedirects(index int) error {
	ours, others, err := redirectsAndOthers(index)
	if err != nil {
		return err
	}
	for _, f := range ours {
		if len(ours)+len(others) == 1 {
			f.Attrs().Handle = 0 // all filters of the priority, with their hash table
		}
		if err := netlink.FilterDel(f); err != nil && !errors.Is(err, unix.ENOENT) && !cause.NoDevice(err) {
			return cause.Of(fmt.Errorf("tc filter: %w", err))
		}
	}
	return nil
}
