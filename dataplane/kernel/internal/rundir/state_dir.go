package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/safedir"
)

// StateDir is the directory of locks, journals and the registry of budgets. It is the same
// in all network namespaces, because ip netns exec does not replace /run.
const StateDir = "/run/shaper"

// openStateDir opens the directory, or makes it. It is an error if other users can write to it,
// because they could replace locks and journals. Any owner is accepted: a service uses a directory
// of its own user (RuntimeDirectory=shaper).
func openStateDir() (*safedir.Dir, error) {
	dir, err := safedir.Open(StateDir, safedir.Create|safedir.AnyOwner)
	return dir, withHint(err)
}

// withHint adds advice to an error of writing to the directory.
func withHint(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w, and with its own %s (RuntimeDirectory=shaper)", cause.Of(unix.EPERM), StateDir)
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w: locks and journals are kept in %s: mount a tmpfs there", err, StateDir)
	}
	return err
}

// OpenState opens a file in the directory, as safedir.Dir.Open does.
func OpenState(name string, flags int) (*os.File, error) {
	dir, err := openStateDir()
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	file, err := dir.Open(name, flags)
	return file, withHint(err)
}

// writeState replaces a file in one step: readers, also after a crash, find either the
// previous text or the new one. The caller must hold a lock for the name.
func writeState(name string, text []byte) error { return ReplaceState(name, name+Temporary, text) }

// ReplaceState is writeState with the name of the temporary file.
func ReplaceState(name, temp string, text []byte) error {
	if err := RemoveState(temp); err != nil { // left by a killed process
		return err
	}
	file, err := OpenState(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = renameState(temp, name)
	}
	if err != nil {
		err = errors.Join(err, RemoveState(temp))
	}
	return err
}

// Temporary is the suffix of a possibly incomplete file.
const Temporary = ".new"

// renameState gives a file of the directory another name.
func renameState(from, to string) error {
	dir, err := openStateDir()
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Rename(from, to)
}

// RemoveState removes a file of the directory, if it exists.
func RemoveState(name string) error {
	dir, err := safedir.Open(StateDir, safedir.AnyOwner)
	if err == nil {
		defer dir.Close()
		err = dir.Remove(name)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func FileExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
