package changes

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Lock waits until no other process, and no other caller of Lock, changes a file of changes, or
// loads a policy with it. Close releases the lock. For path "" there is nothing to lock.
func Lock(path string) (io.Closer, error) { return lock(path, unix.LOCK_EX) }

// ErrLocked means that a file of changes is locked.
var ErrLocked = errors.New("locked")

// TryLock is Lock without waiting. The error is ErrLocked if the file is locked.
func TryLock(path string) (io.Closer, error) { return lock(path, unix.LOCK_EX|unix.LOCK_NB) }

func lock(path string, how int) (io.Closer, error) {
	if path == "" {
		return io.NopCloser(nil), nil
	}
	// It is not opened for writing: then it also works on a file system that became read-only.
	file, err := os.OpenFile(path+".lock", os.O_RDONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("file of changes: %w", err)
	}
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.Flock(int(file.Fd()), how)
	}
	switch err {
	case nil:
		return file, nil
	case unix.EWOULDBLOCK:
		err = ErrLocked
	default:
		err = fmt.Errorf("file of changes: lock: %w", err)
	}
	file.Close()
	return nil, err
}
