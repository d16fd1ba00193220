package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
)

// Survey is everything of ours in this network namespace.
type Survey struct {
	Shapers []*Shaper    // attached; Owned and Pinned say what keeps them
	Left    []Left       // what belongs to no shaper: detach removes it
	Away    []*AwayError // processes that wait for their interface
}

// Left is something of ours that no shaper needs, or a shaper that this version
// cannot read.
type Left struct {
	Interface string
	Direction Direction
	What      string
}

// Close releases all shapers.
func (v *Survey) Close() {
	for _, s := range v.Shapers {
		s.Close()
	}
}

// errPrivilege says what finding a shaper takes.
var errPrivilege = fmt.Errorf("%w: finding a shaper needs root, or CAP_SYS_ADMIN with CAP_BPF and CAP_NET_ADMIN", unix.EPERM)

// Look finds everything of ours in this network namespace, whichever process made
// it. It needs CAP_SYS_ADMIN beside what attaching needs.
func Look() (*Survey, error) {
	here, err := namespace()
	if err != nil {
		return nil, err
	}
	if _, err := ebpf.ProgramGetNextID(0); errors.Is(err, unix.EPERM) {
		return nil, errPrivilege // even if nothing is there
	}
	links, err := linkList()
	if err != nil {
		return nil, err
	}
	v := &Survey{}
	known := map[int]bool{}
	for _, l := range links {
		known[l.Attrs().Index] = true
	}
	for _, l := range links {
		name, at := l.Attrs().Name, iface{here, l.Attrs().Index}
		if of := hook.InterfaceOf(l); of != 0 {
			if !known[of] {
				v.Left = append(v.Left, Left{name, Ingress, "device of an interface that is gone"})
			}
			continue
		}
		if err := v.look(at, name); err != nil {
			if errors.Is(err, errForeignFile) { // of this interface alone
				v.Left = append(v.Left, Left{name, Egress, err.Error()})
				continue
			}
			v.Close()
			if errors.Is(err, unix.EPERM) {
				return nil, errPrivilege
			}
			return nil, fmt.Errorf("look at %s: %w", name, err)
		}
	}
	left, err := leftBudgets(here, func(index int) bool { return !known[index] })
	if err != nil {
		v.Close()
		return nil, err
	}
	v.Left = append(v.Left, left...)
	if v.Away, err = listAway(here); err != nil {
		v.Close()
		return nil, err
	}
	return v, nil
}

// look adds what there is at an interface.
func (v *Survey) look(at iface, name string) error {
	var found [2]*Shaper
	for _, direction := range []Direction{Egress, Ingress} {
		list, err := attachments(at.Index, direction)
		if err != nil {
			return err
		}
		for _, a := range list {
			s, err := a.openShaper()
			if errors.Is(err, unix.ENOENT) || s == nil && err == nil {
				continue // it went away meanwhile, or is not ours
			}
			if err != nil && !unusable(err) {
				return err
			}
			if err != nil {
				v.Left = append(v.Left, Left{name, direction, fmt.Sprintf("program %d by %s: %v", a.Program, a.Hook, err)})
				continue
			}
			s.Interface = name // it may have been renamed
			if found[direction] != nil {
				s.Close()
				v.Left = append(v.Left, Left{name, direction, fmt.Sprintf("program %d by %s: a second one", a.Program, a.Hook)})
				continue
			}
			found[direction] = s
			v.Shapers = append(v.Shapers, s)
		}
	}
	left, err := leftovers(at, found)
	if err == nil && len(left) > 0 {
		left, err = v.settled(at, found, left)
	}
	for i := range left {
		left[i].Interface = name
	}
	v.Left = append(v.Left, left...)
	return err
}

// settled looks again at leftovers while nothing is changed: what another process
// is just making, or taking away, is not left behind.
func (v *Survey) settled(at iface, found [2]*Shaper, left []Left) ([]Left, error) {
	change, err := tryChangeLock(at)
	if errors.Is(err, errLocked) {
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
			if now, err := find(at, Direction(direction)); err != nil {
				return nil, err
			} else if now != nil { // it was attached meanwhile: the next look shows it
				now.Close()
				return nil, nil
			}
			continue
		}
		if err := s.Refresh(); err != nil && !errors.Is(err, ErrDetached) {
			return nil, err
		} else if err != nil {
			return nil, nil // it was detached meanwhile
		}
	}
	return leftovers(at, found)
}

// leftovers are what is of ours at an interface beside its shapers.
func leftovers(at iface, found [2]*Shaper) (out []Left, err error) {
	add := func(direction Direction, format string, args ...any) {
		out = append(out, Left{Direction: direction, What: fmt.Sprintf(format, args...)})
	}
	paced := func(direction Direction) bool { return found[direction] != nil && found[direction].Pacer != "" }
	root, err := qdisc.Root(at.Index)
	if err != nil {
		return nil, err
	}
	ours := root.Ours()
	if ours && !paced(Egress) {
		add(Egress, "root qdisc %x:", qdisc.Major)
	}
	if !paced(Ingress) {
		switch device, err := netlink.LinkByName(hook.IFBName(at.Index)); {
		case err == nil && device.Type() == "ifb":
			add(Ingress, "device %s", device.Attrs().Name)
		case err != nil && !cause.NoDevice(err):
			return nil, err
		}
		redirected, err := hook.HasRedirect(at.Index)
		if err != nil {
			return nil, err
		}
		if redirected {
			add(Ingress, "filter that redirects to %s", hook.IFBName(at.Index))
		}
	}
	budgets, err := leftBudgets(at.Namespace, func(index int) bool { return index == at.Index })
	if err != nil {
		return nil, err
	}
	for _, l := range budgets {
		if found[l.Direction] == nil {
			out = append(out, l)
		}
	}
	for _, direction := range []Direction{Egress, Ingress} {
		if exists(at.pin(direction)) && (found[direction] == nil || found[direction].Place.Hook == hook.TC) {
			add(direction, "pin %s", at.pin(direction))
		}
		if half := filepath.Join(StateDir, at.registryTemp(direction)); exists(half) { // of a process that was killed
			add(direction, "registry of budgets %s", half)
		}
	}
	if half := at.journalPath() + temporary; exists(half) { // of a process that was killed
		add(Egress, "journal %s", half)
	}
	if j, err := peekJournal(at); errors.As(err, new(*tornError)) {
		add(Egress, "%v", err)
	} else if err != nil {
		return nil, err
	} else {
		for _, direction := range []Direction{Egress, Ingress} {
			if j.GSO != nil && j.GSO.Limits[direction] != 0 && (found[direction] == nil || found[direction].GSOLimit == 0) {
				add(direction, "GSO limit of %d bytes", j.GSO.Limits[direction])
			}
		}
		idle := j.Qdiscs != nil && !ours && !paced(Egress)
		filtered := slices.ContainsFunc(found[:], func(s *Shaper) bool {
			return s != nil && (s.Place.Hook == hook.TC || s.Place.Index != at.Index)
		})
		if j.Clsact && !filtered {
			there, err := qdisc.HasClsact(at.Index)
			if err != nil {
				return nil, err
			}
			if there {
				add(Egress, "clsact qdisc")
			}
			idle = idle || !there
		}
		if idle { // what it is about is gone
			add(Egress, "journal %s", at.journalPath())
		}
	}
	return out, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// String names what is left, and where.
func (l Left) String() string { return fmt.Sprintf("%s %v: %s", l.Interface, l.Direction, l.What) }

// List returns all shapers of this network namespace, whichever process
// attached them.
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

// find returns the shaper of an interface in a direction, or nil, also for one
// whose record is unusable: that can only be cleared.
func find(at iface, direction Direction) (*Shaper, error) {
	list, err := attachments(at.Index, direction)
	if err != nil {
		return nil, err
	}
	for _, a := range list {
		s, err := a.openShaper()
		if err != nil && !unusable(err) && !errors.Is(err, unix.ENOENT) {
			return nil, err
		}
		if s != nil {
			s.Interface = nameOf(at.Index)
			return s, nil
		}
	}
	return nil, nil
}
