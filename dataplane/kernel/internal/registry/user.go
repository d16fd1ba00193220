package registry

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/rundir"
)

// User is a shaper, or a plane in user space, metering packets by a budget. It exists as long as
// one of its programs exists. A user without programs exists as long as its process holds the lock
// File.
type User struct {
	File      string           // name of its lock file, unique among users
	Process   int              // process ID
	Programs  []ebpf.ProgramID `json:",omitempty"`
	Namespace uint64           // cookie of the network namespace
	Index     int              // index of the interface; 0 for a plane in user space
	Interface string           // name of the interface
	Direction dataplane.Direction
	Once      bool `json:",omitempty"` // it does not charge a packet that the budget has charged
}

// name returns the interface and the direction.
func (u *User) name() string { return u.Interface + " " + u.Direction.String() }

func (u *User) String() string { return fmt.Sprintf("%s (process %d)", u.name(), u.Process) }

// registryTemp returns the name of the temporary file in which the user writes the registry.
func (u *User) registryTemp() string {
	return RegistryTemp(u.At(), u.Direction)
}

// inUserSpace reports whether the user is a plane in user space.
func (u *User) inUserSpace() bool { return len(u.Programs) == 0 }

func (u *User) At() iface.ID { return iface.ID{Namespace: u.Namespace, Index: u.Index} }

// RegistryTemp returns a name containing the interface, so a survey can attribute the file to the
// interface if its writer was killed.
func RegistryTemp(at iface.ID, direction dataplane.Direction) string {
	return at.FileName(direction.String()+"-"+registryFile) + rundir.Temporary
}

// gone reports whether the user does not exist any more. Without CAP_SYS_ADMIN it may report false
// for a gone user.
func (u *User) gone() (bool, error) {
	if len(u.Programs) == 0 {
		return rundir.RemoveIfUnlocked(u.File)
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

// goneUnprivileged is gone for a process unable to open programs by ID.
func (u *User) goneUnprivileged() (bool, error) {
	at := iface.ID{Namespace: u.Namespace, Index: u.Index}
	if held, err := rundir.HasOwner(at, u.Direction); held || err != nil {
		return false, err
	}
	here, err := iface.CurrentNamespace()
	if err != nil || here != u.Namespace || rundir.FileExists(rundir.PinPath(at, u.Direction)) {
		return false, err
	}
	list, err := hook.Filters(u.Index, hook.Parent(u.Direction == dataplane.Ingress))
	if err != nil && !cause.NoDevice(err) {
		return false, err
	}
	return !slices.ContainsFunc(list, func(f netlink.Filter) bool {
		b, ok := f.(*netlink.BpfFilter)
		return ok && slices.Contains(u.Programs, ebpf.ProgramID(b.Id))
	}), nil
}
