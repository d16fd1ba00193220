package tap

import (
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// TestWaitingMemory measures the memory of a frame that waits in a link, beside its bytes.
func TestWaitingMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShaper(t, linkPolicy(meter.BitRate(8000), func(c *queue.Config) {
			c.Bytes, c.Packets = 0, 60_000
		}), 0)
		l := newLane(nullPort{}, nullPort{}, s)
		l.register()
		frame := ipFrame(0, 1500, 0)
		turn := func() {
			for i := range l.read {
				l.read[i] = append(l.read[i][:0], frame...)
			}
			l.turn(burst)
			_ = l.write()
		}
		turn()
		const turns = 500
		before := heapInUse()
		for range turns {
			turn()
		}
		n := (heapInUse()-before)/turns/burst - int64(len(frame))
		t.Logf("%d B for each waiting frame of %d B", n, len(frame))
		if n > 200 {
			t.Errorf("a waiting frame takes %d B beside its bytes, want at most 200", n)
		}
		l.unregister()
		runtime.KeepAlive(s)
	})
}

// heapInUse returns the memory of all live objects, in bytes.
func heapInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
