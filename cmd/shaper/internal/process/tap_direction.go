package process

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/detach"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/metrics"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

func (t *tapPlane) directions() (out []serviceDirection) {
	for _, sh := range t.list {
		out = append(out, tapDirection{sh, t})
	}
	return out
}

func (t *tapPlane) policyOf(about *kernel.About) (*policyfile.Compiled, error) {
	for _, sh := range t.list {
		if sh.Info().Direction == about.Direction {
			return sh.Policy()
		}
	}
	return nil, live.ErrBusy
}

func (t *tapPlane) policyName() string {
	policy, _ := t.list[0].Policy() // no error
	return policy.Name
}

// read holds the lock of the changes, which reloads and changes need.
func (t *tapPlane) read(_ context.Context, f func([]serviceDirection) error) error {
	t.changer.Lock()
	defer t.changer.Unlock()
	return f(t.directions())
}

func (t *tapPlane) locksToRead() bool { return true }

func (t *tapPlane) set(list []changes.Change) error {
	t.changer.Lock()
	defer t.changer.Unlock()
	return t.changer.Set(list)
}

func (t *tapPlane) commitCustomers(list []*live.PendingCustomers) { t.changer.CommitCustomers(list) }

// The process moves the frames itself: no other process can detach it, replace its policy or need
// its counters, and there is no rollback.

func (t *tapPlane) problemOf(*kernel.About) string      { return "" }
func (t *tapPlane) reloaded(*policyfile.Compiled)       {}
func (t *tapPlane) settle(ctx context.Context) error    { return t.follow(ctx) }
func (t *tapPlane) check(context.Context) (bool, error) { return false, nil }
func (t *tapPlane) dueWithin(time.Duration) bool        { return false }
func (t *tapPlane) settled() bool                       { return true }
func (t *tapPlane) rollBack() (over bool, err error)    { return false, nil }
func (t *tapPlane) expired()                            {}
func (t *tapPlane) keepReadings()                       {}

func (t *tapPlane) try(time.Time) error { return errNoConfirm }
func (t *tapPlane) endTrial(string)     {}

// errNoConfirm is live.ErrNoConfirm for clients of the API.
var errNoConfirm = &control.InputError{Status: http.StatusUnprocessableEntity, Err: live.ErrNoConfirm}

func (t *tapPlane) confirmNow(context.Context, changes.Author) ([]control.Confirmed, error) {
	return nil, errNoConfirm
}

// remove ends the process.
func (t *tapPlane) remove(
	_ context.Context, directions []dataplane.Direction, author changes.Author,
) (*detach.Detached, error) {
	out := detach.New(t.name)
	for _, sh := range t.list {
		about := sh.Info()
		if directions != nil && !slices.Contains(directions, about.Direction) {
			return nil, &control.InputError{
				Status: http.StatusUnprocessableEntity,
				Err:    errors.New("shaper tap shapes both directions: it can end only as a whole"),
			}
		}
		out.Directions = append(out.Directions, detach.Direction{
			Direction: about.Direction.String(), State: detach.Done, Policy: live.PolicyName(about),
		})
	}
	for _, row := range out.Directions {
		t.warn("%s %s: detached by %s", t.name, row.Direction, author)
	}
	t.stop()
	return out, nil
}

func (t *tapPlane) poll() (look <-chan struct{}, stop func()) {
	return poll(func() time.Duration { return live.PollInterval }, nil, nil)
}

// tapDirection is one direction of a tapPlane.
type tapDirection struct {
	*live.LocalTap
	t *tapPlane
}

func (d tapDirection) Handle() live.Handle { return d.LocalTap.Handle(d.t.shares.States(d.Host())) }

// PrepareCustomerPlans does nothing: SetCustomerPlans needs no preparation.
func (d tapDirection) PrepareCustomerPlans() error { return nil }

func (d tapDirection) SaveCustomers() ([]byte, error) { return d.Shaper.SaveCustomers(), nil }

// packetsOf returns the number of packets of a customer; 0 if there is none.
func (d tapDirection) packetsOf(name string) (int64, error) {
	stats := d.Shaper.CustomerNamed(name)
	return stats.Total().Packets, nil
}

func (d tapDirection) CustomerReader() (customerReader, error) { return tapCustomers{d}, nil }

// tapCustomers reads the customers of a tapDirection.
type tapCustomers struct{ d tapDirection }

func (c tapCustomers) Customers() (at int64, list []live.Customer, err error) {
	at = kernel.Now()
	policy := c.d.CustomerPlan(c.d.t.changer)
	if policy == nil {
		return 0, nil, live.ErrNoCustomers
	}
	plan := policy().Plan.Customers
	return at, live.ListCustomers(plan, c.d.Shaper.CustomersOf(plan)), nil
}

func (tapCustomers) Close() {}

func (d tapDirection) reload(policy *policyfile.Compiled, _ time.Time) ([]compiled.ClassChange, error) {
	return d.Reload(policy, policy.Label())
}

func (d tapDirection) observeCustomers(o *metrics.Observation) error {
	o.AddTapCustomers(d.LocalTap, d.t.changer)
	return nil
}
