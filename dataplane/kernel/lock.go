package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lock is a file lock, which ends with the process. Its file is removed with
// it, unless the process is killed.
type lock struct{ *os.File }

// Close ends the lock. The file is removed while it is still locked: a process
// that waits for it sees that, and makes another.
func (l lock) Close() error { return errors.Join(os.Remove(l.Name()), l.File.Close()) }

var errLocked = errors.New("locked")

// ownerLock is held by the process that shapes; it is errLocked if there is
// one.
func ownerLock(at iface, direction Direction) (lock, error) {
	return takeLock(at.ownerFile(direction), unix.LOCK_EX|unix.LOCK_NB)
}

// ownerFile is the lock that the process holds which shapes a direction.
func (at iface) ownerFile(direction Direction) string { return at.file(direction.String() + "-owner") }

// owned says whether a process holds the owner lock. It makes no file. Those that
// look share a lock, so that none takes another for the owner.
func owned(at iface, direction Direction) (bool, error) {
	file, err := tryLock(at.ownerFile(direction), unix.LOCK_SH)
	file.Close()
	if err == errLocked {
		return true, nil
	}
	return false, err
}

// unlocked says whether nobody holds a lock, and removes its file then.
func unlocked(name string) (bool, error) {
	file, err := tryLock(name, unix.LOCK_EX)
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

// tryLock locks a file that exists until it is closed. It returns nil if there is none,
// and errLocked if a process holds the lock; Close of a nil file does nothing.
func tryLock(name string, how int) (*os.File, error) {
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

// Guarding is held by each process that rolls back, or cleans up, after another.
type Guarding struct{ *os.File }

// Guard marks this process as a guard of an interface.
func Guard(at Identity) (*Guarding, error) {
	for {
		file, err := openState(iface(at).file("guard-lock"), os.O_RDWR|os.O_CREATE)
		if err != nil {
			return nil, err
		}
		if err := flock(file, unix.LOCK_SH); err != nil {
			file.Close()
			return nil, err
		}
		if stillThere(file) {
			return &Guarding{file}, nil
		}
		file.Close() // the last guard before removed it meanwhile
	}
}

// Close ends it. The last guard removes the file.
func (g *Guarding) Close() error {
	if flock(g.File, unix.LOCK_EX|unix.LOCK_NB) == nil {
		_ = os.Remove(g.Name())
	}
	return g.File.Close()
}

// Unguard removes what a guard left that was killed.
func Unguard(at Identity) {
	if file, err := openState(iface(at).file("guard-lock"), os.O_RDWR); err == nil {
		_ = (&Guarding{file}).Close()
	}
}

// guarded says whether there is a guard. It makes no file.
func guarded(at iface) bool {
	for range 5 { // somebody may only look, as this does
		file, err := tryLock(at.file("guard-lock"), unix.LOCK_EX)
		file.Close()
		if err != errLocked {
			return false
		}
		time.Sleep(5 * time.Millisecond)
	}
	return true
}

// changeLock is held while something of an interface is changed, in either
// direction.
func changeLock(at iface) (lock, error) { return takeLock(at.file("change"), unix.LOCK_EX) }

// tryChangeLock is changeLock; it is errLocked if something is being changed.
func tryChangeLock(at iface) (lock, error) {
	return takeLock(at.file("change"), unix.LOCK_EX|unix.LOCK_NB)
}

// lockTime is how long a process waits while the same other process holds a lock. A change
// takes less than a second; a process that is stopped must not keep others from detaching.
const lockTime = 10 * time.Second

func takeLock(name string, how int) (lock, error) { return waitLock(name, how, lockTime) }

// waitLock takes a lock. It waits as long as others take turns, and fails if one holder
// keeps the lock for longer than patience. Each holder makes a file of its own.
func waitLock(name string, how int, patience time.Duration) (lock, error) {
	var holder os.FileInfo
	var end time.Time
	for {
		file, err := openState(name, os.O_RDWR|os.O_CREATE)
		if err != nil {
			return lock{}, err
		}
		switch err := flock(file, how|unix.LOCK_NB); {
		case err == nil && stillThere(file):
			return lock{file}, nil
		case err == nil: // its owner removed it meanwhile
			file.Close()
			continue
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

// stillThere says whether a file is the one of its name.
func stillThere(file *os.File) bool {
	ours, err := file.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(file.Name())
	return err == nil && os.SameFile(ours, named)
}
