package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/filelock"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
)

// Lock is a file lock. The kernel releases it when the process ends; Close also removes
// its file.
type Lock struct{ *os.File }

// Close releases the lock. It removes the file first: a process that waits for the lock
// notices that and creates a new file.
func (l Lock) Close() error {
	if l.File == nil {
		return nil
	}
	return errors.Join(os.Remove(l.Name()), l.File.Close())
}

var ErrLocked = errors.New("locked")

// TakeOwnerLock takes the lock of a shaper's process. The error is ErrLocked if another process
// holds it.
func TakeOwnerLock(at iface.ID, direction dataplane.Direction) (Lock, error) {
	return TakeLock(OwnerFile(at, direction), unix.LOCK_EX|unix.LOCK_NB)
}

// OwnerFile returns the name of a direction's owner lock.
func OwnerFile(at iface.ID, direction dataplane.Direction) string {
	return at.FileName(direction.String() + "-owner")
}

// HasOwner reports whether a process holds the owner lock. It creates no file. Its own
// lock is a shared one, so that concurrent calls do not take each other for the owner.
func HasOwner(at iface.ID, direction dataplane.Direction) (bool, error) {
	file, err := LockExisting(OwnerFile(at, direction), unix.LOCK_SH)
	file.Close()
	if err == ErrLocked {
		return true, nil
	}
	return false, err
}

// RemoveIfUnlocked reports whether no process holds a lock. If so, it removes the file.
func RemoveIfUnlocked(name string) (bool, error) {
	file, err := LockExisting(name, unix.LOCK_EX)
	switch {
	case err == ErrLocked:
		return false, nil
	case err != nil:
		return false, err
	case file == nil:
		return true, nil
	}
	defer file.Close()
	return true, RemoveState(name)
}

// LockExisting locks an existing file without waiting; Close of the file releases the
// lock. It returns nil if there is no file, and ErrLocked if a process holds the lock.
// Close of a nil file does nothing.
func LockExisting(name string, how int) (*os.File, error) {
	file, err := OpenState(name, os.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err = filelock.Flock(file, how|unix.LOCK_NB); err == nil {
		return file, nil
	}
	file.Close()
	if err == unix.EWOULDBLOCK {
		err = ErrLocked
	}
	return nil, err
}

// TakeChangeLock takes the change lock of an interface, which is held during each
// change in either direction.
func TakeChangeLock(at iface.ID) (Lock, error) {
	return TakeChangeLockWithin(at, filelock.Patience)
}

// TakeChangeLockWithin is TakeChangeLock with another patience than filelock.Patience.
func TakeChangeLockWithin(at iface.ID, patience time.Duration) (Lock, error) {
	return hold(takeLockWithin(at.FileName("change"), unix.LOCK_EX, patience))
}

// TryTakeChangeLock is TakeChangeLock without waiting. The error is ErrLocked if another
// process holds the lock.
func TryTakeChangeLock(at iface.ID) (Lock, error) {
	return hold(TakeLock(at.FileName("change"), unix.LOCK_EX|unix.LOCK_NB))
}

// TakeRegistryLock takes the lock of a registry of the host by its file name, for a change.
func TakeRegistryLock(name string, how int) (Lock, error) { return hold(TakeLock(name, how)) }

// hold shows others that the holder of a lock runs.
func hold(l Lock, err error) (Lock, error) {
	if err == nil {
		filelock.Hold(l.File)
	}
	return l, err
}

// TakeLock takes a lock by flock(2) with the operation how. It waits while the lock passes from
// holder to holder, and fails if one holder neither releases it nor shows that it runs. Each holder
// creates a new file, so holders can be told apart. With LOCK_NB it does not wait but returns
// ErrLocked.
func TakeLock(name string, how int) (Lock, error) {
	return takeLockWithin(name, how, filelock.Patience)
}

// takeLockWithin is TakeLock with another patience than filelock.Patience.
func takeLockWithin(name string, how int, patience time.Duration) (Lock, error) {
	var wait filelock.Wait
	for {
		file, err := OpenState(name, os.O_RDWR|os.O_CREATE)
		if err != nil {
			return Lock{}, err
		}
		switch err := filelock.Flock(file, how|unix.LOCK_NB); {
		case err == nil && HasName(file):
			return Lock{file}, nil
		case err == nil: // its holder removed it meanwhile
		case err != unix.EWOULDBLOCK:
			file.Close()
			return Lock{}, err
		case how&unix.LOCK_NB != 0:
			file.Close()
			return Lock{}, ErrLocked
		}
		holder, err := file.Stat()
		file.Close()
		if err != nil {
			return Lock{}, err
		}
		if err := wait.Busy(holder, time.Now(), patience); err != nil {
			return Lock{}, fmt.Errorf("another process has held the lock %s %w", file.Name(), err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// HasName reports whether an open file was neither removed nor replaced. Its directory may have been renamed,
// or another one may be mounted over it.
func HasName(file *os.File) bool {
	var stat unix.Stat_t
	return unix.Fstat(int(file.Fd()), &stat) == nil && stat.Nlink > 0
}
