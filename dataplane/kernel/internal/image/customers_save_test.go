package image

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// savePlans are plans of customers: a bucket of 1,000 B/s, two buckets, a window and a queue.
func savePlans(t testing.TB) []bpf.ShaperPlan {
	t.Helper()
	rate := meter.Rate{Bytes: 1000, Period: time.Second}
	policy := kerneltest.CustomerPolicy(nil)
	policy.Customers.Plans = []*dataplane.ServicePlan{
		{Name: "one", Params: meter.TokenBucket{Rate: rate, Burst: 5000}},
		{Name: "two", Params: meter.TRTCM4115{CIR: rate, CBS: 5000, EIR: rate, EBS: 7000}},
		{Name: "window", Params: meter.FixedWindow{Limit: 4000, Window: 10 * time.Second}},
		{Name: "queue", Queue: &queue.Config{Rate: meter.BitRate(1e6), Time: time.Minute}},
	}
	g, err := encoded(policy, IngressEntry, "")
	if err != nil {
		t.Fatal(err)
	}
	return g.customerImage.plans
}

// TestSaveCustomers saves customers 2 s before they are restored, in the same boot and in
// another one.
func TestSaveCustomers(t *testing.T) {
	plans := savePlans(t)
	const then, second = uint64(1e15), uint64(time.Second)
	before := &CustomerTable{plans: plans}
	add := func(id uint64, plan uint32, l engine.Levels) {
		p := &plans[plan].Profile
		c := bpf.ShaperCustomer{Id: id, Plan: plan}
		for i := range l {
			l[i] *= int64(p.Buckets[i].Den)
		}
		state := l.State(then, p)
		c.Word, c.Stamp, c.Green.Packets = state.Word, state.Stamp, 7
		before.customers = append(before.customers, c)
	}
	add(11, 0, engine.Levels{100})
	add(12, 1, engine.Levels{4000, 500})
	add(13, 2, engine.Levels{1500})
	add(14, 0, engine.Levels{0})
	before.customers = append(before.customers, bpf.ShaperCustomer{}, initialState(&plans[0]),
		bpf.ShaperCustomer{Id: 15, Plan: 3, Word: [2]uint64{then + 5*second}, Queue: [3]uint64{1, 2, 3}})
	before.customers[5].Id = 16 // without packets
	boot, other := [36]byte{1}, [36]byte{2}
	const wall = int64(1e18)
	saved := before.save(boot, int64(then), wall)
	same, err := restoreCustomers(saved, boot, int64(then+2*second), wall+int64(2*second))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range before.customers {
		want.Green.Packets = 0
		if got := same.find(want.Id); i == 4 || i == 5 {
			if want.Id != 0 && got != nil {
				t.Errorf("customer %d had no packets and is restored: %+v", want.Id, got)
			}
		} else if got == nil || got.Word != want.Word || got.Stamp != want.Stamp || got.Queue != want.Queue ||
			got.Green.Packets != 0 || same.plans[got.Plan] != statesOf(plans)[want.Plan] {
			t.Errorf("customer %d: got %+v, want %+v", want.Id, got, want)
		}
	}
	for _, test := range []struct {
		since int64 // seconds of the wall clock
		want  map[uint64]engine.Levels
		delay uint64 // of customer 15, s
	}{
		{2, map[uint64]engine.Levels{11: {2100}, 12: {5000, 2500}, 14: {2000}}, 3},
		{-9, map[uint64]engine.Levels{11: {100}, 12: {4000, 500}, 13: {1500}, 14: {0}}, 5}, // the clock was set back
		{60, map[uint64]engine.Levels{11: {5000}, 12: {5000, 7000}, 13: {4000}, 14: {5000}}, 0},
	} {
		const now = 50 * second // the clock is younger than the states
		after, err := restoreCustomers(saved, other, int64(now), wall+test.since*int64(second))
		if err != nil {
			t.Fatal(err)
		}
		for id, want := range test.want {
			c := after.find(id)
			p := &after.plans[c.Plan].Profile
			tc, te := engine.LevelsAt(&bpf.ShaperState{Word: c.Word, Stamp: c.Stamp}, p, now).Tokens(p)
			if (engine.Levels{tc, te}) != want {
				t.Errorf("after %d s: customer %d has %d and %d tokens, want %d", test.since, id, tc, te,
					want)
			}
		}
		if c := after.find(15); c.Word[0] != now+test.delay*second || c.Queue != [3]uint64{} {
			t.Errorf("after %d s: customer 15 %+v, want a delay of %d s", test.since, c, test.delay)
		}
	}
	for i := range saved { // no panic
		for _, b := range []byte{0, 0x80, 0xff} {
			damaged := bytes.Clone(saved)
			copy(damaged[i:], bytes.Repeat([]byte{b}, 8))
			_, _ = restoreCustomers(damaged, other, int64(then), wall)
		}
	}
	for n := range len(saved) {
		if _, err := restoreCustomers(saved[:n], boot, int64(then), wall); !errors.Is(err, errSaved) {
			t.Fatalf("%d bytes: got %v", n, err)
		}
	}
}

// TestRestoreCustomers makes maps from saved customers, of whom one has another plan now and one
// is gone.
func TestRestoreCustomers(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	slow := meter.Rate{Bytes: 1, Period: time.Hour}
	large := &dataplane.ServicePlan{Name: "large", Params: meter.TokenBucket{Rate: slow, Burst: 9000}}
	small := &dataplane.ServicePlan{Name: "small", Params: meter.TokenBucket{Rate: slow, Burst: 1000}}
	image := func(plans ...*dataplane.ServicePlan) *Image {
		var list []dataplane.Customer
		for i, p := range plans {
			list = append(list, dataplane.Customer{Name: fmt.Sprint(i), Plan: p})
		}
		g, err := encoded(kerneltest.CustomerPolicy(list), IngressEntry, "")
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	first := image(large, large, small)
	was := &CustomerTable{plans: first.customerImage.plans}
	for i := range 2 {
		p := &was.plans[0].Profile
		state := engine.Levels{5000 * int64(p.Buckets[0].Den)}.State(uint64(engine.Now()), p)
		was.customers = append(was.customers,
			bpf.ShaperCustomer{Id: CustomerID(fmt.Sprint(i)), Word: state.Word, Stamp: state.Stamp})
	}
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	saved := was.save(boot, engine.Now(), time.Now().UnixNano())
	g := image(large, small, small)
	restored, err := RestoreNow(saved)
	if err != nil {
		t.Fatal(err)
	}
	maps, err := NewMaps()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { maps.Close() }()
	if err := g.Initialize(maps); err != nil {
		t.Fatal(err)
	}
	if err := g.copyCustomers(&record.About{}, nil, maps, restored); err != nil {
		t.Fatal(err)
	}
	after, err := maps.ReadCustomers()
	if err != nil {
		t.Fatal(err)
	}
	var got []int64
	for i := range 3 {
		c := after.find(CustomerID(fmt.Sprint(i)))
		p := &after.plans[c.Plan].Profile
		tokens, _ := engine.LevelsAt(&bpf.ShaperState{Word: c.Word, Stamp: c.Stamp}, p,
			uint64(engine.Now())).Tokens(p)
		got = append(got, tokens)
	}
	if want := []int64{5000, 1000, 1000}; !reflect.DeepEqual(got, want) {
		t.Errorf("tokens %d, want %d", got, want)
	}
}
