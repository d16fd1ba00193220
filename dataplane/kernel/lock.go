package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lock is a file lock. The kernel releases it when the process ends; Close also removes
// its file.
type lock struct{ *os.File }

// Close releases the lock. It removes the file first: a process that waits for the lock
// notices that and creates a new file.
func (l lock) Close() error {
	if l.File == nil {
		return nil
	}
	return errors.Join(os.Remove(l.Name()), l.File.Close())
}

var errLocked = errors.New("locked")

// takeOwnerLock takes the lock that a shaper's process holds. The error is errLocked if
// another process holds it.
func takeOwnerLock(at iface, direction Direction) (lock, error) {
	return takeLock(ownerFile(at, direction), unix.LOCK_EX|unix.LOCK_NB)
}

// ownerFile returns the name of a direction's owner lock.
func ownerFile(at iface, direction Direction) string {
	return at.fileName(direction.String() + "-owner")
}

// hasOwner reports whether a process holds the owner lock. It creates no file. Its own
// lock is a shared one, so that concurrent calls do not take each other for the owner.
func hasOwner(at iface, direction Direction) (bool, error) {
	file, err := lockExisting(ownerFile(at, direction), unix.LOCK_SH)
	file.Close()
	if err == errLocked {
		return true, nil
	}
	return false, err
}

// removeIfUnlocked reports whether no process holds a lock. If so, it removes the file.
func removeIfUnlocked(name string) (bool, error) {
	file, err := lockExisting(name, unix.LOCK_EX)
	switch {
	case err == errLocked:
		return false, nil
	case err != nil:
		return false, err
	case file == nil:
		return true, nil
	}
	defer file.Close()
	return true, removeState(name)
}

// lockExisting locks an existing file without waiting; Close of the file releases the
// lock. It returns nil if there is no file, and errLocked if a process holds the lock.
// Close of a nil file does nothing.
func lockExisting(name string, how int) (*os.File, error) {
	file, err := openState(name, os.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err = flock(file, how|unix.LOCK_NB); err == nil {
		return file, nil
	}
	file.Close()
	if err == unix.EWOULDBLOCK {
		err = errLocked
	}
	return nil, err
}

// takeChangeLock takes the change lock of an interface, which is held during each
// change in either direction.
func takeChangeLock(at iface) (lock, error) { return takeLock(at.fileName("change"), unix.LOCK_EX) }

// takeChangeLockWithin is takeChangeLock with another patience than lockPatience.
func takeChangeLockWithin(at iface, patience time.Duration) (lock, error) {
	return takeLockWithin(at.fileName("change"), unix.LOCK_EX, patience)
}

// tryTakeChangeLock is takeChangeLock without waiting. The error is errLocked if another
// process holds the lock.
func tryTakeChangeLock(at iface) (lock, error) {
	return takeLock(at.fileName("change"), unix.LOCK_EX|unix.LOCK_NB)
}

// lockPatience is the maximum time that a process waits for one holder of a lock. A
// change takes less than a second. A stopped process must not prevent others from
// detaching.
const lockPatience = 10 * time.Second

// takeLock is takeLockWithin lockPatience.
func takeLock(name string, how int) (lock, error) { return takeLockWithin(name, how, lockPatience) }

// takeLockWithin takes a lock by flock(2) with the operation how. It waits while the
// lock passes from holder to holder, and fails if one holder keeps it for longer than
// patience. Each holder creates a new file, so holders can be told apart. With LOCK_NB
// it does not wait but returns errLocked.
func takeLockWithin(name string, how int, patience time.Duration) (lock, error) {
	var holder os.FileInfo
	var end time.Time
	for {
		file, err := openState(name, os.O_RDWR|os.O_CREATE)
		if err != nil {
			return lock{}, err
		}
		switch err := flock(file, how|unix.LOCK_NB); {
		case err == nil && hasName(file):
			return lock{file}, nil
		case err == nil: // its holder removed it meanwhile
		case err != unix.EWOULDBLOCK:
			file.Close()
			return lock{}, err
		case how&unix.LOCK_NB != 0:
			file.Close()
			return lock{}, errLocked
		}
		now, err := file.Stat()
		file.Close()
		if err != nil {
			return lock{}, err
		}
		if holder == nil || !os.SameFile(holder, now) || !holder.ModTime().Equal(now.ModTime()) {
			holder, end = now, time.Now().Add(patience)
		}
		if time.Now().After(end) {
			return lock{}, fmt.Errorf("another process has held the lock %s for %v: is it stopped?", file.Name(), patience)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func flock(file *os.File, how int) error {
	for {
		if err := unix.Flock(int(file.Fd()), how); err != unix.EINTR {
			return err
		}
	}
}

// hasName reports whether an open file was neither removed nor replaced. Its directory may have been renamed,
// or another one may be mounted over it.
func hasName(file *os.File) bool {
	var stat unix.Stat_t
	return unix.Fstat(int(file.Fd()), &stat) == nil && stat.Nlink > 0
}
