package kernel

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// BenchmarkLeaves measures 10,000 customers under 500 links: attach, a new rate of one customer, a move of
// one, a new rate of a link, and status.
func BenchmarkLeaves(b *testing.B) {
	kerneltest.NeedRoot(b)
	links := []*dataplane.Link{{Name: "site", Rate: meter.BitRate(10e9)}}
	for i := range 500 {
		l := &dataplane.Link{Name: fmt.Sprint("ap-", i), Link: links[0], Rate: meter.BitRate(200e6)}
		links = append(links, l)
	}
	planOf := func(link int, rate int64) *dataplane.ServicePlan {
		return &dataplane.ServicePlan{
			Name: "p", Link: links[1+link],
			Queue: &queue.Config{Rate: meter.BitRate(rate), Time: 100 * time.Millisecond},
		}
	}
	var list []dataplane.Customer
	for i := range 10_000 {
		addr := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		list = append(list, dataplane.Customer{
			Name: fmt.Sprint("c", i), Plan: planOf(i%500, 20e6),
			Prefixes: []netip.Prefix{netip.PrefixFrom(addr, 32)},
		})
	}
	policy := kerneltest.CustomerPolicy(list)
	policy.Links = links
	plan, err := compiled.Compile(policy)
	if err != nil {
		b.Fatal(err)
	}
	near, far := nettest.New(b), nettest.New(b)
	near.Veth(far)
	var s *Shaper
	in := func(f func() error) { // a benchmark runs in a goroutine of its own
		var err error
		near.Do(func() { err = f() })
		if err != nil {
			b.Error(err)
		}
	}
	began := time.Now()
	in(func() (err error) {
		if s, _, err = Attach(Config{Interface: "v0", Direction: Egress, Hook: TC}, plan); err != nil {
			return err
		}
		return s.PrepareCustomerPlans()
	})
	attach := time.Since(began)
	if s == nil {
		return
	}
	defer in(func() error {
		defer s.Close()
		return s.Detach()
	})
	of, n := plan.Customers.Service(7), 0
	set := func(link int, rate int64) error {
		n++
		service, err := plan.Variant(of, planOf(link, rate), false)
		if err != nil {
			return err
		}
		plan = plan.WithServices(map[uint32]*compiled.Service{7: service})
		return s.SetCustomerPlans([]compiled.CustomerService{{Name: "c6", Plan: service}},
			func() *compiled.Plan { return plan })
	}
	b.Run("attach", func(b *testing.B) { b.ReportMetric(attach.Seconds(), "s"); b.ReportMetric(0, "ns/op") })
	for name, change := range map[string]func() error{
		"rate": func() error { return set(6, int64(5e6+n)) },
		"move": func() error { return set(n%500, 5e6) },
		"link": func() error {
			n++
			next, err := plan.WithRates(nil, map[string]meter.Rate{"ap-7": meter.BitRate(int64(2e8 + n))})
			if err != nil {
				return err
			}
			return s.SetRates(next)
		},
		"problems": func() error {
			list, err := s.Problems()
			if len(list) > 0 {
				err = fmt.Errorf("problems: %v", list)
			}
			return err
		},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				in(change)
			}
		})
	}
}
