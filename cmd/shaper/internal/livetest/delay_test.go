package livetest

import (
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// delayLine moves frames from one TAP device to another after a delay. It sleeps in threads of
// its own, because timers of Go programs may be 1 ms late.
type delayLine struct {
	mu     sync.Mutex
	delay  time.Duration
	jitter time.Duration   // random addition to the delay; the order of frames does not change
	late   []time.Duration // how much later than due frames were sent
}

// newDelayLine starts a delay line that ends with the test.
func newDelayLine(t *testing.T, in, out *os.File, delay time.Duration) *delayLine {
	l := &delayLine{delay: delay}
	type frame struct {
		due  int64 // ns on the monotonic clock
		data []byte
	}
	frames := make(chan frame, 1<<16)
	var both sync.WaitGroup
	stop := make(chan struct{})
	withFD(t, in, func(from int) error {
		both.Go(func() {
			runtime.LockOSThread()
			defer close(frames)
			random := rand.New(rand.NewPCG(1, 2))
			buf := make([]byte, 1<<16)
			var last int64
			for {
				select {
				case <-stop:
					return
				default:
				}
				if n, err := unix.Read(from, buf); err == nil {
					l.mu.Lock()
					last = max(last, monotonic()+int64(l.delay)+random.Int64N(int64(l.jitter)+1))
					l.mu.Unlock()
					frames <- frame{last, slices.Clone(buf[:n])}
				} else {
					_, _ = unix.Poll([]unix.PollFd{{Fd: int32(from), Events: unix.POLLIN}}, 100)
				}
			}
		})
		return nil
	})
	withFD(t, out, func(to int) error {
		both.Go(func() {
			runtime.LockOSThread()
			_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
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
