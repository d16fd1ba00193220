package image

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// randomServices returns plans of all sorts.
func randomServices(r *rand.Rand, n int) (plans []*dataplane.ServicePlan) {
	for i := range n {
		p := &dataplane.ServicePlan{Name: fmt.Sprint("plan", i)}
		rate := meter.BitRate(1000 * (1 + r.Int64N(1000)))
		switch r.IntN(4) {
		case 0:
			p.Params = meter.TokenBucket{Rate: rate, Burst: 1 + r.Int64N(1e6)}
		case 1:
			p.Params = meter.SRTCM{CIR: rate, CBS: 1 + r.Int64N(1e6), EBS: 1 + r.Int64N(1e6)}
		case 2:
			p.Params = meter.FixedWindow{Limit: 1 + r.Int64N(1e6), Window: time.Second}
		case 3:
			p.Queue = &queue.Config{Rate: rate, Time: time.Duration(1+r.IntN(100)) * time.Millisecond}
		}
		plans = append(plans, p)
	}
	return plans
}

// TestChangeCustomers changes the customers of the same maps at random, and compares their content
// with the policy.
func TestChangeCustomers(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	maps, err := NewMaps()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { maps.Close() }()
	random := func() []dataplane.Customer {
		services := randomServices(r, 1+r.IntN(8))
		owner := map[netip.Prefix]bool{}
		var list []dataplane.Customer
		for _, n := range r.Perm(80)[:r.IntN(60)] {
			c := dataplane.Customer{Name: fmt.Sprint("customer ", n), Plan: services[r.IntN(len(services))]}
			for range r.IntN(4) {
				p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(4)), byte(r.IntN(32))}),
					kerneltest.Pick(r, 8, 24, 29, 32)).Masked()
				if r.IntN(2) == 0 {
					p = netip.PrefixFrom(
						netip.AddrFrom16([16]byte{0x20, 1, 14: byte(r.IntN(4)), 15: byte(r.IntN(32))}),
						kerneltest.Pick(r, 100, 120, 127, 128)).Masked()
				}
				if !owner[p] {
					owner[p] = true
					c.Prefixes = append(c.Prefixes, p)
				}
			}
			list = append(list, c)
		}
		return list
	}
	image := func(list []dataplane.Customer) *Image {
		g, err := encoded(kerneltest.CustomerPolicy(list), IngressEntry, "")
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	g := image(random())
	if err := g.Initialize(maps); err != nil {
		t.Fatal(err)
	}
	about := &record.About{Customers: g.Constants.Customers}
	counted, number := map[string]uint64{}, map[string]uint32{} // of the customers before
	remade := 0
	for round := range 40 {
		if round > 0 {
			g = image(random())
			fits, err := maps.FitCustomers(g, about)
			if err != nil {
				t.Fatal(err)
			}
			if fits {
				if err := maps.ChangeCustomers(g); err != nil {
					t.Fatal(err)
				}
			} else {
				next := *maps
				if err := errors.Join(next.makeCustomerMaps(g),
					g.copyCustomers(about, maps, &next, nil)); err != nil {
					t.Fatal(err)
				}
				maps.CloseExcept(&next)
				maps, number = &next, map[string]uint32{}
				remade++
			}
		}
		table, err := maps.ReadCustomers()
		if err != nil {
			t.Fatal(err)
		}
		counters, err := CustomerStats(maps.Customers, g.Plan.Customers, nil)
		if err != nil {
			t.Fatal(err)
		}
		prefixes, search := prefixesIn(t, maps)
		if search.Below != g.customerImage.below {
			t.Fatalf("lengths %v, want %v", search.Below, g.customerImage.below)
		}
		list, total := g.Plan.Customers.Source.List, 0
		seen := map[string]bool{}
		for i := range list {
			c := &list[i]
			found := table.find(CustomerID(c.Name))
			if found == nil {
				t.Fatalf("customer %q is missing", c.Name)
			}
			if table.plans[found.Plan] != g.customerImage.plans[g.Plan.Customers.Of[i]] {
				t.Fatalf("customer %q has another plan", c.Name)
			}
			if got := counters[i].Colors[meter.Green].Packets; found.Green.Packets != counted[c.Name] ||
				got != int64(counted[c.Name]) {
				t.Fatalf("customer %q: %d packets counted, read as %d, want %d", c.Name, found.Green.Packets,
					got, counted[c.Name])
			}
			now := table.Numbers[CustomerID(c.Name)]
			if was := number[c.Name]; was != 0 && was != now {
				t.Fatalf("customer %q moved from number %d to %d", c.Name, was, now)
			}
			for _, key := range prefixesOf(c, nil) {
				if prefixes[key] != now {
					t.Fatalf("%v belongs to number %d, want %d", key, prefixes[key], now)
				}
				total++
			}
			seen[c.Name] = true
			counted[c.Name], number[c.Name] = r.Uint64N(1e6), now
			found.Green.Packets = counted[c.Name]
			if err := maps.Customers.Put(now-1, found); err != nil {
				t.Fatal(err)
			}
		}
		if total != len(prefixes) || len(table.Numbers) != len(list) {
			t.Fatalf("%d prefixes of %d customers, want %d of %d", len(prefixes), len(table.Numbers), total,
				len(list))
		}
		for name := range counted {
			if !seen[name] {
				delete(counted, name)
				delete(number, name)
			}
		}
	}
	t.Logf("%d times with new maps", remade)
}

// customerMaps returns the image and the maps of a policy with plans and one customer, "a".
func customerMaps(t *testing.T, plans []*dataplane.ServicePlan, plan uint32) (*Image, *Maps) {
	t.Helper()
	policy := kerneltest.CustomerPolicy([]dataplane.Customer{{Name: "a", Plan: plans[plan]}})
	policy.Customers.Plans = plans
	g, err := encoded(policy, IngressEntry, "")
	if err != nil {
		t.Fatal(err)
	}
	maps, err := NewMaps()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { maps.Close() })
	if err := g.Initialize(maps); err != nil {
		t.Fatal(err)
	}
	return g, maps
}

// TestMoveBeginsCoDel changes the plans of a customer with a queue. CoDel begins anew unless only the
// rate differs, as in the pipeline.
func TestMoveBeginsCoDel(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	paced := func(name string, rate int64, limit time.Duration, codel queue.CoDel) *dataplane.ServicePlan {
		return &dataplane.ServicePlan{
			Name: name, Queue: &queue.Config{Rate: meter.BitRate(rate), Time: limit, CoDel: codel},
		}
	}
	fast := queue.CoDelAt(meter.BitRate(20e6))
	ecn := paced("ecn", 20e6, time.Second, fast)
	ecn.Queue.ECN = true
	plans := []*dataplane.ServicePlan{
		paced("before", 20e6, time.Second, fast),
		paced("rate", 10e6, time.Second, fast),
		paced("target", 1e6, time.Second, queue.CoDelAt(meter.BitRate(1e6))),
		paced("limit", 20e6, time.Minute, fast),
		paced("interval", 20e6, time.Second, queue.CoDel{Target: fast.Target, Interval: 2 * fast.Interval}),
		ecn,
	}
	for to, plan := range plans {
		t.Run(plan.Name, func(t *testing.T) {
			_, maps := customerMaps(t, plans, 0)
			now := uint64(engine.Now())
			const begun, above, dropping = 1, 1 << 8, 1 << 16 // bytes of the rest of a backlog
			before := bpf.ShaperCustomer{
				Word: [2]uint64{now, 0}, Stamp: now - 1e9, // first above
				Queue: [3]uint64{now + 1e6, 50<<32 | 60, begun | above | dropping}, // next drop, counts
				Id:    CustomerID("a"),
			}
			if err := maps.Customers.Put(uint32(0), &before); err != nil {
				t.Fatal(err)
			}
			if err := maps.move([]bpf.BudgetMove{{Customer: 1, Plan: uint32(to)}}); err != nil {
				t.Fatal(err)
			}
			var c bpf.ShaperCustomer
			if err := maps.Customers.LookupWithFlags(uint32(0), &c, ebpf.LookupLock); err != nil {
				t.Fatal(err)
			}
			want := before
			want.Plan = uint32(to)
			if to > 1 {
				want.Stamp, want.Queue = 0, [3]uint64{2: begun}
			}
			if c.Word != want.Word || c.Stamp != want.Stamp || c.Queue != want.Queue || c.Plan != want.Plan {
				t.Errorf("state %v, %d, %v, want %v, %d, %v", c.Word, c.Stamp, c.Queue, want.Word, want.Stamp,
					want.Queue)
			}
		})
	}
}

// TestMoveKeepsTokens changes the plans of customers, whose buckets refill so slowly that the time
// does not matter.
func TestMoveKeepsTokens(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	slow := meter.Rate{Bytes: 1, Period: time.Hour}
	bucket := func(burst int64) *dataplane.ServicePlan {
		return &dataplane.ServicePlan{
			Name: fmt.Sprint("bucket", burst), Params: meter.TokenBucket{Rate: slow, Burst: burst},
		}
	}
	two := &dataplane.ServicePlan{
		Name: "two", Params: meter.TRTCM4115{CIR: slow, CBS: 5000, EIR: slow, EBS: 7000},
	}
	window := &dataplane.ServicePlan{
		Name: "window", Params: meter.FixedWindow{Limit: 4000, Window: 1000 * time.Hour},
	}
	paced := &dataplane.ServicePlan{
		Name: "paced", Queue: &queue.Config{Rate: meter.BitRate(1e6), Time: time.Second},
	}
	plans := []*dataplane.ServicePlan{bucket(10000), bucket(3000), two, window, paced}
	const (
		large = iota
		small
		pair
		win
		queued
	)
	unstarted := engine.Levels{-1} // stands for the state of a customer without packets
	for _, test := range []struct {
		name     string
		from, to uint32
		before   engine.Levels // whole bytes
		want     engine.Levels
	}{
		{"larger bucket", small, large, engine.Levels{2000}, engine.Levels{2000}},
		{"smaller bucket", large, small, engine.Levels{8000}, engine.Levels{3000}},
		{"empty bucket", large, small, engine.Levels{0}, engine.Levels{0}},
		{"a second bucket", large, pair, engine.Levels{4000}, engine.Levels{4000, 0}},
		{"no second bucket", pair, small, engine.Levels{1234, 7000}, engine.Levels{1234, 0}},
		{"window", large, win, engine.Levels{1500}, engine.Levels{1500}},
		{"smaller window", large, win, engine.Levels{9000}, engine.Levels{4000}},
		{"from a window", win, pair, engine.Levels{1700}, engine.Levels{1700, 0}},
		{"from a large window", win, small, engine.Levels{4000}, engine.Levels{3000}},
		{"from a queue", queued, pair, engine.Levels{}, engine.Levels{5000, 7000}},
		{"before the first packet", small, large, unstarted, engine.Levels{10000}},
		{"bucket to window before the first packet", small, win, unstarted, engine.Levels{4000}},
		{"window to bucket before the first packet", win, large, unstarted, engine.Levels{10000}},
	} {
		t.Run(test.name, func(t *testing.T) {
			g, maps := customerMaps(t, plans, test.from)
			from, to := &g.customerImage.plans[test.from].Profile, &g.customerImage.plans[test.to].Profile
			now := uint64(engine.Now())
			var c bpf.ShaperCustomer
			switch {
			case test.from == queued:
				c.Word[0] = now
			case test.before == unstarted:
				c = initialState(&g.customerImage.plans[test.from])
			default:
				l := test.before
				for i := range l {
					l[i] *= int64(from.Buckets[i].Den)
				}
				state := l.State(now, from)
				c.Word, c.Stamp = state.Word, state.Stamp
			}
			c.Plan, c.Id = test.from, CustomerID("a")
			if err := maps.Customers.Put(uint32(0), &c); err != nil {
				t.Fatal(err)
			}
			if err := maps.move([]bpf.BudgetMove{{Customer: 1, Plan: test.to}}); err != nil {
				t.Fatal(err)
			}
			if err := maps.Customers.LookupWithFlags(uint32(0), &c, ebpf.LookupLock); err != nil {
				t.Fatal(err)
			}
			tc, te := engine.LevelsAt(&bpf.ShaperState{Word: c.Word, Stamp: c.Stamp}, to,
				uint64(engine.Now())).Tokens(to)
			if c.Plan != test.to || (engine.Levels{tc, te}) != test.want {
				t.Errorf("plan %d with %d and %d tokens, want plan %d with %d", c.Plan, tc, te, test.to,
					test.want)
			}
		})
	}
}

// TestCustomerLengths checks the lengths of prefixes that the programs search.
func TestCustomerLengths(t *testing.T) {
	list := []dataplane.Customer{{Prefixes: []netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("10.0.0.0/8"),
		netip.MustParsePrefix("10.0.0.1/32"),
	}}}
	for bits := range 129 {
		list = append(list,
			dataplane.Customer{Prefixes: []netip.Prefix{netip.PrefixFrom(netip.IPv6Unspecified(), bits)}})
	}
	got := lengthsOf(&dataplane.Customers{List: list}, nil)
	for length, below := range map[uint8]uint8{anyLength: 32, 32: 8, 31: 8, 9: 8, 8: 0, 7: 0, 0: noLength} {
		if got[0][length] != below {
			t.Errorf("IPv4: %d is below %d, want %d", got[0][length], length, below)
		}
	}
	for length := range uint8(anyLength) {
		if got[1][length+1] != length {
			t.Errorf("IPv6: %d is below %d", got[1][length+1], length+1)
		}
	}
	if got[1][0] != noLength {
		t.Errorf("IPv6: %d is below 0", got[1][0])
	}
}

// TestManyCustomers reads more customers than one system call returns.
func TestManyCustomers(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	const n = 40_001
	plan := &dataplane.ServicePlan{
		Name: "home", Params: meter.TokenBucket{Rate: meter.BitRate(1e6), Burst: 10000},
	}
	list := make([]dataplane.Customer, n)
	for i := range list {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		list[i] = dataplane.Customer{
			Name: fmt.Sprint(i), Plan: plan, Prefixes: []netip.Prefix{netip.PrefixFrom(a, 32)},
		}
	}
	maps, err := NewMaps()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { maps.Close() }()
	g, err := encoded(kerneltest.CustomerPolicy(list), IngressEntry, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Initialize(maps); err != nil {
		t.Fatal(err)
	}
	table, err := maps.ReadCustomers()
	if err != nil || len(table.Numbers) != n {
		t.Fatalf("got %d customers, want %d: %v", len(table.Numbers), n, err)
	}
	if prefixes, _ := prefixesIn(t, maps); len(prefixes) != n {
		t.Fatalf("got %d prefixes, want %d", len(prefixes), n)
	}
}

// TestCustomerIDs checks that two names with one hash are rejected. Both are known to collide in
// FNV-1a of 64 bits.
func TestCustomerIDs(t *testing.T) {
	const a, b = "8yn0iYCKYHlIj4-BwPqk", "GReLUrM4wMqfg9yzV3KQ"
	if CustomerID(a) != CustomerID(b) {
		t.Fatal("the names do not collide")
	}
	plan := &dataplane.ServicePlan{
		Name: "home", Params: meter.TokenBucket{Rate: meter.BitRate(1e6), Burst: 10000},
	}
	_, err := encoded(
		kerneltest.CustomerPolicy([]dataplane.Customer{{Name: a, Plan: plan}, {Name: b, Plan: plan}}),
		IngressEntry, "")
	if err == nil || !strings.Contains(err.Error(), "has the same hash as") {
		t.Errorf("got error %v", err)
	}
}
