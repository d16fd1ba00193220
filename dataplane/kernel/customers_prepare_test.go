package kernel

import (
	"errors"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/rundir"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestPrepareCustomerPlans checks that a change uses the index that was prepared for the attached
// policy, and that preparing it does not wait for a lock.
func TestPrepareCustomerPlans(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	service := &dataplane.ServicePlan{
		Name: "plan", Params: meter.TokenBucket{Rate: meter.BitRate(1e6), Burst: 1000},
	}
	plan := kerneltest.Compiled(t,
		kerneltest.CustomerPolicy([]dataplane.Customer{{Name: "a", Plan: service}}))
	w := nettest.NewWire(t)
	w.Do(func() error {
		s, _, err := Attach(Config{Interface: "v0", Direction: Ingress, Hook: TC}, plan)
		if err != nil {
			return err
		}
		defer s.Close()
		defer func() { _ = s.Detach() }()
		lock, err := rundir.TakeChangeLock(s.Identity())
		if err != nil {
			return err
		}
		if err := errors.Join(s.PrepareCustomerPlans(), lock.Close()); err != nil || s.index != nil {
			t.Errorf("locked: prepared %v, error %v", s.index != nil, err)
		}
		for _, policy := range []string{"attached", "reloaded"} {
			if err := s.PrepareCustomerPlans(); err != nil {
				return err
			}
			prepared := s.index
			change := []compiled.CustomerService{{Name: "a", Plan: plan.Customers.Service(1)}}
			if err := s.SetCustomerPlans(change, nil); err != nil {
				return err
			}
			if prepared == nil || s.index != prepared || !prepared.Loaded.Equal(s.Loaded) {
				t.Errorf("%s: the change read the customers again", policy)
			}
			if _, err := s.Reload(plan, nil, time.Time{}); err != nil {
				return err
			}
		}
		return nil
	})
}
