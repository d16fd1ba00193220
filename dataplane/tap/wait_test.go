package tap

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// newWaiter returns a waiter and a function that makes its file readable.
func newWaiter(t testing.TB) (w *waiter, ready func()) {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	w = new(waiter)
	if err := w.open(fd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Close(fd)
		if err := w.close(); err != nil {
			t.Error(err)
		}
	})
	return w, func() { _, _ = unix.Write(fd, ring) }
}

// TestWaitDeadline checks that no wait ends before its deadline.
func TestWaitDeadline(t *testing.T) {
	w, _ := newWaiter(t)
	for _, ahead := range []int64{-1000, 0, 1, 1000, spin - 1, spin, spin + 1, 242_000, 3_000_000} {
		deadline := Now() + ahead
		if events, err := w.wait(deadline); events != 0 || err != nil {
			t.Errorf("wait of %d ns: got events %#x, %v, want 0, nil", ahead, events, err)
		}
		if now := Now(); now < deadline {
			t.Errorf("wait of %d ns ended %d ns early", ahead, deadline-now)
		}
	}
}

// TestWaitFile checks that a wait ends when the file is readable: before the
// wait, while it sleeps and while it spins.
func TestWaitFile(t *testing.T) {
	for _, deadline := range []func() int64{
		func() int64 { return math.MaxInt64 },
		func() int64 { return Now() + int64(kernelLimit) },
	} {
		w, ready := newWaiter(t)
		go func() {
			time.Sleep(5 * time.Millisecond)
			ready()
		}()
		for range 2 {
			if events, err := w.wait(deadline()); events != unix.EPOLLIN || err != nil {
				t.Errorf("got events %#x, %v, want %#x, nil", events, err, unix.EPOLLIN)
			}
		}
	}
	old := spin
	defer func() { spin = old }()
	spin = 2 * int64(kernelLimit)
	w, ready := newWaiter(t)
	go func() {
		time.Sleep(time.Millisecond)
		ready()
	}()
	if events, err := w.wait(Now() + int64(kernelLimit)); events != unix.EPOLLIN || err != nil {
		t.Errorf("while spinning: got events %#x, %v, want %#x, nil", events, err, unix.EPOLLIN)
	}
}

// TestWake checks that no wake is lost and none takes effect twice.
func TestWake(t *testing.T) {
	w, _ := newWaiter(t)
	for range 3 {
		w.Wake()
	}
	if _, err := w.wait(math.MaxInt64); err != nil {
		t.Fatal(err)
	}
	if deadline := Now() + int64(time.Millisecond); true {
		if _, err := w.wait(deadline); err != nil || Now() < deadline {
			t.Errorf("wait ended by a wake that an earlier wait returned for: %v", err)
		}
	}

	// Two threads pass a number back and forth, synchronized by wakes only.
	other, _ := newWaiter(t)
	var ball atomic.Int64
	const turns = 4000
	var all sync.WaitGroup
	for side, pair := range [][2]*waiter{{w, other}, {other, w}} {
		all.Go(func() {
			for {
				n := ball.Load()
				if n >= turns {
					pair[1].Wake()
					return
				}
				if n%2 == int64(side) {
					ball.Add(1)
					pair[1].Wake()
					continue
				}
				if _, err := pair[0].wait(math.MaxInt64); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// BenchmarkWait measures how late a wait ends and its share of a CPU, by spin
// time. Its interval is that of packets of 1500 bytes at 50 Mbit/s: 242 µs.
func BenchmarkWait(b *testing.B) {
	const gap = 242_000
	for _, margin := range []int64{0, 20_000, 40_000, 50_000, 60_000, 80_000, 120_000} {
		b.Run(fmt.Sprintf("spin=%dµs", margin/1000), func(b *testing.B) {
			old := spin
			defer func() { spin = old }()
			spin = margin
			w, _ := newWaiter(b)
			var late []int64
			began, used := Now(), processTime(b)
			next := began
			for b.Loop() {
				next = max(next+gap, Now())
				if _, err := w.wait(next); err != nil {
					b.Fatal(err)
				}
				late = append(late, Now()-next)
			}
			b.ReportMetric(100*float64(processTime(b)-used)/float64(Now()-began), "%cpu")
			slices.Sort(late)
			b.ReportMetric(float64(late[len(late)/2])/1e3, "p50-µs")
			b.ReportMetric(float64(late[len(late)*99/100])/1e3, "p99-µs")
		})
	}
}

// processTime is the CPU time of the process, ns.
func processTime(b *testing.B) int64 {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return usage.Utime.Nano() + usage.Stime.Nano()
}
