package tap

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// sourceCustomers is a policy with a customer for each source from 10.0.0.first to
// 10.0.0.last: the even ones have a bucket, the odd ones a queue.
func sourceCustomers(first, last int, rate meter.Rate) *dataplane.Policy {
	bucket := &dataplane.ServicePlan{Name: "bucket", Params: meter.TokenBucket{Rate: rate, Burst: 3000}}
	paced := &dataplane.ServicePlan{
		Name: "paced", Queue: &queue.Config{Rate: rate, Time: 50 * time.Millisecond},
	}
	customers := &dataplane.Customers{Key: dataplane.BySource}
	for i := last; i >= first; i-- {
		customers.List = append(customers.List, dataplane.Customer{
			Name: fmt.Sprint(i), Plan: []*dataplane.ServicePlan{bucket, paced}[i%2],
			Prefixes: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 32)},
		})
	}
	return &dataplane.Policy{Customers: customers, Classes: []dataplane.Class{
		{Name: "customers", Match: dataplane.Match{Customer: true}, Meter: &dataplane.Meter{}},
		{Name: "strangers"},
	}}
}

// TestPlaneCustomers compares the plane with a pipeline alone, while reloads add and remove
// customers and change their rates. Packets queued for a customer keep their departures, also
// if the customer is removed.
func TestPlaneCustomers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := seededRandom(t)
		policy := sourceCustomers(1, 20, byteRateMega)
		s, m := newShaper(t, policy, 0), newAlonePipeline(t, policy)
		b := newBench(t, s, nil, 2)
		b.start(time.Minute)
		n, queued := 0, false
		for _, next := range []*dataplane.Policy{
			sourceCustomers(5, 25, byteRateMega), sourceCustomers(5, 25, meter.BitRate(16e6)),
			sourceCustomers(1, 4, byteRateMega), sourceCustomers(1, 30, byteRateMega),
		} {
			at := Now()
			var list []arrival
			for range 500 {
				host := byte(1 + r.IntN(30))
				payload := make([]byte, 4+r.IntN(1400))
				payload[0], payload[1], payload[2], payload[3] = 0, 0, byte(n>>8), byte(n)
				list = append(list,
					arrival{at, n % 2, udpPacket{ttl: 64, host: host, port: 1, payload: payload}.buffer(0)})
				n++
				at += r.Int64N(20_000)
			}
			b.sendAll(list)
			m.processAll(list)
			queued = queued || s.QueuedMemory() > 0
			if _, err := s.Reload(compilePlan(t, next)); err != nil {
				t.Fatal(err)
			}
			m.reload(next)
			synctest.Wait()
		}
		b.endWithoutError()
		sameArrivals(t, b.out, m.out)
		sameStats(t, s, m.l)
		if !queued || len(b.out) == n {
			t.Errorf("no packets were queued (%v), or none of %d dropped", queued, n)
		}
	})
}

// TestShaperCustomersMany checks that the counters of all customers are read in their order if
// there are more than are read at once, also while reloads replace the policy.
func TestShaperCustomersMany(t *testing.T) {
	for _, n := range []int{0, 1, customersAtOnce, customersAtOnce + 1, 3*customersAtOnce - 1} {
		plan := &dataplane.ServicePlan{Name: "p", Params: meter.TokenBucket{Rate: byteRateMega, Burst: 3000}}
		customers := &dataplane.Customers{Key: dataplane.BySource, Plans: []*dataplane.ServicePlan{plan}}
		for i := range n {
			customers.List = append(customers.List, dataplane.Customer{
				Name: fmt.Sprint(i), Plan: plan,
				Prefixes: []netip.Prefix{
					netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32),
				},
			})
		}
		policy := &dataplane.Policy{Customers: customers, Classes: []dataplane.Class{
			{Name: "customers", Match: dataplane.Match{Customer: true}, Meter: &dataplane.Meter{}},
		}}
		s := newShaper(t, policy, 0)
		var v dataplane.Verdict
		frame := make([]byte, 34)
		frame[12], frame[14], frame[17], frame[23] = 8, 0x45, 20, 17
		for i := range n {
			frame[26], frame[28], frame[29] = 10, byte(i>>8), byte(i)
			for range 1 + i%3 {
				s.pipeline.Process(
					&dataplane.Packet{Data: frame, WireLen: len(frame), Link: dataplane.LinkEthernet}, &v)
			}
		}
		stop, stopped := make(chan bool), make(chan bool)
		go func() {
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := s.Reload(compilePlan(t, policy)); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Millisecond)
			}
		}()
		for range 20 {
			got := s.Customers()
			if len(got) != n {
				t.Fatalf("got %d customers, want %d", len(got), n)
			}
			for i := range got {
				if c := got[i].Total(); c.Packets != int64(1+i%3) {
					t.Fatalf("customer %d of %d: counted %+v, want %d packets", i, n, c, 1+i%3)
				}
			}
		}
		close(stop)
		<-stopped
		saved := s.SaveCustomers()
		again := newShaper(t, policy, 0)
		if err := again.RestoreCustomers(saved); err != nil || len(again.SaveCustomers()) != len(saved) ||
			(len(saved) == 0) != (n == 0) {
			t.Errorf("%d customers: %d bytes were saved, and %d after they were restored: %v", n, len(saved),
				len(again.SaveCustomers()), err)
		}
		var parts []int
		for from, at := range s.customerParts(1 << 12) {
			if parts = append(parts, at); len(parts) == 1 {
				if _, err := s.Reload(compilePlan(t, policy)); err != nil {
					t.Fatal(err)
				}
			} else if from != s.pipeline {
				t.Error("a replaced pipeline is read")
			}
		}
		if want := []int{0, 0, 1 << 12}[:2+n>>12]; !slices.Equal(parts, want) {
			t.Errorf("%d customers: read from %v, want %v", n, parts, want)
		}
		off, err := s.pipeline.Plan().Variant(&s.pipeline.Plan().Customers.Plans[0], plan, true)
		if err != nil {
			t.Fatal(err)
		}
		var list []compiled.CustomerService
		for i := range n {
			list = append(list, compiled.CustomerService{Name: fmt.Sprint(i), Plan: off})
		}
		if err := s.SetCustomerPlans(list); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			frame[26], frame[28], frame[29] = 10, byte(i>>8), byte(i)
			s.pipeline.Process(
				&dataplane.Packet{Data: frame, WireLen: len(frame), Link: dataplane.LinkEthernet}, &v)
			if !v.Done.Dropped() {
				t.Fatalf("customer %d of %d has its plan before", i, n)
			}
		}
	}
}
