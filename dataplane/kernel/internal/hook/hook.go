// Package hook attaches a program to an interface by a TCX link, an XDP link or a tc
// filter, finds it again, and lists the programs and filters that run before it. It also
// makes the ifb device to which packets that arrive are redirected to be queued. The
// index of an interface is that in the network namespace of the calling thread.
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
	TCX = "tcx" // a link, since kernel 6.6
	TC  = "tc"  // a filter of the clsact qdisc
	XDP = "xdp" // a link, at ingress only
)

// Modes of XDP.
const (
	Driver  = "driver"
	Generic = "generic" // in the kernel, for drivers without XDP
)

// Place is the place of an attached program.
type Place struct {
	Hook     string  // TCX, TC or XDP
	Mode     string  // of XDP: Driver or Generic
	Index    int     // of the interface, or of its ifb
	Link     link.ID `json:"-"`
	Parent   uint32  `json:"-"` // of a filter; so are the next
	Priority uint16  `json:"-"`
	Handle   uint32  `json:"-"`
}

// Hook is the hook of one attached program.
type Hook interface {
	Replace(*ebpf.Program) error      // in one step: no packet passes in between
	Remove() error                    // nil if the program is not attached any more
	Program() (ebpf.ProgramID, error) // 0 if none is attached any more
}

// ErrNoTCX says that the kernel lacks TCX.
var ErrNoTCX = errors.New("this kernel has no TCX, which begins with 6.6")

// ErrXDPTaken says that the interface has another XDP program.
var ErrXDPTaken = errors.New("has an XDP program already, and takes one")

// AttachTCX attaches a program in one direction, before all programs there: if it lets a
// packet pass, the next program sees it. The error may be ErrNoTCX.
func AttachTCX(index int, ingress bool, p *ebpf.Program) (Hook, Place, error) {
	l, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: p, Attach: tcxType(ingress), Anchor: link.Head()})
	if err != nil {
		if version, e := features.LinuxVersionCode(); errors.Is(err, ebpf.ErrNotSupported) || e == nil && version < 6<<16|6<<8 {
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

// AttachXDP attaches a program, in the driver if that can. The error may be ErrXDPTaken.
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
	at.Link = info.ID
	return &Link{l}, at, nil
}

// Link is a hook that is a link. The program is detached when the last process that has
// the link open ends, unless the link is pinned.
type Link struct{ link.Link }

// Replace puts another program in the place of the one attached.
func (h *Link) Replace(p *ebpf.Program) error { return cause.Of(h.Update(p)) }

// Remove detaches the program and closes the link.
func (h *Link) Remove() error {
	err := h.Detach()
	if errors.Is(err, unix.ENOLINK) || errors.Is(err, unix.ENODEV) {
		err = nil // the link went with the interface
	}
	return errors.Join(err, h.Close())
}

// Program returns the ID of the program.
func (h *Link) Program() (ebpf.ProgramID, error) {
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

// Open opens the hook at a place. The error is ENOENT if a link there is gone.
func (at Place) Open() (Hook, error) {
	if at.Hook == TC {
		return &filterHook{at}, nil
	}
	l, err := link.NewFromID(at.Link)
	if err != nil {
		return nil, err
	}
	return &Link{l}, nil
}
