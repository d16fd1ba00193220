package meter

import (
	"sync"
	"sync/atomic"
	"time"
)

// start is the zero of Now.
var start = time.Now()

// Now is a clock for meters: nanoseconds since the program started, which never go
// backwards. It can be passed to Locked.Wait. It takes half as long as time.Now.
func Now() int64 { return int64(time.Since(start)) }

// CoarseClock is a clock. It reads Now once in each step, and a call takes a nanosecond.
// NewCoarseClock makes one. It is safe for concurrent use.
//
// Its time is behind Now by up to a step, and by more while the machine is too busy to run its
// goroutine. A late time refills less, so a bucket of less than the rate brings in a step does not
// reach its rate. Between the start and any moment, a bucket lets no more bytes through than burst
// + rate * t. In an interval that begins later, a bucket may exceed this bound by at most the rate
// times the clock's delay at the start of the interval.
type CoarseClock struct {
	now  atomic.Int64
	_    [cacheLine - 8]byte // each call reads now: nothing else writes to its cache line
	stop chan struct{}
	once sync.Once
}

// NewCoarseClock starts a clock, and a goroutine to advance it every step until Stop. It panics if
// step is not above zero. A step of a millisecond is a usual one.
func NewCoarseClock(step time.Duration) *CoarseClock {
	ticker := time.NewTicker(step)
	c := &CoarseClock{stop: make(chan struct{})}
	c.now.Store(Now())
	go func() {
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				c.now.Store(Now())
			case <-c.stop:
				return
			}
		}
	}()
	return c
}

// Now returns a recent time of the function Now. It never goes backwards.
func (c *CoarseClock) Now() int64 { return c.now.Load() }

// Stop ends the goroutine. The clock stands still from then on. A second call does nothing.
func (c *CoarseClock) Stop() { c.once.Do(func() { close(c.stop) }) }
