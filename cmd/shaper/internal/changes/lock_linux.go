package changes

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/filelock"
)

// Lock waits until no other process, and no other caller of Lock, changes a file of changes, or loads a
// policy with it. Close releases the lock. For path "" there is nothing to lock. The error wraps
// ErrLocked if the lock's holder is stopped, or keeps it for long.
func Lock(path string) (io.Closer, error) { return LockWithin(path, math.MaxInt64) }

// LockWithin is Lock, but it waits no longer than limit.
func LockWithin(path string, limit time.Duration) (io.Closer, error) {
	var wait filelock.Wait
	for begin := time.Now(); ; time.Sleep(2 * time.Millisecond) {
		l, err := TryLock(path)
		if !errors.Is(err, ErrLocked) {
			return l, err
		}
		holder, e := os.Stat(lockName(path))
		switch {
		case errors.Is(e, fs.ErrNotExist): // removed meanwhile
			continue
		case e != nil:
			return nil, fmt.Errorf("file of changes: lock: %w", e)
		case time.Since(begin) > limit:
			e = fmt.Errorf("for %v", limit)
		default:
			e = wait.Busy(holder, time.Now(), filelock.Patience)
		}
		if e != nil {
			return nil, fmt.Errorf("file of changes %q: another process has held its lock %w: %w", path, e, err)
		}
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
	file, err := open(lockName(path), os.O_RDONLY|os.O_CREATE)
	if err != nil {
		return nil, fmt.Errorf("file of changes: %w", err)
	}
	switch err = filelock.Flock(file, unix.LOCK_EX|unix.LOCK_NB); err {
	case nil:
		filelock.Hold(file)
		return file, nil
	case unix.EWOULDBLOCK:
		err = ErrLocked
	default:
		err = fmt.Errorf("file of changes: lock: %w", err)
	}
	file.Close()
	return nil, err
}

func lockName(path string) string { return path + ".lock" }
