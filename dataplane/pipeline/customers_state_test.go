package pipeline

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// toward returns a frame to an address with an IP packet of n bytes.
func toward(addr string, n int) []byte {
	dst := netip.MustParseAddr(addr)
	if dst.Is4() {
		return frametest.Concat(frametest.Ethernet(frametest.EtherIPv4),
			frametest.V4{Proto: frametest.ProtoUDP, Dst: dst}.Packet(make([]byte, n-20)))
	}
	return frametest.Concat(frametest.Ethernet(frametest.EtherIPv6),
		frametest.V6{Next: frametest.ProtoUDP, Dst: dst}.Packet(make([]byte, n-40)))
}

// pacedPlan is a plan with a queue.
func pacedPlan(rate meter.Rate, limit time.Duration) *dataplane.ServicePlan {
	return &dataplane.ServicePlan{Name: "paced", Queue: &queue.Config{Rate: rate, Time: limit}}
}

// wantVerdicts processes packets to addresses, "ADDRESS LENGTH", at one time.
func wantVerdicts(t *testing.T, l *Pipeline, at int64, rows ...[2]string) {
	t.Helper()
	for _, row := range rows {
		var addr string
		var n int
		if _, err := fmt.Sscan(row[0], &addr, &n); err != nil {
			t.Fatal(err)
		}
		v, _ := process(l, at, toward(addr, n))
		if got := verdict(l.plan.Source, v); got != row[1] {
			t.Errorf("%s at %d: got %q, want %q", row[0], at, got, row[1])
		}
	}
}

const (
	greenCustomer = "customers green>green pass token-bucket-green"
	redCustomer   = "customers green>red drop token-bucket-red"
	stranger      = "strangers green>green pass no-meter"
)

// TestCustomerState checks that all addresses of a customer share one bucket, or one queue,
// and that no two customers do.
func TestCustomerState(t *testing.T) {
	bucket, paced := frametest.BucketPlan("bucket", 1000), pacedPlan(frametest.Mega, 2*time.Millisecond)
	l := newPipeline(t, frametest.CustomersPolicy(&dataplane.Customers{List: []dataplane.Customer{
		{Name: "a", Prefixes: frametest.Prefixes("192.0.2.0/31", "2001:db8::/64"), Plan: bucket},
		{Name: "b", Prefixes: frametest.Prefixes("192.0.2.2/32"), Plan: bucket},
		{Name: "p", Prefixes: frametest.Prefixes("192.0.2.3/32", "2001:db8:1::/64"), Plan: paced},
		{Name: "q", Prefixes: frametest.Prefixes("192.0.2.4/32"), Plan: paced},
	}}))
	wantVerdicts(t, l, 0, [][2]string{
		{"192.0.2.0 500", greenCustomer},
		{"2001:db8::7 300", greenCustomer},
		{"192.0.2.1 201", redCustomer},
		{"192.0.2.1 200", greenCustomer},
		{"2001:db8::8 41", redCustomer},
		{"192.0.2.2 1000", greenCustomer},
		{"192.0.2.2 21", redCustomer},
		{"192.0.2.3 1000", "customers green>green queue@0 no-meter"},
		{"2001:db8:1::1 1000", "customers green>green queue@1000000 no-meter"},
		{"192.0.2.3 1000", "customers green>green queue@2000000 no-meter"},
		{"192.0.2.3 1000", "customers green>green drop queue-full"},
		{"192.0.2.4 1000", "customers green>green queue@0 no-meter"},
		{"192.0.2.5 1000", stranger},
		{"2001:db8:2::1 1000", stranger},
	}...)
	wantVerdicts(t, l, 100*µs, [2]string{"2001:db8::8 100", greenCustomer},
		[2]string{"192.0.2.0 21", redCustomer})
	for number, want := range []dataplane.CustomerStats{
		{Colors: [3]dataplane.Count{{Packets: 4, Bytes: 1100}, {}, {Packets: 3, Bytes: 263}}, Dropped: dataplane.Count{Packets: 3, Bytes: 263}},
		{Colors: [3]dataplane.Count{{Packets: 1, Bytes: 1000}, {}, {Packets: 1, Bytes: 21}}, Dropped: dataplane.Count{Packets: 1, Bytes: 21}},
		{Colors: [3]dataplane.Count{{Packets: 4, Bytes: 4000}, {}, {}}, Dropped: dataplane.Count{Packets: 1, Bytes: 1000}},
		{Colors: [3]dataplane.Count{{Packets: 1, Bytes: 1000}, {}, {}}},
	} {
		if got := l.Customers()[number]; got != want {
			t.Errorf("customer %d: got %+v, want %+v", number+1, got, want)
		}
	}
	for number, want := range map[uint32]time.Duration{
		3: 2900 * time.Microsecond, 4: 900 * time.Microsecond,
	} {
		if got, queued := l.CustomerDelay(number, 100*µs); got != want || !queued {
			t.Errorf("customer %d: delay %v, %v, want %v", number, got, queued, want)
		}
	}
	if _, queued := l.CustomerDelay(1, 0); queued {
		t.Error("a customer with a meter has a queue")
	}
}

// TestInheritCustomers checks that customers keep tokens, counters and the time at which
// their queue is free, by name, when the table changes.
func TestInheritCustomers(t *testing.T) {
	bucket, paced := frametest.BucketPlan("bucket", 1000), pacedPlan(frametest.Mega, time.Second)
	before := newPipeline(t, frametest.CustomersPolicy(&dataplane.Customers{List: []dataplane.Customer{
		{Name: "a", Prefixes: frametest.Prefixes("192.0.2.1/32"), Plan: bucket},
		{Name: "gone", Prefixes: frametest.Prefixes("192.0.2.2/32"), Plan: bucket},
		{Name: "idle", Prefixes: frametest.Prefixes("192.0.2.3/32"), Plan: bucket},
		{Name: "less", Prefixes: frametest.Prefixes("192.0.2.4/32"), Plan: bucket},
		{Name: "same", Prefixes: frametest.Prefixes("192.0.2.5/32"), Plan: paced},
		{Name: "faster", Prefixes: frametest.Prefixes("192.0.2.6/32"), Plan: paced},
		{Name: "paced", Prefixes: frametest.Prefixes("192.0.2.7/32"), Plan: bucket},
		{Name: "metered", Prefixes: frametest.Prefixes("192.0.2.8/32"), Plan: paced},
	}}))
	for _, to := range []string{"192.0.2.1 700", "192.0.2.2 900", "192.0.2.4 100", "192.0.2.7 1000"} {
		wantVerdicts(t, before, 5, [2]string{to, greenCustomer})
	}
	for _, to := range []string{"192.0.2.5 1000", "192.0.2.6 1000", "192.0.2.8 1000"} {
		wantVerdicts(t, before, 5, [2]string{to, "customers green>green queue@5 no-meter"})
	}
	more, less := frametest.BucketPlan("more", 5000), frametest.BucketPlan("less", 500)
	after := frametest.CustomersPolicy(&dataplane.Customers{List: []dataplane.Customer{
		{Name: "metered", Prefixes: frametest.Prefixes("192.0.2.8/32"), Plan: bucket},
		{Name: "paced", Prefixes: frametest.Prefixes("192.0.2.7/32"), Plan: paced},
		{Name: "faster", Prefixes: frametest.Prefixes("192.0.2.6/32"), Plan: pacedPlan(meter.BitRate(16e6), time.Second)},
		{Name: "same", Prefixes: frametest.Prefixes("192.0.2.5/32"), Plan: pacedPlan(frametest.Mega, time.Second)},
		{Name: "less", Prefixes: frametest.Prefixes("192.0.2.4/32"), Plan: less},
		{Name: "idle", Prefixes: frametest.Prefixes("192.0.2.3/32"), Plan: more},
		{Name: "new", Prefixes: frametest.Prefixes("192.0.2.1/32"), Plan: bucket},
		{Name: "a", Prefixes: frametest.Prefixes("2001:db8::1/128"), Plan: more},
	}})
	l, _ := inherited(t, before, after)
	wantVerdicts(t, l, 5, [][2]string{
		{"2001:db8::1 301", redCustomer}, // a
		{"2001:db8::1 300", greenCustomer},
		{"192.0.2.1 1000", greenCustomer}, // new
		{"192.0.2.2 100", stranger},       // gone
		{"192.0.2.3 5000", greenCustomer}, // idle
		{"192.0.2.4 501", redCustomer},    // less
		{"192.0.2.4 500", greenCustomer},
		{"192.0.2.5 1000", "customers green>green queue@1000005 no-meter"}, // same
		{"192.0.2.5 1000", "customers green>green queue@2000005 no-meter"},
		{"192.0.2.6 1000", "customers green>green queue@1000005 no-meter"}, // faster
		{"192.0.2.6 1000", "customers green>green queue@1500005 no-meter"},
		{"192.0.2.7 1000", "customers green>green queue@5 no-meter"}, // paced
		{"192.0.2.8 1000", greenCustomer},                            // metered
		{"192.0.2.8 21", redCustomer},
	}...)
	for name, want := range map[string]dataplane.CustomerStats{
		"a":       {Colors: [3]dataplane.Count{{Packets: 2, Bytes: 1000}, {}, {Packets: 1, Bytes: 301}}, Dropped: dataplane.Count{Packets: 1, Bytes: 301}},
		"new":     {Colors: [3]dataplane.Count{{Packets: 1, Bytes: 1000}}},
		"idle":    {Colors: [3]dataplane.Count{{Packets: 1, Bytes: 5000}}},
		"same":    {Colors: [3]dataplane.Count{{Packets: 3, Bytes: 3000}}},
		"paced":   {Colors: [3]dataplane.Count{{Packets: 2, Bytes: 2000}}},
		"metered": {Colors: [3]dataplane.Count{{Packets: 2, Bytes: 2000}, {}, {Packets: 1, Bytes: 21}}, Dropped: dataplane.Count{Packets: 1, Bytes: 21}},
	} {
		if got := l.Customers()[l.plan.Customers.Number(name)-1]; got != want {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
}

// TestInheritCustomersUnit checks that customers start with a full bucket if it counted bytes
// and now counts packets.
func TestInheritCustomersUnit(t *testing.T) {
	policy := func(packets bool, burst int64) *dataplane.Policy {
		p := frametest.CustomersPolicy(&dataplane.Customers{List: []dataplane.Customer{
			{Name: "a", Prefixes: frametest.Prefixes("192.0.2.1/32"), Plan: frametest.BucketPlan("p", burst)},
		}})
		p.Classes[0].Meter.Packets = packets
		return p
	}
	l := newPipeline(t, policy(false, 1000))
	wantVerdicts(t, l, 0, [2]string{"192.0.2.1 999", greenCustomer})
	l, _ = inherited(t, l, policy(true, 2))
	wantVerdicts(t, l, 0, [2]string{"192.0.2.1 999", greenCustomer},
		[2]string{"192.0.2.1 999", greenCustomer}, [2]string{"192.0.2.1 20", redCustomer})
	l, _ = inherited(t, l, policy(false, 1000))
	wantVerdicts(t, l, 0, [2]string{"192.0.2.1 1000", greenCustomer}, [2]string{"192.0.2.1 20", redCustomer})
}

// TestInheritCustomersUnchanged compares a pipeline with one that is replaced again and
// again, by the same customers in another order.
func TestInheritCustomersUnchanged(t *testing.T) {
	r := frametest.Seeded(t)
	plans := []*dataplane.ServicePlan{
		frametest.BucketPlan("bucket", 3000), pacedPlan(frametest.Mega, 5*time.Millisecond),
		{Name: "trtcm", Params: meter.TRTCM{CIR: frametest.Mega, CBS: 2000, PIR: meter.BitRate(16e6), PBS: 4000}},
		{Name: "window", Params: meter.FixedWindow{Limit: 3000, Window: time.Millisecond}},
		{Name: "codel", Queue: &queue.Config{Rate: frametest.Mega, Time: 20 * time.Millisecond, CoDel: queue.CoDel{Target: time.Millisecond, Interval: 5 * time.Millisecond}}},
	}
	var list []dataplane.Customer
	for i := range 40 {
		list = append(list, dataplane.Customer{
			Name: fmt.Sprint(i), Plan: plans[i%len(plans)],
			Prefixes: frametest.Prefixes(fmt.Sprintf("192.0.2.%d/32", i), fmt.Sprintf("2001:db8::%d/128", i)),
		})
	}
	policy := func() *dataplane.Policy {
		list := slices.Clone(list)
		for range []int{0, 1, 5, 100}[r.IntN(4)] { // so many move to another place
			i, j := r.IntN(len(list)), r.IntN(len(list))
			list[i], list[j] = list[j], list[i]
		}
		return frametest.CustomersPolicy(&dataplane.Customers{List: list})
	}
	one, other := newPipeline(t, policy()), newPipeline(t, policy())
	at, seen := int64(0), map[string]int{}
	for i := range 20_000 {
		if r.IntN(50) == 0 {
			other, _ = inherited(t, other, policy())
		}
		at += r.Int64N(40 * µs)
		frame := toward(fmt.Sprintf([]string{"192.0.2.%d", "2001:db8::%d"}[r.IntN(2)], r.IntN(45)),
			40+r.IntN(1400))
		want, _ := process(one, at, frame)
		got, _ := process(other, at, frame)
		name := func(l *Pipeline, v *dataplane.Verdict) string {
			return string(l.plan.AppendKey(nil, nil, v))
		}
		if name(one, &want) != name(other, &got) {
			t.Fatalf("packet %d: customer %q, want %q", i, name(other, &got), name(one, &want))
		}
		seen[fmt.Sprint(want.Class, want.Reason, want.Done.Dropped())]++
		if got.Customer = want.Customer; got != want {
			t.Fatalf("packet %d: got %+v, want %+v", i, got, want)
		}
	}
	if len(seen) < 10 {
		t.Errorf("only these cases: %v", seen)
	}
	for _, c := range list {
		got, want := other.Customers()[other.plan.Customers.Number(c.Name)-1],
			one.Customers()[one.plan.Customers.Number(c.Name)-1]
		if got != want || got.Colors == [3]dataplane.Count{} {
			t.Errorf("customer %s: got %+v, want %+v", c.Name, got, want)
		}
	}
}

// customersOf makes n customers with an IPv4 and an IPv6 address each.
func customersOf(n int, plan func(i int) *dataplane.ServicePlan) []dataplane.Customer {
	list := make([]dataplane.Customer, n)
	for i := range list {
		list[i] = dataplane.Customer{Name: fmt.Sprint(i), Plan: plan(i), Prefixes: []netip.Prefix{
			netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32),
			netip.PrefixFrom(
				netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, byte(i >> 16), byte(i >> 8), byte(i)}), 56),
		}}
	}
	return list
}

// TestCustomersAllocateNothing processes packets of customers and strangers, and writes the
// keys.
func TestCustomersAllocateNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	paced, bucket := pacedPlan(frametest.Mega, 10*time.Millisecond), frametest.BucketPlan("bucket", 3000)
	policy := frametest.CustomersPolicy(&dataplane.Customers{List: customersOf(1000,
		func(i int) *dataplane.ServicePlan { return []*dataplane.ServicePlan{bucket, paced}[i%2] })})
	policy.Classes[1].Meter = &dataplane.Meter{
		Params: meter.TokenBucket{Rate: frametest.Mega, Burst: 3000}, Per: dataplane.Key{By: dataplane.BySrc},
	}
	l := newPipeline(t, policy)
	frames := make([][]byte, 4000)
	for i := range frames {
		n := r.IntN(1100)
		to := []string{
			fmt.Sprintf("10.0.%d.%d", n>>8, n&255), fmt.Sprintf("2001:db8:%x:%x::1", n>>8, n&255<<8),
		}[i%2]
		frames[i] = toward(to, 40+r.IntN(1400))
	}
	packets, verdicts, key := make([]dataplane.Packet, 100), make([]dataplane.Verdict, 100),
		make([]byte, 0, 100)
	var cases [4]int
	n := 0
	batch := func() {
		for i := range packets {
			packets[i] = dataplane.Packet{
				Data: frames[n%len(frames)], Link: dataplane.LinkEthernet, Time: int64(n) * 100,
			}
			n++
		}
		l.ProcessBatch(packets, verdicts)
		for i := range verdicts {
			key = l.plan.AppendKey(key[:0], &packets[i], &verdicts[i])
			v := &verdicts[i]
			switch {
			case len(key) == 0:
				t.Fatalf("packet %d has no key", i)
			case v.Customer == 0:
				cases[0]++
			case v.Done&dataplane.Queued != 0:
				cases[1]++
			case v.Done.Dropped():
				cases[2]++
			default:
				cases[3]++
			}
		}
	}
	for range 200 {
		batch()
	}
	if allocs := testing.AllocsPerRun(100, batch); allocs != 0 {
		t.Errorf("got %v allocations per batch, want 0", allocs)
	}
	if slices.Contains(cases[:], 0) {
		t.Errorf("cases %v: one did not occur", cases[:])
	}
}
