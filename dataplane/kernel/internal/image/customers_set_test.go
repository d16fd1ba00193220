package image

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestSetCustomers changes plans of customers at random, with ever new plans, some customers
// several times in one call, and compares the maps with the changes. If there is no room, it makes
// new maps, as a reload does.
func TestSetCustomers(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	const n = minSparePlans + 300
	next := int64(0)
	fresh := func() *dataplane.ServicePlan {
		next++
		return &dataplane.ServicePlan{
			Name: "plan", Params: meter.TokenBucket{Rate: meter.BitRate(1e6), Burst: 1000 + next},
		}
	}
	list, first := make([]dataplane.Customer, n), fresh()
	for i := range list {
		list[i] = dataplane.Customer{Name: fmt.Sprint(i), Plan: first}
	}
	encode := func() *Image {
		g, err := encoded(kerneltest.CustomerPolicy(list), IngressEntry, "")
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	maps, err := NewMaps()
	if err != nil {
		t.Fatal(err)
	}
	g := encode()
	if err := g.Initialize(maps); err != nil {
		t.Fatal(err)
	}
	var index *CustomerIndex // of maps; nil after they were replaced
	defer func() {
		index.Close()
		maps.Close()
	}()
	about := &record.About{Customers: g.Constants.Customers}
	remade := 0
	for round := range 60 {
		var changes []compiled.CustomerService
		services := map[*dataplane.ServicePlan]*compiled.Service{}
		encoded := map[*compiled.Service]bpf.ShaperPlan{}
		plans := []*dataplane.ServicePlan{first}
		for range 1 + r.IntN(300) {
			p := fresh()
			if r.IntN(4) == 0 {
				p = plans[r.IntN(len(plans))]
			}
			plans = append(plans, p)
			if services[p] == nil {
				plan := compileOne(t, p)
				services[p], encoded[plan] = plan,
					(&encoder{Image: &Image{entry: IngressEntry}}).service(plan)
			}
			i := r.IntN(n)
			if r.IntN(3) == 0 {
				i = r.IntN(3) // a few customers change several times
			}
			changes = append(changes, compiled.CustomerService{Name: list[i].Name, Plan: services[p]})
			list[i].Plan = p
		}
		var err error
		if index == nil {
			index, err = NewCustomerIndex(maps, time.Time{})
		}
		if err == nil {
			err = index.Set(changes, encoded, func(string) uint32 { return 0 }, nil)
		}
		if errors.Is(err, ErrNoRoom) {
			remade++
			index.Close()
			index = nil
			for range 500 { // so that there is room again
				list[r.IntN(n)].Plan = first
			}
			g, now := encode(), *maps
			err := errors.Join(now.makeCustomerMaps(g), g.copyCustomers(about, maps, &now, nil))
			if err != nil {
				t.Fatal(err)
			}
			maps.CloseExcept(&now)
			maps = &now
		} else if err != nil {
			t.Fatal(err)
		}
		table, err := maps.ReadCustomers()
		if err != nil {
			t.Fatal(err)
		}
		g := encode()
		for i := range list {
			found := table.find(CustomerID(list[i].Name))
			if found == nil || table.plans[found.Plan] != g.customerImage.plans[g.Plan.Customers.Of[i]] {
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
func compileOne(t *testing.T, p *dataplane.ServicePlan) *compiled.Service {
	t.Helper()
	plan, err := compiled.Compile(kerneltest.CustomerPolicy([]dataplane.Customer{{Name: "a", Plan: p}}))
	if plan == nil {
		t.Fatal(err)
	}
	return plan.Customers.Service(1)
}
