package kernel

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/rundir"
)

// TextPath returns the path of the copy of a text written by Shaper.KeepText. The name must be
// unique for its content, such as a hash.
func TextPath(device, name string) (string, error) {
	at, err := iface.Identify(device)
	if err != nil {
		return "", err
	}
	return rundir.TextPath(at, name), nil
}

// KeepText writes the copy of a text mentioned by name in the shaper's label, and removes the
// copies not mentioned in a record of the interface.
func (s *Shaper) KeepText(name, text string) error {
	st, err := s.lockSite()
	if err != nil {
		return err
	}
	return errors.Join(rundir.KeepText(st.ID, name, text), st.pruneTexts(), st.close())
}

// pruneTexts removes the copies not mentioned in a record of the interface.
func (st *site) pruneTexts() error {
	files, err := rundir.TextPaths(st.ID)
	if err != nil || len(files) == 0 {
		return err
	}
	var records [][]byte
	for _, direction := range []dataplane.Direction{Egress, Ingress} {
		list, err := attachments(st.Index, direction)
		if err != nil {
			return err
		}
		for _, a := range list {
			text, err := a.recordText()
			if errors.Is(err, unix.EPERM) {
				return nil // without CAP_SYS_ADMIN it is not known which copies are in use
			}
			if err != nil {
				return err
			}
			records = append(records, text)
		}
	}
	return rundir.PruneTexts(st.ID, files, records)
}

// ChangesPath returns the path of a file in StateDir for changes to the shapers of an interface
// in one direction, or in both. It is removed when none of them is attached any more.
func ChangesPath(name string, directions []dataplane.Direction) (string, error) {
	at, err := iface.Identify(name)
	if err != nil {
		return "", err
	}
	return rundir.ChangesPath(at, directions)
}

// removeChanges removes the files of changes of a cleared direction. With report it says so: a
// process without a guard was killed and left them.
func (st *site) removeChanges(direction dataplane.Direction, report bool) error {
	other, err := attachments(st.Index, Egress+Ingress-direction)
	if errors.Is(err, unix.EPERM) {
		err = nil
	}
	removed, e := rundir.RemoveChanges(st.ID, direction, err == nil && len(other) == 0)
	for _, suffix := range removed {
		if report {
			st.addRemoved("%s %s: changes by shaper set", st.name(), suffix)
		}
	}
	return errors.Join(err, e)
}
