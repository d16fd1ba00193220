package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// locks is where lock files are. /run is the same for ip netns exec.
const locks = "/run/shaper"

// lock is a lock of a shaper, which ends with the process. Its file goes with
// it, unless the process is killed.
type lock struct{ *os.File }

// Close ends the lock. The file is removed while it is still locked: who waits
// for it sees that, and makes another.
func (l lock) Close() error { return errors.Join(os.Remove(l.Name()), l.File.Close()) }

var errLocked = errors.New("locked")

// ownerLock is held by the process that shapes; it is errLocked where there is
// one.
func ownerLock(here uint64, name string, direction Hook) (lock, error) {
	return takeLock(fmt.Sprintf("%d-%s-%v-owner", here, name, direction), unix.LOCK_NB)
}

// changeLock is held while something is changed.
func changeLock(here uint64, name string, direction Hook) (lock, error) {
	return takeLock(fmt.Sprintf("%d-%s-%v-change", here, name, direction), 0)
}

func takeLock(name string, how int) (lock, error) {
	if err := os.MkdirAll(locks, 0o700); err != nil {
		return lock{}, err
	}
	for {
		file, err := os.OpenFile(filepath.Join(locks, name), os.O_RDWR|os.O_CREATE, 0o600)
		if errors.Is(err, fs.ErrPermission) {
			return lock{}, fmt.Errorf("%w, and with a %s of its own (RuntimeDirectory=shaper)", explain(unix.EPERM), locks)
		}
		if err != nil {
			return lock{}, err
		}
		switch err := flock(file, how); {
		case err == unix.EWOULDBLOCK:
			file.Close()
			return lock{}, errLocked
		case err != nil:
			file.Close()
			return lock{}, err
		case stillThere(file):
			return lock{file}, nil
		}
		file.Close() // its owner removed it meanwhile
	}
}

func flock(file *os.File, how int) error {
	for {
		if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|how); err != unix.EINTR {
			return err
		}
	}
}

// stillThere says whether a file is the one of its name.
func stillThere(file *os.File) bool {
	ours, err := file.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(file.Name())
	return err == nil && os.SameFile(ours, named)
}
