package dataplane

import (
	"fmt"
	"net/netip"
	"testing"
)

func TestPlanFor(t *testing.T) {
	for _, test := range []struct {
		key             CustomerKey
		egress, ingress CustomerKey
	}{
		{ByInside, ByDestination, BySource},
		{BySource, BySource, BySource},
		{ByDestination, ByDestination, ByDestination},
		{ByOuterVLAN, ByOuterVLAN, ByOuterVLAN},
		{ByTwoVLANs, ByTwoVLANs, ByTwoVLANs},
	} {
		plan := newPipeline(t, customersPolicy(&Customers{Key: test.key, List: []Customer{{Name: "a", Plan: bucketPlan("p", 1500)}}})).Plan()
		for direction, want := range map[Direction]CustomerKey{Egress: test.egress, Ingress: test.ingress} {
			got := plan.For(direction)
			if got.Customers.Key != want || got.Customers.Number("a") != 1 || got.For(direction) != got {
				t.Errorf("key %d at %v: got %d, want %d", test.key, direction, got.Customers.Key, want)
			}
			if (got == plan) != (test.key != ByInside) || plan.Customers.Key != test.key {
				t.Errorf("key %d at %v: the plan was changed, or copied in vain", test.key, direction)
			}
		}
	}
	plan := newPipeline(t, validPolicy()).Plan()
	if plan.For(Ingress) != plan {
		t.Error("a plan without customers was copied")
	}
}

// TestCustomerOf compares the table with a scan of all prefixes, in each direction.
func TestCustomerOf(t *testing.T) {
	r := seeded(t)
	found, deepest := 0, 0
	for range 200 {
		customers := &Customers{Key: CustomerKey(r.IntN(int(ByDestination) + 1)), Nested: true}
		used := map[netip.Prefix]bool{}
		for i := range 1 + r.IntN(40) {
			c := Customer{Name: fmt.Sprint(i), Plan: bucketPlan("p", 1500)}
			for range r.IntN(5) {
				if p := randomPrefix(r, r.IntN(2) == 0).Masked(); !p.Addr().Is4In6() && !used[p] {
					used[p], c.Prefixes = true, append(c.Prefixes, p)
				}
			}
			customers.List = append(customers.List, c)
		}
		plan, err := Compile(customersPolicy(customers))
		if err != nil {
			t.Fatal(err)
		}
		for range 200 {
			c := customers.List[r.IntN(len(customers.List))]
			p := aimedSample(r, &Match{Src: c.Prefixes, Dst: c.Prefixes}).packet()
			direction := []Direction{Egress, Ingress}[r.IntN(2)]
			side := p.Dst
			if customers.Key == BySource || customers.Key == ByInside && direction == Ingress {
				side = p.Src
			}
			want, longest, depth := uint32(0), -1, 0
			for i, c := range customers.List {
				for _, prefix := range c.Prefixes {
					if p.IsIP() && prefix.Contains(address(p.Kind, side)) {
						depth++
						if prefix.Bits() > longest {
							want, longest = uint32(i+1), prefix.Bits()
						}
					}
				}
			}
			if got := plan.For(direction).Customers.CustomerOf(p); got != want {
				t.Fatalf("key %d, %v, %s: got customer %d, want %d", customers.Key, direction, describe(p), got, want)
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
	compile := func(key CustomerKey, vlan uint32) *PlanCustomers {
		plan, err := Compile(customersPolicy(&Customers{Key: key, List: []Customer{{Name: "other", Plan: bucketPlan("p", 1500)}, {Name: "a", VLANs: []uint32{vlan}, Plan: bucketPlan("p", 1500)}}}))
		if plan == nil {
			t.Fatal(err)
		}
		return plan.Customers
	}
	for _, test := range []struct {
		key  CustomerKey
		vlan uint32
		tags []uint16
		want uint32
	}{
		{ByOuterVLAN, 0, nil, 0},
		{ByOuterVLAN, 0, []uint16{0}, 2},
		{ByOuterVLAN, 7, []uint16{7}, 2},
		{ByOuterVLAN, 7, []uint16{8, 7}, 0},
		{ByOuterVLAN, 7, []uint16{7, 8, 9}, 2},
		{ByTwoVLANs, 7<<12 | 8, []uint16{7}, 0},
		{ByTwoVLANs, 0, []uint16{0}, 0},
		{ByTwoVLANs, 7<<12 | 8, []uint16{7, 8}, 2},
		{ByTwoVLANs, 7<<12 | 8, []uint16{8, 7}, 0},
		{ByTwoVLANs, 7<<12 | 8, []uint16{7, 8, 9}, 2},
		{ByTwoVLANs, 7<<12 | 8, []uint16{9, 7, 8}, 0},
	} {
		for _, kind := range []uint16{etherIPv4, 0x0806} {
			next, frame := kind, make([]byte, 28)
			if kind == etherIPv4 {
				frame = v4{proto: protoUDP}.packet(udp)
			}
			for i := len(test.tags) - 1; i >= 0; i-- {
				frame = concat(tag(5, 1, test.tags[i], next), frame)
				next = etherVLAN
			}
			p := &Packet{Data: concat(ethernet(next), frame), Link: LinkEthernet}
			Parse(p)
			if got := compile(test.key, test.vlan).CustomerOf(p); got != test.want {
				t.Errorf("key %d, VLAN %#x, tags %v, EtherType %#x: got customer %d, want %d", test.key, test.vlan, test.tags, kind, got, test.want)
			}
		}
	}
}
