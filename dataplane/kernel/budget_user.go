package kernel

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
)

// budgetUser is a shaper that meters packets by a budget. It is there as long as one
// of its programs, or if it has none, as long as its process holds the lock File.
type budgetUser struct {
	File      string // of its lock; no other user has the same
	Process   int
	Programs  []ebpf.ProgramID `json:",omitempty"`
	Namespace uint64
	Index     int    // of the interface; 0 for a plane in user space
	Interface string // its name
	Direction Direction
}

func (u *budgetUser) name() string { return u.Interface + " " + u.Direction.String() }

func (u *budgetUser) String() string { return fmt.Sprintf("%s (process %d)", u.name(), u.Process) }

// half is the name of the temporary file in which the user writes the registry.
func (u *budgetUser) registryTemp() string {
	return iface{u.Namespace, u.Index}.registryTemp(u.Direction)
}

// half names the interface, so that status can attribute the file if its writer is killed.
func (at iface) registryTemp(direction Direction) string {
	return at.fileName(direction.String()+"-"+registryFile) + temporary
}

// gone says whether a user is there no more. What cannot be found out without
// CAP_SYS_ADMIN counts as there.
func (u *budgetUser) gone() (bool, error) {
	if len(u.Programs) == 0 {
		return removeIfUnlocked(u.File)
	}
	for _, id := range u.Programs {
		p, err := ebpf.NewProgramFromID(id)
		switch {
		case err == nil:
			return false, p.Close()
		case errors.Is(err, unix.EPERM):
			return u.goneUnprivileged()
		case !errors.Is(err, unix.ENOENT):
			return false, fmt.Errorf("program %d of %s: %w", id, u.name(), cause.Of(err))
		}
	}
	return true, nil
}

// goneUnseen is gone for those who may not look for programs.
func (u *budgetUser) goneUnprivileged() (bool, error) {
	at := iface{u.Namespace, u.Index}
	if held, err := hasOwner(at, u.Direction); held || err != nil {
		return false, err
	}
	here, err := currentNamespace()
	if err != nil || here != u.Namespace || fileExists(at.pinPath(u.Direction)) {
		return false, err
	}
	list, err := hook.Filters(u.Index, hook.Parent(u.Direction == Ingress))
	if err != nil && !cause.NoDevice(err) {
		return false, err
	}
	return !slices.ContainsFunc(list, func(f netlink.Filter) bool {
		b, ok := f.(*netlink.BpfFilter)
		return ok && slices.Contains(u.Programs, ebpf.ProgramID(b.Id))
	}), nil
}
