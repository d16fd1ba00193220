package compiled

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// validCustomers returns a policy with three customers and two plans.
func validCustomers() *dataplane.Policy {
	bucket, paced := frametest.BucketPlan("bucket", 1500),
		&dataplane.ServicePlan{Name: "paced", Queue: &queue.Config{Rate: frametest.Mega, Time: time.Second}}
	return frametest.CustomersPolicy(&dataplane.Customers{Plans: []*dataplane.ServicePlan{
		bucket, paced,
	}, List: []dataplane.Customer{
		{Name: "one", Prefixes: frametest.Prefixes("192.0.2.0/24", "192.0.2.7/32", "2001:db8::/32"), Plan: bucket},
		{Name: "two", Prefixes: frametest.Prefixes("198.51.100.1/32"), Plan: paced},
		{Name: "three", Plan: paced},
	}})
}

// validVLANs is validCustomers by VLAN.
func validVLANs(key dataplane.CustomerKey) func() *dataplane.Policy {
	return func() *dataplane.Policy {
		p := validCustomers()
		p.Customers.Key = key
		for i := range p.Customers.List {
			p.Customers.List[i].Prefixes, p.Customers.List[i].IDs = nil, []uint64{uint64(i)}
		}
		return p
	}
}

// TestInvalidCustomers makes one part of a valid policy invalid at a time.
func TestInvalidCustomers(t *testing.T) {
	name64 := strings.Repeat("ü", 64)
	list := func(edit func(list []dataplane.Customer)) func(*dataplane.Policy) {
		return func(p *dataplane.Policy) { edit(p.Customers.List) }
	}
	first := func(edit func(c *dataplane.Customer)) func(*dataplane.Policy) {
		return func(p *dataplane.Policy) { edit(&p.Customers.List[0]) }
	}
	address := func(texts ...string) func(*dataplane.Policy) {
		return first(func(c *dataplane.Customer) { c.Prefixes = frametest.Prefixes(texts...) })
	}
	plan := func(edit func(p *dataplane.ServicePlan)) func(*dataplane.Policy) {
		return func(p *dataplane.Policy) { edit(p.Customers.Plans[0]) }
	}
	paced := func(edit func(c *queue.Config)) func(*dataplane.Policy) {
		return func(p *dataplane.Policy) { edit(p.Customers.Plans[1].Queue) }
	}
	share := func(edit func(p *dataplane.Policy)) func(*dataplane.Policy) {
		return func(p *dataplane.Policy) {
			p.Customers.Plans[1].Guarantee = frametest.Mega
			if edit != nil {
				edit(p)
			}
		}
	}
	stage := func(edit func(m *dataplane.Meter)) func(*dataplane.Policy) {
		return func(p *dataplane.Policy) { edit(p.Classes[0].Meter) }
	}
	byVLAN, byTwo := validVLANs(dataplane.ByOuterVLAN), validVLANs(dataplane.ByTwoVLANs)
	for _, test := range []struct {
		name  string
		valid func() *dataplane.Policy
		spoil func(p *dataplane.Policy)
		want  []string // no entries: still valid
	}{
		{"valid", validCustomers, func(*dataplane.Policy) {}, nil},
		{"by VLAN", byVLAN, func(*dataplane.Policy) {}, nil},
		{"by two VLANs", byTwo, func(*dataplane.Policy) {}, nil},
		{"unknown key", validCustomers, func(p *dataplane.Policy) { p.Customers.Key = dataplane.CustomerByCgroup + 1 }, []string{
			"key: is unknown: use ByInside, BySource, ByDestination, ByOuterVLAN, ByTwoVLANs, CustomerByMAC, CustomerByVLANMAC, CustomerByVNI, CustomerByTEID, CustomerByInner, CustomerByMark or CustomerByCgroup",
		}},
		{"too many", validCustomers, func(p *dataplane.Policy) { p.Customers.List = make([]dataplane.Customer, dataplane.MaxCustomers+1) }, []string{
			"file: has 1048577 customers: at most 1048576 are allowed",
		}},

		{"no name", validCustomers, first(func(c *dataplane.Customer) { c.Name = "" }), []string{`customer "": customer: is empty: give the customer a name`}},
		{"longest name", validCustomers, first(func(c *dataplane.Customer) { c.Name = name64 }), nil},
		{"long name", validCustomers, first(func(c *dataplane.Customer) { c.Name = name64 + "x" }), []string{
			`customer "` + name64 + `x": customer: "` + name64 + `x" is not a name of 1 to 64 printable characters`,
		}},
		{"name with a newline", validCustomers, first(func(c *dataplane.Customer) { c.Name = "a\nb" }), []string{
			`customer "a\nb": customer: "a\nb" is not a name of 1 to 64 printable characters`,
		}},
		{"duplicate name", validCustomers, list(func(l []dataplane.Customer) { l[2].Name = "one" }), []string{
			`customer "one": customer: "one" is the name of an earlier customer: names must differ`,
		}},
		{"no plan", validCustomers, first(func(c *dataplane.Customer) { c.Plan = nil }), []string{`customer "one": plan: is missing: name one`}},

		{"invalid prefix", validCustomers, first(func(c *dataplane.Customer) { c.Prefixes[1] = netip.Prefix{} }), []string{
			`customer "one": address: contains an invalid prefix`,
		}},
		{"IPv4 in IPv6", validCustomers, address("::ffff:192.0.2.0/120"), []string{`customer "one": address: ::ffff:192.0.2.0/120 is not a plain IPv4 or IPv6 prefix`}},
		{"host bits", validCustomers, address("192.0.2.1/24", "2001:db8::1/64"), []string{
			`customer "one": address: 192.0.2.1/24 has bits after its length: write 192.0.2.0/24`,
			`customer "one": address: 2001:db8::1/64 has bits after its length: write 2001:db8::/64`,
		}},
		{"duplicate address", validCustomers, address("198.51.100.1/32"), []string{`customer "two": address: 198.51.100.1 belongs to customer "one" too`}},
		{"duplicate address of one customer", validCustomers, address("192.0.2.1/32", "192.0.2.1/32"), nil},
		{"duplicate prefix", validCustomers, list(func(l []dataplane.Customer) { l[2].Prefixes = frametest.Prefixes("2001:db8::/32") }), []string{`customer "three": address: 2001:db8::/32 belongs to customer "one" too`}},
		{"duplicate prefix in spite of nested", validCustomers, func(p *dataplane.Policy) {
			p.Customers.Nested, p.Customers.List[2].Prefixes = true, frametest.Prefixes("2001:db8::/32")
		}, []string{`customer "three": address: 2001:db8::/32 belongs to customer "one" too`}},
		{"nested address", validCustomers, list(func(l []dataplane.Customer) { l[2].Prefixes = frametest.Prefixes("192.0.2.255/32") }), []string{
			`customer "three": address: 192.0.2.255 lies inside 192.0.2.0/24 of customer "one": set nested: true to allow it`,
		}},
		{"beside a prefix", validCustomers, list(func(l []dataplane.Customer) {
			l[2].Prefixes = frametest.Prefixes("192.0.1.255/32", "192.0.3.0/32", "2001:db9::/32")
		}), nil},
		{"around two customers", validCustomers, list(func(l []dataplane.Customer) { l[2].Prefixes = frametest.Prefixes("0.0.0.0/0") }), []string{
			`customer "one": address: 192.0.2.0/24 lies inside 0.0.0.0/0 of customer "three": set nested: true to allow it`,
			`customer "two": address: 198.51.100.1 lies inside 0.0.0.0/0 of customer "three": set nested: true to allow it`,
		}},
		{"nested through the first one's own", validCustomers, list(func(l []dataplane.Customer) {
			l[2].Prefixes = frametest.Prefixes("192.0.2.7/32")
			l[0].Prefixes = frametest.Prefixes("192.0.2.0/24", "192.0.2.0/25")
		}), []string{
			`customer "three": address: 192.0.2.7 lies inside 192.0.2.0/25 of customer "one": set nested: true to allow it`,
		}},
		{"nested", validCustomers, func(p *dataplane.Policy) {
			p.Customers.Nested, p.Customers.List[2].Prefixes = true,
				frametest.Prefixes("0.0.0.0/0", "::/0", "192.0.2.8/29")
		}, nil},
		{"VLAN by address", validCustomers, first(func(c *dataplane.Customer) { c.IDs = []uint64{1} }), []string{`customer "one": ids: are given, but customers are known by address`}},

		{"address by VLAN", byVLAN, address("192.0.2.1/32"), []string{`customer "one": address: is given, but customers are known by vlan`}},
		{"largest VLAN", byVLAN, first(func(c *dataplane.Customer) { c.IDs = []uint64{4095, 0, 4095} }), nil},
		{"VLAN above the largest", byVLAN, first(func(c *dataplane.Customer) { c.IDs = []uint64{4096} }), []string{`customer "one": vlan: 4096 is above 4095`}},
		{"largest pair", byTwo, first(func(c *dataplane.Customer) { c.IDs = []uint64{1<<24 - 1} }), nil},
		{"pair above the largest", byTwo, first(func(c *dataplane.Customer) { c.IDs = []uint64{1 << 24} }), []string{`customer "one": vlan: 16777216 is above 16777215`}},
		{"duplicate VLAN", byVLAN, first(func(c *dataplane.Customer) { c.IDs = []uint64{2} }), []string{`customer "three": vlan: 2 belongs to customer "one" too`}},
		{"duplicate pair", byTwo, list(func(l []dataplane.Customer) { l[0].IDs, l[1].IDs = []uint64{7<<12 | 9}, []uint64{7<<12 | 9} }), []string{
			`customer "two": vlan: 7, 9 belongs to customer "one" too`,
		}},

		{"duplicate plan", validCustomers, plan(func(p *dataplane.ServicePlan) { p.Name = "paced" }), []string{
			`plan "paced": name: "paced" is the name of an earlier plan: plan names must differ`,
		}},
		{"empty plan", validCustomers, plan(func(p *dataplane.ServicePlan) { p.Params = nil }), []string{`plan "bucket": type: is missing: give the plan a type and its parameters, or a queue`}},
		{"meter and queue", validCustomers, plan(func(p *dataplane.ServicePlan) { p.Queue = &queue.Config{Rate: frametest.Mega, Time: time.Second} }), []string{
			`plan "bucket": queue: cannot be combined with a meter`,
		}},
		{"parameters", validCustomers, plan(func(p *dataplane.ServicePlan) { p.Params = meter.TokenBucket{Rate: frametest.Mega} }), []string{`plan "bucket": burst: must be above zero`}},
		{"parameters of a plan without customers", validCustomers, func(p *dataplane.Policy) {
			p.Customers.Plans = append(p.Customers.Plans,
				&dataplane.ServicePlan{Name: "idle", Params: meter.TokenBucket{Rate: frametest.Mega}})
		}, []string{`plan "idle": burst: must be above zero`}},
		{"parameters of one customer", validCustomers, func(p *dataplane.Policy) {
			p.Customers.List[2].Plan = &dataplane.ServicePlan{
				Name: "bucket", Params: meter.TokenBucket{Rate: frametest.Mega},
			}
		}, []string{`plan "bucket": burst: must be above zero`}},
		{"action", validCustomers, plan(func(p *dataplane.ServicePlan) {
			p.Yellow = &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 64}}}
		}), []string{"dscp: 64 is above 63"}},
		{"limit in bytes", validCustomers, paced(func(c *queue.Config) { c.Time, c.Bytes = 0, 1500 }), []string{`plan "paced": limit: must be a time, such as 50ms`}},
		{"limit in packets too", validCustomers, paced(func(c *queue.Config) { c.Packets = 9 }), []string{`plan "paced": limit: must be a time, such as 50ms`}},
		{"WRED", validCustomers, paced(func(c *queue.Config) { c.WRED[1] = queue.Early{Min: 1, Max: 2, Probability: 3} }), []string{
			`plan "paced": wred: is not for queues of customers: use codel`,
		}},
		{"CoDel", validCustomers, paced(func(c *queue.Config) { c.CoDel = queue.CoDel{Target: time.Millisecond, Interval: time.Second} }), nil},

		{"guarantee without links", validCustomers, share(nil), []string{
			`plan "paced": link: is missing: guarantee, priority and weight are for a queue on a link`,
			`customer "two": link: is missing: guarantee, priority and weight are for a queue on a link`,
			`customer "three": link: is missing: guarantee, priority and weight are for a queue on a link`,
		}},
		{"guarantee above the rate, no customers", validCustomers, share(func(p *dataplane.Policy) {
			p.Links = []*dataplane.Link{{Name: "l", Rate: frametest.Mega}}
			p.Customers.Plans[1].Guarantee = meter.BitRate(8e6 + 1)
			p.Customers.List = p.Customers.List[:1]
		}), []string{`plan "paced": guarantee: of 8000001bit is above the rate of 8mbit`}},

		{"no customers", validCustomers, func(p *dataplane.Policy) {
			p.Customers, p.Classes = nil, []dataplane.Class{
				{Name: "a", Match: dataplane.Match{Customer: true}},
			}
		}, []string{
			`class "a": per: customer needs the customers of the policy`,
		}},
		{"plans of strangers", validCustomers, func(p *dataplane.Policy) { p.Classes[1].Meter = &dataplane.Meter{Name: "m"} }, []string{
			`meter "m": type: is missing: give the meter a type and its parameters`,
		}},
		{"plans of customers for strangers", validCustomers, func(p *dataplane.Policy) { p.Classes[1].Meter = p.Classes[0].Meter }, []string{
			`class "strangers": meter: has no type, and the class takes packets that have no customer`,
		}},
		{"keys", validCustomers, stage(func(m *dataplane.Meter) { m.Per.By = dataplane.BySrc }), []string{`meter "": per: cannot be combined with the plans of customers`}},
		{"envelope", validCustomers, stage(func(m *dataplane.Meter) { m.Envelope = &dataplane.Envelope{} }), []string{`meter "": envelope: cannot be combined with the plans of customers`}},
		{"rate of an envelope", validCustomers, stage(func(m *dataplane.Meter) { m.CIRMax = &frametest.Mega }), []string{`meter "": envelope: cannot be combined with the plans of customers`}},
		{"budget", validCustomers, stage(func(m *dataplane.Meter) { m.Budget = &dataplane.Budget{} }), []string{`meter "": share: cannot be combined with the plans of customers`}},
		{"initial tokens", validCustomers, stage(func(m *dataplane.Meter) { m.Initial = dataplane.Fraction{Num: 1, Den: 2} }), []string{
			`meter "": initial: cannot be combined with the plans of customers: their buckets start full`,
		}},
		{"packets and bytes", validCustomers, func(p *dataplane.Policy) {
			p.Classes = append([]dataplane.Class{{
				Name: "a", Match: dataplane.Match{Customer: true, DSCP: frametest.Values(1)},
				Meter: &dataplane.Meter{Name: "m", Packets: true},
			}}, p.Classes...)
		}, []string{
			`meter "": count: differs from that of another class of customers: they share the meters of customers`,
		}},
		{"several classes", validCustomers, func(p *dataplane.Policy) {
			p.Classes = append([]dataplane.Class{{
				Name: "a", Match: dataplane.Match{Customer: true, DSCP: frametest.Values(1)},
				Meter: &dataplane.Meter{Name: "m", Aware: true},
			}}, p.Classes...)
		}, nil},
		{"customers later in a chain", validCustomers, func(p *dataplane.Policy) {
			p.Classes[1].Meter = &dataplane.Meter{
				Name: "m", Params: meter.TokenBucket{Rate: frametest.Mega, Burst: 1},
				Then: p.Classes[0].Meter,
			}
			p.Classes[0].Meter.Aware = true
		}, []string{`meter "m": then: leads to the plans of customers: they come first in a chain`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			defer frametest.NoPanic(t)
			p := test.valid()
			test.spoil(p)
			_, err := Compile(p)
			var got []string
			if err != nil {
				for _, e := range frametest.FieldErrors(t, err) {
					got = append(got, e.Error())
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
}

// TestManyInvalidCustomers checks that errors of customers beyond the bound are counted, and that those of
// the rest of the policy are reported, too.
func TestManyInvalidCustomers(t *testing.T) {
	p := validCustomers()
	p.Customers.List = nil
	for i := range maxCustomerErrors + 500 {
		p.Customers.List = append(p.Customers.List,
			dataplane.Customer{Name: fmt.Sprint(i), Plan: p.Customers.Plans[0], IDs: []uint64{1}})
	}
	p.Customers.Plans[1].Queue.Time = -1
	p.Classes[1].Name = ""
	_, err := Compile(p)
	list := frametest.FieldErrors(t, err)
	customers, rest := 0, ""
	for _, e := range list {
		if e.Object == p.Customers {
			rest += e.Field + " " + e.Reason
		}
		if c, ok := e.Object.(*dataplane.Customer); ok {
			if c != &p.Customers.List[customers] {
				t.Fatalf("error %d is that of customer %q", customers, c.Name)
			}
			customers++
		}
	}
	if customers != maxCustomerErrors || len(list) < maxCustomerErrors+3 ||
		rest != "file has 500 more errors in its customers" {
		t.Errorf("got %d errors of customers among %d, and %q", customers, len(list), rest)
	}
}
