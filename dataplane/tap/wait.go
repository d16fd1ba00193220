package tap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// spin is the time before a deadline, in ns, from which a port polls instead of
// sleeping. 99 % of timer wakeups are at most this late; see BenchmarkWait.
var spin int64 = 60_000

// maxSleep is the longest sleep in ns. A 32-bit time_t can hold it.
const maxSleep = int64(time.Hour)

// waiter waits for a file, the clock and a bell. The three are in one epoll(7) set, on which the
// goroutine waits like on any other file of the Go scheduler. A return from a blocking system call
// instead wakes the scheduler's monitor, which may first move the goroutine to another thread. The
// scheduler's own timers are up to 1 ms late.
type waiter struct {
	set   *os.File
	conn  syscall.RawConn        // of set
	poll  func(set uintptr) bool // the method collect, bound once
	found [3]unix.EpollEvent     // filled by collect
	n     int                    // number of events in found
	setFD int
	fd    int         // the file
	armed bool        // set reports the file
	timer int         // timerfd(2)
	timed int64       // deadline for which timer is set
	bell  int         // eventfd(2)
	rung  atomic.Bool // Wake was called since the last wait returned
}

// ring is the smallest increment of an eventfd: the sum is never read.
var ring = binary.NativeEndian.AppendUint64(nil, 1)

func (w *waiter) open(fd int) (err error) {
	w.fd, w.setFD, w.timer, w.bell = fd, -1, -1, -1
	defer func() {
		if err != nil {
			_ = w.close() // only err matters
		}
	}()
	if w.setFD, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll_create1: %w", err)
	}
	if w.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC,
		unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		return fmt.Errorf("timerfd_create: %w", err)
	}
	if w.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	for _, member := range []unix.EpollEvent{
		{Fd: int32(fd), Events: once},
		{Fd: int32(w.timer), Events: edge},
		{Fd: int32(w.bell), Events: edge},
	} {
		if err := unix.EpollCtl(w.setFD, unix.EPOLL_CTL_ADD, int(member.Fd), &member); err != nil {
			return fmt.Errorf("epoll_ctl: %w", err)
		}
	}
	if err := unix.SetNonblock(w.setFD, true); err != nil { // the scheduler watches no other files
		return fmt.Errorf("set epoll nonblocking: %w", err)
	}
	w.armed = true
	w.set = os.NewFile(uintptr(w.setFD), "epoll")
	w.conn, err = w.set.SyscallConn()
	w.poll = w.collect
	return err
}

const (
	// once reports the file one time after each arm. While a port reads frames, new ones wake no
	// thread.
	once = unix.EPOLLIN | unix.EPOLLONESHOT
	// edge reports each expiry of the timer and each ring of the bell one time, so they need
	// not be read.
	edge = unix.EPOLLIN | unix.EPOLLET&math.MaxUint32
)

func (w *waiter) close() error {
	closeSet := func() error { return unix.Close(w.setFD) }
	if w.set != nil {
		closeSet = w.set.Close
	}
	return errors.Join(closeSet(), unix.Close(w.timer), unix.Close(w.bell))
}

// wait waits for the file, the deadline or the bell. It returns the events of
// epoll(7) on the file.
func (w *waiter) wait(deadline int64) (events uint32, err error) {
	for left := deadline - Now(); left > 0; left = deadline - Now() {
		w.n = 0
		err := w.arm()
		if err == nil && left > spin {
			if err = w.setTimer(deadline, left); err == nil {
				err = w.conn.Read(w.poll)
			}
		} else if err == nil {
			w.collect(uintptr(w.setFD))
		}
		if err != nil {
			return 0, fmt.Errorf("wait: %w", err)
		}
		for _, event := range w.found[:w.n] {
			if int(event.Fd) == w.fd {
				events, w.armed = event.Events, false
			}
		}
		if events != 0 || w.rung.Load() {
			w.rung.Store(false)
			return events, nil
		}
	}
	return 0, nil
}

// arm makes the set report the file.
func (w *waiter) arm() error {
	if w.armed {
		return nil
	}
	event := unix.EpollEvent{Fd: int32(w.fd), Events: once}
	_, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(w.setFD), unix.EPOLL_CTL_MOD, uintptr(w.fd),
		uintptr(unsafe.Pointer(&event)), 0, 0)
	if errno != 0 {
		return fmt.Errorf("epoll_ctl: %w", errno)
	}
	w.armed = true
	return nil
}

// setTimer makes the set report when it is time to poll for a deadline left ns away. Without a
// deadline an earlier timer may expire, in vain.
func (w *waiter) setTimer(deadline, left int64) error {
	if deadline == w.timed || deadline == math.MaxInt64 {
		return nil
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(min(left-spin, maxSleep))}
	_, _, errno := unix.RawSyscall6(unix.SYS_TIMERFD_SETTIME, uintptr(w.timer), 0,
		uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("timerfd_settime: %w", errno)
	}
	if w.timed = deadline; left-spin > maxSleep {
		w.timed = 0
	}
	return nil
}

// collect fills found with the events of the set. It does not block, so it
// bypasses the Go scheduler.
func (w *waiter) collect(set uintptr) (any bool) {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, set, uintptr(unsafe.Pointer(&w.found)),
		uintptr(len(w.found)), 0, 0, 0)
	if errno != 0 { // none is possible
		n = 0
	}
	w.n = int(n)
	return n > 0
}

// Wake makes no system call if an earlier Wake is pending.
func (w *waiter) Wake() {
	if !w.rung.Swap(true) {
		_, _ = unix.Write(w.bell, ring)
	}
}
