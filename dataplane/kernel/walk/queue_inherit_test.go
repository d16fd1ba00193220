package walk

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// successor loads the program of a policy that replaces h's, and inherits its state.
func (h *hooked) successor(t *testing.T, about *record.About, policy *dataplane.Policy) *hooked {
	t.Helper()
	g, err := encodePolicy(policy, image.EgressEntry, "")
	if err != nil {
		t.Fatal(err)
	}
	next := &hooked{
		Walker: Walker{image: g, batch: 1, now: h.now}, hook: image.EgressEntry, room: make([]byte, 1<<17),
	}
	next.image.Constants.Handed, next.image.Constants.Link = 1, uint8(dataplane.LinkEthernet)
	next.image.Inherit(about, nil)
	maps, err := h.maps.ForPlan(g, about, nil)
	if err == nil {
		err = g.Populate(about, h.maps, maps, nil, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	next.maps = maps
	spec, err := engine.ShaperSpec()
	if err != nil {
		t.Fatal(err)
	}
	if next.loaded, err = next.image.LoadProgram(spec, image.Programs[dataplane.Egress],
		maps.ByName()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(next.loaded.Close)
	next.program = next.loaded.Programs[image.Programs[dataplane.Egress]]
	g.Describe(about)
	return next
}

// inheritCase is a change of the queues of a policy.
type inheritCase struct {
	name          string
	before, after []*dataplane.Queue
}

func inheritCases() []inheritCase {
	named := func(name string, cfg queue.Config) *dataplane.Queue {
		if cfg.Rate == (meter.Rate{}) {
			cfg.Rate = kerneltest.EightMbit
		}
		return &dataplane.Queue{Name: name, Config: cfg}
	}
	list := func(queues ...*dataplane.Queue) []*dataplane.Queue { return queues }
	codel := queue.CoDel{Target: time.Millisecond, Interval: 5 * time.Millisecond}
	early := [3]queue.Early{{Max: 20, Probability: queue.Certain / 2}}
	third := meter.Rate{Bytes: 30, Period: 100_000 * 7}
	const ms9 = 9 * time.Millisecond
	// The first cases do not move the rings that follow them.
	return []inheritCase{
		{"the same", list(named("a", queue.Config{Packets: 20, WRED: early, CoDel: codel, Seed: 5})), list(named("a", queue.Config{Packets: 20, WRED: early, CoDel: codel, Seed: 5}))},
		{"another rate", list(named("a", queue.Config{Packets: 20})), list(named("a", queue.Config{Packets: 20, Rate: meter.BitRate(16e6)}))},
		{"a fraction", list(named("a", queue.Config{Time: 100 * time.Millisecond, Rate: third})), list(named("a", queue.Config{Time: 90 * time.Millisecond, Rate: third}))},
		{"renamed", list(named("a", queue.Config{Packets: 20})), list(named("b", queue.Config{Packets: 20}))},
		{"another limit", list(named("a", queue.Config{Packets: 20})), list(named("a", queue.Config{Packets: 200}))},
		{"a limit of another kind", list(named("a", queue.Config{Packets: 20})), list(named("a", queue.Config{Time: 15 * time.Millisecond}))},
		{"one more, limits of time", list(named("a", queue.Config{Time: 20 * time.Millisecond, CoDel: codel})), list(named("b", queue.Config{Packets: 9}), named("a", queue.Config{Time: 20 * time.Millisecond, CoDel: codel}))},
		{"one less, limits of time", list(named("b", queue.Config{Packets: 9}), named("a", queue.Config{Time: 20 * time.Millisecond, CoDel: codel})), list(named("a", queue.Config{Time: 20 * time.Millisecond, CoDel: codel}))},
		{"one more", list(named("a", queue.Config{Packets: 20, CoDel: codel})), list(named("b", queue.Config{Packets: 9}), named("a", queue.Config{Packets: 20, CoDel: codel}))},
		{"in another order", list(named("b", queue.Config{Bytes: 20_000}), named("a", queue.Config{Packets: 20})), list(named("a", queue.Config{Packets: 20}), named("b", queue.Config{Bytes: 20_000}))},
		{"in another order, limits of time", list(named("b", queue.Config{Time: ms9}), named("a", queue.Config{Time: 2 * ms9})), list(named("a", queue.Config{Time: 2 * ms9}), named("b", queue.Config{Time: ms9}))},
	}
}

// caseAddress is the destination of the packets of case i.
func caseAddress(i int) [4]byte { return [4]byte{10, 1, 0, byte(i)} }

// inheritPolicies are the policies before and after the change of all cases. Queue k of a case
// has the packets of DSCP k.
func inheritPolicies(cases []inheritCase) (before, after *dataplane.Policy) {
	before, after = &dataplane.Policy{}, &dataplane.Policy{}
	add := func(policy *dataplane.Policy, i int, queues []*dataplane.Queue) {
		for k, q := range queues {
			q.Name = cases[i].name + ": " + q.Name
			policy.Classes = append(policy.Classes, dataplane.Class{
				Name: q.Name, Green: &dataplane.Action{Queue: q},
				Match: dataplane.Match{
					Dst:  []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4(caseAddress(i)), 32)},
					DSCP: []dataplane.Range{{First: uint64(k), Last: uint64(k)}},
				},
			})
		}
	}
	for i := range cases {
		add(before, i, cases[i].before)
		add(after, i, cases[i].after)
	}
	return before, after
}

// TestQueueInherits compares the state that queues keep over changes of policy with the pipeline,
// packet by packet. All changes are made in one policy, so that few programs are loaded, and one
// is also made alone.
func TestQueueInherits(t *testing.T) {
	if kerneltest.InVM {
		t.Skip("too slow in a VM")
	}
	kerneltest.NeedRoot(t)
	t.Parallel()
	t.Run("all", func(t *testing.T) { changeQueues(t, inheritCases(), "aababb") })
	t.Run("one more", func(t *testing.T) {
		cases := inheritCases()
		alone := slices.IndexFunc(cases, func(c inheritCase) bool { return c.name == "one more" })
		changeQueues(t, cases[alone:alone+1], "aabb")
	})
}

// changeQueues replaces the policy before the cases' change by each of steps: b is the policy
// before, a the one after the change. It meters packets of all cases before and after each step.
func changeQueues(t *testing.T, cases []inheritCase, steps string) {
	before, after := inheritPolicies(cases)
	h := newHooked(t, before, image.EgressEntry, nil)
	l, err := pipeline.New(before)
	if err != nil {
		t.Fatal(err)
	}
	var about record.About
	h.image.Describe(&about)
	r := rand.New(rand.NewPCG(1, 2))
	at := int64(0)
	compare := func(step string) {
		t.Helper()
		for i := range 200 * len(cases) {
			at += r.Int64N(900_000 / int64(len(cases)))
			k := r.IntN(len(cases))
			p := datagramTo(caseAddress(k), at, byte(r.IntN(2))<<2, 20+r.IntN(1400))
			var got, want dataplane.Verdict
			if err := h.run(&p, &got, skb{}); err != nil {
				t.Fatal(err)
			}
			l.Process(&p, &want)
			if got != want {
				t.Fatalf("%s, after steps %q, packet %d:\ngot  %+v\nwant %+v", cases[k].name, step, i, got,
					want)
			}
		}
	}
	compare("")
	for i, step := range steps {
		policy := map[rune]*dataplane.Policy{'a': after, 'b': before}[step]
		next, err := pipeline.New(policy)
		if err != nil {
			t.Fatal(err)
		}
		next.Inherit(l)
		l, h = next, h.successor(t, &about, policy)
		compare(steps[:i+1])
	}
}
