package changes

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Patience is the time for which Lock waits. A reload or a change takes less than a second; only a stopped
// process keeps the lock.
const Patience = 10 * time.Second

// Lock waits until no other process, and no other caller of Lock, changes a file of changes, or loads a
// policy with it. Close releases the lock. For path "" there is nothing to lock. The error wraps
// ErrLocked if the lock is still held after Patience.
func Lock(path string) (io.Closer, error) { return LockWithin(path, Patience) }

// LockWithin is Lock with another patience.
func LockWithin(path string, patience time.Duration) (io.Closer, error) {
	for end := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		l, err := TryLock(path)
		if errors.Is(err, ErrLocked) && time.Now().Before(end) {
			continue
		}
		if errors.Is(err, ErrLocked) {
			err = fmt.Errorf(
				"file of changes %q: another process has held its lock for %v: is it stopped? %w", path,
				patience, err)
		}
		return l, err
	}
}

// ErrLocked is the error for a locked file of changes.
var ErrLocked = errors.New("locked")

// TryLock is Lock without waiting. The error is ErrLocked if the file is locked.
func TryLock(path string) (io.Closer, error) {
	if path == "" {
		return io.NopCloser(nil), nil
	}
	// It is not opened for writing: then it also works on a file system that became read-only.
	file, err := open(path+".lock", os.O_RDONLY|os.O_CREATE)
	if err != nil {
		return nil, fmt.Errorf("file of changes: %w", err)
	}
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
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
