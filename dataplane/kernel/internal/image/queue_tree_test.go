package image

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// TestQueueTree checks the HTB tree of a policy. Its classes have the rates of queues and links,
// rounded up to whole bytes per second.
func TestQueueTree(t *testing.T) {
	t.Parallel()
	wan := &dataplane.Link{Name: "wan", Rate: meter.BitRate(80e6)}
	policy := &dataplane.Policy{Length: dataplane.LengthRule{
		Base: dataplane.L1, Overhead: 3,
	}, Classes: []dataplane.Class{
		{
			Name: "a",
			Green: &dataplane.Action{Queue: &dataplane.Queue{
				Name:   "own",
				Config: queue.Config{Rate: meter.Rate{Bytes: 10, Period: 3 * time.Second}, Packets: 4},
			}},
			Yellow: &dataplane.Action{
				Queue: &dataplane.Queue{Name: "first", Config: queue.Config{Bytes: 5000}, Link: wan},
			},
			Red: &dataplane.Action{Queue: &dataplane.Queue{
				Name: "second", Config: queue.Config{Time: 10 * time.Millisecond}, Link: wan, Priority: 3,
				Weight: 7,
			}},
		},
		{Name: "b", Green: &dataplane.Action{Queue: &dataplane.Queue{
			Name:   "fair",
			Config: queue.Config{Bytes: 30_000, CoDel: queue.CoDel{Target: 5, Interval: 6}, ECN: true},
			Link:   wan, Priority: 1,
			Fair: dataplane.Key{By: dataplane.ByFlow},
		}}},
	}}
	g, err := encodeFair(kerneltest.Compiled(t, policy), EgressEntry, record.HTB, record.FairByFQCoDel)
	if err != nil {
		t.Fatal(err)
	}
	g.Inherit(&record.About{}, nil)
	got := g.Tree(&iface.Device{MTU: 1500, LinkType: dataplane.LinkEthernet})
	id := func(i int) uint16 { return uint16(g.Queues[i].ClassId) }
	want := &qdisc.Tree{
		Kind: qdisc.HTB, Horizon: got.Horizon, Overhead: 27, MTU: 1500,
		Links: []qdisc.Link{{ID: g.linkIDs[0], Rate: 10_000_000, Credit: LeafCredit}},
		Leaves: []qdisc.Leaf{
			{ID: id(0), Rate: 4, Credit: LeafCredit, Limit: 4*1500*3/2 + 64<<10},
			{ID: id(1), Parent: g.linkIDs[0], Quantum: 1514, Limit: 5000},
			{ID: id(2), Parent: g.linkIDs[0], Priority: 3, Quantum: 1514, Limit: 100_000},
			{ID: id(3), Parent: g.linkIDs[0], Priority: 1, Quantum: 1514, Limit: 30_000},
		},
	}
	if f, want := *got.Leaves[3].Fair, (qdisc.Fair{
		CoDel: queue.CoDel{Target: 5, Interval: 6}, ECN: true, Packets: 1500, Quantum: 1514,
	}); f != want {
		t.Errorf("fair queue: got %+v, want %+v", f, want)
	}
	got.Leaves[3].Fair = nil
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		t.Errorf("got tree\n%+v\nwant\n%+v", got, want)
	}
	for _, r := range []struct {
		rule dataplane.LengthRule
		link dataplane.LinkType
		want int
	}{
		{dataplane.LengthRule{}, dataplane.LinkEthernet, -14},
		{dataplane.LengthRule{}, dataplane.LinkRaw, 0},
		{dataplane.LengthRule{Base: dataplane.L2, Overhead: 4}, dataplane.LinkEthernet, 4},
		{dataplane.LengthRule{Base: dataplane.L1}, dataplane.LinkEthernet, 24},
	} {
		g.Plan.Length = r.rule
		if got := g.Tree(&iface.Device{LinkType: r.link}).Overhead; got != r.want {
			t.Errorf("%+v of link type %v: got overhead %d, want %d", r.rule, r.link, got, r.want)
		}
	}
}

// TestQueueQuantum checks that quantums have the ratio of the weights and that none is below the
// longest packet.
func TestQueueQuantum(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		weights []int
		mtu     int
		want    []uint32
	}{
		{[]int{1, 9}, 1500, []uint32{1514, 9 * 1514}},
		{[]int{10, 90}, 1500, []uint32{1514, 9 * 1514}},
		{[]int{100, 900}, 1500, []uint32{1514, 9 * 1514}},
		{[]int{2, 3}, 1500, []uint32{1514, 2271}},
		{[]int{3, 7}, 1500, []uint32{1514, 3533}}, // 3532.67
		{[]int{1, 1000}, 65521, []uint32{65535, 65535000}},
		{[]int{5, 5}, 9000, []uint32{9014, 9014}},
		{[]int{5, 10}, 0, []uint32{1514, 3028}}, // unknown MTU
	} {
		link := &dataplane.Link{Name: "wan", Rate: kerneltest.EightMbit}
		policy := &dataplane.Policy{}
		add := func(name string, weight, priority int) {
			q := &dataplane.Queue{
				Name: name, Config: queue.Config{Bytes: 1e5}, Link: link, Weight: weight, Priority: priority,
			}
			policy.Classes = append(policy.Classes,
				dataplane.Class{Name: name, Green: &dataplane.Action{Queue: q}})
		}
		for i, w := range test.weights {
			add(fmt.Sprint("q", i), w, 1)
		}
		add("of another priority", 1, 0)
		g, err := encoded(policy, EgressEntry, record.HTB)
		if err != nil {
			t.Fatal(err)
		}
		g.Inherit(&record.About{}, nil)
		leaves := g.Tree(&iface.Device{MTU: test.mtu, LinkType: dataplane.LinkEthernet}).Leaves
		for i, want := range test.want {
			if got := leaves[i].Quantum; got != want {
				t.Errorf("weights %v, MTU %d: queue %d: got a quantum of %d bytes, want %d", test.weights,
					test.mtu, i, got, want)
			}
		}
	}
}

// TestFlowLeaves checks the leaves of a fair queue in a kernel without fq_codel: the first, which is sent
// first, has at most 3/4 of the rate. The limit of another is half that of the queue, but at least 80 KiB.
func TestFlowLeaves(t *testing.T) {
	t.Parallel()
	fair := func(name string, c queue.Config, rate meter.Rate) dataplane.Class {
		c.CoDel = queue.CoDelAt(rate)
		q := &dataplane.Queue{
			Name: name, Config: c, Link: &dataplane.Link{Name: name, Rate: rate},
			Fair: dataplane.Key{By: dataplane.ByFlow},
		}
		return dataplane.Class{
			Name: name, Match: dataplane.Match{DSCP: []dataplane.Range{{First: 1, Last: 1}}},
			Green: &dataplane.Action{Queue: q},
		}
	}
	rows := []struct {
		c           queue.Config
		rate        int64 // bit/s
		first       uint64
		limit, each uint32 // bytes
	}{
		{queue.Config{Bytes: 30_000}, 80e6, 7_500_000, 30_000, 80 << 10},
		{queue.Config{Bytes: 200_000}, 16, 1, 200_000, 100_000}, // 2 bytes per second
		{queue.Config{Time: time.Second}, 16e6, 1_500_000, 2_000_000, 1_000_000},
		{queue.Config{Packets: 1000}, 16e6, 1_500_000, 1_500_000, 750_000},
	}
	policy := &dataplane.Policy{}
	for i, row := range rows {
		policy.Classes = append(policy.Classes, fair(fmt.Sprint("q", i), row.c, meter.BitRate(row.rate)))
	}
	g, err := encodeFair(kerneltest.Compiled(t, policy), EgressEntry, record.HTB, record.FairByHTB)
	if err != nil {
		t.Fatal(err)
	}
	g.Inherit(&record.About{}, nil)
	leaves, seen := g.Tree(
		&iface.Device{MTU: 1500, LinkType: dataplane.LinkEthernet}).Leaves, map[uint16]bool{}
	if len(leaves) != len(rows)*(1+1024) {
		t.Fatalf("%d leaves", len(leaves))
	}
	for i, leaf := range leaves {
		at := i / 1025
		row, first := rows[at], i%1025 == 0
		want := qdisc.Leaf{
			ID: uint16(g.Queues[at].FlowsId) + uint16(i%1025) - 1, Parent: g.linkIDs[at], Priority: 1,
			Quantum: 1514, Limit: row.each,
		}
		if first {
			want = qdisc.Leaf{
				ID: uint16(g.Queues[at].ClassId), Parent: g.linkIDs[at], Rate: row.first, Quantum: 1514,
				Limit: row.limit,
			}
		}
		if fmt.Sprintf("%+v", leaf) != fmt.Sprintf("%+v", want) {
			t.Fatalf("leaf %d of queue %d: got %+v, want %+v", i%1025, at, leaf, want)
		}
		if leaf.ID == 0 || leaf.ID >= qdisc.Over || seen[leaf.ID] {
			t.Fatalf("leaf %d of queue %d: ID %d is 0, too large or used", i%1025, at, leaf.ID)
		}
		seen[leaf.ID] = true
	}

	shared := fair("a", queue.Config{Bytes: 30_000}, kerneltest.EightMbit)
	other := fair("b", queue.Config{Bytes: 30_000}, kerneltest.EightMbit)
	other.Green.Queue.Link = shared.Green.Queue.Link
	many := &dataplane.Policy{}
	for i := range flowQueues + 1 {
		many.Classes = append(many.Classes,
			fair(fmt.Sprint("q", i), queue.Config{Bytes: 30_000}, kerneltest.EightMbit))
	}
	for reason, policy := range map[string]*dataplane.Policy{
		"shares its link with other queues, which needs fq_codel": {Classes: []dataplane.Class{shared, other}},
		"is the case for more than 14 queues":                     many,
	} {
		_, err := encodeFair(kerneltest.Compiled(t, policy), EgressEntry, record.HTB, record.FairByHTB)
		errs := kerneltest.FieldErrors(err)
		if len(errs) == 0 || errs[0].Field != "fair" || !strings.Contains(errs[0].Reason, reason) {
			t.Errorf("got error %v, want %q", err, reason)
		}
		if _, err := encodeFair(kerneltest.Compiled(t, policy), EgressEntry, record.HTB,
			record.FairByFQCoDel); err != nil {
			t.Errorf("with fq_codel: %v", err)
		}
	}
}
