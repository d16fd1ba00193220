package pipeline

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestInheritTrees replaces policies while a customer has a backlog, so that its queue gets another place: no
// packet is lost, and none departs before an earlier one. Customers of the tree without links do not wait for each
// other.
func TestInheritTrees(t *testing.T) {
	site := &dataplane.Link{Name: "site", Rate: meter.BitRate(80e6)}
	plans := map[string]*dataplane.ServicePlan{
		"root":        treePlan("p", meter.Rate{}, &dataplane.Link{Name: "ap", Rate: meter.BitRate(4e6)}),
		"below":       treePlan("p", meter.Rate{}, &dataplane.Link{Name: "ap", Link: site, Rate: meter.BitRate(4e6)}),
		"elsewhere":   treePlan("p", meter.Rate{}, &dataplane.Link{Name: "other", Rate: meter.BitRate(4e6)}),
		"no link":     treePlan("p", meter.BitRate(4e6), nil),
		"not fair":    pacedPlan(meter.BitRate(4e6), 50*time.Millisecond),
		"faster link": treePlan("p", meter.Rate{}, &dataplane.Link{Name: "ap", Rate: meter.BitRate(40e6)}),
	}
	policy := func(name string) *dataplane.Policy {
		other := treePlan("other", meter.BitRate(4e6), nil)
		list := customersOf(2, func(i int) *dataplane.ServicePlan {
			return []*dataplane.ServicePlan{plans[name], other}[i]
		})
		return frametest.CustomersPolicy(&dataplane.Customers{
			Plans: []*dataplane.ServicePlan{plans[name], other}, List: list,
		})
	}
	for from := range plans {
		for to := range plans {
			l := newPipeline(t, policy(from))
			departures := map[int64]int64{}
			settle := func(now int64) {
				for v := (dataplane.Verdict{}); l.Settle(now, &v); {
					if v.Done.Dropped() {
						t.Fatalf("%s to %s: packet %d is dropped", from, to, v.ID)
					}
					departures[v.ID] = v.Departure
				}
			}
			id := int64(0)
			send := func(at int64, customer int) dataplane.Verdict {
				frame := toward(fmt.Sprintf("10.0.0.%d", customer), 1000)
				id++
				p := dataplane.Packet{Data: frame, WireLen: len(frame), Time: at, Link: dataplane.LinkEthernet, ID: id}
				v := verdictOf(l, &p)
				if v.Done&dataplane.Waiting == 0 {
					departures[id] = v.Departure
				}
				return v
			}
			for range 8 { // 16 ms
				send(0, 0)
			}
			settle(math.MaxInt64)
			l, _ = inherited(t, l, policy(to))
			for range 8 {
				send(1000*µs, 0)
			}
			send(1000*µs, 1)
			settle(math.MaxInt64)
			if len(departures) != 17 {
				t.Fatalf("%s to %s: %d of 17 packets are decided", from, to, len(departures))
			}
			for i := int64(2); i <= 16; i++ {
				if departures[i] < departures[i-1] {
					t.Errorf("%s to %s: packet %d departs at %d, before the one at %d", from, to, i, departures[i],
						departures[i-1])
				}
			}
			if departures[17] != 1000*µs {
				t.Errorf("%s to %s: the other customer's packet departs at %d, want no wait", from, to, departures[17])
			}
		}
	}
}
