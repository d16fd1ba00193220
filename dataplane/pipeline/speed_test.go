package pipeline

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// workload returns a pipeline of 16 classes that uses all features, and frames that reach
// all of them.
func workload(t testing.TB) (*Pipeline, [][]byte) {
	total := &dataplane.Meter{
		Name:   "total",
		Params: meter.TRTCM{CIR: meter.BitRate(80e6), CBS: 1 << 20, PIR: meter.BitRate(100e6), PBS: 2 << 20},
		Aware:  true,
	}
	bulk := &dataplane.Queue{
		Name: "bulk", Config: queue.Config{Rate: meter.BitRate(20e6), Time: 100 * time.Millisecond},
	}
	shared := &dataplane.Queue{Name: "shared", Config: queue.Config{
		Bytes: 30_000, ECN: true, CoDel: queue.CoDel{Target: time.Millisecond, Interval: time.Millisecond},
	}, Link: &dataplane.Link{Rate: meter.BitRate(4e6)}}
	policy := &dataplane.Policy{}
	for i := range uint64(15) {
		policy.Classes = append(policy.Classes, dataplane.Class{
			Name: fmt.Sprint(i),
			Match: dataplane.Match{
				Proto: frametest.Values(frametest.ProtoTCP, frametest.ProtoUDP),
				DPort: []dataplane.Range{{First: i * 4000, Last: i*4000 + 3999}},
				Dst:   frametest.Prefixes("198.51.100.0/24", "2001:db8::/32"),
			},
			Meter: &dataplane.Meter{
				Name: "own", Params: meter.SRTCM{CIR: meter.BitRate(8e6), CBS: 20_000, EBS: 40_000},
				Aware: true, Then: total,
			},
			Green: &dataplane.Action{ECN: dataplane.CE, Marks: []dataplane.Mark{
				{Field: dataplane.DSCP, Value: 10},
				{Field: dataplane.PCP, Value: 1},
				{Field: dataplane.MPLSTC, Value: 1},
				{Field: dataplane.SKBMark, Value: 1},
			}},
			Yellow: &dataplane.Action{
				Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 12}, {Field: dataplane.DEI, Value: 1}},
				Queue: bulk,
			},
			Red: &dataplane.Action{ECN: dataplane.CEOrDrop, Queue: shared},
		})
	}
	policy.Classes = append(policy.Classes, dataplane.Class{
		Name: "rest", Match: dataplane.Match{Length: []dataplane.Range{{First: 0, Last: 9000}}},
		Meter: &dataplane.Meter{
			Name: "rest", Params: meter.TokenBucket{Rate: meter.BitRate(1e6), Burst: 9000}, Aware: true,
			PreColor: dataplane.PreColor{
				From: dataplane.SKBMark, Map: map[uint32]meter.Color{1000: meter.Red},
			},
		},
	})
	r := rand.New(rand.NewPCG(1, 1))
	frames := make([][]byte, 512)
	for i := range frames {
		frames[i] = frametest.RandomFrame(r)
	}
	return newPipeline(t, policy), frames
}

func TestProcessAllocatesNothing(t *testing.T) {
	l, frames := workload(t)
	var seen dataplane.Done
	var dropped, rest bool
	var v dataplane.Verdict
	p := dataplane.Packet{Link: dataplane.LinkEthernet}
	i := 0
	process := func() {
		p.Data, p.WireLen = frames[i%len(frames)], 0
		p.Time += 300 * µs
		l.Process(&p, &v)
		seen |= v.Done
		dropped = dropped || v.Done.Dropped()
		rest = rest || v.Class == 15
		for l.Settle(p.Time, &v) {
			seen |= v.Done
		}
		i++
	}
	for range 5000 {
		process()
	}
	if allocs := testing.AllocsPerRun(5000, process); allocs != 0 {
		t.Errorf("got %v allocations per packet, want 0", allocs)
	}
	if seen != dataplane.Pass|dataplane.ECNSet|dataplane.Marked|dataplane.Queued|dataplane.Waiting ||
		!dropped || !rest {
		t.Errorf("a case did not occur: done %05b, dropped %v, last class %v", seen, dropped, rest)
	}
}

func BenchmarkProcess(b *testing.B) {
	l, frames := workload(b)
	var v dataplane.Verdict
	p := dataplane.Packet{Link: dataplane.LinkEthernet}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		p.Data, p.WireLen = frames[i%len(frames)], 0
		p.Time += µs
		l.Process(&p, &v)
		for l.Settle(p.Time, &v) {
		}
	}
}

// BenchmarkKeys processes packets with a million sources, in batches, beside packets with one
// meter.
func BenchmarkKeys(b *testing.B) {
	const keys = 1 << 20
	for _, test := range []struct {
		name string
		per  dataplane.Key
		kind dataplane.PacketKind
	}{
		{"one meter", dataplane.Key{}, dataplane.IPv4},
		{"src IPv4", dataplane.Key{By: dataplane.BySrc}, dataplane.IPv4},
		{"src IPv6", dataplane.Key{By: dataplane.BySrc}, dataplane.IPv6},
		{"flow IPv4", dataplane.Key{By: dataplane.ByFlow}, dataplane.IPv4},
	} {
		b.Run(test.name, func(b *testing.B) {
			m := &dataplane.Meter{
				Params: meter.TRTCM{CIR: frametest.Mega, CBS: 1 << 16, PIR: frametest.Mega, PBS: 1 << 16},
				Per:    test.per, Keys: keys,
			}
			l := newPipeline(b, &dataplane.Policy{Classes: []dataplane.Class{{Name: "a", Meter: m}}})
			packets, verdicts := make([]dataplane.Packet, batchSize), make([]dataplane.Verdict, batchSize)
			frame, at := frametest.Concat(frametest.Ethernet(frametest.EtherIPv4),
				frametest.V4{Proto: frametest.ProtoUDP}.Packet(frametest.UDP)), 14+12
			if test.kind == dataplane.IPv6 {
				frame, at = frametest.Concat(frametest.Ethernet(frametest.EtherIPv6),
					frametest.V6{Next: frametest.ProtoUDP}.Packet(frametest.UDP)), 14+8+12
			}
			for i := range packets {
				packets[i] = dataplane.Packet{Data: bytes.Clone(frame), Link: dataplane.LinkEthernet}
			}
			n, r := 0, rand.New(rand.NewPCG(1, 1))
			round := func() {
				for i := range packets {
					source := n
					if n >= keys {
						source = int(r.Uint32N(keys))
					}
					binary.BigEndian.PutUint32(packets[i].Data[at:], uint32(source))
					packets[i].Time += 100
					n++
				}
				l.ProcessBatch(packets, verdicts)
			}
			for n < 2*keys {
				round()
			}
			b.ResetTimer()
			for range b.N/batchSize + 1 {
				round()
			}
		})
	}
}
