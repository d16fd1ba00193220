package kernel

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// changesPrefix is the prefix of the names of files of changes, after that of the interface.
const changesPrefix = "changes-"

// bothDirections is the suffix of a file of changes to shapers of both directions.
const bothDirections = "both"

// ChangesPath returns the path of a file in StateDir for changes to the shapers of an interface
// in one direction, or in both. It is removed when none of them is attached any more.
func ChangesPath(name string, directions []Direction) (string, error) {
	d, err := deviceByName(name)
	if err != nil {
		return "", err
	}
	dir, err := openStateDir()
	if err != nil {
		return "", err
	}
	defer dir.Close()
	suffix := bothDirections
	if len(directions) == 1 {
		suffix = directions[0].String()
	}
	return filepath.Join(StateDir, d.fileName(changesPrefix+suffix)), nil
}

// removeChanges removes the files of changes of a direction that was cleared. With report it says so: a process without
// a guard was killed and left them.
func (st *site) removeChanges(direction Direction, report bool) error {
	suffixes := []string{direction.String()}
	other, err := attachments(st.Index, Egress+Ingress-direction)
	if errors.Is(err, unix.EPERM) {
		err = nil
	}
	if err == nil && len(other) == 0 {
		suffixes = append(suffixes, bothDirections)
	}
	for _, suffix := range suffixes {
		if _, e := os.Lstat(filepath.Join(StateDir, st.fileName(changesPrefix+suffix))); report && e == nil {
			st.addRemoved("%s %s: changes by shaper set", st.name(), suffix)
		}
		for _, extra := range []string{"", temporary, ".lock"} {
			err = errors.Join(err, removeState(st.fileName(changesPrefix+suffix)+extra))
		}
	}
	return err
}
