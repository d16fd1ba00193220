package queue

import (
	"math"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// heapInUse returns the memory of all live objects, in bytes.
func heapInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what the first one found to be unused is only freed now
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestQueueMemory measures the memory of a fair queue among many of a link.
func TestQueueMemory(t *testing.T) {
	const queues = 1000
	for _, fair := range []Fair{FairFlows, FairHosts} {
		shares := make([]LinkQueue, queues)
		for i := range shares {
			shares[i] = LinkQueue{
				Config: Config{Packets: 1000, CoDel: CoDel{5 * time.Millisecond, 100 * time.Millisecond}},
				Weight: 1, Fair: fair,
			}
		}
		before := heapInUse()
		check := func(state string, l *Link[verdict], limit int64) {
			t.Helper()
			n := (heapInUse() - before) / queues
			t.Logf("%v, %s: %d B", fair, state, n)
			if n > limit {
				t.Errorf("a queue that is fair to %v, %s, takes %d B, want at most %d", fair, state, n, limit)
			}
			runtime.KeepAlive(l)
			runtime.KeepAlive(shares)
		}
		l, err := NewLink[verdict](meter.BitRate(1e9), shares)
		if err != nil {
			t.Fatal(err)
		}
		check("never used", l, 500)
		now := int64(0)
		admit := func(queue, flows int) {
			for flow := range uint16(flows) {
				p := Packet{Bytes: 1000, Flow: flow, Host: flow}
				if f := l.Admit(now, queue, p, verdict{}); f != Admit {
					t.Fatalf("got fate %v, want %v", f, Admit)
				}
			}
		}
		drain := func() {
			for {
				d, ok := l.Decide(math.MaxInt64)
				if !ok {
					return
				}
				now = max(now, d.Depart+8000)
			}
		}
		for i := range queues {
			admit(i, 10)
			drain()
		}
		check("emptied after 10 flows", l, map[Fair]int64{FairFlows: 1024, FairHosts: 2048}[fair])
		for i := range queues {
			admit(i, 10)
		}
		check("with 10 packets in 10 flows", l, 20<<10)
		drain()
		// The memory of packets is kept, but for any queue of the link.
		for i := range queues / 10 {
			admit(i, 100)
		}
		check("with 100 packets in a tenth of the queues", l, 20<<10)
	}
	t.Logf("sizes: packet %d B and its value, flow %d, turns %d, CoDel %d, queue %d",
		unsafe.Sizeof(queued[[0]int64]{}), unsafe.Sizeof(flowNode{}), unsafe.Sizeof(turns{}),
		unsafe.Sizeof(codel{}), unsafe.Sizeof(queueState[int]{}))
}

// TestPacketMemory measures the memory of a packet that waits on a link, beside its value.
func TestPacketMemory(t *testing.T) {
	const packets = 65_000
	before := heapInUse()
	l := openLink(t, meter.BitRate(8e3), LinkQueue{Fair: FairFlows})
	for i := range packets {
		l.Admit(0, 0, Packet{Bytes: 1500, Flow: uint16(i % 16)}, i)
	}
	n := (heapInUse() - before) / packets
	t.Logf("%d B, its value of 8 B included", n)
	if n > 48 {
		t.Errorf("a packet takes %d B, want at most 48", n)
	}
	runtime.KeepAlive(l)
}

// TestForgetFlows checks that flows without packets are forgotten once they make no difference.
func TestForgetFlows(t *testing.T) {
	const ms = int64(time.Millisecond)
	for _, fair := range []Fair{FairFlows, FairHosts} {
		l := openLink(t, meter.BitRate(8e6), LinkQueue{
			Config: Config{Packets: MaxPackets, CoDel: CoDel{time.Millisecond, 10 * time.Millisecond}},
			Fair:   fair,
		})
		s := l.queues[0].store
		known := func(want, states int) {
			t.Helper()
			nodes := len(s.nodes.chunks)*chunkSize - 1 - len(s.nodes.free)
			codels := max(len(s.codels.chunks)*chunkSize-1, 0) - len(s.codels.free)
			if nodes != want || codels != states || nodes != s.hashed+1 {
				t.Errorf("fair to %v: %d nodes, %d of them in buckets, and %d states of CoDel, want %d and %d",
					fair, nodes, s.hashed, codels, want, states)
			}
		}
		level := 1 // nodes of a flow
		if fair == FairHosts {
			level = 2
		}
		known(1, 0)
		now := int64(0)
		admit := func(flow uint16, packets int) {
			for range packets {
				l.Admit(now, 0, Packet{Bytes: 1000, Flow: flow, Host: flow}, 0)
			}
			now, _ = l.Due()
			for _, ok := l.Decide(now); ok; _, ok = l.Decide(now) {
				now, _ = l.Due()
			}
		}
		admit(1, 1)
		known(1+level, 0)
		admit(2, 1) // flow 1 is still old
		known(1+2*level, 0)
		admit(2, 200) // CoDel drops; flow 1 leaves the lists
		known(1+level, 1)
		for flow := range uint16(300) { // flow 2 leaves the lists, but its CoDel remembers the drops
			admit(3+flow, 1)
			admit(3+flow, 1)
			admit(3+flow, 2)
		}
		if n := s.hashed; n < 2*level || n > 4*level {
			t.Errorf("fair to %v: %d nodes with few flows, want at most %d", fair, n, 4*level)
		}
		hashed := s.hashed
		now += 16*int64(MaxInterval) + 400*ms
		for flow := uint16(400); s.hashed >= hashed && flow < Flows; flow++ {
			admit(flow, 1)
			admit(flow, 2)
		}
		if s.hashed >= hashed {
			t.Errorf("fair to %v: %d nodes, as many as before CoDel could forget the drops", fair, s.hashed)
		}
	}
}

// TestFairAllocations checks that a fair queue allocates nothing if it had as many packets and
// flows before.
func TestFairAllocations(t *testing.T) {
	for _, fair := range []Fair{FairFlows, FairHosts} {
		l := openLink(t, meter.BitRate(8e6), LinkQueue{
			Config: Config{Bytes: 20_000, CoDel: CoDel{time.Millisecond, 3 * time.Millisecond}}, Fair: fair,
		})
		now := int64(0)
		fates := [AdmitCE + 1]int{}
		busy := func() {
			for i := range 2000 {
				l.Admit(now, 0, Packet{Bytes: 100 + i%9*200, Flow: uint16(i % 5), Host: uint16(i % 2)}, i)
				now += 400_000
				for d, ok := l.Decide(now); ok; d, ok = l.Decide(now) {
					fates[d.Fate]++
				}
			}
			for d, ok := l.Decide(now + 1e9); ok; d, ok = l.Decide(now + 1e9) { // the queue becomes empty
				fates[d.Fate]++
			}
			now += 2e9
		}
		for range 5 {
			busy()
		}
		if n := testing.AllocsPerRun(10, busy); n != 0 {
			t.Errorf("fair to %v: got %v allocations, want 0", fair, n)
		}
		if fates[Full] == 0 || fates[Stale] == 0 || fates[Admit] == 0 {
			t.Errorf("fair to %v: a fate did not occur: got counts %d", fair, fates)
		}
	}
}
