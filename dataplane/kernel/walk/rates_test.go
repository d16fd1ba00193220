package walk

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// queuesByAddress is a policy with a queue for each destination of caseAddress.
func queuesByAddress(queues ...*dataplane.Queue) *dataplane.Policy {
	policy := &dataplane.Policy{}
	for i, q := range queues {
		policy.Classes = append(policy.Classes, dataplane.Class{
			Name: q.Name, Green: &dataplane.Action{Queue: q},
			Match: dataplane.Match{
				Dst: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4(caseAddress(i)), 32)},
			},
		})
	}
	return policy
}

// setRates changes the rates of a loaded program as kernel.Shaper.SetRates does.
func (h *hooked) setRates(about *record.About, plan *compiled.Plan) error {
	g, err := image.EncodeRates(about, plan)
	if err == nil {
		err = h.maps.WriteRates(about, g.Queues)
	}
	return err
}

// TestRates compares a program whose rates change with the pipeline, packet by packet. Some of the
// changes are reloads, and some change a queue several times between two packets.
func TestRates(t *testing.T) {
	if kerneltest.InVM {
		t.Skip("too slow in a VM")
	}
	kerneltest.NeedRoot(t)
	t.Parallel()
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	codel := queue.CoDel{Target: time.Millisecond, Interval: 5 * time.Millisecond}
	early := [3]queue.Early{{Min: 1000, Max: 15_000, Probability: queue.Certain / 2}}
	configs := []queue.Config{
		{Time: 20 * time.Millisecond, CoDel: codel},
		{Bytes: 20_000, WRED: early, Seed: 5},
		{Packets: 20, CoDel: codel},
	}
	rates := func() map[string]meter.Rate {
		out := map[string]meter.Rate{}
		for i := range configs {
			if r.IntN(2) == 0 { // with fractions of a ns
				out[fmt.Sprint(i)] = meter.Rate{
					Bytes: 1 + r.Int64N(7), Period: time.Duration(200 + r.IntN(5000)),
				}
			}
		}
		return out
	}
	var queues []*dataplane.Queue
	for i, c := range configs {
		c.Rate = kerneltest.EightMbit
		queues = append(queues, &dataplane.Queue{Name: fmt.Sprint(i), Config: c})
	}
	h := newHooked(t, queuesByAddress(queues...), image.EgressEntry, nil)
	l := pipeline.FromPlan(h.image.Plan)
	var about record.About
	h.image.Describe(&about)
	at := int64(0)
	for step := range 150 {
		for range 1 + r.IntN(3) {
			plan, err := l.Plan().WithRates(rates(), nil)
			if err != nil {
				t.Fatal(err)
			}
			for i := range plan.Queues {
				if c := &plan.Queues[i].CoDel; *c != (queue.CoDel{}) && r.IntN(2) == 0 {
					*c = queue.CoDel{
						Target:   time.Duration(500+r.IntN(1000)) * time.Microsecond,
						Interval: time.Duration(2+r.IntN(5)) * time.Millisecond,
					}
				}
			}
			if step%50 == 49 {
				var reloaded []*dataplane.Queue
				for i := range plan.Queues {
					reloaded = append(reloaded,
						&dataplane.Queue{Name: plan.Queues[i].Name, Config: plan.Queues[i].Config})
				}
				policy := queuesByAddress(reloaded...)
				next, err := pipeline.New(policy)
				if err != nil {
					t.Fatal(err)
				}
				next.Inherit(l)
				l, h = next, h.successor(t, &about, policy)
				continue
			}
			if err := l.SetRates(at, plan); err != nil {
				t.Fatal(err)
			}
			if err := h.setRates(&about, plan); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 60 {
			at += r.Int64N(400_000)
			p := datagramTo(caseAddress(r.IntN(len(configs))), at, 0, 20+r.IntN(1400))
			var got, want dataplane.Verdict
			if err := h.run(&p, &got, skb{}); err != nil {
				t.Fatal(err)
			}
			l.Process(&p, &want)
			if got != want {
				t.Fatalf("step %d, packet %d:\ngot  %+v\nwant %+v", step, i, got, want)
			}
		}
	}
}

// TestRatesRead checks that a process finds the rates that another one has set.
func TestRatesRead(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	own := &dataplane.Queue{Name: "own", Config: queue.Config{Rate: kerneltest.EightMbit, Time: time.Second}}
	h := newHooked(t, queuesByAddress(own), image.EgressEntry, nil)
	var about record.About
	h.image.Describe(&about)
	was := about
	was.Queued = []record.Queue{about.Queued[0]}
	plan, err := h.image.Plan.WithRates(map[string]meter.Rate{"own": meter.BitRate(80e6)}, nil)
	if err == nil {
		err = h.setRates(&about, plan)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := h.maps.ReadQueues(&was); err != nil {
		t.Fatal(err)
	}
	want := bpf.ShaperPace{Ns: 100, Den: 1}
	if q := &was.Queued[0].ShaperQueue; *record.PaceOf(q) != want || q.Version != 1 ||
		*q != about.Queued[0].ShaperQueue {
		t.Errorf("got %+v, want version 1 of 100 ns for a byte", q)
	}
}

// TestRatesRefused checks that EncodeRates rejects plans that differ in more than rates and times of
// CoDel, and rates that the pacer does not support.
func TestRatesRefused(t *testing.T) {
	t.Parallel()
	wan := &dataplane.Link{Name: "wan", Rate: kerneltest.EightMbit}
	policy := func(edit func(a, b *dataplane.Queue)) *dataplane.Policy {
		a := &dataplane.Queue{Name: "a", Config: queue.Config{Rate: kerneltest.EightMbit, Bytes: 50_000}}
		b := &dataplane.Queue{Name: "b", Config: queue.Config{Time: time.Second}, Link: wan}
		edit(a, b)
		return queuesByAddress(a, b)
	}
	aboutOf := func(policy *dataplane.Policy, pacer record.Pacer) (*record.About, *compiled.Plan) {
		g, err := encodePolicy(policy, image.EgressEntry, pacer)
		if err != nil {
			t.Fatal(err)
		}
		g.Inherit(&record.About{}, nil)
		about := &record.About{Interface: "v0"}
		g.Describe(about)
		return about, g.Plan
	}
	about, plan := aboutOf(policy(func(a, b *dataplane.Queue) {}), record.HTB)
	for name, edit := range map[string]func(a, b *dataplane.Queue){
		"":         func(_, b *dataplane.Queue) { b.Link = &dataplane.Link{Name: "wan", Rate: meter.BitRate(1e6)} },
		"name":     func(a, _ *dataplane.Queue) { a.Name = "x" },
		"limit":    func(a, _ *dataplane.Queue) { a.Bytes = 60_000 },
		"codel":    func(a, _ *dataplane.Queue) { a.CoDel = queue.CoDel{Target: 1, Interval: 1} },
		"link":     func(_, b *dataplane.Queue) { b.Link = &dataplane.Link{Name: "lan", Rate: kerneltest.EightMbit} },
		"own rate": func(_, b *dataplane.Queue) { b.Link, b.Rate = nil, kerneltest.EightMbit },
	} {
		other, err := compiled.Compile(policy(edit))
		if err != nil {
			t.Fatal(err)
		}
		_, err = image.EncodeRates(about, other)
		if got := err != nil && strings.Contains(err.Error(), "reload the plan"); got != (name != "") {
			t.Errorf("another %q: got error %v", name, err)
		}
	}
	if _, err := image.EncodeRates(new(record.About), plan); err == nil ||
		!strings.Contains(err.Error(), "no queues") {
		t.Errorf("without queues: got error %v, want one", err)
	}
	own := &dataplane.Queue{Name: "a", Config: queue.Config{Rate: kerneltest.EightMbit, Bytes: 50_000}}
	about, plan = aboutOf(queuesByAddress(own), record.FQ)
	slow, err := plan.WithRates(map[string]meter.Rate{"a": {Bytes: 10, Period: time.Second}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := image.EncodeRates(about, slow); err == nil ||
		!strings.Contains(err.Error(), "the maximum of fq") {
		t.Errorf("83 minutes of delay: got error %v, want that of fq", err)
	}
}

// TestRatesConcurrent changes the rate of a queue as often as possible, while two CPUs queue
// packets: no packet is charged by parts of two rates, which would block the queue for hours.
func TestRatesConcurrent(t *testing.T) { // not parallel: it needs both CPUs
	kerneltest.NeedRoot(t)
	cpus := allowedCPUs(t)
	if len(cpus) < 2 {
		t.Skip("needs two CPUs")
	}
	const length, limit = 1000, 5 * time.Millisecond
	// the last one with a large rest
	rates := []meter.Rate{
		meter.BitRate(800e6), {Bytes: 100_000_007, Period: 999_999_937}, {Bytes: 1<<40 + 1, Period: 1 << 43},
	}
	own := &dataplane.Queue{Name: "own", Config: queue.Config{Rate: rates[0], Time: limit}}
	h := newHooked(t, queuesByAddress(own), image.EgressEntry,
		func(c *bpf.ShaperConstants) { c.Handed, c.Pacer = 0, image.PacerNumber[record.HTB] })
	var about record.About
	h.image.Describe(&about)
	var stop atomic.Bool
	changes := make(chan int)
	go func() {
		n := 0
		for ; !stop.Load(); n++ {
			plan, err := h.image.Plan.WithRates(map[string]meter.Rate{"own": rates[n%len(rates)]}, nil)
			if err == nil {
				err = h.setRates(&about, plan)
			}
			if err != nil {
				t.Error(err)
				break
			}
		}
		changes <- n
	}()
	frame := func(meter.Color) []byte { return datagramTo(caseAddress(0), 0, 0, length).Data }
	c := &hammered{}
	c.hammer(t, h.program, cpus, frame, 300*time.Millisecond)
	stop.Store(true)
	t.Logf("%d changes", <-changes)
	b, err := image.ReadBacklog(h.maps.Backlogs, h.image.Queues[0].Slot)
	if err != nil {
		t.Fatal(err)
	}
	slowest := 3 * length * 10 * time.Nanosecond
	if late := time.Duration(int64(b.Next) - engine.Now()); late > limit+slowest {
		t.Errorf("the queue is busy for another %v, want at most %v", late, limit+slowest)
	}
	all, err := h.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if in := all[0].Queued[0]; in.Packets < 100 { // that many fit into the empty queue
		t.Errorf("got %+v queued, want at least 100 packets", in)
	}
}

// TestRatesChecked checks that Reload does not take a plan with other rates for one that Check has
// encoded.
func TestRatesChecked(t *testing.T) {
	t.Parallel()
	own := &dataplane.Queue{Name: "own", Config: queue.Config{Rate: kerneltest.EightMbit, Time: time.Second}}
	plan, err := compiled.Compile(queuesByAddress(own))
	if err != nil {
		t.Fatal(err)
	}
	other, err := plan.WithRates(map[string]meter.Rate{"own": meter.BitRate(80e6)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	about := &record.About{Asked: record.HTB}
	g, err := image.EncodeFor(about, plan, nil)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := image.EncodeFor(about, plan, g); again != g || err != nil {
		t.Errorf("the same plan: got another image or error %v", err)
	}
	if next, err := image.EncodeFor(about, other, g); err != nil || record.PaceOf(&next.Queues[0]).Ns != 100 {
		t.Errorf("another rate: got %+v and error %v, want 100 ns for a byte", next.Queues, err)
	}
}
