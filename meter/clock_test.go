package meter

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
)

func TestCoarseClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCoarseClock(10 * time.Millisecond)
		begin := c.Now()
		if now := Now(); begin != now {
			t.Errorf("it begins at %d, Now is %d", begin, now)
		}
		for _, at := range []struct{ sleep, want time.Duration }{
			{9 * time.Millisecond, 0},
			{2 * time.Millisecond, 10 * time.Millisecond},
			{25 * time.Millisecond, 30 * time.Millisecond},
		} {
			time.Sleep(at.sleep)
			synctest.Wait()
			if now := time.Duration(c.Now() - begin); now != at.want {
				t.Errorf("it shows %v, want %v", now, at.want)
			}
		}
		c.Stop()
		c.Stop()
		stopped := c.Now()
		time.Sleep(time.Second)
		if c.Now() != stopped {
			t.Error("it advances after Stop")
		}
	}) // fails if the goroutine goes on
}

// TestCoarseClockGrants asks at random times for more than the rate, and compares the bytes
// granted in every interval with the documented bound.
func TestCoarseClockGrants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const step, burst, perMs = 7 * time.Millisecond, 20_000, 1000
		c := NewCoarseClock(step)
		defer c.Stop()
		m := NewLocked(compileProfile(t, TokenBucket{Rate: Per(perMs, time.Millisecond), Burst: burst}))
		var at []time.Duration // times of all grants of 100 bytes
		begin := Now()
		for i := range 40_000 {
			if i%1000 == 999 {
				time.Sleep(31*time.Millisecond + time.Duration(i*13%7000)*time.Microsecond)
			}
			if m.Allow(c.Now(), 100) {
				at = append(at, time.Duration(Now()-begin))
			}
			time.Sleep(time.Duration(i*7919%53) * 100 * time.Nanosecond)
		}
		most := func(d time.Duration) int { return burst + int(d*perMs/time.Millisecond) }
		extra := false // whether an interval got more than with Now
		for i := range at {
			for _, j := range []int{i + 20, i + 200, i + 250, i + 268, len(at) - 1} {
				if j < i || j >= len(at) {
					continue
				}
				granted, d := 100*(j-i+1), at[j]-at[i]
				if granted > most(d+step) || i == 0 && granted > most(at[j]) {
					t.Fatalf("%d bytes from %v to %v", granted, at[i], at[j])
				}
				extra = extra || granted > most(d)
			}
		}
		if !extra {
			t.Errorf("%d grants never needed the extra bytes", len(at))
		}
	})
}

// TestCoarseClockWait waits by the coarse clock.
func TestCoarseClockWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCoarseClock(time.Millisecond)
		defer c.Stop()
		m := NewLocked(compileProfile(t, TokenBucket{Rate: Every(10 * time.Millisecond), Burst: 1}))
		begin := time.Now()
		for range 11 {
			if err := m.Wait(context.Background(), c.Now, 1); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(begin); took < 99*time.Millisecond || took > 120*time.Millisecond {
			t.Errorf("11 calls took %v, want about 100 ms", took)
		}
	})
}

func TestCoarseClockAllocs(t *testing.T) {
	c := NewCoarseClock(time.Hour)
	defer c.Stop()
	if n := testing.AllocsPerRun(100, func() { c.Now() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	defer func() {
		if recover() == nil {
			t.Error("a step of zero does not panic")
		}
	}()
	NewCoarseClock(0)
}

// TestLockedCacheLine checks that the lock and the state of a Locked share a cache line.
func TestLockedCacheLine(t *testing.T) {
	for range 100 {
		onHeap = NewLocked(compileProfile(t, TokenBucket{Rate: BitRate(1e9), Burst: 1500}))
		if at := uintptr(unsafe.Pointer(onHeap)) % cacheLine; at != 0 {
			t.Fatalf("a Locked begins at byte %d of a cache line", at)
		}
	}
}

// onHeap keeps the compiler from placing a Locked on the stack.
var onHeap *Locked
