package kernel

import (
	"errors"
	"path/filepath"
)

// changesPrefix is the prefix of the names of files of changes, after that of the interface.
const changesPrefix = "changes-"

// bothDirections is the suffix of a file of changes to shapers of both directions.
const bothDirections = "both"

// changesPath returns the path of a file in StateDir for changes to the shapers of an interface
// in one direction, or in both. It makes the directory.
func changesPath(at iface, directions []Direction) (string, error) {
	dir, err := openStateDir()
	if err != nil {
		return "", err
	}
	defer dir.Close()
	suffix := bothDirections
	if len(directions) == 1 {
		suffix = directions[0].String()
	}
	return filepath.Join(StateDir, at.fileName(changesPrefix+suffix)), nil
}

// removeChanges removes the files of changes of a direction, and with both also those of both
// directions. It returns the suffixes of those that existed.
func removeChanges(at iface, direction Direction, both bool) (removed []string, err error) {
	suffixes := []string{direction.String()}
	if both {
		suffixes = append(suffixes, bothDirections)
	}
	for _, suffix := range suffixes {
		name := at.fileName(changesPrefix + suffix)
		if fileExists(filepath.Join(StateDir, name)) {
			removed = append(removed, suffix)
		}
		for _, extra := range []string{"", temporary, ".lock"} {
			err = errors.Join(err, removeState(name+extra))
		}
	}
	return removed, err
}
