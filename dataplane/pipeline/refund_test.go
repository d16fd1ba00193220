package pipeline

import (
	"math"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// TestRefundEverywhere sends packets to a full queue behind a meter with each kind of state. Its tokens
// are those of before.
func TestRefundEverywhere(t *testing.T) {
	bucket := meter.TokenBucket{Rate: frametest.Mega, Burst: 5000}
	profile, err := bucket.Profile()
	if err != nil {
		t.Fatal(err)
	}
	flow := meter.TRTCM4115{CIR: frametest.Mega, CBS: 5000, EIR: frametest.Mega, EBS: 5000}
	for name, m := range map[string]*dataplane.Meter{
		"own":      {Params: bucket},
		"key":      {Params: bucket, Per: dataplane.Key{By: dataplane.BySrc}},
		"no key":   {Params: bucket, Per: dataplane.Key{By: dataplane.ByVLAN}},
		"budget":   {Params: bucket, Budget: &dataplane.Budget{Name: "b"}},
		"lease":    {Params: bucket, Budget: &dataplane.Budget{Name: "b", Address: dataplane.Address{URL: "redis://127.0.0.1"}}},
		"envelope": {Params: flow, Envelope: &dataplane.Envelope{Name: "e"}, Rank: 1},
	} {
		last := &dataplane.Meter{Name: "last", Params: bucket, Aware: true}
		m.Name, m.Then = "first", last
		full := &dataplane.Action{
			Queue: &dataplane.Queue{Name: "q", Config: queue.Config{Rate: frametest.Mega, Packets: 1}},
		}
		l := newPipeline(t, &dataplane.Policy{Classes: []dataplane.Class{{Name: "a", Meter: m, Green: full}}})
		if name == "budget" {
			l.ReplaceMeter(l.plan.Stage(m), &outsideMeter{meter.New(profile)})
		}
		l.SetLease(0, "b", compiled.Lease{
			Limits: [3]compiled.BucketLimits{compiled.LimitsOf(bucket)}, Until: [2]int64{1e18, 1e18},
		})
		tokens := func() (first, last int64) {
			s := &l.stages[l.plan.Stage(m)]
			first, _ = s.tokens(l.now)
			if name == "key" {
				first, _, _ = s.keyed.small.Tokens(0, l.now)
			}
			last, _ = l.Tokens(l.plan.Stage(m.Then))
			return first, last
		}
		for range 2 { // one departs, one fills the queue
			process(l, 1e9, ipPacket(0, 1000))
		}
		wantFirst, wantLast := tokens()
		for range 20 {
			if v, _ := process(l, 1e9, ipPacket(0, 1000)); v.Reason != dataplane.QueueFull ||
				v.Color != meter.Green || v.Stage < 0 {
				t.Fatalf("%s: %+v, want a green packet that finds the queue full", name, v)
			}
			if first, last := tokens(); first != wantFirst || last != wantLast {
				t.Errorf("%s: %d and %d tokens after the drop, want %d and %d", name, first, last, wantFirst,
					wantLast)
			}
		}
		if wantFirst >= 5000 || wantLast != 3000 {
			t.Errorf("%s: queued packets left %d and %d tokens", name, wantFirst, wantLast)
		}
	}
}

// TestRefundLater holds the tokens of packets in a link: CoDel drops one of them at its departure,
// and they go back then, before the packet that arrives at that time is metered.
func TestRefundLater(t *testing.T) {
	m := &dataplane.Meter{Name: "m", Params: meter.FixedWindow{Limit: 9000, Window: time.Hour}}
	codel := queue.CoDel{Target: 1000 * µs, Interval: 1000 * µs}
	q := &dataplane.Queue{
		Name: "q", Config: queue.Config{Packets: 100, CoDel: codel},
		Link: &dataplane.Link{Name: "wan", Rate: frametest.Mega},
	}
	l := newPipeline(t, &dataplane.Policy{Classes: []dataplane.Class{
		{Name: "queued", Match: dataplane.Match{DSCP: frametest.Values(46)}, Meter: m, Green: &dataplane.Action{Queue: q}}, {Name: "rest", Meter: m},
	}})
	for range 6 { // they depart at 0 and 1.5 ms; the third is dropped when it reaches the head, at 3 ms
		process(l, 0, ipPacket(46, 1500))
	}
	for _, step := range []struct {
		at   int64
		want int64 // tokens left after a packet of 20 bytes
	}{{0, 0}, {3000*µs - 1, 0}, {3000 * µs, 1480}} {
		process(l, step.at, ipPacket(0, 20))
		if tc, _ := tokensOf(l, m); tc != step.want {
			t.Errorf("at %d: %d tokens, want %d", step.at, tc, step.want)
		}
	}
}

// TestHeldTokensAllocateNothing keeps packets of both kinds of queues in flight: dropped on arrival,
// dropped by another packet, dropped at the head, and sent.
func TestHeldTokensAllocateNothing(t *testing.T) {
	fair := &dataplane.Queue{
		Name:   "q",
		Config: queue.Config{Packets: 20, CoDel: queue.CoDel{Target: 100 * µs, Interval: 100 * µs}},
		Link:   &dataplane.Link{Name: "wan", Rate: frametest.Mega}, Fair: dataplane.Key{By: dataplane.BySrc},
	}
	m := &dataplane.Meter{
		Params: meter.SRTCM{CIR: frametest.Mega, CBS: 1e6, EBS: 1e6}, Per: dataplane.Key{By: dataplane.BySrc},
		Keys: 9,
	}
	m.Then = &dataplane.Meter{
		Name: "sum", Params: meter.SlidingLog{Limit: 1e9, Window: time.Millisecond, Entries: 9999},
		Aware: true,
	}
	l := newPipeline(t, &dataplane.Policy{Classes: []dataplane.Class{
		{Name: "fair", Match: dataplane.Match{DSCP: frametest.Values(46)}, Meter: m, Green: &dataplane.Action{Queue: fair}},
		{Name: "paced", Meter: m, Green: &dataplane.Action{Queue: &dataplane.Queue{Name: "p", Config: queue.Config{Rate: frametest.Mega, Packets: 5}}}},
	}})
	packets, verdicts := make([]dataplane.Packet, 60), make([]dataplane.Verdict, 60)
	for i := range packets {
		packets[i] = dataplane.Packet{Data: ipPacket(uint8(i%2)*46, 500), Link: dataplane.LinkEthernet}
		packets[i].Data[29] = byte(i % 4) // of the source address
	}
	now, reasons := int64(0), map[dataplane.Reason]bool{}
	batch := func() {
		for i := range packets {
			now += 100 * µs
			packets[i].Time = now
		}
		l.ProcessBatch(packets, verdicts)
		for i := range verdicts {
			reasons[verdicts[i].Reason] = true
		}
		for v := &verdicts[0]; l.Settle(now, v); {
			reasons[v.Reason] = true
		}
	}
	for range 100 {
		batch()
	}
	size := len(l.held.list)
	if allocs := testing.AllocsPerRun(100, batch); allocs != 0 || len(l.held.list) != size {
		t.Errorf("%v allocations per batch, and %d instead of %d entries", allocs, len(l.held.list), size)
	}
	for v := (dataplane.Verdict{}); l.Settle(math.MaxInt64, &v); {
	}
	free := 0
	for i := l.held.free; i != noTokens; i = l.held.list[i].next {
		free++
	}
	if free != len(l.held.list)-1 {
		t.Errorf("%d of %d entries are free when no packet is queued", free, len(l.held.list)-1)
	}
	if !reasons[dataplane.QueueFull] || !reasons[dataplane.CoDel] {
		t.Errorf("reasons %v: want drops of both kinds", reasons)
	}
}
