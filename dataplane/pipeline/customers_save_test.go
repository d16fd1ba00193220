package pipeline

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// save saves all customers, two at a time.
func save(l *Pipeline) (b []byte) {
	for at := 0; at < len(l.customers.list); at += 2 {
		b = l.AppendCustomers(b, at, 2)
	}
	return b
}

// TestSaveCustomers sends random packets through a pipeline, and from some time on through another
// one with the saved customers, too. Both decide alike, also after a reload of both.
func TestSaveCustomers(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	rate := meter.Rate{Bytes: 1000, Period: time.Second}
	policy := func() *dataplane.Policy {
		return frametest.CustomersPolicy(&dataplane.Customers{List: []dataplane.Customer{
			{Name: "bucket", Prefixes: frametest.Prefixes("192.0.2.1/32"), Plan: frametest.BucketPlan("bucket", 3000)},
			{Name: "two", Prefixes: frametest.Prefixes("192.0.2.2/32"), Plan: &dataplane.ServicePlan{Name: "two", Params: meter.TRTCM{CIR: rate, CBS: 2000, PIR: rate, PBS: 4000}}},
			{Name: "window", Prefixes: frametest.Prefixes("192.0.2.3/32"), Plan: &dataplane.ServicePlan{Name: "window", Params: meter.SlidingCounter{Limit: 2500, Window: 2 * time.Second}}},
			{Name: "silent", Prefixes: frametest.Prefixes("192.0.2.4/32"), Plan: frametest.BucketPlan("bucket", 3000)},
		}})
	}
	addresses := []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"}
	for range 50 {
		first, at := newPipeline(t, policy()), int64(1e18)
		send := func(l *Pipeline, to string, n int) string {
			v, _ := process(l, at, toward(to, n))
			return verdict(l.plan.Source, v)
		}
		for range r.IntN(20) {
			at += r.Int64N(1e9)
			send(first, addresses[r.IntN(3)], 100+r.IntN(1300))
		}
		at += r.Int64N(2e9)
		second := newPipeline(t, policy())
		if err := second.RestoreCustomers(save(first), at); err != nil {
			t.Fatal(err)
		}
		again := r.IntN(2) == 0 // another restart before the first packet
		if again {
			third := newPipeline(t, policy())
			if err := third.RestoreCustomers(save(second), at); err != nil {
				t.Fatal(err)
			}
			second = third
		}
		if r.IntN(2) == 0 {
			for _, l := range []**Pipeline{&first, &second} {
				next := newPipeline(t, policy())
				next.Inherit(*l)
				*l = next
			}
		}
		for range 20 {
			at += r.Int64N(1e9)
			to, n := addresses[r.IntN(4)], 100+r.IntN(1300)
			if a, b := send(first, to, n), send(second, to, n); a != b {
				t.Fatalf("%s: %q, restored %q", to, a, b)
			}
		}
	}
}

// TestRestoreCustomers restores customers under other plans, and refuses damaged data.
func TestRestoreCustomers(t *testing.T) {
	customers := func(plan *dataplane.ServicePlan) *dataplane.Policy {
		return frametest.CustomersPolicy(&dataplane.Customers{
			List: []dataplane.Customer{{Name: "a", Prefixes: frametest.Prefixes("192.0.2.1/32"), Plan: plan}},
		})
	}
	first := newPipeline(t, customers(frametest.BucketPlan("large", 3000)))
	wantVerdicts(t, first, 1e18, [2]string{"192.0.2.1 1000", greenCustomer})
	saved := save(first)
	for _, test := range []struct {
		what  string
		plan  *dataplane.ServicePlan
		first string // verdict about 1,500 bytes
		then  string // about another 500
	}{
		{"the same plan", frametest.BucketPlan("large", 3000), greenCustomer, greenCustomer},
		{"a smaller bucket", frametest.BucketPlan("small", 1500), greenCustomer, redCustomer},
		{"a larger bucket", frametest.BucketPlan("larger", 9000), greenCustomer, greenCustomer},
	} {
		l := newPipeline(t, customers(test.plan))
		if err := l.RestoreCustomers(saved, 1e18); err != nil {
			t.Fatal(err)
		}
		t.Log(test.what)
		wantVerdicts(t, l, 1e18, [2]string{"192.0.2.1 1500", test.first},
			[2]string{"192.0.2.1 500", test.then}, [2]string{"192.0.2.1 500", redCustomer})
	}
	// The clock was set back by an hour. The bucket refills from now on.
	rate := meter.Rate{Bytes: 1000, Period: time.Second}
	refilled := &dataplane.ServicePlan{Name: "refilled", Params: meter.TokenBucket{Rate: rate, Burst: 1000}}
	before := newPipeline(t, customers(refilled))
	wantVerdicts(t, before, 1e18, [2]string{"192.0.2.1 1000", greenCustomer})
	l := newPipeline(t, customers(refilled))
	now := int64(1e18 - 3600e9)
	if err := l.RestoreCustomers(save(before), now); err != nil {
		t.Fatal(err)
	}
	wantVerdicts(t, l, now, [2]string{"192.0.2.1 500", redCustomer})
	wantVerdicts(t, l, now+5e8, [2]string{"192.0.2.1 500", greenCustomer},
		[2]string{"192.0.2.1 500", redCustomer})
	if n := len(save(newPipeline(t, customers(refilled)))); n != 0 {
		t.Errorf("customers without packets take %d bytes", n)
	}

	packets := customers(frametest.BucketPlan("large", 3000))
	packets.Classes[0].Meter.Packets = true
	for what, policy := range map[string]*dataplane.Policy{
		"packets": packets, "a queue": customers(pacedPlan(frametest.Mega, time.Second)),
		"nobody": frametest.CustomersPolicy(&dataplane.Customers{List: []dataplane.Customer{{Name: "b", Prefixes: frametest.Prefixes("192.0.2.1/32"), Plan: frametest.BucketPlan("large", 3000)}}}),
	} {
		l := newPipeline(t, policy)
		if err := l.RestoreCustomers(saved, 1e18); err != nil || l.customers.customer(1).begun() {
			t.Errorf("%s: got %v, and a restored customer", what, err)
		}
	}
	for i := 1; i < len(saved); i++ {
		l := newPipeline(t, customers(frametest.BucketPlan("large", 3000)))
		if err := l.RestoreCustomers(saved[:i], 1e18); err == nil || l.customers.customer(1).begun() {
			t.Fatalf("%d bytes were accepted: %v", i, err)
		}
		damaged := bytes.Clone(saved)
		damaged[i] ^= 1 // perhaps another name, which nobody has
		if err := l.RestoreCustomers(damaged, 1e18); err == nil && l.customers.customer(1).begun() {
			t.Fatalf("byte %d is damaged: customer a is restored", i)
		}
	}
}

// TestRestoreCustomersErrors checks that an error names the customer whose meter cannot be read, with
// the reason of package meter, and otherwise that the data are damaged.
func TestRestoreCustomersErrors(t *testing.T) {
	policy := frametest.CustomersPolicy(&dataplane.Customers{List: []dataplane.Customer{
		{Name: "alice", Prefixes: frametest.Prefixes("192.0.2.1/32"), Plan: frametest.BucketPlan("p", 3000)},
	}})
	l := newPipeline(t, policy)
	process(l, 1e9, toward("192.0.2.1", 500))
	saved := save(l)
	corrupt := bytes.Clone(saved)
	corrupt[len(corrupt)-1] ^= 1 // in the checksum
	later := bytes.Replace(saved, []byte("mtr\x02"), []byte("mtr\x63"), 1)
	for _, test := range []struct {
		saved []byte
		want  []string // parts of the error
	}{
		{corrupt, []string{`"alice"`, "corrupt"}},
		{later, []string{`"alice"`, "format 99"}},
		{saved[:len(saved)-1], []string{"damaged or truncated"}},
		{saved[:3], []string{"damaged or truncated"}},
	} {
		err := newPipeline(t, policy).RestoreCustomers(test.saved, 1e9)
		for _, want := range test.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		}
	}
}

// TestRestoreCustomersProfile checks that customers whose plan has not changed share its profile, and
// do not have one each.
func TestRestoreCustomersProfile(t *testing.T) {
	for _, params := range []meter.Params{
		meter.TokenBucket{Rate: frametest.Mega, Burst: 3000},
		meter.TokenBucket{Rate: meter.Unlimited, Burst: 3000},
		meter.SlidingCounter{Limit: 2500, Window: 2 * time.Second},
	} {
		plan := &dataplane.ServicePlan{Name: "p", Params: params}
		policy := frametest.CustomersPolicy(
			&dataplane.Customers{List: customersOf(100, func(int) *dataplane.ServicePlan { return plan })})
		first, second := newPipeline(t, policy), newPipeline(t, policy)
		for i := range 100 {
			process(first, 1e9, toward(fmt.Sprintf("10.0.0.%d", i), 500))
		}
		saved := save(first)
		if n := testing.AllocsPerRun(1, func() {
			if err := second.RestoreCustomers(saved, 2e9); err != nil {
				t.Fatal(err)
			}
		}); n > 100*20 {
			t.Errorf("%v: got %v allocations for 100 customers, want at most 20 for each", params.Kind(), n)
		}
		for i := range second.customers.list {
			if c := &second.customers.list[i]; !c.begun() || c.Profile() != c.service.Profile {
				t.Fatalf("%v: customer %d has a profile of its own", params.Kind(), i+1)
			}
		}
	}
}
