package rundir

import (
	"errors"
	"path/filepath"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
)

// changesPrefix is the prefix of the names of files of changes, after that of the interface.
const changesPrefix = "changes-"

// bothDirections is the suffix of a file of changes to shapers of both directions.
const bothDirections = "both"

// customersSuffix is the suffix of a file of customers that are added while a shaper runs, after the name of
// the file of changes. RemoveChanges removes it, too.
const customersSuffix = ".added"

// ChangesPath returns the path of a file in StateDir for changes to the shapers of an interface
// in one direction, or in both. It makes the directory.
func ChangesPath(at iface.ID, directions []dataplane.Direction) (string, error) {
	dir, err := openStateDir()
	if err != nil {
		return "", err
	}
	defer dir.Close()
	suffix := bothDirections
	if len(directions) == 1 {
		suffix = directions[0].String()
	}
	return filepath.Join(StateDir, at.FileName(changesPrefix+suffix)), nil
}

// RemoveChanges removes the files of changes of a direction, and with both also those of both
// directions. It returns the suffixes of the existing ones.
func RemoveChanges(at iface.ID, direction dataplane.Direction, both bool) (removed []string, err error) {
	suffixes := []string{direction.String()}
	if both {
		suffixes = append(suffixes, bothDirections)
	}
	for _, suffix := range suffixes {
		name := at.FileName(changesPrefix + suffix)
		path := filepath.Join(StateDir, name)
		if FileExists(path) || FileExists(path+customersSuffix) {
			removed = append(removed, suffix)
		}
		for _, extra := range []string{"", Temporary, ".lock", customersSuffix, customersSuffix + Temporary} {
			err = errors.Join(err, RemoveState(name+extra))
		}
	}
	return removed, err
}
