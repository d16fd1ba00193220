package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/rundir"
)

// MaxBudgets is the maximum number of budgets of a host. Their maps take 600 kB.
const MaxBudgets = 4096

// registry lists the used budgets of the host, with their slots and users. It is a file in
// StateDir. The states of budgets are in maps. The maps are pinned, so processes without
// CAP_SYS_ADMIN can open them. The last user to leave removes file and pins.
type registry struct {
	Version int
	Maps    [2]ebpf.MapID // in the order of BudgetMaps
	Budgets []*Budget
}

// registryVersion is the format of the registry and of struct budget in
// bpf/src/policy.h.
const registryVersion = 1

// Names of the registry's file and of its lock file. They are separate because the
// registry's file is replaced on each change.
const (
	registryFile = "budgets"
	registryLock = registryFile + "-lock"
)

// MemberFile is the prefix of the names of lock files held by planes in user space.
const MemberFile = registryFile + "-user-"

// Budget is a budget in use.
type Budget struct {
	Name    string
	Slot    uint32 // in BudgetMaps
	Packets uint8  // 1: counts packets, not bytes
	Params  string // of the meter, in the one-line form of policy files
	Profile bpf.ShaperProfile
	Label   uint16 `json:",omitempty"` // in the notes of packets that it charges once; 0: none yet
	Users   []User
}

// Locked is the registry while its lock is held.
type Locked struct {
	rundir.Lock
	registry
	text     []byte       // contents of the file
	temp     string       // name of the temporary file for the next contents
	Opened   [2]*ebpf.Map // open if openMaps was called
	unpinned bool         // the maps are new, and not pinned yet
	pruned   []leftBudget // budgets of removed users
}

// registryExists reports whether the registry exists, or the lock file of a killed process.
func registryExists() bool {
	for _, name := range []string{registryFile, registryLock} {
		if _, err := os.Lstat(filepath.Join(rundir.StateDir, name)); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// HasUser reports whether a budget may have one of these users, by their lock files. It needs no
// lock if no other process adds or removes them meanwhile.
func HasUser(users ...string) bool {
	r, _, err := readRegistry()
	return err != nil || slices.ContainsFunc(r.Budgets, func(b *Budget) bool {
		return slices.ContainsFunc(b.Users, func(u User) bool { return slices.Contains(users, u.File) })
	})
}

// openRegistry takes the lock by flock(2) with the operation how, reads the registry and removes
// gone users from it. temp is the name of the temporary file for the next contents.
func openRegistry(temp string, how int) (*Locked, error) {
	l, err := rundir.TakeRegistryLock(registryLock, how)
	if err != nil {
		return nil, err
	}
	b := &Locked{Lock: l, temp: temp}
	b.registry, b.text, err = readRegistry()
	if err == nil {
		err = b.pruneGone()
	}
	if err == nil && len(b.Budgets) > 0 && b.Version != registryVersion {
		err = fmt.Errorf("budgets of this host are in use by another version of shaper (%v): detach it first",
			b.Budgets[0].Users[0].String())
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return b, nil
}

// readRegistry returns an empty registry if there is none.
func readRegistry() (r registry, text []byte, err error) {
	file, err := rundir.OpenState(registryFile, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil, nil
	}
	if err != nil {
		return r, nil, err
	}
	defer file.Close()
	if text, err = io.ReadAll(file); err != nil {
		return r, nil, err
	}
	if r, err = parseRegistry(text); err != nil {
		return r, text, fmt.Errorf(
			"%s cannot be read (%w): detach all shapers that use budgets of the host, then remove the file",
			file.Name(), err)
	}
	return r, text, nil
}

// parseRegistry decodes a registry. Budgets without users are left out.
func parseRegistry(text []byte) (r registry, err error) {
	if err := json.Unmarshal(text, &r); err != nil {
		return registry{}, err
	}
	r.Budgets = slices.DeleteFunc(r.Budgets, func(b *Budget) bool { return b == nil || len(b.Users) == 0 })
	labels := map[uint16]string{}
	for _, b := range r.Budgets {
		if b.Label == 0 {
			continue
		}
		if other, ok := labels[b.Label]; ok || b.Label > maxLabel {
			return registry{}, fmt.Errorf("label %d of budget %q is too large, or that of %q", b.Label, b.Name, other)
		}
		labels[b.Label] = b.Name
	}
	return r, nil
}

// pruneGone removes gone users, and budgets without users.
func (b *Locked) pruneGone() error {
	goneByFile := map[string]bool{}
	var errs []error
	for _, r := range b.Budgets {
		r.Users = slices.DeleteFunc(r.Users, func(u User) bool {
			gone, ok := goneByFile[u.File]
			if !ok {
				var err error
				gone, err = u.gone()
				errs = append(errs, err)
				goneByFile[u.File] = gone
			}
			if gone {
				b.pruned = append(b.pruned, r.leftover(&u))
			}
			return gone
		})
	}
	b.dropUnused()
	return errors.Join(errs...)
}

// leftover describes a budget whose user u is gone.
func (b *Budget) leftover(u *User) leftBudget {
	return leftBudget{
		u.Namespace,
		record.Leftover{
			Interface: u.Interface, Direction: u.Direction, What: fmt.Sprintf("budget %s", b.Name),
		},
	}
}

// leftBudget is a budget whose user is gone.
type leftBudget struct {
	namespace uint64 // of the user
	record.Leftover
}

// dropUnused removes budgets without users.
func (b *Locked) dropUnused() {
	b.Budgets = slices.DeleteFunc(b.Budgets, func(r *Budget) bool { return len(r.Users) == 0 })
}

// openMaps opens the maps, or makes them if no budget is in use.
func (b *Locked) openMaps() (err error) {
	if b.Opened[0] != nil {
		return nil
	}
	if len(b.Budgets) > 0 {
		if b.Opened, err = b.findMaps(); !errors.Is(err, unix.ENOENT) {
			return err
		}
		b.Budgets = nil // a map exists as long as a program uses it, so there are no users
	}
	for i, name := range engine.BudgetMaps {
		if b.Opened[i], err = engine.NewMap(name, MaxBudgets); err != nil {
			return err
		}
		if b.Maps[i], err = engine.MapID(b.Opened[i]); err != nil {
			return err
		}
	}
	b.unpinned = true
	return nil
}

// budgetPin returns the path of the pin of one of BudgetMaps.
func budgetPin(name string) string { return filepath.Join(rundir.PinDir, "shared-"+name) }

// pinMaps pins new maps. Without a bpffs it requires CAP_SYS_ADMIN, with which processes
// open the maps by ID.
func (b *Locked) pinMaps() error {
	if !b.unpinned {
		return nil
	}
	b.unpinned = false
	if !rundir.BpffsMounted() {
		m, err := ebpf.NewMapFromID(b.Maps[0])
		if errors.Is(err, unix.EPERM) {
			return errors.New(
				"budgets of the host need bpffs, or CAP_SYS_ADMIN: mount -t bpf -o mode=0700 bpf " +
					rundir.Bpffs)
		}
		m.Close()
		return cause.Of(err)
	}
	for i, name := range engine.BudgetMaps {
		path := budgetPin(name)
		if err := rundir.RemovePin(path); err != nil { // left by a killed process
			return err
		}
		if err := rundir.OpenPinDir(); err != nil {
			return fmt.Errorf("budgets of the host need a directory in bpffs: %w", err)
		}
		if err := b.Opened[i].Pin(path); err != nil {
			return fmt.Errorf("pin %s: %w", path, cause.Of(err))
		}
	}
	return nil
}

// findMaps opens the maps in use, by their pins or their IDs.
func (b *Locked) findMaps() (maps [2]*ebpf.Map, err error) {
	for i, name := range engine.BudgetMaps {
		m, e := ebpf.LoadPinnedMap(budgetPin(name), nil)
		if e == nil {
			if id, e := engine.MapID(m); e != nil || id != b.Maps[i] {
				m.Close()
				m = nil
			}
		}
		if m == nil {
			m, err = ebpf.NewMapFromID(b.Maps[i])
		}
		if errors.Is(err, unix.EPERM) {
			err = fmt.Errorf("map %s with the budgets of this host is not pinned here: %w: run with CAP_SYS_ADMIN, or with the bpffs and the user of %s",
				name, err, b.Budgets[0].Users[0].String())
		}
		if err != nil {
			closeMaps(maps)
			return [2]*ebpf.Map{}, err
		}
		maps[i] = m
	}
	return maps, nil
}

// closeMaps closes maps; nil maps are allowed.
func closeMaps(maps [2]*ebpf.Map) {
	for _, m := range maps {
		m.Close()
	}
}

// save writes the registry, or removes it and the pins if no budget is in use. The registry
// is written before the pins and removed after them, so a killed process never leaves a pin
// without a registry.
func (b *Locked) save() error {
	if len(b.Budgets) == 0 {
		var errs []error
		for _, name := range engine.BudgetMaps {
			errs = append(errs, rundir.RemovePin(budgetPin(name)))
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
		b.text = nil
		return rundir.RemoveState(registryFile)
	}
	b.Version = registryVersion
	text, err := json.Marshal(b.registry)
	if err != nil {
		return err
	}
	if string(text) == string(b.text) {
		return nil
	}
	return b.write(text)
}

// write replaces the registry's file.
func (b *Locked) write(text []byte) error {
	if err := rundir.ReplaceState(registryFile, b.temp, text); err != nil {
		return fmt.Errorf("write the registry of budgets: %w", err)
	}
	b.text = text
	return nil
}

// close closes the maps and releases the lock.
func (b *Locked) close() error {
	closeMaps(b.Opened)
	return b.Lock.Close()
}

// ReleaseBudgets removes users from all budgets, by their lock files, and gone users. It returns
// the budgets of the removed users in the namespace of at. If no budget has these users, it waits for
// no other process: while one has the lock, gone users stay until the next call.
func ReleaseBudgets(
	at iface.ID, direction dataplane.Direction, users ...string,
) (left []record.Leftover, err error) {
	temp := RegistryTemp(at, direction)
	if err := rundir.RemoveState(temp); err != nil { // left by a killed process
		return nil, err
	}
	if !registryExists() {
		return nil, nil
	}
	how := unix.LOCK_EX
	if !HasUser(users...) {
		how |= unix.LOCK_NB
	}
	b, err := openRegistry(temp, how)
	if how&unix.LOCK_NB != 0 && errors.Is(err, rundir.ErrLocked) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, r := range b.Budgets {
		r.Users = slices.DeleteFunc(r.Users, func(u User) bool {
			leaves := slices.Contains(users, u.File)
			if leaves {
				b.pruned = append(b.pruned, r.leftover(&u))
			}
			return leaves
		})
	}
	b.dropUnused()
	for _, u := range b.pruned {
		if u.namespace == at.Namespace {
			left = append(left, u.Leftover)
		}
	}
	return left, errors.Join(b.save(), b.close())
}

// LeftBudgets returns the budgets in a network namespace whose users are gone. accept
// selects users by the index of their interface, 0 for planes in user space.
func LeftBudgets(namespace uint64, accept func(index int) bool) (left []record.Leftover, err error) {
	r, _, err := readRegistry()
	if err != nil {
		return nil, nil // it is being replaced, or openRegistry will report the error
	}
	for _, b := range r.Budgets {
		for i := range b.Users {
			u := &b.Users[i]
			if u.Namespace != namespace || !accept(u.Index) {
				continue
			}
			gone, err := u.gone()
			if err != nil {
				return nil, err
			}
			if gone {
				left = append(left, b.leftover(u).Leftover)
			}
		}
	}
	return left, nil
}
