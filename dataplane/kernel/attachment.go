package kernel

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// attachment is a program of ours where it is attached. What is attached is the
// truth: it is found by asking the interface, so that nothing can be left behind
// that no command sees.
type attachment struct {
	place
	program ebpf.ProgramID
}

// attachments are those of an interface that shape one direction, at the
// interface or at its ifb.
func attachments(index int, direction Direction) ([]attachment, error) {
	list, err := attachedTo(index, direction)
	if err != nil && !errors.Is(err, unix.EPERM) || direction == Egress {
		return list, err
	}
	device, e := netlink.LinkByName(ifbName(index))
	if absent(e) {
		return list, err
	}
	if e != nil {
		return nil, fmt.Errorf("device %s: %w", ifbName(index), e)
	}
	more, e := attachedTo(device.Attrs().Index, Egress)
	return append(list, more...), cmp.Or(e, err)
}

// attachedTo are the programs of ours at a device. With EPERM it returns those that
// can be seen without CAP_SYS_ADMIN: tc filters.
func attachedTo(index int, direction Direction) (out []attachment, err error) {
	list, err := filters(index, filterParent(direction))
	if err != nil {
		return nil, err
	}
	for _, f := range list {
		if ours(f) {
			at := place{Hook: TC, Index: index, Parent: f.Parent, Priority: f.Priority, Handle: f.Handle}
			out = append(out, attachment{at, ebpf.ProgramID(f.Id)})
		}
	}
	tcx, err := tcxOf(index, direction)
	if err != nil {
		return out, err
	}
	out = append(out, tcx...)
	if direction == Egress {
		return out, nil
	}
	xdp, err := xdpOf(index)
	return append(out, xdp...), err
}

// tcxOf are the programs of ours among those of TCX.
func tcxOf(index int, direction Direction) ([]attachment, error) {
	to := ebpf.AttachTCXEgress
	if direction == Ingress {
		to = ebpf.AttachTCXIngress
	}
	all, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: to})
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) {
		return nil, nil // no TCX, or no interface
	}
	if err != nil {
		return nil, err
	}
	var out []attachment
	for _, p := range all.Programs {
		id, ok := p.LinkID()
		if !ok {
			continue // ours have links
		}
		yes, err := isOurs(p.ID)
		if err != nil {
			return nil, err
		}
		if yes {
			out = append(out, attachment{place{Hook: TCX, Index: index, Link: id}, p.ID})
		}
	}
	return out, nil
}

// xdpOf is the XDP program of ours, if it is one.
func xdpOf(index int) ([]attachment, error) {
	l, err := netlink.LinkByIndex(index)
	if absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("interface %d: %w", index, err)
	}
	xdp := l.Attrs().Xdp
	if xdp == nil || xdp.ProgId == 0 {
		return nil, nil
	}
	id := ebpf.ProgramID(xdp.ProgId)
	if yes, err := isOurs(id); err != nil || !yes {
		return nil, err
	}
	at := place{Hook: XDP, Mode: Driver, Index: index}
	if xdp.AttachMode == nl.XDP_ATTACHED_SKB {
		at.Mode = Generic
	}
	var links link.Iterator
	defer links.Close()
	for links.Next() {
		info, err := links.Link.Info()
		if err == nil && info.Program == id && info.XDP() != nil && int(info.XDP().Ifindex) == index {
			at.Link = info.ID
			return []attachment{{at, id}}, nil
		}
	}
	return nil, links.Err() // it went away meanwhile
}

// isOurs says whether a program is one of ours, by its name.
func isOurs(id ebpf.ProgramID) (bool, error) {
	p, err := ebpf.NewProgramFromID(id)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer p.Close()
	info, err := p.Info()
	return err == nil && slices.Contains(programs[:], info.Name), err
}

// remove detaches it, whoever attached it.
func (a attachment) remove() error {
	h, err := a.reopen()
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	return h.remove()
}
