package livetest

import (
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// delayLine moves frames from one TAP device to another after a delay. It has threads of its own,
// because timers of Go programs may be 1 ms late, and because the machine may be busy.
type delayLine struct {
	mu   sync.Mutex
	late []time.Duration // how much later than due frames were sent
}

// newDelayLine starts a delay line that ends with the test.
func newDelayLine(t *testing.T, in, out *os.File, delay time.Duration) *delayLine {
	l := &delayLine{}
	type frame struct {
		due  int64 // ns on the monotonic clock
		data []byte
	}
	frames := make(chan frame, 1<<16)
	var both sync.WaitGroup
	stop := make(chan struct{})
	withFD(t, in, func(from int) error {
		both.Go(func() {
			first()
			defer close(frames)
			buf := make([]byte, 1<<16)
			for {
				select {
				case <-stop:
					return
				default:
				}
				if n, err := unix.Read(from, buf); err == nil {
					frames <- frame{monotonic() + int64(delay), slices.Clone(buf[:n])}
				} else {
					_, _ = unix.Poll([]unix.PollFd{{Fd: int32(from), Events: unix.POLLIN}}, 100)
				}
			}
		})
		return nil
	})
	withFD(t, out, func(to int) error {
		both.Go(func() {
			first()
			for f := range frames {
				due := unix.NsecToTimespec(f.due)
				for unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &due, nil) == unix.EINTR {
				}
				l.mu.Lock()
				l.late = append(l.late, time.Duration(monotonic()-f.due))
				l.mu.Unlock()
				_, _ = unix.Write(to, f.data)
			}
		})
		return nil
	})
	t.Cleanup(func() { // before in and out are closed
		close(stop)
		both.Wait()
	})
	return l
}

// first gives the calling goroutine a thread that runs before those of other programs, and whose
// timers are exact. TCP handles acknowledgments in that thread too. The thread ends with the
// goroutine.
func first() {
	runtime.LockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	_ = unix.SchedSetAttr(0,
		&unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
}

func monotonic() int64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return now.Nano()
}

// lateness returns how late 99 % of the frames since the last call were at most.
func (l *delayLine) lateness() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	late := l.late
	l.late = nil
	if len(late) == 0 {
		return 0
	}
	slices.Sort(late)
	return late[len(late)*99/100]
}
