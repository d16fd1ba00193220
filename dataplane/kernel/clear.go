package kernel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/registry"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/rundir"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/standby"
)

// Cleared is the result of Clear.
type Cleared struct {
	Removed  []string  // descriptions of the removed objects, one line each
	Restored []string  // descriptions of the restored settings, one line each
	Notes    []string  // unexpected events, one line each
	Lost     Discarded // packets dropped with their queues
}

// Clear removes everything of shaper from an interface in the given directions,
// whichever process made it, and restores the previous settings. It also removes the
// leftovers of deleted interfaces. If there is no interface of that name, it removes
// only those and returns a *NoInterfaceError.
func Clear(name string, directions ...dataplane.Direction) (out Cleared, err error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		if !cause.NoDevice(err) {
			return out, fmt.Errorf("interface %s: %w", name, err)
		}
		out.Removed, err = removeOrphans()
		return out, errors.Join(err, &NoInterfaceError{Name: name})
	}
	namespace, err := iface.CurrentNamespace()
	if err != nil {
		return out, err
	}
	at := iface.ID{Namespace: namespace, Index: l.Attrs().Index}
	st, err := openSite(at)
	if err != nil {
		return out, err
	}
	for _, direction := range directions {
		err = errors.Join(err, st.clear(direction))
		if yes, e := rundir.HasOwner(at, direction); !yes && e == nil { // a killed process left the file
			err = errors.Join(err, rundir.RemoveState(rundir.OwnerFile(at, direction)))
		}
	}
	standby.Unguard(at)
	err = errors.Join(err, st.close())
	orphans, e := removeOrphans()
	return Cleared{append(st.Removed, orphans...), st.Restored, st.Notes, st.Lost}, errors.Join(err, e)
}

// Rescue cleans up after a killed process. It clears the directions of an interface that no live
// process shapes, except for a pinned shaper, which stays attached.
func Rescue(at iface.ID, directions ...dataplane.Direction) error {
	st, err := openSite(at)
	if err != nil {
		return err
	}
	for _, direction := range directions {
		if yes, e := rundir.HasOwner(st.ID, direction); yes || e != nil {
			err = errors.Join(err, e)
			continue
		}
		err = errors.Join(err, st.clearUnlessPinned(direction))
		err = errors.Join(err, rundir.RemoveState(rundir.OwnerFile(st.ID, direction)))
	}
	return errors.Join(err, st.close())
}

// clearUnlessPinned clears a direction. If its shaper is pinned, it removes only settings that the
// shaper does not need.
func (st *site) clearUnlessPinned(direction dataplane.Direction) error {
	s, err := findShaper(st.ID, direction)
	if err != nil && !errors.Is(err, unix.EPERM) {
		return err
	}
	if s == nil || !s.Pinned {
		return st.clear(direction)
	}
	defer s.Close()
	if s.Pacer == "" {
		err = st.removeTree(direction)
	}
	if s.GSOLimit == 0 {
		err = errors.Join(err, st.setGSO(direction, 0))
	}
	return err
}

// ClearOrphans removes everything of shaper that deleted interfaces left behind. It returns a line for
// each removed object that a user may care about.
func ClearOrphans() ([]string, error) { return removeOrphans() }

// removeOrphans removes leftovers of deleted interfaces of this network namespace: ifb devices,
// pins of detached links, users of budgets, journals and locks. It returns a line for each leftover
// that a user may care about. Pins and users of budgets of other namespaces, which may be gone, are
// removed without a line.
func removeOrphans() (removed []string, err error) {
	namespace, err := iface.CurrentNamespace()
	if err != nil {
		return nil, err
	}
	// The files are listed before the interfaces: a file of an interface made in between is not
	// listed, and so is not removed.
	files, _ := os.ReadDir(StateDir)
	links, err := iface.ListLinks()
	if err != nil {
		return nil, err
	}
	exists := iface.Indexes(links)
	var errs []error
	for _, l := range links {
		if of := hook.InterfaceOf(l); of != 0 && !exists[of] {
			if err := netlink.LinkDel(l); err != nil && !cause.NoDevice(err) {
				errs = append(errs, fmt.Errorf("device %s: %w", l.Attrs().Name, err))
				continue
			}
			removed = append(removed, fmt.Sprintf("device %s of a deleted interface", l.Attrs().Name))
		}
	}
	pins, err := rundir.RemoveOrphanPins()
	errs = append(errs, err)
	for _, name := range pins {
		if !strings.HasPrefix(name, fmt.Sprintf("%d-", namespace)) {
			continue // of another namespace: nothing that this user asked about
		}
		removed = append(removed,
			fmt.Sprintf("pin %s of a deleted interface", filepath.Join(rundir.PinDir, name)))
	}
	// The programs of removed pins can still exist for a moment, so ReleaseBudgets gets
	// the names of their users.
	left, err := registry.ReleaseBudgets(iface.ID{Namespace: namespace, Index: 0}, Egress, pins...)
	errs = append(errs, err)
	for _, l := range left {
		removed = append(removed, l.String())
	}
	for _, f := range files {
		errs = append(errs, removeOrphanFile(f.Name(), namespace, exists))
	}
	return removed, errors.Join(errs...)
}

// removeOrphanFile removes a file of StateDir if no process uses it and it is not of an existing
// interface. exists holds the indexes of the interfaces in the namespace.
func removeOrphanFile(name string, namespace uint64, exists map[int]bool) error {
	if strings.HasSuffix(name, standby.AwaySuffix) {
		mark, err := standby.ReadAway(name)
		if mark == nil && err == nil && strings.HasPrefix(name, fmt.Sprintf("%d-", namespace)) {
			return rundir.RemoveState(name)
		}
		return nil
	}
	if strings.HasPrefix(name, registry.MemberFile) {
		_, err := rundir.RemoveIfUnlocked(name)
		return err
	}
	var at iface.ID
	var suffix string
	if n, _ := fmt.Sscanf(name, "%d-%d-%s", &at.Namespace, &at.Index, &suffix); n < 3 ||
		at.Namespace != namespace || exists[at.Index] {
		return nil
	}
	egress, err1 := rundir.HasOwner(at, Egress)
	ingress, err2 := rundir.HasOwner(at, Ingress)
	if egress || ingress || err1 != nil || err2 != nil { // its process will notice and clean up
		return nil
	}
	return rundir.RemoveState(name)
}
