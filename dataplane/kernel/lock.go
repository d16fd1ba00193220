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

// lock is a lock of a shaper, which ends with the process.
type lock struct{ *os.File }

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
	err := os.MkdirAll(locks, 0o700)
	if err != nil {
		return lock{}, err
	}
	file, err := os.OpenFile(filepath.Join(locks, name), os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrPermission) {
		return lock{}, fmt.Errorf("%w, and with a %s of its own (RuntimeDirectory=shaper)", explain(unix.EPERM), locks)
	}
	if err != nil {
		return lock{}, err
	}
	for {
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX|how)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		file.Close()
		if err == unix.EWOULDBLOCK {
			err = errLocked
		}
		return lock{}, err
	}
	return lock{file}, nil
}
