package kernel

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
)

// IsIFB reports whether an interface is the ifb device of a shaper at another one.
func IsIFB(l netlink.Link) bool { return hook.InterfaceOf(l) != 0 }

// addIFB makes the ifb device of the interface and redirects all ingress packets to it,
// so that they can be queued. It reuses an existing ifb device. It returns the index.
func (st *site) addIFB() (device int, err error) {
	l, err := netlink.LinkByIndex(st.Index)
	if err != nil {
		return 0, fmt.Errorf("interface %d: %w", st.Index, err)
	}
	name, ifb := l.Attrs().Name, hook.IFBName(st.Index)
	_, err = netlink.LinkByName(ifb)
	if err != nil && !cause.NoDevice(err) {
		return 0, fmt.Errorf("device %s: %w", ifb, err)
	}
	fresh := err != nil
	defer func() {
		if err != nil && fresh {
			err = errors.Join(cause.Of(err), st.removeIFB())
		}
	}()
	if err := hook.CanRedirect(st.Index, name); err != nil {
		return 0, err
	}
	if err := st.saveBeforeChange(); err != nil {
		return 0, err
	}
	if device, err = hook.MakeIFB(st.Index, l.Attrs().MTU); err != nil {
		return 0, err
	}
	if err := st.addClsact(); err != nil {
		return 0, err
	}
	if err := hook.Redirect(st.Index, device); err != nil {
		return 0, fmt.Errorf("interface %s: %w", name, err)
	}
	return device, nil
}

// removeIFB undoes addIFB, whichever process called it, after the queued packets have
// drained. It does nothing if there is no ifb device.
func (st *site) removeIFB() error {
	if !st.gone { // first: a redirect to a missing device would drop all packets
		if err := hook.RemoveRedirects(st.Index); err != nil {
			return err
		}
	}
	ifb := hook.IFBName(st.Index)
	device, err := netlink.LinkByName(ifb)
	if cause.NoDevice(err) {
		return st.removeClsact()
	}
	if err != nil {
		return fmt.Errorf("device %s: %w", ifb, err)
	}
	if device.Type() != "ifb" {
		return nil
	}
	st.drain(device.Attrs().Index)
	if err := netlink.LinkDel(device); err != nil && !cause.NoDevice(err) {
		return cause.Of(fmt.Errorf("device %s: %w", ifb, err))
	}
	st.addRemoved("%s ingress: device %s", st.name(), ifb)
	return st.removeClsact()
}
