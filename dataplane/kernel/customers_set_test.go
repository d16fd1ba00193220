package kernel

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestSetCustomers changes plans of customers at random, with ever new plans, some customers
// several times in one call, and compares the maps with the changes. If there is no room, it makes
// new maps, as a reload does.
func TestSetCustomers(t *testing.T) {
	needRoot(t)
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	const n = minSparePlans + 300
	next := int64(0)
	fresh := func() *dataplane.ServicePlan {
		next++
		return &dataplane.ServicePlan{Name: "plan", Params: meter.TokenBucket{Rate: meter.BitRate(1e6), Burst: 1000 + next}}
	}
	list, first := make([]dataplane.Customer, n), fresh()
	for i := range list {
		list[i] = dataplane.Customer{Name: fmt.Sprint(i), Plan: first}
	}
	encode := func() *image {
		g, err := encodePolicy(customerPolicy(list), ingressEntry, "")
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	maps, err := newStateMaps()
	if err != nil {
		t.Fatal(err)
	}
	g := encode()
	if err := g.initialize(maps); err != nil {
		t.Fatal(err)
	}
	s := &Shaper{maps: maps}
	defer func() {
		s.index.close()
		s.maps.close()
	}()
	about := &About{Customers: g.constants.Customers}
	remade := 0
	for round := range 60 {
		var changes []dataplane.CustomerPlan
		services := map[*dataplane.ServicePlan]*dataplane.PlanService{}
		encoded := map[*dataplane.PlanService]bpf.ShaperPlan{}
		plans := []*dataplane.ServicePlan{first}
		for range 1 + r.IntN(300) {
			p := fresh()
			if r.IntN(4) == 0 {
				p = plans[r.IntN(len(plans))]
			}
			plans = append(plans, p)
			if services[p] == nil {
				plan := compileOne(t, p)
				services[p], encoded[plan] = plan, (&encoder{image: &image{entry: ingressEntry}}).service(plan)
			}
			i := r.IntN(n)
			if r.IntN(3) == 0 {
				i = r.IntN(3) // a few customers change several times
			}
			changes = append(changes, dataplane.CustomerPlan{Name: list[i].Name, Plan: services[p]})
			list[i].Plan = p
		}
		index, err := s.customerIndex()
		if err == nil {
			err = index.set(changes, encoded)
		}
		if errors.Is(err, ErrNoRoom) {
			remade++
			s.index.close()
			s.index = nil
			for range 500 { // so that there is room again
				list[r.IntN(n)].Plan = first
			}
			g, now := encode(), *s.maps
			if err := errors.Join(now.makeCustomerMaps(g), g.copyCustomers(about, s.maps, &now)); err != nil {
				t.Fatal(err)
			}
			s.maps.closeExcept(&now)
			s.maps = &now
		} else if err != nil {
			t.Fatal(err)
		}
		table, err := s.maps.readCustomers()
		if err != nil {
			t.Fatal(err)
		}
		g := encode()
		for i := range list {
			found := table.find(customerID(list[i].Name))
			if found == nil || table.plans[found.Plan] != g.customerImage.plans[g.plan.Customers.Of[i]] {
				t.Fatalf("round %d: customer %d has another plan", round, i)
			}
		}
	}
	if remade == 0 {
		t.Error("there was always room")
	}
	t.Logf("%d times with new maps", remade)
}

// compileOne compiles a plan of customers.
func compileOne(t *testing.T, p *dataplane.ServicePlan) *dataplane.PlanService {
	t.Helper()
	plan, err := dataplane.Compile(customerPolicy([]dataplane.Customer{{Name: "a", Plan: p}}))
	if plan == nil {
		t.Fatal(err)
	}
	return plan.Customers.Service(1)
}

// TestPrepareCustomerPlans checks that a change uses the index that was prepared for the attached
// policy, and that preparing it does not wait for a lock.
func TestPrepareCustomerPlans(t *testing.T) {
	needRoot(t)
	t.Parallel()
	service := &dataplane.ServicePlan{Name: "plan", Params: meter.TokenBucket{Rate: meter.BitRate(1e6), Burst: 1000}}
	plan := compiled(t, customerPolicy([]dataplane.Customer{{Name: "a", Plan: service}}))
	w := nettest.NewWire(t)
	w.Do(func() error {
		s, _, err := Attach(Config{Interface: "v0", Direction: Ingress, Hook: TC}, plan)
		if err != nil {
			return err
		}
		defer s.Close()
		defer func() { _ = s.Detach() }()
		lock, err := takeChangeLock(s.iface())
		if err != nil {
			return err
		}
		if err := errors.Join(s.PrepareCustomerPlans(), lock.Close()); err != nil || s.index != nil {
			t.Errorf("locked: prepared %v, error %v", s.index != nil, err)
		}
		for _, policy := range []string{"attached", "reloaded"} {
			if err := s.PrepareCustomerPlans(); err != nil {
				return err
			}
			prepared := s.index
			change := []dataplane.CustomerPlan{{Name: "a", Plan: plan.Customers.Service(1)}}
			if err := s.SetCustomerPlans(change); err != nil {
				return err
			}
			if prepared == nil || s.index != prepared || !prepared.loaded.Equal(s.Loaded) {
				t.Errorf("%s: the change read the customers again", policy)
			}
			if _, err := s.Reload(plan, nil, time.Time{}); err != nil {
				return err
			}
		}
		return nil
	})
}
