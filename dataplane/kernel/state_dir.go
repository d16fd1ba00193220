package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
)

// StateDir is the directory of locks, journals and the registry of budgets. It is the same
// in all network namespaces, because ip netns exec does not replace /run.
const StateDir = "/run/shaper"

// openStateDir makes the directory, or checks the one that exists, and returns its owner.
// It is an error if other users can write to it, because they could replace locks and
// journals. Any owner is accepted: a service has a directory of its own user
// (RuntimeDirectory=shaper). openState accepts only files of root, this user and the owner.
func openStateDir() (owner uint32, err error) {
	if err := os.MkdirAll(StateDir, 0o700); err != nil {
		return 0, withHint(err)
	}
	return safeDir(StateDir)
}

// safeDir returns the owner of a directory. It is an error if others can write to it.
func safeDir(path string) (owner uint32, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	if !info.IsDir() || info.Mode()&0o022 != 0 {
		return 0, fmt.Errorf("%s is writable by other users (%v): inspect its contents, then chmod 700 %[1]s", path, info.Mode())
	}
	return info.Sys().(*syscall.Stat_t).Uid, nil
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

// errForeignFile reports that a file in the directory is not ours.
var errForeignFile = errors.New("not a file that shaper made")

// openState opens a file in the directory. It does not follow links. It rejects a file that
// is not regular, that others can write, or whose owner is not root, this user or the
// directory's owner. flags are those of os.OpenFile.
func openState(name string, flags int) (*os.File, error) {
	owner, err := openStateDir()
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(StateDir, name), flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENXIO) {
		return nil, fmt.Errorf("%s is %w: remove it", filepath.Join(StateDir, name), errForeignFile)
	}
	if err != nil {
		return nil, withHint(err)
	}
	if flags&os.O_CREATE != 0 && owner != 0 && os.Geteuid() == 0 {
		_ = file.Chown(int(owner), -1) // the owner's service has to read and remove it
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		file.Close()
		return nil, err
	}
	ours := stat.Uid == 0 || stat.Uid == owner || int(stat.Uid) == os.Geteuid()
	if stat.Mode&unix.S_IFMT != unix.S_IFREG || stat.Mode&0o022 != 0 || !ours {
		file.Close()
		return nil, fmt.Errorf("%s is %w (user %d, mode %o): remove it", file.Name(), errForeignFile, stat.Uid, stat.Mode)
	}
	return file, nil
}

// writeState replaces a file in one step: readers, also after a crash, find either the
// previous text or the new one. The caller must hold a lock for the name.
func writeState(name string, text []byte) error { return replaceState(name, name+temporary, text) }

// replaceState is writeState with the name of the temporary file.
func replaceState(name, temp string, text []byte) error {
	if err := removeState(temp); err != nil { // left by a killed process
		return err
	}
	file, err := openState(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), filepath.Join(StateDir, name))
	}
	if err != nil {
		err = errors.Join(err, removeState(temp))
	}
	return err
}

// temporary is the suffix of a file that may be incomplete.
const temporary = ".new"

// removeState removes a file of the directory, if it exists.
func removeState(name string) error {
	err := os.Remove(filepath.Join(StateDir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
