package pipeline_test

import (
	"fmt"
	"net/netip"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Each customer has a bucket of its own, whatever addresses it uses. A restart does not fill it.
func ExampleCustomers() {
	gold := &dataplane.ServicePlan{Name: "gold", Params: meter.TokenBucket{Rate: mega, Burst: 2500}}
	plan, err := compiled.Compile(&dataplane.Policy{
		Customers: &dataplane.Customers{Key: dataplane.ByDestination, List: []dataplane.Customer{
			{Name: "alice", Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/31")}, Plan: gold},
			{Name: "bob", Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.8/29")}, Plan: gold},
		}},
		Classes: []dataplane.Class{
			{Name: "customers", Match: dataplane.Match{Customer: true}, Meter: &dataplane.Meter{}},
			{Name: "strangers"},
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	pl := pipeline.FromPlan(plan)
	var v dataplane.Verdict
	send := func(to byte) {
		p := packet(0)
		copy(p.Data[30:], []byte{192, 0, 2, to})
		pl.Process(p, &v)
		name := "stranger"
		if v.Customer != 0 {
			name = plan.Customers.Source.List[v.Customer-1].Name
		}
		fmt.Println(name, v.Color)
	}
	for _, to := range []byte{0, 1, 1, 9, 77} {
		send(to)
	}
	saved := pl.AppendCustomers(nil, 0, 2)
	pl = pipeline.FromPlan(plan)
	if err := pl.RestoreCustomers(saved, 0); err != nil {
		fmt.Println(err)
	}
	send(0)
	// Output:
	// alice green
	// alice green
	// alice red
	// bob green
	// stranger green
	// alice red
}
