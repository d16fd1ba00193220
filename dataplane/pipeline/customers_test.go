package pipeline

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
)

func TestPlanFor(t *testing.T) {
	for _, test := range []struct {
		key             dataplane.CustomerKey
		egress, ingress dataplane.CustomerKey
	}{
		{dataplane.ByInside, dataplane.ByDestination, dataplane.BySource},
		{dataplane.BySource, dataplane.BySource, dataplane.BySource},
		{dataplane.ByDestination, dataplane.ByDestination, dataplane.ByDestination},
		{dataplane.ByOuterVLAN, dataplane.ByOuterVLAN, dataplane.ByOuterVLAN},
		{dataplane.ByTwoVLANs, dataplane.ByTwoVLANs, dataplane.ByTwoVLANs},
	} {
		plan := newPipeline(t, frametest.CustomersPolicy(&dataplane.Customers{
			Key: test.key, List: []dataplane.Customer{{Name: "a", Plan: frametest.BucketPlan("p", 1500)}},
		})).Plan()
		for direction, want := range map[dataplane.Direction]dataplane.CustomerKey{
			dataplane.Egress: test.egress, dataplane.Ingress: test.ingress,
		} {
			got := plan.For(direction)
			if got.Customers.Key != want || got.Customers.Number("a") != 1 || got.For(direction) != got {
				t.Errorf("key %d at %v: got %d, want %d", test.key, direction, got.Customers.Key, want)
			}
			if (got == plan) != (test.key != dataplane.ByInside) || plan.Customers.Key != test.key {
				t.Errorf("key %d at %v: the plan was changed, or copied in vain", test.key, direction)
			}
		}
	}
	plan := newPipeline(t, frametest.ValidPolicy()).Plan()
	if plan.For(dataplane.Ingress) != plan {
		t.Error("a plan without customers was copied")
	}
}

// TestCustomerOf compares the table with a scan of all prefixes, in each direction.
func TestCustomerOf(t *testing.T) {
	r := frametest.Seeded(t)
	found, deepest := 0, 0
	for range 200 {
		customers := &dataplane.Customers{
			Key: dataplane.CustomerKey(r.IntN(int(dataplane.ByDestination) + 1)), Nested: true,
		}
		used := map[netip.Prefix]bool{}
		for i := range 1 + r.IntN(40) {
			c := dataplane.Customer{Name: fmt.Sprint(i), Plan: frametest.BucketPlan("p", 1500)}
			for range r.IntN(5) {
				if p := frametest.RandomPrefix(r, r.IntN(2) == 0).Masked(); !p.Addr().Is4In6() && !used[p] {
					used[p], c.Prefixes = true, append(c.Prefixes, p)
				}
			}
			customers.List = append(customers.List, c)
		}
		plan, err := compiled.Compile(frametest.CustomersPolicy(customers))
		if err != nil {
			t.Fatal(err)
		}
		for range 200 {
			c := customers.List[r.IntN(len(customers.List))]
			p := frametest.AimedSample(r, &dataplane.Match{Src: c.Prefixes, Dst: c.Prefixes}).Packet()
			direction := []dataplane.Direction{dataplane.Egress, dataplane.Ingress}[r.IntN(2)]
			side := p.Dst
			if customers.Key == dataplane.BySource || customers.Key == dataplane.ByInside &&
				direction == dataplane.Ingress {
				side = p.Src
			}
			want, longest, depth := uint32(0), -1, 0
			for i, c := range customers.List {
				for _, prefix := range c.Prefixes {
					if p.IsIP() && prefix.Contains(frametest.Address(p.Kind, side)) {
						depth++
						if prefix.Bits() > longest {
							want, longest = uint32(i+1), prefix.Bits()
						}
					}
				}
			}
			if got := plan.For(direction).Customers.CustomerOf(p); got != want {
				t.Fatalf("key %d, %v, %s: got customer %d, want %d", customers.Key, direction,
					frametest.Describe(p), got, want)
			}
			if want != 0 {
				found++
			}
			deepest = max(deepest, depth)
		}
	}
	if found < 5000 || deepest < 5 {
		t.Errorf("only %d packets had a customer, of up to %d prefixes", found, deepest)
	}
}

// TestCustomerOfVLANs has packets with up to three tags.
func TestCustomerOfVLANs(t *testing.T) {
	compile := func(key dataplane.CustomerKey, vlan uint64) *compiled.Customers {
		list := []dataplane.Customer{
			{Name: "other", Plan: frametest.BucketPlan("p", 1500)},
			{Name: "a", IDs: []uint64{vlan}, Plan: frametest.BucketPlan("p", 1500)},
		}
		plan, err := compiled.Compile(frametest.CustomersPolicy(&dataplane.Customers{Key: key, List: list}))
		if plan == nil {
			t.Fatal(err)
		}
		return plan.Customers
	}
	for _, test := range []struct {
		key  dataplane.CustomerKey
		vlan uint64
		tags []uint16
		want uint32
	}{
		{dataplane.ByOuterVLAN, 0, nil, 0},
		{dataplane.ByOuterVLAN, 0, []uint16{0}, 2},
		{dataplane.ByOuterVLAN, 7, []uint16{7}, 2},
		{dataplane.ByOuterVLAN, 7, []uint16{8, 7}, 0},
		{dataplane.ByOuterVLAN, 7, []uint16{7, 8, 9}, 2},
		{dataplane.ByTwoVLANs, 7<<12 | 8, []uint16{7}, 0},
		{dataplane.ByTwoVLANs, 0, []uint16{0}, 0},
		{dataplane.ByTwoVLANs, 7<<12 | 8, []uint16{7, 8}, 2},
		{dataplane.ByTwoVLANs, 7<<12 | 8, []uint16{8, 7}, 0},
		{dataplane.ByTwoVLANs, 7<<12 | 8, []uint16{7, 8, 9}, 2},
		{dataplane.ByTwoVLANs, 7<<12 | 8, []uint16{9, 7, 8}, 0},
	} {
		for _, kind := range []uint16{frametest.EtherIPv4, 0x0806} {
			next, frame := kind, make([]byte, 28)
			if kind == frametest.EtherIPv4 {
				frame = frametest.V4{Proto: frametest.ProtoUDP}.Packet(frametest.UDP)
			}
			for i := len(test.tags) - 1; i >= 0; i-- {
				frame = frametest.Concat(frametest.Tag(5, 1, test.tags[i], next), frame)
				next = frametest.EtherVLAN
			}
			p := &dataplane.Packet{
				Data: frametest.Concat(frametest.Ethernet(next), frame), Link: dataplane.LinkEthernet,
			}
			dataplane.Parse(p)
			if got := compile(test.key, test.vlan).CustomerOf(p); got != test.want {
				t.Errorf("key %d, VLAN %#x, tags %v, EtherType %#x: got customer %d, want %d", test.key,
					test.vlan, test.tags, kind, got, test.want)
			}
		}
	}
}
