// Package filelock is for file locks that a process holds while it changes something. A holder can
// be slow, because of 100,000 customers or a busy machine; then others must wait for it. They must
// not wait for one that is stopped. So a holder sets the time of the file again and again, and
// others wait as long as the time changes.
package filelock

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Patience is the maximum wait for a holder that does not set the time of its file. A change takes
// less than a second, and a holder that takes longer sets the time at each interval.
const (
	Patience = 10 * time.Second
	interval = time.Second
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
	if setTime(file) == nil {
		time.AfterFunc(interval, func() { Hold(file) })
	}
}

// setTime sets the time of a file's contents to now. It needs no permission to write.
func setTime(file *os.File) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	now := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}
	if e := conn.Control(func(fd uintptr) {
		err = unix.UtimesNanoAt(int(fd), "", now, unix.AT_EMPTY_PATH)
	}); e != nil {
		return e
	}
	return err
}

// Wait is the wait for the holders of a lock, one after the other. The zero value is ready for use.
type Wait struct {
	holder os.FileInfo
	end    time.Time
}

// IsOver reports whether the wait has lasted for patience at now, in which the file was neither replaced
// nor its time set. Call it each time the lock is busy, with the file's state.
func (w *Wait) IsOver(file os.FileInfo, now time.Time, patience time.Duration) bool {
	if w.holder == nil || !os.SameFile(w.holder, file) || !w.holder.ModTime().Equal(file.ModTime()) {
		w.holder, w.end = file, now.Add(patience)
	}
	return now.After(w.end)
}
