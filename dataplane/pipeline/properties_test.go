package pipeline

import (
	"bytes"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/marker"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// queuedPacket is a packet that is queued in a link, and the frame as it arrived.
type queuedPacket struct {
	p     dataplane.Packet
	frame []byte
}

// TestProperties checks the properties of all policies on random ones: colors get no better,
// departures are not before arrivals, marks change nothing else, counters add up.
func TestProperties(t *testing.T) {
	r := frametest.Seeded(t)
	var seen dataplane.Done
	reasons := map[dataplane.Reason]int{}
	complete := func() bool {
		return seen == dataplane.Pass|dataplane.ECNSet|dataplane.Marked|dataplane.Queued|dataplane.Waiting &&
			reasons[dataplane.QueueFull] > 0 && reasons[dataplane.WRED]+reasons[dataplane.CoDel] > 0
	}
	for n := 0; n < 150 || !complete(); n++ {
		if n == 10_000 {
			t.Fatalf("a case did not occur: done %05b, reasons %v", seen, reasons)
		}
		policy := frametest.RandomPolicy(r, true, frametest.AnyField(r))
		l, sum := newPipeline(t, policy), newTally(policy)
		waiting := map[int64]queuedPacket{}
		settle := func(now int64) {
			for v := (dataplane.Verdict{}); l.Settle(now, &v); {
				w, ok := waiting[v.ID]
				if delete(waiting, v.ID); !ok {
					t.Fatalf("packet %d was not queued: %+v", v.ID, v)
				}
				sum.settle(v)
				seen |= v.Done
				reasons[v.Reason]++
				if !v.Done.Dropped() && (v.Departure < v.Now || v.Departure > now) {
					t.Fatalf("settled by %d: arrived at %d and departs at %d", now, v.Now, v.Departure)
				}
				if v.Done&dataplane.ECNSet != 0 {
					w.p.SetCE()
				}
				checkMarked(t, policy.Classes[v.Class].Action(v.Color), &w.p, w.frame, v)
			}
		}
		var now int64
		for i := range int64(150) {
			now += r.Int64N(2e6) - 1e5
			frame := frametest.RandomFrame(r)
			p := dataplane.Packet{
				Data: bytes.Clone(frame), Time: now, Link: dataplane.LinkEthernet, Mark: r.Uint32N(3), ID: i,
			}
			v := verdictOf(l, &p)
			sum.addVerdict(v)
			seen |= v.Done
			reasons[v.Reason]++
			before := frametest.Describe(&p)
			if v.Class < 0 {
				if v.Done != dataplane.Pass || !bytes.Equal(p.Data, frame) {
					t.Fatalf("%s: unclassified, but done is %04b", before, v.Done)
				}
				continue
			}
			if v.Color < v.Pre {
				t.Fatalf("%s: %v became %v", before, v.Pre, v.Color)
			}
			if v.Departure < l.Now() {
				t.Fatalf("%s: departs at %d, before its arrival at %d", before, v.Departure, l.Now())
			}
			if v.Done&dataplane.Waiting != 0 {
				waiting[i] = queuedPacket{p, frame}
			} else {
				action := policy.Classes[v.Class].Action(v.Color)
				checkMarked(t, action, &p, frame, v)
				checkAgain(t, action, p.Data)
			}
			if r.IntN(3) > 0 {
				settle(l.Now())
			}
		}
		for at, ok := l.Due(); ok; at, ok = l.Due() {
			settle(max(at, l.Now()))
		}
		if len(waiting) > 0 {
			t.Fatalf("%d packets were not settled", len(waiting))
		}
		sum.check(t, l)
		checkEffects(t, l)
	}
}

// checkMarked checks that marking keeps the length, the results of Parse, a valid checksum,
// and the ECN field unless the action or the queue sets CE.
func checkMarked(
	t *testing.T, action dataplane.Action, p *dataplane.Packet, frame []byte, v dataplane.Verdict,
) {
	t.Helper()
	q := dataplane.Packet{Data: frame, Link: dataplane.LinkEthernet}
	dataplane.Parse(&q)
	before := frametest.Describe(&q)
	if dataplane.Parse(p); frametest.Describe(p) != before || len(p.Data) != len(frame) {
		t.Fatalf("%s became %s by %+v", before, frametest.Describe(p), action)
	}
	if p.Kind == dataplane.IPv4 {
		h := p.Data[p.L3:]
		if frametest.Checksum(h[:4*int(h[0]&15)]) != 0 {
			t.Fatalf("%s: wrong checksum after %+v", before, action)
		}
	}
	ecn := func(p *dataplane.Packet) byte {
		switch p.Kind {
		case dataplane.IPv4:
			return p.Data[p.L3+1] & 3
		case dataplane.IPv6:
			return p.Data[p.L3+1] >> 4 & 3
		}
		return 0
	}
	want := ecn(&q)
	if (action.ECN != dataplane.NoECN || v.Done&dataplane.ECNSet != 0) && want != marker.NotECT {
		want = marker.CE
	}
	if ecn(p) != want || v.Done&dataplane.ECNSet != 0 && want != marker.CE {
		t.Fatalf("%s: ECN %d became %d by %+v", before, ecn(&q), ecn(p), action)
	}
	if dscp, ok := p.DSCP(); ok && !v.Done.Dropped() && dscp != v.DSCPOut {
		t.Fatalf("%s: DSCP %d, but %d in the verdict", before, dscp, v.DSCPOut)
	}
	if v.Done == dataplane.Pass && !bytes.Equal(p.Data, frame) {
		t.Fatalf("%s passed, but changed", before)
	}
}

// checkAgain checks that applying an action a second time changes nothing.
func checkAgain(t *testing.T, action dataplane.Action, marked []byte) {
	t.Helper()
	action.Queue = nil
	l := newPipeline(t, &dataplane.Policy{Classes: []dataplane.Class{{
		Name: "a", Match: dataplane.Match{Length: []dataplane.Range{{First: 0, Last: math.MaxUint32}}},
		Green: &action,
	}}})
	if _, again := process(l, 0, marked); !bytes.Equal(again, marked) {
		t.Fatalf("%+v applied twice: % x, once: % x", action, again, marked)
	}
}

// TestBlindIsAwareWithGreen checks that a color-blind policy is the color-aware one with
// green input colors.
func TestBlindIsAwareWithGreen(t *testing.T) {
	r := frametest.Seeded(t)
	for range 100 {
		seed := r.Uint64()
		policy := func(aware bool) *dataplane.Policy {
			return frametest.RandomPolicy(rand.New(rand.NewPCG(seed, 0)), aware, func() dataplane.PreColor {
				return dataplane.PreColor{Map: map[uint32]meter.Color{}}
			})
		}
		blind, aware := newPipeline(t, policy(false)), newPipeline(t, policy(true))
		var now int64
		for i := range 100 {
			now += r.Int64N(2e6)
			frame := frametest.RandomFrame(r)
			got, gotFrame := process(blind, now, frame)
			want, wantFrame := process(aware, now, frame)
			if got != want || !bytes.Equal(gotFrame, wantFrame) {
				t.Fatalf("packet %d: color-blind %+v, color-aware %+v", i, got, want)
			}
		}
	}
}

// outsideMeter is a meter outside of a pipeline.
type outsideMeter struct{ meter.Meter }

// TestExplainIsProcess checks that Explain returns the same verdicts as Process, with steps that
// lead from the input color to the color, for each kind of state.
func TestExplainIsProcess(t *testing.T) {
	r := frametest.Seeded(t)
	bucket := func() meter.Params { return meter.TokenBucket{Rate: frametest.Mega, Burst: 3000} }
	envelope := &dataplane.Envelope{Name: "e"}
	flow := meter.TRTCM4115{CIR: frametest.Mega, CBS: 3000, EIR: frametest.Mega, EBS: 2000}
	for i := range 60 {
		policy := frametest.RandomPolicy(r, true, frametest.AnyField(r))
		if i%2 == 0 {
			list := classes("own", "keys", "budget", "lease", "high", "low", "none")
			for j, m := range []*dataplane.Meter{
				{Params: bucket()},
				{Params: bucket(), Per: dataplane.Key{By: dataplane.BySrc}},
				{Params: bucket(), Budget: &dataplane.Budget{Name: "h"}},
				{Params: bucket(), Budget: &dataplane.Budget{Name: "s", Address: frametest.Server}},
				{Params: flow, Envelope: envelope, Rank: 2},
				{Params: flow, Envelope: envelope, Rank: 1, Then: &dataplane.Meter{Params: meter.SRTCM{CIR: frametest.Mega, CBS: 2000, EBS: 500}, Aware: true}},
			} {
				list[j].Match, list[j].Meter = dataplane.Match{
					DSCP: []dataplane.Range{{First: uint64(9 * j), Last: uint64(9*j + 8)}},
				}, m
			}
			policy = &dataplane.Policy{Classes: list}
		}
		a, b := newPipeline(t, policy), newPipeline(t, policy)
		if i%2 == 0 {
			for _, l := range []*Pipeline{a, b} {
				profile, err := bucket().Profile()
				if err != nil {
					t.Fatal(err)
				}
				l.ReplaceMeter(2, &outsideMeter{meter.New(profile)})
				l.SetLease(0, "s", compiled.Lease{
					Limits: [3]compiled.BucketLimits{
						{{Rate: 8e6, Burst: 3000}}, {}, {{Rate: 8e6, Burst: 1000}},
					},
					Until: [2]int64{1e7, 2e7},
				})
			}
		}
		now := int64(0)
		for range 200 {
			now += r.Int64N(3e5)
			frame := frametest.RandomFrame(r)
			want, _ := process(a, now, frame)
			var got dataplane.Verdict
			steps := b.Explain(
				&dataplane.Packet{Data: bytes.Clone(frame), Time: now, Link: dataplane.LinkEthernet}, &got)
			if got != want {
				t.Fatalf("verdict %+v, want %+v", got, want)
			}
			color, chain := got.Pre, []int(nil)
			for _, step := range steps {
				n := got.Length
				if b.plan.Stages[step.Stage].Packets {
					n = got.Packets
				}
				if step.In != color || step.Length != n ||
					dataplane.Reason(step.Clause) != dataplane.Reason(
						b.plan.Stages[step.Stage].Kind.Clause(step.In, step.Color)) {
					t.Fatalf("step %+v, input color %v, %d tokens", step, color, n)
				}
				color, chain = step.Color, append(chain, step.Stage)
			}
			if got.Class >= 0 && len(steps) > 0 {
				whole := b.plan.Outline().Chain(int(got.Class))
				if color != got.Color || got.Reason < dataplane.NoMeter &&
					dataplane.Reason(steps[len(steps)-1].Clause) != got.Reason {
					t.Fatalf("the last step is %+v, the verdict %+v", steps[len(steps)-1], got)
				}
				if !slices.Equal(chain, whole[:len(chain)]) || len(chain) < len(whole) && color != meter.Red {
					t.Fatalf("stages %v of the chain %v, last color %v", chain, whole, color)
				}
			} else if len(steps) > 0 || got.Class >= 0 && b.plan.Classes[got.Class].Stage >= 0 {
				t.Fatalf("%d steps for %+v", len(steps), got)
			}
		}
		if !slices.Equal(a.Stats(), b.Stats()) {
			t.Fatalf("counters %+v, want %+v", b.Stats(), a.Stats())
		}
		if got, want := b.Demand("s"), a.Demand("s"); got != want {
			t.Fatalf("%v tokens were requested from the server, want %v", got, want)
		}
		for stage := range a.stages {
			wantC, wantE := a.Tokens(stage)
			if tc, te := b.Tokens(stage); tc != wantC || te != wantE {
				t.Fatalf("stage %d: got %d and %d tokens, want %d and %d", stage, tc, te, wantC, wantE)
			}
		}
	}
}

// TestPlanIsShared runs two pipelines with one plan, which must not change.
func TestPlanIsShared(t *testing.T) {
	r := frametest.Seeded(t)
	for range 20 {
		policy := frametest.RandomPolicy(r, true, frametest.AnyField(r))
		plan, again := compiledPlan(t, policy), compiledPlan(t, policy)
		a, b := FromPlan(plan), FromPlan(plan)
		for i := range 50 {
			frame := frametest.RandomFrame(r)
			if v, _ := process(a, int64(i)*100*µs, frame); v.Class >= 0 {
				process(b, int64(i)*200*µs, frame)
			}
		}
		b.Inherit(a)
		if !reflect.DeepEqual(plan.Outline(), again.Outline()) ||
			!reflect.DeepEqual(plan.Queues, again.Queues) || !reflect.DeepEqual(plan.Links, again.Links) {
			t.Fatal("the plan changed while its pipelines ran")
		}
		if !plan.Outline().Valid() {
			t.Errorf("outline %+v is not valid", plan.Outline())
		}
	}
}
