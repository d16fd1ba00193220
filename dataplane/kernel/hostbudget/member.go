package hostbudget

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync/atomic"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/registry"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/rundir"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"golang.org/x/sys/unix"
)

// Member lets one direction of a plane in user space use the budgets of this host. Its
// packets and those of shapers in the kernel take tokens from the same states. It needs
// CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON. A Member must not be used concurrently.
type Member struct {
	// Notes describe the effects of the last policy on other users of its budgets, one
	// line each.
	Notes []string

	user        registry.User
	clock       func() int64
	clockOffset int64 // from measureOffset, ns
	// shows other processes that this one is alive; taken on first use
	lock     rundir.Lock
	maps     *engine.Budgets               // nil before the first budget
	oldMaps  *engine.Budgets               // maps still used by the policy in force, or nil
	profiles map[string]*bpf.ShaperProfile // of the policy in force, by budget
}

// NewMember returns a member, seen by other users by the name of a device and a direction. clock
// returns the time of the plane's packets, in ns. It must advance like CLOCK_MONOTONIC; its origin
// does not matter. Close the member after the last packet.
func NewMember(device string, direction dataplane.Direction, clock func() int64) *Member {
	return &Member{
		user: registry.User{Process: os.Getpid(), Interface: device, Direction: direction}, clock: clock,
	}
}

// members is the number of members that this process has had.
var members atomic.Uint32

// Join claims the host budgets of a plan, and returns their meters by stage. Its errors are
// those of kernel.Shaper.Reload, such as *ConflictError. Call settle when the new plan is in force:
// it leaves the budgets of the previous plan. Until then other processes cannot change
// their budgets. A meter must not be used concurrently.
func (m *Member) Join(plan *compiled.Plan) (meters map[int]pipeline.Shared, settle func() error, err error) {
	requests, err := m.requests(plan)
	if err != nil {
		return nil, nil, err
	}
	if len(requests) == 0 && m.lock.File == nil {
		return nil, func() error { return nil }, nil
	}
	if err := m.open(); err != nil {
		return nil, nil, err
	}
	claims, err := registry.NewClaims(m.user, requests, false)
	if err != nil {
		return nil, nil, err
	}
	meters, err = m.register(claims)
	if err != nil {
		return nil, nil, errors.Join(err, claims.Unlock())
	}
	return meters, func() error { return m.commit(claims) }, nil
}

// noNote is the reason why a plane in user space cannot charge a packet once.
const noNote = "once needs the note of a charge on the packet, which does not reach user space: leave it out here, or meter in the kernel"

// requests returns the requests for the host budgets of a plan.
func (m *Member) requests(plan *compiled.Plan) (out []*registry.Request, err error) {
	var errs []error
	for _, i := range plan.Budgets() {
		if plan.Stages[i].Leased {
			continue
		}
		if b := plan.Stages[i].Source.Budget; b.Once {
			errs = append(errs, &dataplane.FieldError{Object: b, Field: "count", Reason: noNote})
			continue
		}
		p, err := engine.ProfileOf(&plan.Stages[i])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		request := registry.RequestFor(plan, i, &p)
		request.Previous = m.profiles[request.Name]
		out = append(out, request)
	}
	return out, errors.Join(errs...)
}

// open takes the lock that shows other processes that this one is alive.
func (m *Member) open() (err error) {
	if m.lock.File != nil {
		return nil
	}
	if m.user.Namespace, err = iface.CurrentNamespace(); err != nil {
		return err
	}
	m.clockOffset = measureOffset(m.clock)
	m.user.File = fmt.Sprintf("%s%d-%d", registry.MemberFile, os.Getpid(), members.Add(1))
	// another process may hold it for a moment, in unlocked
	m.lock, err = rundir.TakeLock(m.user.File, unix.LOCK_EX)
	return err
}

// measureOffset returns an upper bound of clock minus the kernel's clock. So a time of clock
// minus the result is never ahead of the kernel's clock, and a packet cannot take tokens
// that do not exist yet.
func measureOffset(clock func() int64) (ns int64) {
	shortest := int64(math.MaxInt64)
	for range 10 {
		before := engine.Now()
		at := clock()
		if took := engine.Now() - before; took < shortest {
			shortest, ns = took, at-before
		}
	}
	return ns
}

// register writes the states of new budgets, opens the maps and writes the member into the
// registry. It returns the meters by stage.
func (m *Member) register(claims *registry.Claims) (meters map[int]pipeline.Shared, err error) {
	if len(claims.List) == 0 {
		return nil, nil
	}
	now := engine.Monotonic()
	for _, claim := range claims.List {
		if claim.IsNew {
			if err := claims.WriteInitialState(claim, now, claim.Initial); err != nil {
				return nil, err
			}
		}
	}
	maps := m.maps
	if maps == nil || maps.ID != claims.Maps[0] {
		if maps, err = engine.OpenBudgets(claims.Opened); err != nil {
			return nil, err
		}
	}
	meters = map[int]pipeline.Shared{}
	for _, claim := range claims.List {
		meters[claim.Stage] = maps.Meter(claim.Record.Slot, m.clockOffset)
	}
	if err = claims.Register(); err != nil {
		if maps != m.maps {
			maps.Close()
		}
		return nil, err
	}
	if maps != m.maps {
		m.maps, m.oldMaps = maps, m.maps
	}
	return meters, nil
}

// commit commits the claims and unlocks the registry.
func (m *Member) commit(claims *registry.Claims) error {
	m.profiles = map[string]*bpf.ShaperProfile{}
	for _, claim := range claims.List {
		m.profiles[claim.Name] = &claim.Profile
	}
	if m.oldMaps != nil {
		m.oldMaps.Close()
		m.oldMaps = nil
	}
	err := claims.Commit()
	m.Notes = claims.Notes()
	return errors.Join(err, claims.Unlock())
}

// Close leaves all budgets. The meters of Join must not be used any more.
func (m *Member) Close() error {
	if m.lock.File == nil {
		return nil
	}
	if m.maps != nil {
		m.maps.Close()
	}
	_, err := registry.ReleaseBudgets(m.user.At(), m.user.Direction, m.user.File)
	return errors.Join(err, m.lock.Close())
}
