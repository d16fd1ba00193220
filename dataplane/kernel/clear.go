package kernel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
)

// Cleared is what a command took away.
type Cleared struct {
	What  []string // a line each
	Notes []string // what went unexpectedly
	Lost  Lost
}

// Clear removes everything of ours from an interface in some directions, whoever
// made it, and what is left of interfaces that are gone.
func Clear(name string, directions ...Direction) (out Cleared, err error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		if !cause.NoDevice(err) {
			return out, fmt.Errorf("interface %s: %w", name, err)
		}
		out.What, err = sweep()
		return out, errors.Join(err, &NoInterfaceError{name})
	}
	here, err := namespace()
	if err != nil {
		return out, err
	}
	at := iface{here, l.Attrs().Index}
	st, err := openSite(at)
	if err != nil {
		return out, err
	}
	for _, direction := range directions {
		err = errors.Join(err, st.clear(direction))
		if yes, e := owned(at, direction); !yes && e == nil { // a process that was killed left the file
			err = errors.Join(err, removeState(at.ownerFile(direction)))
		}
	}
	Unguard(Identity(at))
	err = errors.Join(err, st.close())
	what, e := sweep()
	return Cleared{append(st.Removed, what...), st.Notes, st.Lost}, errors.Join(err, e)
}

// Rescue does what a process that was killed can do no more: it clears the
// directions in which nobody shapes, unless another process has taken over.
func Rescue(at Identity, directions ...Direction) error {
	st, err := openSite(iface(at))
	if err != nil {
		return err
	}
	for _, direction := range directions {
		if yes, e := owned(st.iface, direction); yes || e != nil {
			err = errors.Join(err, e)
			continue
		}
		err = errors.Join(err, st.rescue(direction))
		err = errors.Join(err, removeState(st.ownerFile(direction)))
	}
	return errors.Join(err, st.close())
}

// rescue clears a direction, but for a shaper that is to stay.
func (st *site) rescue(direction Direction) error {
	s, err := find(st.iface, direction)
	if err != nil && !errors.Is(err, unix.EPERM) {
		return err
	}
	if s == nil || !s.Pinned {
		return st.clear(direction)
	}
	defer s.Close()
	if s.Pacer == "" {
		err = st.unpace(direction)
	}
	if s.GSOLimit == 0 {
		err = errors.Join(err, st.setGSO(direction, 0))
	}
	return err
}

// sweep removes what is left of interfaces that are gone: pins of links that hold
// nothing, ifb devices, journals and locks.
func sweep() (removed []string, err error) {
	here, err := namespace()
	if err != nil {
		return nil, err
	}
	files, _ := os.ReadDir(StateDir) // before the interfaces: none of a new one is removed
	links, err := linkList()
	if err != nil {
		return nil, err
	}
	there := map[int]bool{}
	for _, l := range links {
		there[l.Attrs().Index] = true
	}
	var errs []error
	for _, l := range links {
		if of := hook.InterfaceOf(l); of != 0 && !there[of] {
			if err := netlink.LinkDel(l); err != nil && !cause.NoDevice(err) {
				errs = append(errs, fmt.Errorf("device %s: %w", l.Attrs().Name, err))
				continue
			}
			removed = append(removed, fmt.Sprintf("device %s of an interface that is gone", l.Attrs().Name))
		}
	}
	pins, err := sweepPins()
	errs = append(errs, err)
	for _, name := range pins {
		removed = append(removed, fmt.Sprintf("pin %s of an interface that is gone", filepath.Join(pinDir, name)))
	}
	left, err := releaseBudgets(iface{here, 0}.registryTemp(Egress), pins...) // their programs are there for a moment more
	errs = append(errs, err)
	for _, l := range left {
		removed = append(removed, l.String())
	}
	for _, f := range files {
		if strings.HasSuffix(f.Name(), awaySuffix) {
			if e, err := readAway(f.Name()); e == nil && err == nil && strings.HasPrefix(f.Name(), fmt.Sprintf("%d-", here)) {
				errs = append(errs, removeState(f.Name()))
			}
			continue
		}
		if strings.HasPrefix(f.Name(), memberFile) {
			_, err := unlocked(f.Name())
			errs = append(errs, err)
			continue
		}
		var at iface
		var what string
		if n, _ := fmt.Sscanf(f.Name(), "%d-%d-%s", &at.Namespace, &at.Index, &what); n < 3 || at.Namespace != here || there[at.Index] {
			continue
		}
		egress, err1 := owned(at, Egress)
		ingress, err2 := owned(at, Ingress)
		if egress || ingress || err1 != nil || err2 != nil { // its process will see that it is gone
			continue
		}
		errs = append(errs, removeState(f.Name()))
	}
	return removed, errors.Join(errs...)
}
