package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/registry"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/rundir"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/safedir"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/standby"
)

// Survey lists everything of shaper in a network namespace.
type Survey struct {
	Shapers []*Shaper            // attached shapers
	Left    []Leftover           // leftovers, which Clear removes
	Away    []*standby.AwayError // processes waiting for an interface
}

// Close closes all shapers.
func (v *Survey) Close() {
	for _, s := range v.Shapers {
		s.Close()
	}
}

// errPrivilege reports the privileges needed to find a shaper.
var errPrivilege = fmt.Errorf(
	"%w: finding a shaper needs root, or CAP_SYS_ADMIN with CAP_BPF and CAP_NET_ADMIN", unix.EPERM)

// Look finds everything of shaper in this thread's network namespace, whichever process made it. It
// changes nothing. In addition to the privileges of Attach, it needs CAP_SYS_ADMIN; without them
// the error wraps EPERM. The caller must close the Survey.
func Look() (*Survey, error) {
	namespace, err := iface.CurrentNamespace()
	if err != nil {
		return nil, err
	}
	if _, err := ebpf.ProgramGetNextID(0); errors.Is(err, unix.EPERM) {
		return nil, errPrivilege // even if there is nothing to find
	}
	links, err := iface.ListLinks()
	if err != nil {
		return nil, err
	}
	v := &Survey{}
	return v.ended(v.addAll(namespace, links))
}

// ended returns the survey, or closes it after an error.
func (v *Survey) ended(err error) (*Survey, error) {
	if err == nil {
		return v, nil
	}
	v.Close()
	if errors.Is(err, unix.EPERM) {
		err = errPrivilege
	}
	return nil, err
}

// LookAt is Look for one interface, and for processes that wait for it. Its cost does not depend on other
// interfaces. It finds nothing of an interface that does not exist.
func LookAt(name string) (*Survey, error) {
	namespace, err := iface.CurrentNamespace()
	if err != nil {
		return nil, err
	}
	if _, err := ebpf.ProgramGetNextID(0); errors.Is(err, unix.EPERM) {
		return nil, errPrivilege
	}
	v := &Survey{}
	return v.ended(v.addNamed(namespace, name))
}

// ShapersAt returns the shapers of an interface in some directions, whichever process attached them. Unlike
// LookAt it looks for no leftovers. Without the privileges of Look the error wraps EPERM. The caller must
// close the shapers.
func ShapersAt(name string, directions []dataplane.Direction) ([]*Shaper, error) {
	at, err := iface.Identify(name)
	if errors.As(err, new(*NoInterfaceError)) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if _, err := ebpf.ProgramGetNextID(0); errors.Is(err, unix.EPERM) {
		return nil, errPrivilege
	}
	v := &Survey{}
	for _, direction := range directions {
		s, err := findShaper(at, direction)
		if err != nil {
			_, err = v.ended(err)
			return nil, err
		}
		if s != nil {
			v.Shapers = append(v.Shapers, s)
		}
	}
	return v.Shapers, nil
}

// addNamed adds an interface, if it exists, and the processes that wait for it.
func (v *Survey) addNamed(namespace uint64, name string) error {
	l, err := netlink.LinkByName(name)
	switch {
	case err == nil:
		err = v.addLink(namespace, l, linkExists)
	case cause.NoDevice(err):
		err = nil
	default:
		err = fmt.Errorf("interface %s: %w", name, err)
	}
	if err != nil {
		return err
	}
	v.Away, err = standby.AwayFrom(namespace, name)
	return err
}

// addLink adds the shapers and leftovers of an interface, or an ifb device of a deleted one.
func (v *Survey) addLink(namespace uint64, l netlink.Link, exists func(index int) (bool, error)) error {
	name := l.Attrs().Name
	if of := hook.InterfaceOf(l); of != 0 {
		there, err := exists(of)
		if !there && err == nil {
			v.Left = append(v.Left,
				Leftover{Interface: name, Direction: Ingress, What: "device of a deleted interface"})
		}
		return err
	}
	err := v.addInterface(iface.ID{Namespace: namespace, Index: l.Attrs().Index}, name)
	switch {
	case errors.Is(err, safedir.ErrForeign): // affects only this interface
		v.Left = append(v.Left, Leftover{Interface: name, Direction: Egress, What: err.Error()})
	case err != nil:
		return fmt.Errorf("inspect %s: %w", name, err)
	}
	return nil
}

// linkExists reports whether an interface exists.
func linkExists(index int) (bool, error) {
	_, err := iface.NameOf(index)
	if errors.As(err, new(*NoInterfaceError)) {
		return false, nil
	}
	return err == nil, err
}

func (v *Survey) addAll(namespace uint64, links []netlink.Link) error {
	exists := iface.Indexes(links)
	isThere := func(index int) (bool, error) { return exists[index], nil }
	for _, l := range links {
		if err := v.addLink(namespace, l, isThere); err != nil {
			return err
		}
	}
	left, err := registry.LeftBudgets(namespace, func(index int) bool { return !exists[index] })
	if err != nil {
		return err
	}
	v.Left = append(v.Left, left...)
	v.Away, err = standby.ListAway(namespace)
	return err
}

var errSecond = errors.New("a second shaper")

// addInterface adds the shapers and leftovers of an interface.
func (v *Survey) addInterface(at iface.ID, name string) error {
	var found [2]*Shaper
	for _, direction := range []dataplane.Direction{Egress, Ingress} {
		list, err := openAttached(at.Index, direction)
		if err != nil {
			return err
		}
		for _, o := range list {
			why := o.unusable
			if o.shaper != nil && found[direction] == nil {
				o.shaper.Interface = name // the interface may have been renamed
				found[direction] = o.shaper
				v.Shapers = append(v.Shapers, o.shaper)
				continue
			}
			if o.shaper != nil {
				o.shaper.Close()
				why = errSecond
			}
			v.Left = append(v.Left, Leftover{
				Interface: name, Direction: direction,
				What: fmt.Sprintf("program %d by %s: %v", o.Program, o.Hook, why),
			})
		}
	}
	left, err := findLeftovers(at, found)
	if err == nil && len(left) > 0 {
		left, err = v.recheckLeftovers(at, found, left)
	}
	for i := range left {
		left[i].Interface = name
	}
	v.Left = append(v.Left, left...)
	return err
}

// recheckLeftovers searches for leftovers again under the change lock, so parts which another
// process is just making or removing do not count. It returns none if the interface is being
// changed.
func (v *Survey) recheckLeftovers(at iface.ID, found [2]*Shaper, left []Leftover) ([]Leftover, error) {
	change, err := rundir.TryTakeChangeLock(at)
	if errors.Is(err, rundir.ErrLocked) {
		return nil, nil
	}
	if errors.Is(err, fs.ErrPermission) {
		return left, nil
	}
	if err != nil {
		return nil, err
	}
	defer change.Close()
	for direction, s := range found {
		if s == nil {
			if now, err := findShaper(at, dataplane.Direction(direction)); err != nil {
				return nil, err
			} else if now != nil { // attached meanwhile: the next Look returns it
				now.Close()
				return nil, nil
			}
			continue
		}
		if err := s.Refresh(); err != nil && !errors.Is(err, ErrDetached) {
			return nil, err
		} else if err != nil {
			return nil, nil // detached meanwhile
		}
	}
	return findLeftovers(at, found)
}

// findLeftovers returns the leftovers of an interface. found are its shapers, by
// direction.
func findLeftovers(at iface.ID, found [2]*Shaper) ([]Leftover, error) {
	ours, err := qdisc.HasTree(at.Index)
	if err != nil {
		return nil, err
	}
	s := &leftoverSearch{at: at, found: found, ownRoot: ours}
	if s.ownRoot && !s.hasQueues(Egress) {
		s.add(Egress, "root qdisc %x:", qdisc.Major)
	}
	if !s.hasQueues(Ingress) {
		if err := s.addIFB(); err != nil {
			return nil, err
		}
	}
	budgets, err := registry.LeftBudgets(at.Namespace, func(index int) bool { return index == at.Index })
	if err != nil {
		return nil, err
	}
	for _, l := range budgets {
		if found[l.Direction] == nil {
			s.out = append(s.out, l)
		}
	}
	s.addFiles()
	j, err := rundir.PeekJournal(at)
	switch {
	case errors.As(err, new(*rundir.JournalError)):
		s.add(Egress, "%v", err)
	case err != nil:
		return nil, err
	default:
		if err := s.addJournal(j); err != nil {
			return nil, err
		}
	}
	return s.out, nil
}

// leftoverSearch collects the leftovers of one interface.
type leftoverSearch struct {
	at      iface.ID
	found   [2]*Shaper
	ownRoot bool // the root qdisc is ours
	out     []Leftover
}

func (s *leftoverSearch) add(direction dataplane.Direction, format string, args ...any) {
	s.out = append(s.out, Leftover{Direction: direction, What: fmt.Sprintf(format, args...)})
}

// hasQueues reports whether a direction's shaper uses queues.
func (s *leftoverSearch) hasQueues(direction dataplane.Direction) bool {
	return s.found[direction] != nil && s.found[direction].Pacer != ""
}

// addIFB adds an ifb device and a redirecting filter, which no shaper needs.
func (s *leftoverSearch) addIFB() error {
	switch device, err := netlink.LinkByName(hook.IFBName(s.at.Index)); {
	case err == nil && device.Type() == "ifb":
		s.add(Ingress, "device %s", device.Attrs().Name)
	case err != nil && !cause.NoDevice(err):
		return err
	}
	redirected, err := hook.HasRedirect(s.at.Index)
	if redirected {
		s.add(Ingress, "filter that redirects to %s", hook.IFBName(s.at.Index))
	}
	return err
}

// addFiles adds pins without a shaper, and the temporary files of killed processes.
func (s *leftoverSearch) addFiles() {
	for _, direction := range []dataplane.Direction{Egress, Ingress} {
		shaper := s.found[direction]
		if pin := rundir.PinPath(s.at, direction); rundir.FileExists(pin) &&
			(shaper == nil || shaper.Place.Hook == hook.TC) {
			s.add(direction, "pin %s", pin)
		}
		if file := filepath.Join(StateDir, registry.RegistryTemp(s.at, direction)); rundir.FileExists(file) {
			s.add(direction, "registry of budgets %s", file)
		}
	}
	if file := rundir.JournalPath(s.at) + rundir.Temporary; rundir.FileExists(file) {
		s.add(Egress, "journal %s", file)
	}
}

// addJournal adds the unneeded settings in the journal, and the journal itself if a setting in it
// was restored or removed already.
func (s *leftoverSearch) addJournal(j *rundir.Journal) error {
	for direction, shaper := range s.found {
		if j.GSO != nil && j.GSO.Limits[direction] != 0 && (shaper == nil || shaper.GSOLimit == 0) {
			s.add(dataplane.Direction(direction), "GSO limit of %d bytes", j.GSO.Limits[direction])
		}
	}
	obsolete := j.Qdiscs != nil && !s.ownRoot && !s.hasQueues(Egress)
	usesClsact := func(shaper *Shaper) bool {
		return shaper != nil && (shaper.Place.Hook == hook.TC || shaper.Place.Index != s.at.Index)
	}
	if j.Clsact && !slices.ContainsFunc(s.found[:], usesClsact) {
		exists, err := qdisc.HasClsact(s.at.Index)
		if err != nil {
			return err
		}
		if exists {
			s.add(Egress, "clsact qdisc")
		} else {
			obsolete = true
		}
	}
	if obsolete {
		s.add(Egress, "journal %s", rundir.JournalPath(s.at))
	}
	return nil
}

// List returns all shapers of this thread's network namespace, whichever process
// attached them, sorted by interface and direction. Its errors are those of Look. The
// caller must close the shapers.
func List() ([]*Shaper, error) {
	v, err := Look()
	if err != nil {
		return nil, err
	}
	slices.SortFunc(v.Shapers, func(a, b *Shaper) int {
		return strings.Compare(a.Interface+" "+a.Direction.String(), b.Interface+" "+b.Direction.String())
	})
	return v.Shapers, nil
}
