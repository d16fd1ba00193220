package compiled_test

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/policytest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// eachPolicy calls f for each policy in which one field of a base is set. make returns a new copy.
func eachPolicy(f func(name string, policy func() *dataplane.Policy)) {
	for _, b := range policytest.Bases() {
		f(b.Name, b.New)
		for _, s := range b.Settings() {
			f(b.Name+": "+s.String(), func() *dataplane.Policy { return b.With(s) })
		}
	}
}

// TestRatesAreCompiled checks that WithRates returns the plan of the policy with the other rates, whatever
// field of the policy is set.
func TestRatesAreCompiled(t *testing.T) {
	t.Parallel()
	compared, refused := 0, 0
	eachPolicy(func(name string, policy func() *dataplane.Policy) {
		for _, rate := range []meter.Rate{
			meter.BitRate(9_000), meter.BitRate(123_000_000),
			{Bytes: 1, Period: time.Hour},
			{Bytes: math.MaxInt64, Period: time.Nanosecond},
			{},
		} {
			changed := policy()
			queues, links := setRates(changed, rate)
			if len(queues)+len(links) == 0 {
				continue
			}
			plan, err := compiled.Compile(policy())
			if err != nil {
				t.Fatal(err)
			}
			got, gotErr := plan.WithRates(queues, links)
			want, wantErr := compiled.Compile(changed)
			if gotErr != nil || wantErr != nil {
				if refused++; gotErr == nil || wantErr == nil {
					t.Errorf("%s: at %v: got error %v, want %v", name, rate, gotErr, wantErr)
				}
				continue
			}
			compared++
			dropSources(reflect.ValueOf(got))
			dropSources(reflect.ValueOf(want))
			if up := got.Up; up != nil && want.Up == nil { // the rates that differed have been changed
				dropUp(got)
				if !reflect.DeepEqual(up, want) {
					t.Errorf("%s: at %v: up: got\n%+v, want\n%+v", name, rate, up, want)
				}
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: at %v: got\n%+v, want\n%+v", name, rate, got, want)
			}
		}
	})
	t.Logf("compared %d, refused %d", compared, refused)
}

// dropUp makes a plan one of a single direction.
func dropUp(p *compiled.Plan) {
	p.Up = nil
	if p.Customers != nil {
		for i := range p.Customers.Plans {
			p.Customers.Plans[i].Up = nil
		}
	}
}

// setRates changes the rates of all queues and links of a policy, and returns them by name.
func setRates(p *dataplane.Policy, rate meter.Rate) (queues, links map[string]meter.Rate) {
	queues, links = map[string]meter.Rate{}, map[string]meter.Rate{}
	seen := map[*dataplane.Queue]bool{}
	for _, c := range p.Classes {
		for _, a := range []*dataplane.Action{c.Green, c.Yellow, c.Red} {
			if a == nil || a.Queue == nil || seen[a.Queue] {
				continue
			}
			q := a.Queue
			if seen[q] = true; q.Link != nil {
				q.Link.Rate, links[q.Link.Name] = rate, rate
				q.Link.Up.Rate = meter.Rate{}
			} else {
				q.Rate, queues[q.Name] = rate, rate
				q.Up.Rate = meter.Rate{}
			}
			if q.TargetAtRate {
				q.CoDel.Target = queue.CoDelAt(rate).Target
			}
			if q.IntervalAtRate {
				q.CoDel.Interval = queue.CoDelAt(rate).Interval
			}
		}
	}
	return queues, links
}

// TestServicesAreCompiled checks that a plan with a Variant is that of the policy with the other
// parameters, whatever field of the policy is set.
func TestServicesAreCompiled(t *testing.T) {
	t.Parallel()
	compared := 0
	eachPolicy(func(name string, policy func() *dataplane.Policy) {
		changed := policy()
		if changed.Customers == nil || len(changed.Customers.List) == 0 {
			return
		}
		to := changed.Customers.List[0].Plan
		if to.Params != nil {
			info, _ := to.Params.Profile()
			to.Params = policytest.Params(info.Kind())
		} else {
			to.Queue.Rate, to.Queue.Time = meter.BitRate(123_000), 2*to.Queue.Time
		}
		original := policy()
		plan, err := compiled.Compile(original)
		if err != nil {
			t.Fatal(err)
		}
		from := *to
		from.Link = original.Customers.List[0].Plan.Link
		variant, err := plan.Variant(plan.Customers.Service(1), &from, false)
		want, wantErr := compiled.Compile(changed)
		if err != nil || wantErr != nil {
			if err == nil || wantErr == nil {
				t.Errorf("%s: got error %v, want %v", name, err, wantErr)
			}
			return
		}
		got := plan.WithServices(map[uint32]*compiled.Service{1: variant})
		compared++
		dropSources(reflect.ValueOf(got))
		dropSources(reflect.ValueOf(want))
		if !reflect.DeepEqual(got.Customers.Service(1), want.Customers.Service(1)) {
			t.Errorf("%s: got\n%+v, want\n%+v", name, got.Customers.Service(1), want.Customers.Service(1))
		}
		// The former plan stays in the list, as other customers may have it.
		got.Customers.Plans, got.Customers.Of = want.Customers.Plans, want.Customers.Of
		if got.Up != nil && want.Up != nil {
			got.Up.Customers.Plans, got.Up.Customers.Of = want.Up.Customers.Plans, want.Up.Customers.Of
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got\n%+v, want\n%+v", name, got, want)
		}
	})
	t.Logf("compared %d", compared)
}

// TestVariantOfAnotherTreatment checks that a plan with a meter gets no variant with a queue, and the
// reverse: the planes hold the state of one of them.
func TestVariantOfAnotherTreatment(t *testing.T) {
	t.Parallel()
	metered := &dataplane.ServicePlan{
		Name: "metered", Params: meter.TokenBucket{Rate: meter.BitRate(1e6), Burst: 9000},
	}
	queued := &dataplane.ServicePlan{
		Name: "queued", Queue: &queue.Config{Rate: meter.BitRate(1e6), Time: 50 * time.Millisecond},
	}
	p := &dataplane.Policy{
		Classes:   []dataplane.Class{{Name: "all"}},
		Customers: &dataplane.Customers{Plans: []*dataplane.ServicePlan{metered, queued}},
	}
	plan, err := compiled.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	for i, other := range []*dataplane.ServicePlan{queued, metered} {
		if v, err := plan.Variant(&plan.Customers.Plans[i], other, false); err == nil {
			t.Errorf("%s as %s: got %+v, want an error", other.Name, plan.Customers.Plans[i].Name, v)
		}
	}
}
