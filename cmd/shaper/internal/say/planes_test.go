package say

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// TestPlanes checks what is said about a fair queue in the kernel: fq_codel or cake, or why neither.
func TestPlanes(t *testing.T) {
	t.Parallel()
	key := func(by dataplane.KeyField) dataplane.Key { return dataplane.Key{By: by} }
	masked := dataplane.Key{By: dataplane.BySrc, V4: 24, V6: 64}
	codel := queue.CoDel{Target: 5 * time.Millisecond, Interval: 100 * time.Millisecond}
	for name, test := range map[string]struct {
		hosts, fair dataplane.Key
		change      func(*queue.Config)
		want        string
	}{
		"flows":         {want: "fq_codel", fair: key(dataplane.ByFlow)},
		"flows, wred":   {want: "not supported, because HTB does not report the backlog that wred needs", fair: key(dataplane.ByFlow), change: func(c *queue.Config) { c.WRED[0].Max = 1 }},
		"sources":       {want: "cake", fair: key(dataplane.BySrc)},
		"pairs":         {want: "cake", fair: key(dataplane.ByHosts)},
		"networks":      {want: "not supported, because fq_codel and cake lack these keys", fair: masked},
		"dscp":          {want: "not supported, because fq_codel and cake lack these keys", fair: key(dataplane.ByDSCP)},
		"hosts":         {want: "cake", hosts: key(dataplane.ByDst), fair: key(dataplane.ByFlow)},
		"networks two":  {want: "not supported, because fq_codel and cake lack these keys", hosts: masked, fair: key(dataplane.ByFlow)},
		"hosts of pair": {want: "not supported, because fq_codel and cake lack these keys", hosts: key(dataplane.ByHosts), fair: key(dataplane.ByFlow)},
		"hosts, dscp":   {want: "not supported, because fq_codel and cake lack these keys", hosts: key(dataplane.BySrc), fair: key(dataplane.ByDSCP)},
		"cake no codel": {want: "cake, with ecn: true, with codel, and with a limit in bytes or time", fair: key(dataplane.BySrc), change: func(c *queue.Config) { c.CoDel = queue.CoDel{} }},
		"cake no ecn":   {want: "cake, with ecn: true, with codel, and with a limit in bytes or time", fair: key(dataplane.BySrc), change: func(c *queue.Config) { c.ECN = false }},
		"cake packets":  {want: "cake, with ecn: true, with codel, and with a limit in bytes or time", fair: key(dataplane.BySrc), change: func(c *queue.Config) { c.Packets = 1 }},
	} {
		wan := &dataplane.Link{Name: "wan", Rate: meter.BitRate(1e6)}
		q := &dataplane.Queue{Name: "q", Link: wan, Hosts: test.hosts, Fair: test.fair}
		q.Bytes, q.CoDel, q.ECN = 1<<20, codel, true
		if test.change != nil {
			test.change(&q.Config)
		}
		other := &dataplane.Queue{Name: "other", Link: wan}
		p := &dataplane.Policy{Queues: []*dataplane.Queue{q, other}, Links: []*dataplane.Link{wan}}
		if got := Planes(q, p.Queues, NewTrees(p)); got != "replay, tap: FQ-CoDel; run: "+test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// TestPlanesOfTree checks trees that HTB cannot run: of more than 7 levels, or of more than 8 combinations of
// priorities, those of customers included.
func TestPlanesOfTree(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		levels, priorities, ofCustomers int
		want                            string
	}{
		"7 levels":       {7, 1, 0, "fq_codel"},
		"8 levels":       {8, 1, 0, "HTB has 7 levels, and the tree of link l1 8"},
		"8 priorities":   {2, 8, 0, "fq_codel"},
		"9 combinations": {3, 8, 1, "HTB has 8 priorities, and the tree of link l1 9 combinations of them"},
		"four alike":     {2, 4, 8, "fq_codel"},
		"one alike":      {3, 4, 6, "HTB has 8 priorities, and the tree of link l1 9 combinations of them"},
	} {
		p := &dataplane.Policy{Customers: &dataplane.Customers{}}
		var last *dataplane.Link
		for level := 1; level < test.levels; level++ {
			l := &dataplane.Link{Name: fmt.Sprintf("l%d", level), Link: last}
			if level == 1 {
				l.Rate = meter.BitRate(1e9)
			}
			last, p.Links = l, append(p.Links, l)
		}
		p.Links[len(p.Links)-1].Priority = test.levels - 2 // 1 if there are three levels
		for i := range test.priorities {
			q := &dataplane.Queue{
				Name: fmt.Sprintf("q%d", i), Link: last, Fair: dataplane.Key{By: dataplane.ByFlow}, Priority: i,
			}
			q.Bytes = 1 << 20
			p.Queues = append(p.Queues, q)
		}
		for i := range test.ofCustomers {
			plan := &dataplane.ServicePlan{
				Link: p.Links[0], Queue: &queue.Config{Time: time.Second}, Priority: i,
			}
			p.Customers.Plans = append(p.Customers.Plans, plan)
			p.Customers.List = append(p.Customers.List, dataplane.Customer{Plan: plan})
		}
		// A queue beside it, so that the kernel needs fq_codel.
		p.Queues = append(p.Queues, &dataplane.Queue{Name: "other", Link: last})
		got := strings.TrimPrefix(Planes(p.Queues[0], p.Queues, NewTrees(p)), "replay, tap: FQ-CoDel; run: ")
		if strings.TrimPrefix(got, "not supported, because ") != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}
