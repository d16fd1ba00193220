package policytest

import (
	"net/netip"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// rate and burst are those of most bases. Routers and tc can express them.
var rate = meter.BitRate(4_000_000)

const burst = 80_000 // bytes

// one returns a policy with one class.
func one(c dataplane.Class) *dataplane.Policy {
	c.Name = "c"
	return &dataplane.Policy{Classes: []dataplane.Class{c}}
}

// metered returns a policy with a class whose meter has a name.
func metered(m *dataplane.Meter) *dataplane.Policy {
	m.Name = "m"
	p := one(dataplane.Class{
		Match: dataplane.Match{Proto: []dataplane.Range{{First: 17, Last: 17}}},
		Meter: m,
	})
	p.Meters = []*dataplane.Meter{m}
	return p
}

// queued returns a policy with a class whose green packets go to a queue with the name of the class.
func queued(q *dataplane.Queue) *dataplane.Policy {
	q.Name = "c"
	p := one(dataplane.Class{Green: &dataplane.Action{Queue: q}})
	p.Queues = []*dataplane.Queue{q}
	if q.Link != nil && q.Link.Name != q.Name { // the own link of a fair queue need not be listed
		p.Links = []*dataplane.Link{q.Link}
	}
	return p
}

// withCustomers returns a policy with customers of one plan.
func withCustomers(
	key dataplane.CustomerKey, c dataplane.Customer, plan *dataplane.ServicePlan,
) *dataplane.Policy {
	plan.Name, c.Name, c.Plan = "gold", "alice", plan
	p := one(dataplane.Class{Match: dataplane.Match{Customer: true}, Meter: &dataplane.Meter{Name: "each"}})
	p.Classes = append(p.Classes, dataplane.Class{Name: "rest"})
	p.Customers = &dataplane.Customers{
		Key: key, Plans: []*dataplane.ServicePlan{plan}, List: []dataplane.Customer{c},
	}
	return p
}

// Bases returns the policies whose fields are set: together they contain a part of every type.
func Bases() []Base {
	early := queue.Early{
		Min: int64(30 * time.Millisecond), Max: int64(80 * time.Millisecond), Probability: queue.Certain / 10,
	}
	codel := queue.CoDel{Target: 5 * time.Millisecond, Interval: 100 * time.Millisecond}
	envelope := func(e dataplane.Envelope) *dataplane.Policy {
		e.Name = "e"
		flow := func(name string, rank int) *dataplane.Meter {
			return &dataplane.Meter{
				Name: name, Envelope: &e, Rank: rank, Packets: e.Packets,
				Params: meter.TRTCM4115{CIR: rate, CBS: burst, EIR: rate, EBS: burst},
			}
		}
		a, b := flow("a", 2), flow("b", 1)
		return &dataplane.Policy{
			Classes: []dataplane.Class{
				{Name: "a", Match: dataplane.Match{DSCP: []dataplane.Range{{First: 46, Last: 46}}}, Meter: a},
				{Name: "b", Meter: b},
			},
			Meters: []*dataplane.Meter{a, b}, Envelopes: []*dataplane.Envelope{&e},
		}
	}
	budget := func(s dataplane.Address) func() *dataplane.Policy {
		return func() *dataplane.Policy {
			return metered(&dataplane.Meter{
				Params: meter.TokenBucket{Rate: rate, Burst: burst},
				Budget: &dataplane.Budget{Name: "office", Address: s},
			})
		}
	}
	bases := []Base{
		{"class", func() *dataplane.Policy { return one(dataplane.Class{}) }},
		{"class of UDP", func() *dataplane.Policy {
			return one(
				dataplane.Class{Match: dataplane.Match{Proto: []dataplane.Range{{First: 17, Last: 17}}}})
		}},
		{"action", func() *dataplane.Policy {
			return one(dataplane.Class{
				Match: dataplane.Match{Src: prefix},
				Green: &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 10}}},
			})
		}},
		{"actions of a meter", func() *dataplane.Policy {
			p := metered(&dataplane.Meter{
				Params: meter.TRTCM{CIR: rate, CBS: burst, PIR: meter.BitRate(5e6), PBS: burst},
			})
			p.Classes[0].Green, p.Classes[0].Yellow, p.Classes[0].Red = &dataplane.Action{},
				&dataplane.Action{}, &dataplane.Action{}
			return p
		}},
		{"keys", func() *dataplane.Policy {
			return metered(&dataplane.Meter{
				Params: meter.TokenBucket{Rate: rate, Burst: burst}, Per: dataplane.Key{By: dataplane.BySrc},
			})
		}},
		{"aware", func() *dataplane.Policy {
			return metered(&dataplane.Meter{Params: meter.TokenBucket{Rate: rate, Burst: burst}, Aware: true})
		}},
		{"chain", func() *dataplane.Policy {
			then := &dataplane.Meter{
				Name: "sum", Params: meter.TokenBucket{Rate: rate, Burst: burst}, Aware: true,
			}
			p := metered(&dataplane.Meter{Params: meter.TokenBucket{Rate: rate, Burst: burst}, Then: then})
			p.Meters = append(p.Meters, then)
			return p
		}},
		{"envelope", func() *dataplane.Policy {
			return envelope(dataplane.Envelope{CIRMax: rate, EIRMax: rate})
		}},
		{"envelope in packets", func() *dataplane.Policy {
			return envelope(dataplane.Envelope{CIRMax: rate, Packets: true})
		}},
		{"envelope without limits", func() *dataplane.Policy { return envelope(dataplane.Envelope{}) }},
		{"budget of the host", budget(dataplane.Address{})},
		{"budget on a server", budget(dataplane.Address{URL: "rediss://user@192.0.2.1:6379/0"})},
		{"queue", func() *dataplane.Policy {
			return queued(&dataplane.Queue{Config: queue.Config{Rate: rate, Packets: 100}})
		}},
		{"queue with a time", func() *dataplane.Policy {
			return queued(&dataplane.Queue{Config: queue.Config{Rate: rate, Time: 100 * time.Millisecond}})
		}},
		{"wred", func() *dataplane.Policy {
			return queued(&dataplane.Queue{Config: queue.Config{
				Rate: rate, Time: 100 * time.Millisecond, WRED: [3]queue.Early{early, early, early},
			}})
		}},
		{"codel", func() *dataplane.Policy {
			return queued(&dataplane.Queue{Config: queue.Config{Rate: rate, Packets: 100, CoDel: codel}})
		}},
		{"link", func() *dataplane.Policy {
			link := &dataplane.Link{Name: "l", Rate: rate}
			p := queued(&dataplane.Queue{Link: link, Config: queue.Config{Packets: 100}})
			q := &dataplane.Queue{Name: "rest", Link: link, Config: queue.Config{Packets: 100}}
			p.Queues = append(p.Queues, q)
			p.Classes[0].Match.Proto = []dataplane.Range{{First: 17, Last: 17}}
			p.Classes = append(p.Classes, dataplane.Class{Name: "rest", Green: &dataplane.Action{Queue: q}})
			return p
		}},
		{"tree", func() *dataplane.Policy {
			site := &dataplane.Link{Name: "site", Rate: rate}
			ap := &dataplane.Link{Name: "ap", Link: site}
			p := queued(&dataplane.Queue{Link: ap, Config: queue.Config{Packets: 100}})
			rest := &dataplane.Queue{Name: "rest", Link: site, Config: queue.Config{Packets: 100}}
			p.Links = []*dataplane.Link{site, ap}
			p.Queues = append(p.Queues, rest)
			p.Classes[0].Match.Proto = []dataplane.Range{{First: 17, Last: 17}}
			p.Classes = append(p.Classes, dataplane.Class{Name: "rest", Green: &dataplane.Action{Queue: rest}})
			return p
		}},
		{"fair", func() *dataplane.Policy {
			return queued(&dataplane.Queue{
				Link: &dataplane.Link{Name: "c", Rate: rate}, Fair: dataplane.Key{By: dataplane.ByFlow},
				Config: queue.Config{Packets: 100},
			})
		}},
		{"fair to hosts", func() *dataplane.Policy {
			return queued(&dataplane.Queue{
				Link: &dataplane.Link{Name: "c", Rate: rate}, Fair: dataplane.Key{By: dataplane.ByFlow},
				Hosts: dataplane.Key{By: dataplane.ByDst}, Config: queue.Config{Packets: 100},
			})
		}},
		{"customers", func() *dataplane.Policy {
			return withCustomers(dataplane.ByInside, dataplane.Customer{Prefixes: prefix},
				&dataplane.ServicePlan{
					Params: meter.TRTCM{CIR: rate, CBS: burst, PIR: meter.BitRate(5e6), PBS: burst},
					Green:  &dataplane.Action{}, Yellow: &dataplane.Action{}, Red: &dataplane.Action{},
				})
		}},
		{"customers with queues", func() *dataplane.Policy {
			return withCustomers(dataplane.ByOuterVLAN, dataplane.Customer{IDs: []uint64{5}},
				&dataplane.ServicePlan{Queue: &queue.Config{Rate: rate, Time: 50 * time.Millisecond}})
		}},
	}
	bases = append(bases, Base{"customers on a link", func() *dataplane.Policy {
		site := &dataplane.Link{Name: "site", Rate: rate}
		ap := &dataplane.Link{Name: "ap", Link: site}
		p := withCustomers(dataplane.ByInside, dataplane.Customer{Prefixes: prefix}, &dataplane.ServicePlan{
			Queue: &queue.Config{Rate: rate, Time: 50 * time.Millisecond}, Link: ap,
			Fair: dataplane.Key{By: dataplane.ByFlow},
		})
		rest := &dataplane.Queue{Name: "rest", Link: ap, Config: queue.Config{Packets: 100}}
		p.Links, p.Queues = []*dataplane.Link{site, ap}, []*dataplane.Queue{rest}
		p.Classes[1].Green = &dataplane.Action{Queue: rest}
		return p
	}})
	bases = append(bases, Base{"customers by cgroup", func() *dataplane.Policy {
		p := withCustomers(dataplane.CustomerByCgroup, dataplane.Customer{IDs: []uint64{0}},
			&dataplane.ServicePlan{Params: meter.TokenBucket{Rate: rate, Burst: burst}})
		p.Customers.Cgroups = []string{"/"}
		return p
	}})
	bases = append(bases, inBothDirections()...)
	for _, kind := range meter.Kinds() {
		bases = append(bases, Base{kind.String(), func() *dataplane.Policy {
			p := metered(&dataplane.Meter{Params: Params(kind)})
			p.Meters = nil
			p.Classes[0].Meter.Name = "c"
			return p
		}})
	}
	return bases
}

// prefix is the address of a customer.
var prefix = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}

// inBothDirections returns policies whose plans may differ by direction.
func inBothDirections() []Base {
	queued := func(link *dataplane.Link) *dataplane.Policy {
		config := &queue.Config{Rate: rate, Time: 50 * time.Millisecond, CoDel: queue.CoDelAt(rate)}
		up := *config
		up.Rate = meter.BitRate(2_000_000)
		p := withCustomers(dataplane.ByInside, dataplane.Customer{Prefixes: prefix}, &dataplane.ServicePlan{
			Queue: config, Link: link, Up: &dataplane.UpwardPlan{Queue: &up},
		})
		if link != nil {
			rest := &dataplane.Queue{Name: "rest", Link: link, Weight: 9, Config: queue.Config{Packets: 100}}
			p.Links, p.Queues = []*dataplane.Link{link}, []*dataplane.Queue{rest}
			p.Classes[1].Green = &dataplane.Action{Queue: rest}
		}
		return p
	}
	return []Base{
		{"queue in both directions", func() *dataplane.Policy { return queued(nil) }},
		{"queue on a link in both directions", func() *dataplane.Policy {
			return queued(&dataplane.Link{Name: "ap", Rate: rate})
		}},
		{"meter in both directions", func() *dataplane.Policy {
			params := meter.TRTCM{CIR: rate, CBS: burst, PIR: meter.BitRate(8_000_000), PBS: burst}
			up := params
			up.CIR = meter.BitRate(2_000_000)
			return withCustomers(dataplane.ByInside, dataplane.Customer{Prefixes: prefix},
				&dataplane.ServicePlan{Params: params, Up: &dataplane.UpwardPlan{Params: up}})
		}},
	}
}

// Params returns parameters of a kind that compile. Required ones have a value by their type:
// rates are rate, numbers of bytes burst, and times a second. The second rate is above the first.
func Params(kind meter.Kind) meter.Params {
	info := kind.Info()
	p := info.Defaults
	for i, name := range info.Required {
		switch meter.Field(p, name).(type) {
		case meter.Rate:
			p = meter.WithField(p, name, meter.BitRate(rate.Bytes*8e9/int64(rate.Period)+int64(i)*800_000))
		case int64:
			p = meter.WithField(p, name, int64(burst))
		case time.Duration:
			p = meter.WithField(p, name, time.Second)
		}
	}
	return p
}
