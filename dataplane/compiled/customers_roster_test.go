package compiled

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
)

// rosterWorld makes random customers whose keys often meet.
type rosterWorld struct {
	*rand.Rand
	key    dataplane.CustomerKey
	nested bool
	plans  []*dataplane.ServicePlan
}

func (w *rosterWorld) prefix() netip.Prefix {
	if w.IntN(2) == 0 {
		a := netip.AddrFrom4([4]byte{10, 0, byte(w.IntN(2)), byte(w.IntN(64))})
		return netip.PrefixFrom(a, []int{32, 32, 32, 30, 24, 0}[w.IntN(6)]).Masked()
	}
	var b [16]byte
	b[0], b[1], b[7], b[15] = 0x20, 1, byte(w.IntN(8)), byte(w.IntN(8))
	return netip.PrefixFrom(netip.AddrFrom16(b), []int{128, 128, 126, 64, 62, 48}[w.IntN(6)]).Masked()
}

func (w *rosterWorld) customer(name string) dataplane.Customer {
	c := dataplane.Customer{Name: name, Plan: w.plans[w.IntN(len(w.plans))]}
	for range w.IntN(3) {
		if w.key == dataplane.ByDestination {
			c.Prefixes = append(c.Prefixes, w.prefix())
		} else {
			c.IDs = append(c.IDs, uint64(w.IntN(40)))
		}
	}
	return c
}

func (w *rosterWorld) policy(list []dataplane.Customer) *dataplane.Policy {
	return frametest.CustomersPolicy(&dataplane.Customers{
		Key: w.key, Nested: w.nested, Plans: w.plans, List: list,
	})
}

// owners returns the name of the customer of each key that the test uses.
func owners(c *Customers) (out []string) {
	name := func(number uint32) {
		if number == 0 {
			out = append(out, "")
			return
		}
		out = append(out, c.Source.List[number-1].Name)
	}
	for id := range uint64(40) {
		name(c.table.ids.find(id, mix(id)))
	}
	for i := range 2 * 64 {
		name(c.table.find(dataplane.IPv4, dataplane.Addr{Lo: uint64(10<<24 + i/64<<8 + i%64)}))
	}
	for i := range 64 {
		name(c.table.find(dataplane.IPv6,
			dataplane.Addr{Hi: 0x2001<<48 + uint64(i/8), Lo: uint64(i % 8)}))
	}
	return out
}

// TestRoster changes a roster at random, and compares it with a plan compiled from its customers: who owns
// each key, which plan each customer has, and which customers have conflicts.
func TestRoster(t *testing.T) {
	r := frametest.Seeded(t)
	conflicts, removed := 0, 0
	for range 60 {
		w := &rosterWorld{
			Rand: r, key: []dataplane.CustomerKey{dataplane.ByDestination, dataplane.ByOuterVLAN}[r.IntN(2)],
			plans: []*dataplane.ServicePlan{frametest.BucketPlan("a", 1000), frametest.BucketPlan("b", 2000)},
		}
		w.nested = w.key == dataplane.ByDestination && r.IntN(2) == 0
		base, err := Compile(w.policy(nil))
		if err != nil {
			t.Fatal(err)
		}
		roster := NewRoster(base)
		for range 200 {
			name := fmt.Sprint(r.IntN(12))
			before, _ := roster.Customer(name)
			if r.IntN(3) == 0 {
				if removed++; (roster.Remove(name) != 0) != (before != nil) {
					t.Fatalf("removed %q, which was %v", name, before)
				}
				continue
			}
			c := w.customer(name)
			found := 0
			roster.Conflicts(&c, func(Conflict) { found++ })
			named := func(c dataplane.Customer) bool { return c.Name == name }
			next := slices.DeleteFunc(roster.List(), named)
			_, err := Compile(w.policy(append(next, c)))
			if alone := roster.Check(&c); (err != nil) != (found > 0 || alone != nil) {
				t.Fatalf("%+v: compile says %v, the roster %d conflicts and %v", c, err, found, alone)
			}
			if err != nil {
				conflicts++
				continue
			}
			plan := &base.Customers.Plans[slices.Index(w.plans, c.Plan)]
			if _, added := roster.Put(&c, plan); added != (before == nil) {
				t.Fatalf("customer %q: added %v, was %v", name, added, before)
			}
		}
		policy := w.policy(roster.List())
		want, err := Compile(policy)
		if err != nil {
			t.Fatal(err)
		}
		got := roster.Plan(base, policy)
		if a, b := owners(want.Customers), owners(got.Customers); !slices.Equal(a, b) {
			t.Errorf("plan: got  %q\nwant %q", b, a)
		}
		if a, b := owners(want.Customers), owners(roster.Customers()); !slices.Equal(a, b) {
			t.Errorf("roster: got  %q\nwant %q", b, a)
		}
		for i := range policy.Customers.List {
			name, number := policy.Customers.List[i].Name, uint32(i+1)
			if got.Customers.Number(name) != number ||
				got.Customers.Service(number).Name != want.Customers.Service(number).Name {
				t.Errorf("customer %q has number %d and plan %q", name, got.Customers.Number(name),
					got.Customers.Service(number).Name)
			}
		}
		if len(owners(base.Customers)) == 0 || len(base.Customers.Source.List) != 0 {
			t.Error("the plan of the roster changed")
		}
	}
	if conflicts < 500 || removed < 500 {
		t.Errorf("only %d conflicts and %d removals", conflicts, removed)
	}
}

// TestRosterFaults compares the errors of a customer alone with those of Compile.
func TestRosterFaults(t *testing.T) {
	plan := frametest.BucketPlan("a", 1000)
	empty := dataplane.Customers{Plans: []*dataplane.ServicePlan{plan}}
	base, err := Compile(frametest.CustomersPolicy(&empty))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []dataplane.Customer{
		{Plan: plan},
		{Name: "a\n", Plan: plan},
		{Name: "a", Plan: plan, IDs: []uint64{1}},
		{Name: "a", Plan: plan, Prefixes: []netip.Prefix{{}}},
		{Name: "a", Plan: plan, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}},
		{Name: "a", Plan: plan, Prefixes: frametest.Prefixes("10.0.0.0/24", "10.0.0.1/32")},
	} {
		_, err := Compile(frametest.CustomersPolicy(&dataplane.Customers{
			Plans: base.Customers.Source.Plans, List: []dataplane.Customer{c},
		}))
		got := NewRoster(base).Check(&c)
		var a, b *dataplane.FieldError
		if !errors.As(err, &a) {
			if got != nil {
				t.Errorf("%+v: got %v", c, got)
			}
			continue
		}
		if !errors.As(got, &b) || a.Field != b.Field || a.Reason != b.Reason {
			t.Errorf("%+v: got %v, want %v", c, got, err)
		}
	}
}

// TestRosterAllocations checks that a change of a customer with one address does not allocate.
func TestRosterAllocations(t *testing.T) {
	plan := frametest.BucketPlan("a", 1000)
	policy := frametest.CustomersPolicy(&dataplane.Customers{Plans: []*dataplane.ServicePlan{plan}})
	for i := range 1000 {
		a := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		policy.Customers.List = append(policy.Customers.List, dataplane.Customer{
			Name: fmt.Sprint(i), Plan: plan, Prefixes: []netip.Prefix{netip.PrefixFrom(a, 32)},
		})
	}
	base, err := Compile(policy)
	if err != nil {
		t.Fatal(err)
	}
	r, c := NewRoster(base), dataplane.Customer{Name: "x", Plan: plan, Prefixes: frametest.Prefixes("10.0.0.1/32")}
	got := testing.AllocsPerRun(100, func() {
		r.Put(&c, &base.Customers.Plans[0])
		r.Remove("x")
	})
	if got > 0 {
		t.Errorf("%v allocations", got)
	}
}
