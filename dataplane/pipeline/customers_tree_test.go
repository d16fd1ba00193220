package pipeline

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// treePlan returns a plan with a queue of a rate on a link, or fair without one.
func treePlan(name string, rate meter.Rate, link *dataplane.Link) *dataplane.ServicePlan {
	return &dataplane.ServicePlan{
		Name: name, Queue: &queue.Config{Rate: rate, Time: 50 * time.Millisecond}, Link: link,
		Fair: dataplane.Key{By: dataplane.ByFlow},
	}
}

// TestCustomerTree sends 8 Mbit/s to each of four customers of two access points of 2 and 4 Mbit/s
// under a site of 5 Mbit/s. Each access point gets half of the site, but at most its rate, and its customers
// share that.
func TestCustomerTree(t *testing.T) {
	site := &dataplane.Link{Name: "site", Rate: meter.BitRate(5e6)}
	slow := &dataplane.Link{Name: "slow", Link: site, Rate: meter.BitRate(2e6)}
	fast := &dataplane.Link{Name: "fast", Link: site, Rate: meter.BitRate(4e6)}
	plans := []*dataplane.ServicePlan{
		treePlan("slow", meter.BitRate(3e6), slow), treePlan("fast", meter.BitRate(3e6), fast),
	}
	list := customersOf(4, func(i int) *dataplane.ServicePlan { return plans[i/2] })
	l := newPipeline(t, frametest.CustomersPolicy(&dataplane.Customers{Plans: plans, List: list}))
	got := sendToCustomers(t, l, 4, time.Second, func(time.Duration) {})
	for i, want := range []float64{1e6, 1e6, 1.5e6, 1.5e6} {
		if math.Abs(got[i]-want) > 0.01*want {
			t.Errorf("customer %d got %.0f bit/s, want %.0f", i, got[i], want)
		}
	}
}

// TestCustomerMoves moves a customer to another access point while its queue is full. No packet is lost
// or sent twice, and its packets stay in order.
func TestCustomerMoves(t *testing.T) {
	site := &dataplane.Link{Name: "site", Rate: meter.BitRate(5e6)}
	slow := &dataplane.Link{Name: "slow", Link: site, Rate: meter.BitRate(2e6)}
	fast := &dataplane.Link{Name: "fast", Link: site, Rate: meter.BitRate(4e6)}
	plans := []*dataplane.ServicePlan{
		treePlan("slow", meter.BitRate(3e6), slow), treePlan("fast", meter.BitRate(3e6), fast),
	}
	list := customersOf(3, func(int) *dataplane.ServicePlan { return plans[0] })
	l := newPipeline(t, frametest.CustomersPolicy(&dataplane.Customers{Plans: plans, List: list}))
	service := &l.plan.Customers.Plans[1]
	// Three on slow have 2/3 Mbit/s each, and the one on fast 3.
	got := sendToCustomers(t, l, 3, time.Second, func(at time.Duration) {
		if at == 500*time.Millisecond {
			l.SetCustomerPlans(int64(at), []compiled.CustomerService{{Name: list[2].Name, Plan: service}})
		}
	})
	for i, want := range []float64{(2./3 + 1) / 2 * 1e6, (2./3 + 1) / 2 * 1e6, (2./3 + 3) / 2 * 1e6} {
		if math.Abs(got[i]-want) > 0.03*want {
			t.Errorf("customer %d got %.0f bit/s, want %.0f", i, got[i], want)
		}
	}
}

// sendToCustomers sends 8 Mbit/s of packets to each of n customers, and returns the rates at which they
// depart until then, bit/s. It checks that each packet is decided once, in order.
func sendToCustomers(
	t *testing.T, l *Pipeline, n int, during time.Duration, each func(at time.Duration),
) []float64 {
	t.Helper()
	bits := make([]float64, n)
	undecided, last := map[int64]int{}, make([]int64, n)
	id := int64(0)
	settle := func(now int64) {
		for v := (dataplane.Verdict{}); l.Settle(now, &v); {
			customer, ok := undecided[v.ID]
			if !ok {
				t.Fatalf("packet %d is decided twice", v.ID)
			}
			delete(undecided, v.ID)
			if v.Done.Dropped() {
				continue
			}
			if v.ID < last[customer] {
				t.Fatalf("packet %d departs after %d", v.ID, last[customer])
			}
			last[customer] = v.ID
			if v.Departure < int64(during) {
				bits[customer] += 8 * float64(v.Length)
			}
		}
	}
	for at := time.Duration(0); at < during; at += time.Millisecond {
		each(at)
		for customer := range n {
			id++
			frame := toward(fmt.Sprintf("10.0.0.%d", customer), 1000)
			p := dataplane.Packet{
				Data: frame, WireLen: len(frame), Time: int64(at), Link: dataplane.LinkEthernet, ID: id,
			}
			var v dataplane.Verdict
			l.Process(&p, &v)
			if v.Done&dataplane.Waiting != 0 {
				undecided[id] = customer
			}
		}
		settle(int64(at))
	}
	settle(math.MaxInt64)
	if len(undecided) > 0 {
		t.Errorf("%d packets are lost", len(undecided))
	}
	for i := range bits {
		bits[i] /= during.Seconds()
	}
	return bits
}

// TestLooseCustomers checks that a fair queue without a link sends at its own rate, whatever others do.
func TestLooseCustomers(t *testing.T) {
	plans := []*dataplane.ServicePlan{
		treePlan("a", meter.BitRate(1e6), nil), treePlan("b", meter.BitRate(3e6), nil),
	}
	list := customersOf(2, func(i int) *dataplane.ServicePlan { return plans[i] })
	l := newPipeline(t, frametest.CustomersPolicy(&dataplane.Customers{Plans: plans, List: list}))
	got := sendToCustomers(t, l, 2, time.Second, func(time.Duration) {})
	for i, want := range []float64{1e6, 3e6} {
		if math.Abs(got[i]-want) > 0.01*want {
			t.Errorf("customer %d got %.0f bit/s, want %.0f", i, got[i], want)
		}
	}
}

// TestCustomerECN gives a customer with a backlog a plan that marks packets instead of dropping them.
func TestCustomerECN(t *testing.T) {
	link := &dataplane.Link{Name: "link", Rate: meter.BitRate(1e6)}
	codel := queue.CoDel{Target: time.Millisecond, Interval: 10 * time.Millisecond}
	plans := []*dataplane.ServicePlan{treePlan("drops", meter.Rate{}, link), treePlan("marks", meter.Rate{}, link)}
	for i, p := range plans {
		p.Queue.Time, p.Queue.CoDel, p.Queue.ECN = time.Second, codel, i == 1
	}
	list := customersOf(1, func(int) *dataplane.ServicePlan { return plans[0] })
	l := newPipeline(t, frametest.CustomersPolicy(&dataplane.Customers{Plans: plans, List: list}))
	send := func(from, to int64) (marked, dropped int) {
		for at := from; at < to; at += int64(time.Millisecond) {
			frame := toward("10.0.0.0", 200)
			frame[15] = 2 // ECN-capable
			p := dataplane.Packet{Data: frame, WireLen: len(frame), Time: at, Link: dataplane.LinkEthernet}
			var v dataplane.Verdict
			l.Process(&p, &v)
			for l.Settle(at, &v) {
				switch {
				case v.Done.Dropped():
					dropped++
				case v.Done&dataplane.ECNSet != 0:
					marked++
				}
			}
		}
		return marked, dropped
	}
	if marked, dropped := send(0, 3e8); marked > 0 || dropped == 0 {
		t.Errorf("before: %d marked, %d dropped, want drops only", marked, dropped)
	}
	l.SetCustomerPlans(299e6, []compiled.CustomerService{{Name: list[0].Name, Plan: &l.plan.Customers.Plans[1]}})
	if marked, dropped := send(3e8, 6e8); marked == 0 || dropped > 0 {
		t.Errorf("after: %d marked, %d dropped, want marks only", marked, dropped)
	}
}
