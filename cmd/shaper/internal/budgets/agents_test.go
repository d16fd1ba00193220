package budgets

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

// leased records the leases that a shaper gets.
type leased struct {
	lock sync.Mutex
	of   map[string]compiled.Lease
}

func (l *leased) SetLease(budget string, lease compiled.Lease) error {
	l.lock.Lock()
	defer l.lock.Unlock()
	if l.of == nil {
		l.of = map[string]compiled.Lease{}
	}
	l.of[budget] = lease
	return nil
}

func (*leased) Demand(string) (asked [3]uint64, err error) { return asked, nil }

// shareOf returns the rate that a meter may pass now, in bit/s.
func (l *leased) shareOf(budget string) int64 {
	l.lock.Lock()
	defer l.lock.Unlock()
	return l.of[budget].Limits[0][0].Rate
}

// TestSharesPrepare checks that a new budget in a reload has its share as soon as the policy
// is in force, and loses it if the reload does not happen.
func TestSharesPrepare(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "store")
	storetest.Start(t, storetest.Kinds(t)[0], storetest.Config("unixsocket "+socket))
	of := func(budgets ...string) Host {
		p := &dataplane.Policy{}
		for _, name := range budgets {
			m := &dataplane.Meter{Name: name, Params: meter.TokenBucket{
				Rate: meter.BitRate(8e6), Burst: 1 << 20,
			}, Budget: &dataplane.Budget{
				Name: name, Address: dataplane.Address{URL: "unix://" + socket},
			}}
			p.Classes = append(p.Classes, dataplane.Class{Name: name, Meter: m})
		}
		plan, err := compiled.Compile(p)
		if err != nil {
			t.Fatal(err)
		}
		return Host{Plan: plan, Name: "host"}
	}
	s := New(kernel.Now, t.Logf)
	defer s.End(true)
	ctx, shaper := context.Background(), &leased{}
	follow := func(list Host) {
		t.Helper()
		if err := s.Follow(ctx, []Host{list}, []Leaser{shaper}); err != nil {
			t.Fatal(err)
		}
	}
	names := func() (out []string) {
		for _, b := range s.States("host") {
			out = append(out, b.Name)
		}
		return out
	}
	prepare := func(list Host) {
		t.Helper()
		if err := s.Prepare(ctx, list); err != nil {
			t.Fatal(err)
		}
	}
	follow(of("a"))
	brought := false
	for try := range 5 { // a machine may be so busy that a share takes longer than a second
		b := fmt.Sprint("b", try)
		prepare(of("a", b))
		if shaper.shareOf(b) != 0 {
			t.Error("a policy that is not in force gave a meter a share")
		}
		follow(of("a", b))
		if brought = shaper.shareOf("a") > 0 && shaper.shareOf(b) > 0; brought {
			break
		}
	}
	if !brought {
		t.Error("a policy that is in force gave a meter no share")
	}
	prepare(of("a", "c"))
	if got := names(); !slices.Contains(got, "c") {
		t.Errorf("before the reload: got budgets %v, want c among them", got)
	}
	follow(of("a"))
	if got := names(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("after a refused reload: got budgets %v, want only a", got)
	}
}
