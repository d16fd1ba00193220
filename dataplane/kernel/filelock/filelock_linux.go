package filelock

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
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
