package pipeline

import (
	"encoding/binary"
	"math"
	"reflect"
	"runtime"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// TestWaitingMemory measures the memory of a metered packet that waits in a link.
func TestWaitingMemory(t *testing.T) {
	const packets = 60_000
	for _, test := range []struct {
		name  string
		per   dataplane.Key
		limit int64
	}{{"one meter", dataplane.Key{}, 150}, {"a meter per key", dataplane.Key{By: dataplane.ByFlow}, 200}} {
		bucket := meter.TokenBucket{Rate: frametest.Mega, Burst: 1 << 30}
		fair := &dataplane.Queue{
			Name: "q", Config: queue.Config{Packets: queue.MaxPackets},
			Link: &dataplane.Link{Name: "wan", Rate: meter.BitRate(8000)},
			Fair: dataplane.Key{By: dataplane.BySrc},
		}
		l := newPipeline(t, &dataplane.Policy{Classes: []dataplane.Class{{
			Name: "a", Meter: &dataplane.Meter{Params: bucket, Per: test.per},
			Green: &dataplane.Action{Queue: fair},
		}}})
		p, v := dataplane.Packet{Data: ipPacket(0, 500), Link: dataplane.LinkEthernet}, dataplane.Verdict{}
		l.Process(&p, &v)
		before := heapInUse()
		for i := range packets {
			binary.BigEndian.PutUint16(p.Data[28:], uint16(i%100)) // of the source address
			if l.Process(&p, &v); v.Done&dataplane.Waiting == 0 {
				t.Fatalf("packet %d: %+v, want it to wait", i, v)
			}
		}
		n := (heapInUse() - before) / packets
		t.Logf("%s: %d B for each waiting packet", test.name, n)
		if n > test.limit {
			t.Errorf("%s: %d B for each waiting packet, want at most %d", test.name, n, test.limit)
		}
		for l.Settle(math.MaxInt64, &v) {
		}
		if n := (heapInUse() - before) / packets; n > test.limit {
			t.Errorf("%s: %d B after all packets were sent, want at most %d", test.name, n, test.limit)
		}
		runtime.KeepAlive(l)
	}
}

// TestWaitingVerdict checks that a packet in a link keeps all fields of its verdict.
func TestWaitingVerdict(t *testing.T) {
	var want dataplane.Verdict
	for i, v := 0, reflect.ValueOf(&want).Elem(); i < v.NumField(); i++ {
		switch f := v.Field(i); {
		case f.CanInt():
			f.SetInt(math.MaxInt32 - int64(i))
		case f.CanUint():
			f.SetUint(uint64(1 + i))
		default:
			f.SetBool(true)
		}
	}
	want.Now, want.ID, want.Departure = 1<<62, -1<<62, 1<<61
	w := newWaiting(&want, 7)
	if got := w.verdict(want.Departure); got != want || w.taken != 7 {
		t.Errorf("got %+v, want %+v", got, want)
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
