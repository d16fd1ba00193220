package kernel

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
)

// attachment is an attached program of shaper. Attachments are read from the interface itself, so
// that no command overlooks a program left attached by another process.
type attachment struct{ hook.Attached }

// mostReplaced limits the attempts at reading programs while another process replaces them.
const mostReplaced = 100

// whileReplaced calls read again if a program was replaced after read had found it, and before read
// had opened it. The error then is ENOENT.
func whileReplaced(read func() error) (err error) {
	for range mostReplaced {
		if err = read(); !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return err
}

// attachments returns our programs for one direction of an interface, whether they are attached to
// the interface or to its ifb. Without CAP_SYS_ADMIN it returns EPERM and the tc filters.
func attachments(index int, direction dataplane.Direction) (list []attachment, err error) {
	err = whileReplaced(func() error {
		list, err = attachmentsOnce(index, direction)
		return err
	})
	return list, err
}

func attachmentsOnce(index int, direction dataplane.Direction) ([]attachment, error) {
	list, err := attachedTo(index, direction)
	if err != nil && !errors.Is(err, unix.EPERM) || direction == Egress {
		return list, err
	}
	device, e := netlink.LinkByName(hook.IFBName(index))
	if cause.NoDevice(e) {
		return list, err
	}
	if e != nil {
		return nil, fmt.Errorf("device %s: %w", hook.IFBName(index), e)
	}
	more, e := attachedTo(device.Attrs().Index, Egress)
	return append(list, more...), cmp.Or(e, err)
}

// attachedTo returns our programs attached to one device, as attachments does.
func attachedTo(index int, direction dataplane.Direction) (out []attachment, err error) {
	list, err := hook.Find(index, direction == Ingress, isOurs)
	for _, a := range list {
		out = append(out, attachment{a})
	}
	return out, err
}

// isOurs reports whether a program's name is one of ours. A program that is gone is an error, ENOENT:
// another may be in its place.
func isOurs(id ebpf.ProgramID) (bool, error) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return false, err
	}
	defer p.Close()
	info, err := p.Info()
	return err == nil && slices.Contains(image.Programs[:], info.Name), err
}
