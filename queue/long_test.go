package queue

import (
	"math"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Tests of effects that show only after many packets, or long ones.

// TestLinkShares keeps queues busy. The bytes sent by a queue differ from its
// share by weight by at most the longest packet.
func TestLinkShares(t *testing.T) {
	r := seeded(t)
	for _, weights := range [][]int{
		{1, 1},
		{1, 3},
		{10, 30},
		{1, 2, 5},
		{1, 9, 90},
		{1, 1000},
		{7, 7, 7, 7},
		{1, 1, 1, 1, 1, 1, 1, 1, 1, 100},
	} {
		const longest = 1514
		shares := make([]LinkQueue, len(weights))
		sum := 0
		for i, w := range weights {
			shares[i].Weight = w
			sum += w
		}
		l := openLink(t, meter.BitRate(1e9), shares...)
		size := make([]int, 0, 1<<18)
		admit := func(now int64, queue int) {
			n := 1 + r.IntN(longest)
			if queue == 0 {
				n = longest - r.IntN(3) // queue 0 has long packets
			}
			l.Admit(now, queue, Packet{Bytes: n}, len(size)<<8|queue)
			size = append(size, n)
		}
		for i := range weights {
			for range 3 {
				admit(0, i)
			}
		}
		ahead := make([]int, len(weights)) // bytes times sum
		for range 40_000 {
			at, _ := l.Due()
			d, ok := l.Decide(at)
			if !ok || d.Depart != at {
				t.Fatalf("no decision at %d: got %+v", at, d)
			}
			queue, n := d.Value&255, size[d.Value>>8]
			admit(at, queue)
			for i, w := range weights { // before this packet is sent
				if most := (longest + 1) * sum; ahead[i] < -most || ahead[i] > most {
					t.Fatalf("weights %d: queue %d is %d B ahead, want at most %d", weights, i, ahead[i]/sum,
						longest+1)
				}
				ahead[i] -= w * n
				if i == queue {
					ahead[i] += sum * n
				}
			}
		}
	}
}

// TestLinkFluid compares each queue with a fluid queue that has its share of
// the link all the time. The queue lags the fluid by at most the longest
// packet, whatever the scale of the weights and the arrivals.
func TestLinkFluid(t *testing.T) {
	t.Parallel()
	r := seeded(t)
	for range 200 {
		const longest = 1514
		scale := []int{1, 10, 50}[r.IntN(3)]
		shares := make([]LinkQueue, 2+r.IntN(8))
		sum := 0
		for i := range shares {
			shares[i].Weight = []int{1, 1 + r.IntN(MaxWeight/50)}[r.IntN(2)] * scale
			sum += shares[i].Weight
		}
		l := openLink(t, meter.BitRate(8e9), shares...) // one byte per ns
		fluid := make([]int, len(shares))               // backlog of the fluid queues, bytes times sum
		behind := make([]int, len(shares))              // lag of the queues, bytes times sum
		now := int64(0)
		advance := func(to int64) {
			for i, s := range shares {
				flows := min(fluid[i], s.Weight*int(to-now))
				fluid[i] -= flows
				behind[i] += flows
			}
			now = to
		}
		type packet struct{ queue, n int }
		var arrived []packet
		var sent []Decision[int]
		next := int64(0)
		begun := 0 // number of packets that have been sent in full
		for len(arrived) < 2000 || begun < len(arrived) {
			sent = append(sent, decided(l, next)...)
			for ; begun < len(sent); begun++ {
				p := arrived[sent[begun].Value]
				end := sent[begun].Depart + int64(p.n)
				if end > next && len(arrived) < 2000 {
					break
				}
				advance(max(end, now))
				behind[p.queue] -= p.n * sum
				for i := range shares {
					if behind[i] > (longest+1)*sum {
						t.Fatalf("%+v\nqueue %d is %d B behind its fluid at %d, want at most %d", shares, i,
							behind[i]/sum, now, longest+1)
					}
				}
			}
			if len(arrived) == 2000 {
				next = 1 << 62
				continue
			}
			advance(max(next, now))
			p := packet{r.IntN(len(shares)), []int{64, 594, longest}[r.IntN(3)]}
			for range 1 + r.IntN(3)*r.IntN(8) {
				if len(arrived) < 2000 {
					fluid[p.queue] += p.n * sum
					l.Admit(next, p.queue, Packet{Bytes: p.n}, len(arrived))
					arrived = append(arrived, p)
				}
			}
			next += int64(r.IntN(2 * longest * (1 + r.IntN(8))))
		}
	}
}

// TestRateError sends a million packets and compares their departures with
// those that the rate gives for all bytes before them.
func TestRateError(t *testing.T) {
	sizes := [...]int{1500, 64, 1499, 1, 0, 576, 1514}
	for _, bits := range []int64{1e3, 1e6, 9_999_991, 1e9} {
		rate := meter.BitRate(bits)
		check := func(name string, i int, bytes, depart int64) {
			t.Helper()
			if want := ceilOf(sendTime(rate, bytes)); depart != want {
				t.Fatalf("%v: packet %d of %s departs at %d, want %d", rate, i, name, depart, want)
			}
		}
		q, l := newLeaky(t, Config{Rate: rate, Time: math.MaxInt64}),
			openLink(t, rate, LinkQueue{}, LinkQueue{Weight: 2})
		var bytes, linked, now int64
		for i := range 1_000_000 {
			n := sizes[i%len(sizes)]
			depart, f := q.Admit(0, Packet{Bytes: n})
			if f != Admit || l.Admit(now, i%2, Packet{Bytes: n}, n) != Admit {
				t.Fatalf("packet %d was dropped", i)
			}
			last := i == 999_999
			if i%9973 == 0 || last {
				check("a queue", i, bytes, depart)
			}
			bytes += int64(n)
			if i < 100 {
				continue // keep 100 queued
			}
			now, _ = l.Due()
			d, _ := l.Decide(now)
			if i%9973 == 0 || last {
				check("a link", i, linked, d.Depart)
			}
			linked += int64(d.Value)
		}
	}
}

// TestOverflowIsBounded sends a million packets, at ten times the rate of the
// queues.
func TestOverflowIsBounded(t *testing.T) {
	mega := meter.BitRate(8e6)
	for _, cfg := range []Config{{Packets: 100}, {Bytes: 2000}, {Time: 100 * time.Microsecond}} {
		c := cfg
		c.Rate = mega
		q, l := newLeaky(t, c), openLink(t, mega, LinkQueue{Config: cfg})
		dropped, sent := 0, 0
		most := 1
		for most < max(cfg.Capacity(), 100) {
			most *= 2
		}
		now := int64(0)
		for i := range 1_000_000 {
			now += 2000
			q.Admit(now, Packet{Bytes: 20})
			if f := l.Admit(now, 0, Packet{Bytes: 20}, i); f.Dropped() {
				dropped++
			}
			for _, ok := l.Decide(now); ok; _, ok = l.Decide(now) {
				sent++
			}
		}
		if n := len(q.backlog.list); n > most {
			t.Errorf("%+v: room for %d packets, want at most %d", cfg, n, most)
		}
		if n := len(l.queues[0].store.packets.chunks) * chunkSize; n > most {
			t.Errorf("%+v: room for %d packets on a link, want at most %d", cfg, n, most)
		}
		if n := len(l.decided.list); n > 8 {
			t.Errorf("%+v: got room for %d decisions after all were collected, want at most 8", cfg, n)
		}
		if dropped+sent+l.queued() != 1_000_000 || sent != 100_000 {
			t.Errorf("%+v: %d dropped and %d sent, want 900000 and 100000", cfg, dropped, sent)
		}
	}
}

// TestLongPackets checks that a selection takes no longer for packets much
// longer than a quantum: captures may claim lengths up to 4 GB, or what an int holds.
func TestLongPackets(t *testing.T) {
	const packets = 1000
	rate := meter.BitRate(10e9)
	fastest := func(n int) time.Duration {
		best := time.Hour
		for range 5 {
			l := openLink(t, rate, LinkQueue{}, LinkQueue{})
			begin := time.Now()
			for i := range packets {
				l.Admit(0, i%2, Packet{Bytes: n}, i)
			}
			list := decided(l, math.MaxInt64)
			best = min(best, time.Since(begin))
			for i, d := range list {
				if want := ceilOf(sendTime(rate, int64(i)*int64(n))); d.Value != i || d.Depart != want {
					t.Fatalf("packets of %d B: decision %d: got %+v, want %d", n, i, d, want)
				}
			}
		}
		return best
	}
	short, long := fastest(Quantum), fastest(min(math.MaxUint32, math.MaxInt))
	if long > 100*short {
		t.Errorf("%d packets took %v, want at most 100 times the %v of short packets", packets, long, short)
	}
}
