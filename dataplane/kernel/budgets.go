package kernel

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
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
)

// Of enum store in bpf/src/policy.h: what stages without keys have in place of a
// table.
const (
	storePrivate = -1
	storeShared  = -2
	storeLeased  = -3
)

// inStates says whether the state of a stage is in the map states, by its table.
func inStates(table int32) bool { return table != storeShared && table != storeLeased }

// maxBudgets is how many budgets of a host there are room for: 600 kB.
const maxBudgets = 4096

// registry says which budgets of the host are in use, in which slots, and by whom.
// It is a file in StateDir. The state of a budget is in maps, which are pinned so that
// processes without CAP_SYS_ADMIN find them. With the last user all of it goes.
type registry struct {
	Version int
	Maps    [2]ebpf.MapID // as in budgetMaps
	Budgets []*budgetRecord
}

// registryVersion is the format of the registry and of struct budget in
// bpf/src/policy.h.
const registryVersion = 1

// The names of its file and of its lock, which has a file of its own because the registry
// is replaced when it changes.
const (
	registryFile = "budgets"
	registryLock = registryFile + "-lock"
)

// budgetMaps are the maps of all budgets, with the names of their pins.
var budgetMaps = [2]string{bpf.ShaperMapBudgets, bpf.ShaperMapLocks}

// memberFile begins the names of locks that planes in user space hold.
const memberFile = registryFile + "-user-"

// budgetRecord is a budget that somebody uses.
type budgetRecord struct {
	Name    string
	Slot    uint32
	Packets uint8  // it counts packets
	Params  string // as --meter takes them
	Profile bpf.ShaperProfile
	Users   []budgetUser
}

// budgets is the registry while its lock is held.
type lockedRegistry struct {
	lock
	registry
	text     []byte // of the file
	temp     string // name of the temporary file of the next registry
	maps     [2]*ebpf.Map
	unpinned bool   // the maps are to be pinned
	pruned   []Left // what prune took out
}

// haveBudgets reports whether budgets, or a killed process's lock, may exist.
func registryExists() bool {
	for _, name := range []string{registryFile, registryLock} {
		if _, err := os.Lstat(filepath.Join(StateDir, name)); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// openBudgets takes the lock and reads the registry. Users that are gone are taken
// out of it. half is the name of the temporary file for the next registry.
func openRegistry(half string) (*lockedRegistry, error) {
	l, err := takeLock(registryLock, unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	b := &lockedRegistry{lock: l, temp: half}
	b.registry, b.text, err = readRegistry()
	if err == nil {
		err = b.pruneGone()
	}
	if err == nil && len(b.Budgets) > 0 && b.Version != registryVersion {
		err = fmt.Errorf("the budgets of this host are in use by another version of shaper (%v): detach those first", b.Budgets[0].Users[0].String())
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return b, nil
}

// readRegistry returns an empty registry if there is none.
func readRegistry() (r registry, text []byte, err error) {
	file, err := openState(registryFile, os.O_RDONLY)
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
	if err := json.Unmarshal(text, &r); err != nil {
		return r, text, fmt.Errorf("%s cannot be read (%w): detach all shapers that share budgets, and remove it", file.Name(), err)
	}
	return r, text, nil
}

// prune takes out users that are gone, and budgets without users.
func (b *lockedRegistry) pruneGone() error {
	known := map[string]bool{} // by file, whether it is gone
	var errs []error
	for _, r := range b.Budgets {
		r.Users = slices.DeleteFunc(r.Users, func(u budgetUser) bool {
			gone, ok := known[u.File]
			if !ok {
				var err error
				gone, err = u.gone()
				errs = append(errs, err)
				known[u.File] = gone
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

// left is a budget with a user that is gone.
func (r *budgetRecord) leftover(u *budgetUser) Left {
	return Left{u.Interface, u.Direction, fmt.Sprintf("budget %s", r.Name)}
}

func (b *lockedRegistry) dropUnused() {
	b.Budgets = slices.DeleteFunc(b.Budgets, func(r *budgetRecord) bool { return len(r.Users) == 0 })
}

// open opens the maps, or makes them if no budget is in use.
func (b *lockedRegistry) openMaps() (err error) {
	if b.maps[0] != nil {
		return nil
	}
	if len(b.Budgets) > 0 {
		if b.maps, err = b.findMaps(); !errors.Is(err, unix.ENOENT) {
			return err
		}
		b.Budgets = nil // nothing uses the maps, or they would be there
	}
	_ = rlimit.RemoveMemlock() // as newShared
	spec, err := bpf.LoadShaper()
	if err != nil {
		return err
	}
	for i, name := range budgetMaps {
		spec.Maps[name].MaxEntries = maxBudgets
		if b.maps[i], err = ebpf.NewMap(spec.Maps[name]); err != nil {
			return fmt.Errorf("map %s of %d entries: %w", name, maxBudgets, cause.Of(err))
		}
		if b.Maps[i], err = mapID(b.maps[i]); err != nil {
			return err
		}
	}
	b.unpinned = true
	return nil
}

func mapID(m *ebpf.Map) (ebpf.MapID, error) {
	info, err := m.Info()
	if err != nil {
		return 0, err
	}
	id, _ := info.ID()
	return id, nil
}

// budgetPin is where a map of budgets is pinned.
func budgetPin(name string) string { return filepath.Join(pinDir, "shared-"+name) }

// pin pins new maps. Without a bpffs, processes with CAP_SYS_ADMIN find them by their IDs.
func (b *lockedRegistry) pinMaps() error {
	if !b.unpinned {
		return nil
	}
	b.unpinned = false
	if !bpffsMounted() {
		m, err := ebpf.NewMapFromID(b.Maps[0])
		if errors.Is(err, unix.EPERM) {
			return errors.New("budgets of the host need bpffs, or CAP_SYS_ADMIN: mount -t bpf -o mode=0700 bpf " + bpffs)
		}
		m.Close()
		return cause.Of(err)
	}
	for i, name := range budgetMaps {
		path := budgetPin(name)
		if err := removePin(path); err != nil { // of maps that nobody uses
			return err
		}
		if err := openPinDir(); err != nil {
			return fmt.Errorf("budgets of the host need a folder in bpffs: %w", err)
		}
		if err := b.maps[i].Pin(path); err != nil {
			return fmt.Errorf("pin %s: %w", path, cause.Of(err))
		}
	}
	return nil
}

// find opens the maps that are in use, by their pins or their numbers.
func (b *lockedRegistry) findMaps() (maps [2]*ebpf.Map, err error) {
	for i, name := range budgetMaps {
		m, e := ebpf.LoadPinnedMap(budgetPin(name), nil)
		if e == nil {
			if id, e := mapID(m); e != nil || id != b.Maps[i] {
				m.Close()
				m = nil
			}
		}
		if m == nil {
			m, err = ebpf.NewMapFromID(b.Maps[i])
		}
		if errors.Is(err, unix.EPERM) {
			err = fmt.Errorf("%s, in which the budgets of this host are, is not pinned here: %w: it takes CAP_SYS_ADMIN, or the bpffs and the user of %s", name, err, b.Budgets[0].Users[0].String())
		}
		if err != nil {
			closeMaps(maps)
			return [2]*ebpf.Map{}, err
		}
		maps[i] = m
	}
	return maps, nil
}

func closeMaps(maps [2]*ebpf.Map) {
	for _, m := range maps {
		m.Close()
	}
}

// save writes the registry, or removes it and the pins if no budget is in use. The registry
// is written before the pins and removed after them, so a killed process never leaves a pin
// without a registry.
func (b *lockedRegistry) save() error {
	if len(b.Budgets) == 0 {
		var errs []error
		for _, name := range budgetMaps {
			errs = append(errs, removePin(budgetPin(name)))
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
		b.text = nil
		return removeState(registryFile)
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

func (b *lockedRegistry) write(text []byte) error {
	if err := replaceState(registryFile, b.temp, text); err != nil {
		return fmt.Errorf("registry of budgets: %w", err)
	}
	b.text = text
	return nil
}

// close ends the lock, and closes the maps.
func (b *lockedRegistry) close() error {
	closeMaps(b.maps)
	return b.lock.Close()
}

// releaseBudgets takes users out of all budgets, by their files, and everybody who is
// gone. It returns what it took out. half is as in openBudgets.
func releaseBudgets(half string, users ...string) (left []Left, err error) {
	if err := removeState(half); err != nil { // of a killed process
		return nil, err
	}
	if !registryExists() {
		return nil, nil
	}
	b, err := openRegistry(half)
	if err != nil {
		return nil, err
	}
	for _, r := range b.Budgets {
		r.Users = slices.DeleteFunc(r.Users, func(u budgetUser) bool {
			yes := slices.Contains(users, u.File)
			if yes {
				b.pruned = append(b.pruned, r.leftover(&u))
			}
			return yes
		})
	}
	b.dropUnused()
	return b.pruned, errors.Join(b.save(), b.close())
}

// leftBudgets are budgets of users in a namespace that are gone, by the index of their
// interface, 0 for planes in user space.
func leftBudgets(namespace uint64, of func(index int) bool) (left []Left, err error) {
	r, _, err := readRegistry()
	if err != nil {
		return nil, nil // it is being replaced, or says so when it is used
	}
	for _, b := range r.Budgets {
		for i := range b.Users {
			u := &b.Users[i]
			if u.Namespace != namespace || !of(u.Index) {
				continue
			}
			gone, err := u.gone()
			if err != nil {
				return nil, err
			}
			if gone {
				left = append(left, b.leftover(u))
			}
		}
	}
	return left, nil
}
