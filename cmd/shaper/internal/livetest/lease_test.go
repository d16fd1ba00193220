package livetest

import (
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// leasedPolicy returns a policy whose first meter follows the leases of a budget, with further
// classes after it.
func leasedPolicy(classes int) *dataplane.Policy {
	p := policyOfClasses(classes)
	m := &dataplane.Meter{Name: "m", Params: meter.TokenBucket{Rate: meter.BitRate(1e6), Burst: 1e6}}
	m.Budget = &dataplane.Budget{Name: "customer", Address: dataplane.Address{URL: "redis://server"}}
	match := dataplane.Match{Proto: []dataplane.Range{{First: 253, Last: 253}}}
	p.Classes = append([]dataplane.Class{{Name: "customer", Match: match, Meter: m}}, p.Classes...)
	return p
}

// TestLiveLease checks that a meter passes what its lease allows, that a reload keeps lease and
// tokens even in larger maps, and that a lease ends without any process.
func TestLiveLease(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	var s *kernel.Shaper
	p.near.Do(func() {
		var err error
		s, _, err = kernel.Attach(kernel.Config{Interface: "v0", Direction: kernel.Egress, Hook: kernel.TC},
			compilePlan(t, leasedPolicy(1)))
		if err != nil {
			t.Fatal(err)
		}
	})
	passed := func(n int) int {
		before := p.bytesSentBy("v0")
		p.near.Inject("v0", budgetFrames[:n]...)
		return int(p.bytesSentBy("v0")-before) / budgetFrame
	}
	passes := func(n, want int) {
		t.Helper()
		if got := passed(n); got != want {
			t.Errorf("%d of %d frames passed: want %d", got, n, want)
		}
	}
	give := func(until int64, first, then compiled.BucketLimit) {
		t.Helper()
		l := compiled.Lease{
			Limits: [3]compiled.BucketLimits{{first}, {then}, {}}, Until: [2]int64{until, until + 1e12},
		}
		if err := s.SetLease("customer", l); err != nil {
			t.Fatal(err)
		}
		if err := s.SetLease("of another", l); err != nil {
			t.Error(err)
		}
	}
	asked := func(green, red uint64) {
		t.Helper()
		got, err := s.Demand("customer")
		if want := [3]uint64{green, 0, red}; err != nil || got != want {
			t.Errorf("packets that needed tokens: %v, %v: want %v", got, err, want)
		}
	}
	tokens := func(most int64) {
		t.Helper()
		got, err := s.Tokens()
		if err != nil || len(got) == 0 || got[0][0] > most+budgetFrame/10 || got[0][0] < most-budgetFrame/10 {
			t.Errorf("tokens %v, %v: want about %d", got, err, most)
		}
	}
	const never = int64(1) << 62
	quick, slow := compiled.BucketLimit{Rate: 8e12, Burst: 3 * budgetFrame},
		compiled.BucketLimit{Rate: 8, Burst: 3 * budgetFrame}
	passes(1, 0) // before the first lease
	asked(0, budgetFrame)
	give(never, quick, slow)
	time.Sleep(time.Millisecond) // the bucket fills at once
	give(never, slow, slow)
	passes(2, 2)
	tokens(budgetFrame)
	reload := func(policy *dataplane.Policy) {
		t.Helper()
		p.near.Do(func() {
			if _, err := s.Reload(compilePlan(t, policy), nil, time.Time{}); err != nil {
				t.Fatal(err)
			}
		})
	}
	reload(leasedPolicy(3))
	tokens(budgetFrame)
	many := leasedPolicy(1)
	for i := range 40 { // more budgets than fit into the map
		m := *many.Classes[0].Meter
		m.Budget = &dataplane.Budget{
			Name: "another" + string(rune('a'+i%26)) + string(rune('a'+i/26)), Address: m.Budget.Address,
		}
		many.Classes = append(many.Classes,
			dataplane.Class{Name: m.Budget.Name, Match: many.Classes[0].Match, Meter: &m})
	}
	reload(many)
	tokens(budgetFrame)
	passes(2, 1)
	asked(3*budgetFrame, 2*budgetFrame)

	// It ends automatically, and the planned next lease applies.
	for length := int64(300e6); ; length *= 2 {
		until := monotonicNow(t) + length
		give(until, quick, slow)
		time.Sleep(time.Millisecond)
		got := passed(3)
		time.Sleep(time.Millisecond)
		if monotonicNow(t) > until {
			continue // the machine stood still until the phase had ended
		}
		if got != 3 {
			t.Errorf("%d of 3 frames passed in the first phase", got)
		}
		time.Sleep(time.Duration(until - monotonicNow(t)))
		passes(6, 3) // the bucket's tokens
		passes(3, 0)
		break
	}
	p.near.Do(func() {
		if err := s.Detach(); err != nil {
			t.Error(err)
		}
		s.Close()
	})
}

// compilePlan returns the plan of a policy.
func compilePlan(t *testing.T, policy *dataplane.Policy) *compiled.Plan {
	t.Helper()
	plan, err := compiled.Compile(policy)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}
