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

// budgetUser is a shaper, or a plane in user space, that meters packets by a budget. It
// exists as long as one of its programs exists. A user without programs exists as long as
// its process holds the lock File.
type budgetUser struct {
	File      string           // name of its lock file, unique among users
	Process   int              // process ID
	Programs  []ebpf.ProgramID `json:",omitempty"`
	Namespace uint64           // cookie of the network namespace
	Index     int              // index of the interface; 0 for a plane in user space
	Interface string           // name of the interface
	Direction Direction
}

// name returns the interface and the direction.
func (u *budgetUser) name() string { return u.Interface + " " + u.Direction.String() }

func (u *budgetUser) String() string { return fmt.Sprintf("%s (process %d)", u.name(), u.Process) }

// registryTemp returns the name of the temporary file in which the user writes the registry.
func (u *budgetUser) registryTemp() string {
	return registryTemp(u.at(), u.Direction)
}

func (u *budgetUser) at() iface { return iface{u.Namespace, u.Index} }

// registryTemp returns a name that contains the interface, so a survey can attribute the
// file to the interface if its writer was killed.
func registryTemp(at iface, direction Direction) string {
	return at.fileName(direction.String()+"-"+registryFile) + temporary
}

// gone reports whether the user does not exist any more. Without CAP_SYS_ADMIN it may
// report false for a user that is gone.
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

// goneUnprivileged is gone for a process that may not open programs by ID.
func (u *budgetUser) goneUnprivileged() (bool, error) {
	at := iface{u.Namespace, u.Index}
	if held, err := hasOwner(at, u.Direction); held || err != nil {
		return false, err
	}
	here, err := currentNamespace()
	if err != nil || here != u.Namespace || fileExists(pinPath(at, u.Direction)) {
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
