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

// StateDir is the folder of locks and journals. /run is the same for ip netns exec.
const StateDir = "/run/shaper"

// openStateDir makes the folder, or checks the one that exists: whoever could
// write there could replace locks and journals. A service has a folder of its own
// user (RuntimeDirectory=shaper), so another owner is accepted; no file in it is
// followed or trusted that neither root, this user nor that owner made.
func openStateDir() (owner uint32, err error) {
	if err := os.MkdirAll(StateDir, 0o700); err != nil {
		return 0, withHint(err)
	}
	return safeDir(StateDir)
}

// safeDir returns the owner of a folder that only he can write.
func safeDir(path string) (owner uint32, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	if !info.IsDir() || info.Mode()&0o022 != 0 {
		return 0, fmt.Errorf("%s can be written by other users (%v): chmod 700 %[1]s, after a look at what is in it", path, info.Mode())
	}
	return info.Sys().(*syscall.Stat_t).Uid, nil
}

// withHint says what a service lacks that may not write to the folder.
func withHint(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w, and with a %s of its own (RuntimeDirectory=shaper)", cause.Of(unix.EPERM), StateDir)
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w: locks and journals are kept in %s: mount a tmpfs there", err, StateDir)
	}
	return err
}

// errStrange says that something else stands where a file of the folder belongs.
var errStrange = errors.New("not a file that shaper made")

// openState opens a file of the folder. It follows no link, and refuses what is
// no plain file of root, of this user or of the folder's owner.
func openState(name string, flags int) (*os.File, error) {
	owner, err := openStateDir()
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(StateDir, name), flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENXIO) {
		return nil, fmt.Errorf("%s is %w: remove it", filepath.Join(StateDir, name), errStrange)
	}
	if err != nil {
		return nil, withHint(err)
	}
	if flags&os.O_CREATE != 0 && owner != 0 && os.Geteuid() == 0 {
		_ = file.Chown(int(owner), -1) // whose service has to read and remove it
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		file.Close()
		return nil, err
	}
	ours := stat.Uid == 0 || stat.Uid == owner || int(stat.Uid) == os.Geteuid()
	if stat.Mode&unix.S_IFMT != unix.S_IFREG || stat.Mode&0o022 != 0 || !ours {
		file.Close()
		return nil, fmt.Errorf("%s is %w (user %d, mode %o): remove it", file.Name(), errStrange, stat.Uid, stat.Mode)
	}
	return file, nil
}

// writeState replaces a file: a reader, and whoever comes after a crash, finds
// the text before or the new one, whole. The caller has a lock for the name.
func writeState(name string, text []byte) error { return replaceState(name, name+temporary, text) }

// replaceState is writeState by way of a file with another name.
func replaceState(name, half string, text []byte) error {
	if err := removeState(half); err != nil { // of a killed process
		return err
	}
	file, err := openState(half, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), filepath.Join(StateDir, name))
	}
	if err != nil {
		err = errors.Join(err, removeState(half))
	}
	return err
}

// temporary ends the name of a file that is not written completely.
const temporary = ".new"

// removeState removes a file; one that is not there is no error.
func removeState(name string) error {
	err := os.Remove(filepath.Join(StateDir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
