package dataplane

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// workload returns a pipeline of 16 classes that uses all features, and frames that reach
// all of them.
func workload(t testing.TB) (*Pipeline, [][]byte) {
	total := &Meter{Name: "total", Params: meter.TRTCM{CIR: meter.BitRate(80e6), CBS: 1 << 20, PIR: meter.BitRate(100e6), PBS: 2 << 20}, Aware: true}
	bulk := &Queue{Name: "bulk", Config: queue.Config{Rate: meter.BitRate(20e6), Time: 100 * time.Millisecond}}
	shared := &Queue{Name: "shared", Config: queue.Config{Bytes: 30_000, ECN: true, CoDel: queue.CoDel{Target: time.Millisecond, Interval: time.Millisecond}}, Link: &Link{Rate: meter.BitRate(4e6)}}
	policy := &Policy{}
	for i := range uint32(15) {
		policy.Classes = append(policy.Classes, Class{
			Name:   fmt.Sprint(i),
			Match:  Match{Proto: values(protoTCP, protoUDP), DPort: []Range{{i * 4000, i*4000 + 3999}}, Dst: prefixes("198.51.100.0/24", "2001:db8::/32")},
			Meter:  &Meter{Name: "own", Params: meter.SRTCM{CIR: meter.BitRate(8e6), CBS: 20_000, EBS: 40_000}, Aware: true, Then: total},
			Green:  &Action{ECN: CE, Marks: []Mark{{DSCP, 10}, {PCP, 1}, {MPLSTC, 1}, {SKBMark, 1}}},
			Yellow: &Action{Marks: []Mark{{DSCP, 12}, {DEI, 1}}, Queue: bulk},
			Red:    &Action{ECN: CEOrDrop, Queue: shared},
		})
	}
	policy.Classes = append(policy.Classes, Class{
		Name: "rest", Match: Match{Length: []Range{{0, 9000}}},
		Meter: &Meter{Name: "rest", Params: meter.TokenBucket{Rate: meter.BitRate(1e6), Burst: 9000}, Aware: true, PreColor: PreColor{From: SKBMark, Map: map[uint32]meter.Color{1000: meter.Red}}},
	})
	r := rand.New(rand.NewPCG(1, 1))
	frames := make([][]byte, 512)
	for i := range frames {
		frames[i] = randomFrame(r)
	}
	return newPipeline(t, policy), frames
}

func TestProcessAllocatesNothing(t *testing.T) {
	l, frames := workload(t)
	var seen Done
	var dropped, rest bool
	var v Verdict
	p := Packet{Link: LinkEthernet}
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
	if seen != Pass|ECNSet|Marked|Queued|Waiting || !dropped || !rest {
		t.Errorf("a case did not occur: done %05b, dropped %v, last class %v", seen, dropped, rest)
	}
}

func BenchmarkProcess(b *testing.B) {
	l, frames := workload(b)
	var v Verdict
	p := Packet{Link: LinkEthernet}
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
		per  Key
		kind Kind
	}{{"one meter", Key{}, IPv4}, {"src IPv4", Key{By: BySrc}, IPv4}, {"src IPv6", Key{By: BySrc}, IPv6}, {"flow IPv4", Key{By: ByFlow}, IPv4}} {
		b.Run(test.name, func(b *testing.B) {
			m := &Meter{Params: meter.TRTCM{CIR: mega, CBS: 1 << 16, PIR: mega, PBS: 1 << 16}, Per: test.per, Keys: keys}
			l := newPipeline(b, &Policy{Classes: []Class{{Name: "a", Meter: m}}})
			packets, verdicts := make([]Packet, batchSize), make([]Verdict, batchSize)
			frame, at := concat(ethernet(etherIPv4), v4{proto: protoUDP}.packet(udp)), 14+12
			if test.kind == IPv6 {
				frame, at = concat(ethernet(etherIPv6), v6{next: protoUDP}.packet(udp)), 14+8+12
			}
			for i := range packets {
				packets[i] = Packet{Data: bytes.Clone(frame), Link: LinkEthernet}
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
