// Package hook attaches a program to an interface by a TCX link, an XDP link or a tc filter, finds
// it again, and lists the programs and filters running before it. It also makes the ifb device to
// which arriving packets are redirected to be queued. Indexes of interfaces refer to the network
// namespace of the calling thread.
package hook

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
)

// Kinds of hooks.
const (
	TCX = "tcx" // a BPF link; needs kernel 6.6
	TC  = "tc"  // a filter of the clsact qdisc
	XDP = "xdp" // a BPF link, at ingress only
)

// Modes of XDP.
const (
	Driver  = "driver"
	Generic = "generic" // in the network stack, for drivers without XDP
)

// Place is the attachment point of a program.
type Place struct {
	Hook   string  // TCX, TC or XDP
	Mode   string  // Driver or Generic if Hook is XDP, otherwise ""
	Index  int     // index of the interface, or of its ifb
	LinkID link.ID `json:"-"` // of a TCX or XDP link

	// Of a tc filter.
	Parent   uint32 `json:"-"`
	Priority uint16 `json:"-"`
	Handle   uint32 `json:"-"`
}

// Hook is one attached program.
type Hook interface {
	// Replace replaces the program in one step: each packet passes either the previous
	// program or the new one.
	Replace(*ebpf.Program) error
	// Remove detaches the program. It returns nil if it is not attached any more.
	Remove() error
	// Program returns the ID of the attached program, or 0 if there is none any more.
	Program() (ebpf.ProgramID, error)
}

// ErrNoTCX reports a kernel without TCX.
var ErrNoTCX = errors.New("TCX needs kernel 6.6 or newer")

// ErrXDPTaken reports another XDP program at the interface. Its text continues the interface's
// name.
var ErrXDPTaken = errors.New("already has an XDP program, and cannot have two")

// AttachTCX attaches a program in one direction, before all other programs. They still see each
// passed packet. The error may be ErrNoTCX.
func AttachTCX(index int, ingress bool, p *ebpf.Program) (Hook, Place, error) {
	l, err := link.AttachTCX(
		link.TCXOptions{Interface: index, Program: p, Attach: tcxType(ingress), Anchor: link.Head()})
	if err != nil {
		if version, e := features.LinuxVersionCode(); errors.Is(err, ebpf.ErrNotSupported) || e == nil &&
			version < 6<<16|6<<8 {
			return nil, Place{}, ErrNoTCX
		}
		return nil, Place{}, cause.Of(err)
	}
	return newLinkHook(l, Place{Hook: TCX, Index: index})
}

func tcxType(ingress bool) ebpf.AttachType {
	if ingress {
		return ebpf.AttachTCXIngress
	}
	return ebpf.AttachTCXEgress
}

// AttachXDP attaches an XDP program, in Driver mode if the driver supports it, otherwise in
// Generic mode. The error may be ErrXDPTaken.
func AttachXDP(index int, p *ebpf.Program) (Hook, Place, error) {
	at := Place{Hook: XDP, Mode: Driver, Index: index}
	l, err := link.AttachXDP(link.XDPOptions{Program: p, Interface: index, Flags: link.XDPDriverMode})
	if err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EPERM) {
		at.Mode = Generic
		l, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: index, Flags: link.XDPGenericMode})
	}
	switch {
	case errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST):
		return nil, Place{}, ErrXDPTaken
	case err != nil:
		return nil, Place{}, cause.Of(err)
	}
	return newLinkHook(l, at)
}

func newLinkHook(l link.Link, at Place) (Hook, Place, error) {
	info, err := l.Info()
	if err != nil {
		l.Close()
		return nil, Place{}, err
	}
	at.LinkID = info.ID
	return &BPFLink{l}, at, nil
}

// BPFLink is the Hook of a TCX or XDP program. The kernel detaches the program when the
// last process with an open link ends, unless the link is pinned.
type BPFLink struct{ link.Link }

// Replace implements Hook.
func (h *BPFLink) Replace(p *ebpf.Program) error { return cause.Of(h.Update(p)) }

// Remove implements Hook. It closes the link, too.
func (h *BPFLink) Remove() error {
	err := h.Detach()
	if errors.Is(err, unix.ENOLINK) || errors.Is(err, unix.ENODEV) {
		err = nil // the interface is gone, and the link with it
	}
	return errors.Join(err, h.Close())
}

// Program implements Hook.
func (h *BPFLink) Program() (ebpf.ProgramID, error) {
	info, err := h.Info()
	if err != nil {
		return 0, fmt.Errorf("query the BPF link: %w", err)
	}
	tcx, xdp := info.TCX(), info.XDP()
	if tcx != nil && tcx.Ifindex != 0 || xdp != nil && xdp.Ifindex != 0 {
		return info.Program, nil
	}
	return 0, nil
}

// Open opens the hook at a place. If the hook was a BPF link that is gone, the error is
// ENOENT.
func (at Place) Open() (Hook, error) {
	if at.Hook == TC {
		return &filterHook{at}, nil
	}
	l, err := link.NewFromID(at.LinkID)
	if err != nil {
		return nil, err
	}
	return &BPFLink{l}, nil
}
