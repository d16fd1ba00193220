package replay

import (
	"runtime"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// TestHeldMemory measures the memory of a held record, beside its bytes.
func TestHeldMemory(t *testing.T) {
	const records = 20_000
	for _, size := range []int{16 + 54, 16 + 1514, 36 + 1514} { // of pcap and pcapng
		h := held{pages: map[int64]*page{}}
		rec := record{Packet: &dataplane.Packet{}, raw: make([]byte, size)}
		before := heapInUse()
		for number := range int64(records) {
			h.put(number, &rec)
		}
		n := (heapInUse()-before)/records - int64(size)
		t.Logf("%d B for each record of %d B", n, size)
		if limit := int64(75 + size/16); n > limit {
			t.Errorf("a record of %d B takes %d B more, want at most %d", size, n, limit)
		}
		runtime.KeepAlive(&h)
	}
}

// heapInUse returns the memory of all live objects, in bytes.
func heapInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
