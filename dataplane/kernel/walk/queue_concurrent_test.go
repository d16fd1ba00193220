package walk

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// TestQuietQueueConcurrent queues packets on two CPUs in one queue, with the kernel's clock. Departures
// never overlap, and the queued packets keep to the rate and the limit.
func TestQuietQueueConcurrent(t *testing.T) { // not parallel: it needs both CPUs
	kerneltest.NeedRoot(t)
	cpus := allowedCPUs(t)
	if len(cpus) < 2 {
		t.Skip("needs two CPUs")
	}
	const length = 1000
	for _, test := range []struct {
		name  string
		cfg   queue.Config
		limit int64 // bytes
	}{
		{"time", queue.Config{Rate: meter.BitRate(800e6), Time: 5 * time.Millisecond}, 500_000},
		{"bytes", queue.Config{Rate: meter.BitRate(800e6), Bytes: 50_000}, 50_000},
		{"packets", queue.Config{Rate: meter.BitRate(800e6), Packets: 100}, 100_000},
		{"a few packets", queue.Config{Rate: meter.BitRate(80e6), Packets: 3}, 3000},
		{"fine", queue.Config{Rate: meter.Rate{Bytes: 100_000_007, Period: 999_999_937}, Packets: 64}, 64_000},
		{"idle", queue.Config{Rate: meter.BitRate(800e9), Packets: 64}, 64_000},
		{"early", queue.Config{
			Rate: meter.BitRate(800e6), Bytes: 50_000,
			WRED:  [3]queue.Early{{Min: 10_000, Max: 50_000, Probability: queue.Certain / 2}},
			CoDel: queue.CoDel{Target: 100 * time.Microsecond, Interval: time.Millisecond},
		}, 50_000},
	} {
		if kerneltest.InVM && test.name != "bytes" && test.name != "time" {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			policy := oneClass(dataplane.Class{
				Green: &dataplane.Action{Queue: &dataplane.Queue{Name: "q", Config: test.cfg}},
			})
			h := newHooked(t, policy, image.EgressEntry,
				func(c *bpf.ShaperConstants) { c.Handed, c.Pacer = 0, image.PacerNumber[record.HTB] })
			frame := func(meter.Color) []byte { return datagram(0, 0, length).Data }
			c := &hammered{}
			first := engine.Now()
			_, busy := c.hammer(t, h.program, cpus, frame, 300*time.Millisecond)
			var b bpf.ShaperBacklog
			if err := h.maps.Backlogs.LookupWithFlags(h.image.Queues[0].Slot, &b,
				ebpf.LookupLock); err != nil {
				t.Fatal(err)
			}
			end := engine.Now()
			all, err := h.Stats()
			if err != nil {
				t.Fatal(err)
			}
			s := &all[0]
			in, dropped := s.Queued[0], s.Dropped(0)
			if total := in.Plus(dropped); total != s.Colors[0] || in.Bytes != in.Packets*length ||
				in.Packets == 0 {
				t.Errorf("got %+v queued and %+v dropped of %+v, want a sum and packets of %d bytes", in,
					dropped, s.Colors[0], length)
			}
			// One packet departs at once, and each CPU may miss one.
			most := perSecondOf(test.cfg.Rate)*float64(end-first)/1e9 + float64(test.limit) + 3*length
			if float64(in.Bytes) > most {
				t.Errorf("queued %d bytes, want at most %.0f", in.Bytes, most)
			}
			// While a CPU sends, the queue does not run empty.
			if least := 0.5 * perSecondOf(test.cfg.Rate) * busy.Seconds(); !kerneltest.InVM &&
				test.name != "idle" && test.name != "early" && float64(in.Bytes) < least {
				t.Errorf("queued %d bytes, want at least %.0f: a CPU sent for %v", in.Bytes, least, busy)
			}
			if late := int64(b.Next) - end; float64(late) > float64(test.limit+
				3*length)/perSecondOf(test.cfg.Rate)*1e9 {
				t.Errorf("the queue is busy for another %d ns, want at most its limit", late)
			}
			if test.cfg.Time > 0 {
				return
			}
			if b.Bytes != b.Packets*length || b.Packets > uint64(in.Packets) || b.End > b.Packets {
				t.Errorf("got %d entries, %d packets of %d bytes in the ring, want packets of %d bytes and at most %d",
					b.End, b.Packets, b.Bytes, length, in.Packets)
			}
			q := &h.image.Queues[0]
			last := bpf.ShaperDeparture{}
			n := 0
			for k := b.End - min(b.End, q.Mask+1); k < b.End; k++ {
				var w bpf.ShaperDeparture
				if err := h.maps.Departures.Lookup(q.Ring+uint32(k&q.Mask), &w); err != nil {
					t.Fatal(err)
				}
				// Since an entry, each CPU may have queued one packet without an entry.
				passed := w.Packets - last.Packets
				if w.Before != w.Packets*length || n > 0 && (passed < 1 || passed > uint64(len(cpus))) {
					t.Fatalf("entry %d: got %d packets of %d bytes before it, and %d since the previous one",
						k, w.Packets, w.Before, passed)
				}
				if gap := w.At - last.At; n > 0 &&
					float64(gap) < float64(passed)*length*1e9/perSecondOf(test.cfg.Rate)-1 {
					t.Errorf(
						"entry %d departs %d ns after the previous one, want at least the time of %d packets",
						k, gap, passed)
				}
				last = w
				n++
			}
			t.Logf("queued %d of %d packets, %.4f of the limit; %d of %d packets in the ring have entries",
				in.Packets, s.Colors[0].Packets, float64(in.Bytes)/most, b.End, b.Packets)
		})
	}
}

// perSecondOf is a rate in bytes per second.
func perSecondOf(r meter.Rate) float64 { return float64(r.Bytes) * 1e9 / float64(r.Period) }
