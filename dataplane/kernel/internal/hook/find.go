package hook

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
)

// Attached is an attached program.
type Attached struct {
	Place
	Program ebpf.ProgramID
}

// Remove detaches the program, even if another process attached it. It returns nil if the
// program is not attached any more.
func (a Attached) Remove() error {
	h, err := a.Open()
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	return h.Remove()
}

// Find returns our programs attached to a device in one direction. ours reports whether a program
// attached by a BPF link is ours. The error is ENOENT if a program was replaced or detached
// meanwhile: Find must be called again. If the error is EPERM, Find returns the programs visible without
// CAP_SYS_ADMIN: those of tc filters.
func Find(index int, ingress bool, ours func(ebpf.ProgramID) (bool, error)) (out []Attached, err error) {
	list, err := programFilters(index, Parent(ingress))
	if err != nil {
		return nil, err
	}
	for _, f := range list {
		if isOurs(f) {
			at := Place{Hook: TC, Index: index, Parent: f.Parent, Priority: f.Priority, Handle: f.Handle}
			out = append(out, Attached{at, ebpf.ProgramID(f.Id)})
		}
	}
	programs, err := TCXPrograms(index, ingress)
	if err != nil {
		return out, err
	}
	for _, p := range programs {
		id, ok := p.LinkID()
		if !ok {
			continue // our programs are attached by links
		}
		yes, err := ours(p.ID)
		if err != nil {
			return out, err
		}
		if yes {
			out = append(out, Attached{Place{Hook: TCX, Index: index, LinkID: id}, p.ID})
		}
	}
	if !ingress {
		return out, nil
	}
	xdp, err := findXDP(index, ours)
	if err == nil && xdp != nil {
		out = append(out, *xdp)
	}
	return out, err
}

// findXDP returns the XDP program of a device if it is ours, otherwise nil.
func findXDP(index int, ours func(ebpf.ProgramID) (bool, error)) (*Attached, error) {
	l, err := netlink.LinkByIndex(index)
	if cause.NoDevice(err) {
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
	if yes, err := ours(id); err != nil || !yes {
		return nil, err
	}
	at := Place{Hook: XDP, Mode: Driver, Index: index}
	if xdp.AttachMode == nl.XDP_ATTACHED_SKB {
		at.Mode = Generic
	}
	var links link.Iterator
	defer links.Close()
	for links.Next() {
		info, err := links.Link.Info()
		if err == nil && info.Program == id && info.XDP() != nil && int(info.XDP().Ifindex) == index {
			at.LinkID = info.ID
			return &Attached{at, id}, nil
		}
	}
	if err := links.Err(); err != nil {
		return nil, err
	}
	if l, err := netlink.LinkByIndex(index); err == nil && l.Attrs().Xdp != nil &&
		l.Attrs().Xdp.ProgId == uint32(id) {
		return nil, nil // attached without a link
	}
	return nil, fmt.Errorf("program %d was replaced or detached meanwhile: %w", id, unix.ENOENT)
}
