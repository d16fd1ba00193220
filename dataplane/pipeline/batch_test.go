package pipeline

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// keyedPolicy returns a random policy whose meters often have keys, and whose last class is
// a flow of an envelope.
func keyedPolicy(r *rand.Rand) *dataplane.Policy {
	policy := frametest.RandomPolicy(r, r.IntN(2) == 0, frametest.AnyField(r))
	seen := map[*dataplane.Meter]bool{nil: true}
	for i := range policy.Classes {
		for m := policy.Classes[i].Meter; !seen[m]; m = m.Then {
			seen[m] = true
			if r.IntN(2) == 0 {
				m.Per, m.Keys, m.Initial = dataplane.Key{
					By: dataplane.KeyField(1 + r.IntN(int(dataplane.ByDSCP))),
				}, 1+r.IntN(20), dataplane.Fraction{Num: 0, Den: int64(r.IntN(2))}
				m.Idle = m.Initial.Den == 0 && r.IntN(2) == 0
			}
		}
	}
	flow := meter.TRTCM4115{CIR: meter.BitRate(1e6), CBS: 3000, EIR: meter.BitRate(1e6), EBS: 3000}
	policy.Classes = append(policy.Classes, dataplane.Class{
		Name: "flow", Match: frametest.RandomMatch(r, 12),
		Meter: &dataplane.Meter{Params: flow, Envelope: &dataplane.Envelope{Name: "e"}, Rank: 1},
		Green: &dataplane.Action{
			Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 10}, {Field: dataplane.SKBMark, Value: 3}},
		},
	})
	policy.DropUnclassified = r.IntN(2) == 0
	return policy
}

// TestBatch compares ProcessBatch, and ProcessParsed with packets of which some are parsed, with a call of
// Process for each packet.
func TestBatch(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 7))
	keys, evicted := 0, uint64(0)
	for range 150 {
		policy := keyedPolicy(r)
		single, batched := newPipeline(t, policy), newPipeline(t, policy)
		var frames [40][]byte // fewer than packets, so that keys return
		for i := range frames {
			frames[i] = frametest.RandomFrame(r)
		}
		now := int64(0)
		for range 30 {
			want := make([]dataplane.Packet, r.IntN(3*batchSize))
			for i := range want {
				now += r.Int64N(2e6) - 1e5
				want[i] = dataplane.Packet{
					Data: bytes.Clone(frames[r.IntN(len(frames))]), Link: dataplane.LinkEthernet, Time: now,
					Mark: r.Uint32N(4), ID: now,
				}
				if r.IntN(9) == 0 {
					want[i].Segments, want[i].Segment = 3, 500
				}
			}
			got, verdicts := make([]dataplane.Packet, len(want)), make([]dataplane.Verdict, len(want)+1)
			for i := range want {
				got[i] = want[i]
				got[i].Data = bytes.Clone(want[i].Data)
			}
			if r.IntN(2) == 0 {
				batched.ProcessBatch(got, verdicts)
			} else {
				for i := range got {
					if r.IntN(2) == 0 {
						dataplane.Parse(&got[i])
					}
				}
				batched.ProcessParsed(got, verdicts)
			}
			for i := range want {
				v := verdictOf(single, &want[i])
				if verdicts[i] != v || !reflect.DeepEqual(got[i], want[i]) {
					t.Fatalf("packet %d: got %+v and %+v, want %+v and %+v", i, verdicts[i], got[i], v,
						want[i])
				}
			}
			settle := []int64{now, math.MinInt64}[r.IntN(2)]
			if got, want := settled(policy, batched, settle),
				settled(policy, single, settle); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("settled %q, want %q", got, want)
			}
		}
		for i := range single.stages {
			if single.Keys(i) != batched.Keys(i) {
				t.Errorf("stage %d: got keys %+v, want %+v", i, batched.Keys(i), single.Keys(i))
			}
			c, e := single.Tokens(i)
			if gotC, gotE := batched.Tokens(i); gotC != c || gotE != e {
				t.Errorf("stage %d: got tokens %d and %d, want %d and %d", i, gotC, gotE, c, e)
			}
			keys, evicted = keys+single.Keys(i).Keys, evicted+single.Keys(i).Evicted
		}
		if !reflect.DeepEqual(single.Stats(), batched.Stats()) || single.Now() != batched.Now() ||
			!reflect.DeepEqual(single.Queues(now+1e9), batched.Queues(now+1e9)) {
			t.Fatal("counters, clock or queues differ")
		}
	}
	if keys < 300 || evicted < 1000 {
		t.Errorf("%d keys and %d evictions are too few for a test", keys, evicted)
	}
}

// TestBatchAllocatesNothing includes packets of new keys.
func TestBatchAllocatesNothing(t *testing.T) {
	policy := &dataplane.Policy{Classes: []dataplane.Class{{Name: "a", Meter: &dataplane.Meter{
		Params: meter.TokenBucket{Rate: frametest.Mega, Burst: 1500},
		Per:    dataplane.Key{By: dataplane.ByFlow}, Keys: 9,
	}}}}
	l := newPipeline(t, policy)
	packets, verdicts := make([]dataplane.Packet, 50), make([]dataplane.Verdict, 50)
	r := rand.New(rand.NewPCG(1, 1))
	for i := range packets {
		packets[i] = dataplane.Packet{Data: frametest.RandomFrame(r), Link: dataplane.LinkEthernet}
	}
	if allocs := testing.AllocsPerRun(100, func() { l.ProcessBatch(packets, verdicts) }); allocs != 0 {
		t.Errorf("got %v allocations per batch, want 0", allocs)
	}
	if l.Keys(0).Evicted == 0 {
		t.Error("no key was evicted")
	}
}

// TestParsed reuses a Packet for another frame: Process and ProcessBatch parse it again, ProcessParsed if
// Parsed is false.
func TestParsed(t *testing.T) {
	l := newPipeline(t, &dataplane.Policy{Classes: []dataplane.Class{
		{Name: "a", Match: dataplane.Match{Dst: frametest.Prefixes("192.0.2.1/32")}},
		{Name: "b", Match: dataplane.Match{Dst: frametest.Prefixes("192.0.2.2/32")}},
	}})
	packets, verdicts := make([]dataplane.Packet, 1), make([]dataplane.Verdict, 1)
	p, v := &packets[0], &verdicts[0]
	for name, test := range map[string]struct {
		process func()
		keep    bool  // Parsed
		want    int32 // class of the second frame
	}{
		"Process":                 {func() { l.Process(p, v) }, true, 1},
		"ProcessBatch":            {func() { l.ProcessBatch(packets, verdicts) }, true, 1},
		"ProcessParsed, parsed":   {func() { l.ProcessParsed(packets, verdicts) }, true, 0},
		"ProcessParsed, unparsed": {func() { l.ProcessParsed(packets, verdicts) }, false, 1},
	} {
		*p = dataplane.Packet{Data: toward("192.0.2.1", 100), Link: dataplane.LinkEthernet}
		if test.process(); v.Class != 0 || !p.Parsed {
			t.Errorf("%s: got class %d, parsed %v, want 0 and true", name, v.Class, p.Parsed)
		}
		p.Data, p.Parsed = toward("192.0.2.2", 100), test.keep
		if test.process(); v.Class != test.want {
			t.Errorf("%s, another frame: got class %d, want %d", name, v.Class, test.want)
		}
	}
}
