package tap

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// spin is how long before a deadline a port no longer sleeps, in ns: a timer
// wakes a thread that late at most, but for 1 time in 100. See BenchmarkWait.
var spin int64 = 60_000

// longest is the longest sleep, which a 32-bit time_t holds, in ns.
const longest = int64(time.Hour)

// LockThread locks the goroutine to its thread, and has the kernel wake that
// thread as soon as a timer fires: others it lets sleep 50 µs longer to save
// power (PR_SET_TIMERSLACK, see prctl(2)). unlock undoes both.
func LockThread() (unlock func(), err error) {
	runtime.LockOSThread()
	before, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err == nil {
		err = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	}
	if err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("set the thread's timer slack: %w", err)
	}
	return func() {
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(before), 0, 0, 0) // it just worked
		runtime.UnlockOSThread()
	}, nil
}

// waiter waits for a file, the clock and a bell, which is an eventfd(2).
type waiter struct {
	fds   [2]unix.PollFd // the file, the bell
	rung  atomic.Bool    // since a wait heard it
	count [8]byte        // of rings, read from the bell
}

var ring = []byte{7: 1} // any number but 0

func (w *waiter) open(fd int) error {
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	w.fds = [2]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(bell), Events: unix.POLLIN}}
	return nil
}

func (w *waiter) close() error { return unix.Close(int(w.fds[1].Fd)) }

// wait waits for the file, the deadline or the bell, and returns what ppoll(2)
// says about the file.
func (w *waiter) wait(deadline int64) (events int16, err error) {
	for left := deadline - Now(); left > 0; left = deadline - Now() {
		// A timeout of 0 makes the loop spin, and sees frames meanwhile.
		timeout := unix.NsecToTimespec(min(max(left-spin, 0), longest))
		n, err := unix.Ppoll(w.fds[:], &timeout, nil)
		if errors.Is(err, unix.EINTR) { // the Go scheduler's signals
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("ppoll: %w", err)
		}
		if n == 0 {
			continue
		}
		if w.fds[1].Revents != 0 {
			_, _ = unix.Read(int(w.fds[1].Fd), w.count[:])
			w.rung.Store(false) // not before: a Wake between would be lost for good
		}
		return w.fds[0].Revents, nil
	}
	return 0, nil
}

// Wake is cheap where nobody has heard the last one yet.
func (w *waiter) Wake() {
	if !w.rung.Swap(true) {
		_, _ = unix.Write(int(w.fds[1].Fd), ring)
	}
}
