package tap

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// spin is the time before a deadline, in ns, from which a port polls instead of
// sleeping. 99 % of timer wakeups are at most this late; see BenchmarkWait.
var spin int64 = 60_000

// maxSleep is the longest sleep in ns. A 32-bit time_t can hold it.
const maxSleep = int64(time.Hour)

// LockThread locks the goroutine to its thread and minimizes the thread's timer
// slack. By default, the kernel delays timers by up to 50 µs to save power
// (PR_SET_TIMERSLACK, prctl(2)). unlock undoes both.
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
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(before), 0, 0, 0) // cannot fail: the same call succeeded before
		runtime.UnlockOSThread()
	}, nil
}

// waiter waits for a file, the clock and a bell, which is an eventfd(2).
type waiter struct {
	fds   [2]unix.PollFd // file, bell
	rung  atomic.Bool    // Wake was called since the last wait returned
	count [8]byte        // buffer for reading the bell
}

var ring = []byte{7: 1} // any value except 0

func (w *waiter) open(fd int) error {
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	w.fds = [2]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(bell), Events: unix.POLLIN}}
	return nil
}

func (w *waiter) close() error { return unix.Close(int(w.fds[1].Fd)) }

// wait waits for the file, the deadline or the bell. It returns the events of
// ppoll(2) on the file.
func (w *waiter) wait(deadline int64) (events int16, err error) {
	for left := deadline - Now(); left > 0; left = deadline - Now() {
		// With a timeout of 0 the loop spins; it still sees frames.
		timeout := unix.NsecToTimespec(min(max(left-spin, 0), maxSleep))
		n, err := unix.Ppoll(w.fds[:], &timeout, nil)
		if errors.Is(err, unix.EINTR) { // signals of the Go scheduler
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
			w.rung.Store(false) // after the read, or a Wake between the two would be lost
		}
		return w.fds[0].Revents, nil
	}
	return 0, nil
}

// Wake makes no system call if an earlier Wake is pending.
func (w *waiter) Wake() {
	if !w.rung.Swap(true) {
		_, _ = unix.Write(int(w.fds[1].Fd), ring)
	}
}
