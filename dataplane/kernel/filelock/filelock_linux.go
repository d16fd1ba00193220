// Package filelock is for file locks that a process holds while it changes something. A holder can
// be slow, because of 100,000 customers or a busy machine; then others must wait for it. They must
// not wait for one that is stopped. So a holder sets the time of the file again and again, and
// others wait as long as the time changes, up to a minute.
package filelock

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// Patience is the time for which others wait for a holder that does not set the time of its file. A
	// change takes less than a second, and a holder that takes longer sets it at each interval.
	Patience = 10 * time.Second
	interval = time.Second
	maxWait  = time.Minute // for a holder that runs
)

// Flock calls flock(2), again if a signal interrupts it.
func Flock(file *os.File, how int) error {
	for {
		if err := unix.Flock(int(file.Fd()), how); err != unix.EINTR {
			return err
		}
	}
}

// Hold shows others that the holder of a locked file runs, until the file is closed. On a read-only
// file system it has no effect.
func Hold(file *os.File) {
	if !errors.Is(setTime(file), os.ErrClosed) {
		time.AfterFunc(interval, func() { Hold(file) })
	}
}

// setTime sets the time of a file's contents to now. The file need not be open for writing.
func setTime(file *os.File) (err error) {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	now := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}
	if e := conn.Control(func(fd uintptr) {
		err = unix.UtimesNanoAt(int(fd), "", now, unix.AT_EMPTY_PATH)
	}); e != nil {
		return os.ErrClosed
	}
	return err
}

// Wait is the wait for the holders of a lock, one after the other. The zero value is ready for use.
type Wait struct {
	holder       os.FileInfo
	begin, since time.Time // of the holder, and of its file's time
}

// Busy returns an error if the wait is over: for patience the holder did not set the time of its file,
// or it has had the lock for too long. Call it each time the lock is busy, with the state of its
// file. Holders of different files are different ones.
func (w *Wait) Busy(file os.FileInfo, now time.Time, patience time.Duration) error {
	switch {
	case w.holder == nil || !os.SameFile(w.holder, file):
		w.begin, w.since = now, now
	case !w.holder.ModTime().Equal(file.ModTime()):
		w.since = now
	}
	w.holder = file
	switch held := now.Sub(w.begin); {
	case held > maxWait:
		return fmt.Errorf("for %v: it still changes something", held.Round(time.Second))
	case now.Sub(w.since) > patience && patience >= Patience:
		return fmt.Errorf("for %v: is it stopped?", held.Round(time.Second))
	case now.Sub(w.since) > patience:
		return fmt.Errorf("for %v", held.Round(time.Millisecond))
	}
	return nil
}
