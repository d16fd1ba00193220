package meter

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// bubbleClock returns the clock of a synctest bubble.
func bubbleClock() func() int64 {
	begin := time.Now()
	return func() int64 { return int64(time.Since(begin)) }
}

func TestWaitInOrder(t *testing.T) {
	for _, params := range []compiler{
		TokenBucket{Rate: ByteRate(1000), Burst: 10},
		TokenBucket{Rate: ByteRate(1000), Burst: 10, GCRA: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			clock := bubbleClock()
			l := NewLocked(compileProfile(t, params))
			l.Color(0, 10, Green)
			var mu sync.Mutex
			var order []int
			var at []int64
			var wg sync.WaitGroup
			for i, n := range []int{10, 1, 5, 10, 2} { // alternately large and small
				wg.Go(func() {
					if err := l.Wait(t.Context(), clock, n); err != nil {
						t.Error(err)
					}
					mu.Lock()
					defer mu.Unlock()
					order, at = append(order, i), append(at, clock()/1e6)
				})
				synctest.Wait()
			}
			wg.Wait()
			want := []int64{10, 11, 16, 26, 28}
			for i := range want {
				if order[i] != i || at[i] != want[i] {
					t.Fatalf("%+v: order %v at %v ms, want %v", params, order, at, want)
				}
			}
		})
	}
}

// TestWait waits for every kind that refills: n bytes are available when Wait returns, and
// taken.
func TestWait(t *testing.T) {
	for _, params := range []compiler{
		TokenBucket{Rate: ByteRate(1000), Burst: 10},
		TokenBucket{Rate: ByteRate(1000), Burst: 30, Warmup: time.Second},
		SRTCM{CIR: ByteRate(1000), CBS: 10, EBS: 10},
		TRTCM{CIR: ByteRate(1000), CBS: 10, PIR: ByteRate(1000), PBS: 10},
		TRTCM4115{CIR: ByteRate(1000), CBS: 10, EIR: ByteRate(1), EBS: 10},
		FixedWindow{Limit: 10, Window: time.Second},
		SlidingWindow{Limit: 10, Window: time.Second, Slots: 10},
		SlidingCounter{Limit: 10, Window: time.Second},
		SlidingLog{Limit: 10, Window: time.Second, Entries: 3},
	} {
		for _, begin := range []int64{10, 0} {
			synctest.Test(t, func(t *testing.T) {
				clock := bubbleClock()
				p := compileProfile(t, params)
				l := NewLocked(p)
				l.Do(func(m *Meter) { *m = NewWithTokens(p, begin, begin) })
				var taken int64
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				for range 5 {
					for _, n := range []int{10, 3, 0} {
						if err := l.Wait(ctx, clock, n); err != nil {
							t.Fatalf("%+v, starting with %d: %d B: %v", params, begin, n, err)
						}
						taken += int64(n)
					}
				}
				if now := clock(); now == 0 || now > 20e9 {
					t.Errorf("%+v: %d B took %d ns", params, taken, now)
				}
			})
		}
	}
}

// TestWaitAfterPause waits for a cold meter, which holds a third of its burst.
func TestWaitAfterPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := bubbleClock()
		l := NewLocked(compileProfile(t, TokenBucket{Rate: ByteRate(1000), Burst: 30, Warmup: time.Second}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		for range 3 {
			if err := l.Wait(ctx, clock, 30); err != nil {
				t.Fatalf("at %d: %v", clock(), err)
			}
			time.Sleep(time.Minute)
		}
	})
}

func TestWaitFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := bubbleClock()
		l := NewLocked(compileProfile(t, TokenBucket{Rate: ByteRate(1000), Burst: 10}))
		l.Color(0, 10, Green)
		for _, n := range []int{11, -1} {
			if err := l.Wait(t.Context(), clock, n); !errors.Is(err, ErrNeverFits) {
				t.Errorf("%d B: %v", n, err)
			}
		}

		// If the deadline is too early, Wait fails at once and takes nothing.
		ctx, cancel := context.WithTimeout(t.Context(), 9*time.Millisecond)
		defer cancel()
		if err := l.Wait(ctx, clock, 10); !errors.Is(err, context.DeadlineExceeded) || clock() != 0 {
			t.Errorf("%v after %d ns", err, clock())
		}
		if after, ok := retryAfter(l, 0, 10); after != 10*time.Millisecond || !ok {
			t.Errorf("a failed Wait took tokens: %v, %v", after, ok)
		}

		// A deadline just in time does not fail.
		ctx, cancel = context.WithTimeout(t.Context(), 11*time.Millisecond)
		defer cancel()
		if err := l.Wait(ctx, clock, 10); err != nil || clock() != 10e6 {
			t.Errorf("%v after %d ns", err, clock())
		}

		// A context that has ended fails although there are tokens.
		time.Sleep(time.Second)
		why := errors.New("why")
		over, end := context.WithCancelCause(t.Context())
		end(why)
		if err := l.Wait(over, clock, 1); !errors.Is(err, why) {
			t.Errorf("%v", err)
		}
		if tc, _ := l.m.Tokens(clock()); tc != 10 {
			t.Errorf("%d tokens", tc)
		}
	})
}

func retryAfter(l *Locked, now int64, n int) (after time.Duration, ok bool) {
	l.Do(func(m *Meter) { after, ok = m.RetryAfter(now, n) })
	return after, ok
}

// TestWaitCanceled cancels a Wait: its bytes go to calls that arrive later.
func TestWaitCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := bubbleClock()
		l := NewLocked(compileProfile(t, TokenBucket{Rate: ByteRate(1000), Burst: 10}))
		l.Color(0, 10, Green)
		why := errors.New("why")
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error)
		go func() { done <- l.Wait(ctx, clock, 10) }()
		synctest.Wait()
		if after, _ := retryAfter(l, 0, 10); after != 20*time.Millisecond {
			t.Errorf("behind a waiting call: %v", after)
		}
		time.Sleep(4 * time.Millisecond)
		cancel(why)
		if err := <-done; !errors.Is(err, why) || clock() != 4e6 {
			t.Errorf("%v after %d ns", err, clock())
		}
		if after, _ := retryAfter(l, 4e6, 10); after != 6*time.Millisecond {
			t.Errorf("after the cancellation: %v", after)
		}
		if tc, _ := l.m.Tokens(4e6); tc != 4 {
			t.Errorf("%d tokens", tc)
		}
	})
}

// TestWaitLongest waits without a deadline for the longest time that a Duration has.
func TestWaitLongest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := bubbleClock()
		l := NewLocked(compileProfile(t, TokenBucket{Rate: Every(math.MaxInt64), Burst: 1}))
		l.Color(0, 1, Green)
		if after, ok := retryAfter(l, 0, 1); after != math.MaxInt64 || !ok {
			t.Fatalf("got retry after %v, %v", after, ok)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- l.Wait(ctx, clock, 1) }()
		time.Sleep(time.Hour)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want the end of the context", err)
		}
	})
}

// TestWaitConcurrent waits in many goroutines, also for the race detector. Together they get no
// more than burst and rate.
func TestWaitConcurrent(t *testing.T) {
	for _, params := range []compiler{
		TokenBucket{Rate: ByteRate(1000), Burst: 10},
		FixedWindow{Limit: 10, Window: 10 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			clock := bubbleClock()
			l := NewLocked(compileProfile(t, params))
			var mu sync.Mutex
			var taken int64
			var wg sync.WaitGroup
			for i := range 20 {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					for range 10 {
						n := 1 + i%5
						if err := l.Wait(ctx, clock, n); err != nil {
							t.Error(err)
						}
						mu.Lock()
						if taken += int64(n); taken > 20+clock()/1e6 {
							t.Errorf("%+v: %d B after %d ns", params, taken, clock())
						}
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			if now := clock(); taken != 600 || now > 800e6 {
				t.Errorf("%+v: %d B in %d ns", params, taken, now)
			}
		})
	}
}

func TestCreditWindow(t *testing.T) {
	w := CreditWindow{Window: 100}
	for i, r := range []struct {
		n    int
		in   Color
		want Color
		out  int64
	}{
		{101, Green, Red, 0},
		{60, Red, Red, 0},
		{60, Green, Green, 60},
		{41, Green, Red, 60},
		{40, Yellow, Yellow, 100},
		{1, Green, Red, 100},
		{0, Green, Green, 100},
		{-1, Green, Red, 100},
	} {
		if got := w.Color(r.n, r.in); got != r.want || w.Out() != r.out {
			t.Errorf("row %d: %v, %d out", i, got, w.Out())
		}
	}
	for _, r := range []struct {
		n   int
		out int64
	}{{-5, 100}, {40, 60}, {0, 60}, {1000, 0}, {1, 0}} {
		if w.Return(r.n); w.Out() != r.out {
			t.Errorf("%d returned: got %d out, want %d", r.n, w.Out(), r.out)
		}
	}
	var zero CreditWindow
	if zero.Color(0, Green) != Green || zero.Color(1, Green) != Red {
		t.Error("the zero CreditWindow lets only empty packets through")
	}

	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 2000 {
				if w.Color(30, Green) == Green {
					if out := w.Out(); out > 100 || out < 30 {
						t.Errorf("%d out", out)
					}
					w.Return(30)
				}
			}
		})
	}
	wg.Wait()
	if w.Out() != 0 {
		t.Errorf("%d out at the end", w.Out())
	}
}
